"""The interface of an objective: what it needs of rows, model, tokenizer and Trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from params import Problem
from params.schema import Direction, Expectation, Launch, Model, Section, Training

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import torch
    from numpy.typing import NDArray
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


Row = Mapping[str, Any]
"""A row of the validated data, by column."""


Example = dict[str, Any]
"""Tokens of one sequence: its `row_id`, `input_ids` (T integers) and, where the loss needs them, `labels` (T integers or,
for a class, one); further values are lists of integers, numbers or text."""


State = Mapping[str, Any]
"""What an objective learned from the train split before tokenizing, as JSON; for example the label names."""


OptionsT = TypeVar("OptionsT", bound=Section)


Kind = Literal["string", "label", "list"]
"""What a column holds: text; text or integers; a list of records."""


Scores = Mapping[str, "NDArray[np.float64]"]
"""Figures of N sequences or rows by name, each (N,)."""


class Meter:
    """Figures over any number of rows in constant memory."""

    def __init__(self, objective: Objective[Any], state: State) -> None:
        self._objective, self._state = objective, state
        self._totals: Any = 0.0

    def update(self, scores: torch.Tensor) -> None:
        """Take in per-sequence scores (B, K), in the order of `Objective.score_names`."""
        columns = dict(zip(self._objective.score_names, scores.double().cpu().numpy().T, strict=True))
        self._totals = self._totals + self._objective.totals(columns, self._state).sum(0)

    def compute(self) -> dict[str, float]:
        """The metrics of all rows so far, by the names in `Objective.metrics`."""
        return {name: float(value) for name, value in self._objective.compute(self._totals, self._state).items()}


class Objective(ABC, Generic[OptionsT]):
    """One way to learn from rows."""

    options_class: ClassVar[type[Section]]
    """The keys that the recipe's `objective` section takes beside `name`."""
    metrics: ClassVar[Mapping[str, Direction]]
    """The metrics it computes, and whether the smallest or the largest is best."""
    held_out_metrics: ClassVar[Mapping[str, Direction]] = {}
    """Those that the evaluate stage computes beside them."""
    main_metric: ClassVar[str]
    """The metric that decides whether a model is published, unless the recipe names another."""
    per_token: ClassVar[frozenset[str]] = frozenset()
    """Metrics that do not compare between models with different tokenizers."""
    score_names: ClassVar[tuple[str, ...]]
    """The K figures that are kept of each sequence. Those of a row of several sequences add up to the row's."""
    example_figures: ClassVar[tuple[str, ...]] = ()
    """Integers of an encoded example that the evaluate stage keeps beside the scores."""
    trainer_class: ClassVar[str] = "trainer.loop.trainer:EvergreenTrainer"
    """The Trainer that trains it, as `package.module:Class`: a name, so that objectives do not import the training loop."""
    pipeline_tag: ClassVar[str]
    """The Hub's name of the task, for the model card."""
    has_targets: ClassVar[bool] = False
    """Whether `labels` are a text of their own, such as a translation, and not one for each of `input_ids`."""
    examples: ClassVar[tuple[Row, ...]]
    """Two or three rows as they come in, for readers and for the contract tests; columns as in the default options."""

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    @abstractmethod
    def columns(self) -> Mapping[str, Kind]:
        """The columns that every row must have, and what they hold."""

    def expectations(self, train: pd.DataFrame) -> list[Expectation]:
        """Checks that the rows must pass for this objective; `train` is the raw train split."""
        checks = []
        for column, kind in self.columns().items():
            checks.append(Expectation(type="expect_column_values_to_not_be_null", column=column))
            if kind == "string":
                checks.append(Expectation(type="expect_column_values_to_match_regex", column=column, regex=r"\S"))
        return checks

    def reject_reason(self, row: Row) -> str | None:
        """Why a row cannot be used although each of its columns is as it should be; such a row is set aside."""
        return None

    def unseen(self, row: Row, state: State) -> str | None:
        """What of a row the train split never shows, so that it cannot be predicted; it ends the validate stage."""
        return None

    def conflicts(self, *, model: Model, training: Training, launch: Launch) -> Iterable[Problem]:
        """What in other sections of the recipe does not go with this objective and its options."""
        return ()

    def prepare_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Change the tokenizer before anything is encoded and before it is saved; raise what makes it unfit."""

    def try_model(self, model: PreTrainedModel) -> None:
        """Raise a RecipeError if this model cannot be trained so, which only the model itself can show."""

    @abstractmethod
    def text(self, row: Row) -> str:
        """The text of a row as the tokenizer sees it, without special tokens."""

    def fit(self, rows: Iterable[Row]) -> State:
        """What must be known of the whole train split before a row can be encoded."""
        return {}

    @abstractmethod
    def encode(self, row: Row, tokenizer: PreTrainedTokenizerBase, max_length: int, state: State) -> list[Example]:
        """The sequences that a row becomes, each of at most `max_length` tokens."""

    def truncates(
        self, row: Row, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, max_length: int
    ) -> bool:
        """Whether the row's sequences lack some of it; by default, whether one of full length holds not all its text."""
        if len(examples) != 1 or len(examples[0]["input_ids"]) < max_length:
            return False
        return len(tokenizer(self.text(row), verbose=False)["input_ids"]) > max_length

    def pack(self, examples: Iterable[Example], max_length: int) -> Iterator[Example]:
        """The sequences that training sees, made from the encoded ones; packing happens here."""
        yield from examples

    @abstractmethod
    def collate(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
        """A padded batch: `input_ids` and `attention_mask` (B, T), and `labels` as the model or the Trainer takes them."""

    @abstractmethod
    def model_class(self) -> type[PreTrainedModel]:
        """The transformers Auto class with the right head."""

    def model_config(self, state: State) -> dict[str, Any]:
        """Configuration keys that follow from the data, for example the number of labels."""
        return {}

    def loss(self, training: Training) -> Callable[..., Any] | None:
        """Trainer's `compute_loss_func`, where the model's own loss is not the mean over a global batch's labels."""
        return None

    def inputs(self, model: PreTrainedModel, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """A batch as the model takes it, with what only the model can tell, such as where its decoder starts."""
        return batch

    def set_reference(self, start: Callable[[], PreTrainedModel]) -> None:
        """Called before `measure` where nothing trains; `start` gives the model as it was before training, to compare with."""

    @abstractmethod
    def measure(
        self, model: PreTrainedModel, batch: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase
    ) -> torch.Tensor:
        """What a model makes of a batch: (B, K) float64 figures, one row per sequence; see `score_names`."""

    @abstractmethod
    def totals(self, scores: Scores, state: State) -> NDArray[np.float64]:
        """What of N sequences can be summed, (N, S): all figures follow from the sums, those of any part of the rows too.

        `scores` has each of `score_names`, and of `example_figures` what is known.
        """

    @abstractmethod
    def compute(self, totals: NDArray[np.float64], state: State) -> dict[str, NDArray[np.float64]]:
        """The metrics, each (...), of totals (..., S) that were summed over rows."""

    def meter(self, state: State) -> Meter:
        """A fresh accumulator of per-sequence figures."""
        return Meter(self, state)

    def outcomes(self, metric: str, scores: Scores) -> NDArray[np.bool_] | None:
        """Whether each of N rows counts as right, (N,), where `metric` is the share of such rows."""
        return None

    def row_error(self, scores: Scores) -> NDArray[np.float64]:
        """How badly the model does on each of N rows, (N,), to list the worst; by default the first score, per token."""
        return scores[self.score_names[0]] / scores.get("tokens", 1)

    def notes(self, scores: Mapping[str, float], state: State) -> dict[str, str]:
        """What to say for people of one row's scores, beside the scores themselves."""
        return {}

    def calibration(self, totals: NDArray[np.float64], state: State) -> list[dict[str, float]]:
        """For each bin of confidence its mean, the share that was right, and the rows; of summed totals (S,)."""
        return []

    def remap_labels(self, model: PreTrainedModel, state: State) -> PreTrainedModel:
        """A model that another run has trained, so that it answers in the terms of this run's `state`."""
        return model

    def answer(
        self, row: Row, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int, state: State
    ) -> list[str]:
        """What the model makes of a row, in lines for people."""
        return []
