"""The interface of an objective: what it needs from rows, model, tokenizer and Trainer, and what its released models answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

from params import Problem, RecipeError
from params.defaults import ObjectiveDefaults
from params.schema import Launch, Model, Training
from params.sections.rows import Expectation
from trainer.objectives.advice.base import NewRecipeAdvice
from trainer.objectives.bases import row_content
from trainer.objectives.bases import rows as row_checks
from trainer.objectives.bases.labels.names import as_learned
from trainer.objectives.bases.lazy_imports import NDArray, PreTrainedModel, np, torch, transformers
from trainer.objectives.bases.loss import BatchLoss, MicroBatchShare, compute_rescaled_model_loss
from trainer.objectives.bases.metrics.metric import Metric, Sums, from_table, to_table
from trainer.objectives.bases.release_reading import OptionsT, ReleaseReading
from trainer.objectives.bases.rows import (
    ColumnKind,
    EncodedRow,
    Example,
    ObjectiveState,
    PromptForm,
    Row,
    RowBreakdown,
    ScoreColumns,
)
from trainer.objectives.bases.scored_batch import ScoredBatch
from trainer.objectives.bases.texts.padding import count_labels, pad_batch, token_column_names
from trainer.objectives.bases.texts.tokenizing import Tokenizer
from trainer.objectives.bases.vectors.space import VectorSpace

__all__ = [
    "ColumnKind",
    "EncodedRow",
    "Example",
    "Objective",
    "ObjectiveState",
    "OptionsT",
    "PromptForm",
    "Row",
    "ScoreColumns",
]


class Objective(ReleaseReading[OptionsT], ABC):
    """One way to learn from rows: how they become batches, what the model and its loss are, and how it is scored."""

    metrics: ClassVar[Mapping[str, Metric]]
    """The metrics by name (`bases.metrics.metric.named`); options may decide which."""
    main_metric: ClassVar[str]
    """The metric that decides whether a model is published, unless the recipe names another."""
    cut_texts_are_easier: ClassVar[bool] = True
    """Whether a model that reads only a part of a row is asked for less; false where it has to give the same answer."""
    group_score: ClassVar[str | None] = None
    """The score that groups rows, such as the number of a query: a row is a sequence, and statistics and resamples take whole groups."""
    group_columns: Sequence[str] = ()
    """The columns whose equal values make rows a group, such as that of the query: `data.group_by` keeps them in one split."""
    batch_group: str | None = None
    """The name of an integer of each `Example`, such as a query's number: those with the same one share a global batch, if it has room."""
    instead_of_own_metrics: ClassVar[str] = "remove evaluation.metrics, or write `score_outputs` in the objective"
    """What to do where a recipe can have no metrics of its own."""
    example_counts: ClassVar[tuple[str, ...]] = ()
    """Integers of an `Example` that the evaluate stage keeps with the scores, such as `bytes`."""
    auto_class: ClassVar[str] = "AutoModelForCausalLM"
    """The Auto class of transformers with the right head."""
    unfit_model_types: ClassVar[Mapping[str, str]] = {}
    """Types of models whose head computes something else than a release would answer, each with the reason: `check` refuses them."""
    has_target_text: ClassVar[bool] = False
    """Whether `labels` are the tokens of a second text, such as a translation, instead of one label per input token."""
    smooths_labels: ClassVar[bool] = False
    """Whether `batch_loss` heeds `label_smoothing_factor`; a recipe with it is refused if not."""
    trainer_class: ClassVar[str] = "rows"
    """What its Trainer works on, by the names of trainer/loop/extensions.py; or a Trainer subclass, as `package.module:Class`."""
    vector_space: ClassVar[VectorSpace | None] = None
    """What the vectors of texts are, if the model makes some: `score_batch` measures them."""
    defaults: ClassVar[ObjectiveDefaults] = ObjectiveDefaults()
    """Values of a recipe that does not give them."""
    advice: ClassVar[NewRecipeAdvice | str] = "has no `advice`, from which a recipe could be written"
    """What `evergreen new` writes, or why it cannot propose this objective."""
    example_rows: ClassVar[tuple[Row, ...]]
    """Two or three raw rows, for readers and for the contract tests; their columns fit the default options."""

    # Rows

    @abstractmethod
    def columns(self) -> Mapping[str, ColumnKind]:
        """Return the columns that every row must have, and what each holds."""

    def expectations(self, text_columns: Collection[str]) -> list[Expectation]:
        """Return the checks that rows must pass; `text_columns` are those of the source that hold text."""
        return row_checks.expect_columns(self.columns(), text_columns)

    def reject_reason(self, row: Row) -> str | None:
        """Return why a row with valid columns is unusable: it is set aside. If a chat template renders rows, the tokenizer is prepared before."""
        return row_checks.why_columns_unusable(self.columns(), row)

    def row_check_settings(self) -> Any:
        """Return what else `reject_reason` depends on beside the options, as JSON, such as a chat template."""
        return None

    def content(self, row: Row) -> Mapping[str, Any]:
        """Return what tells a row from others, by column, as JSON: rows with the same content are one row (`bases.row_content`).

        A column whose value is in that of another one, or that is `beside_content`, is None.
        """
        kinds = self.columns()
        found = row_content.read_columns(kinds, row, self.learned_label)
        lists = [name for name, kind in kinds.items() if kind == "labels"]
        learns_sets = type(self).row_labels is not Objective.row_labels and "label" not in kinds.values()
        if learns_sets and len(lists) == 1:  # neither order nor number of the labels says anything
            found[lists[0]] = sorted({self.learned_label(label) for label in self.row_labels(row)})
        return {**found, **dict.fromkeys(self.beside_content)}

    @property
    def beside_content(self) -> Sequence[str]:
        """The columns that make no row another one, such as its negatives: who has learned a query with its positive knows the row."""
        return ()

    def target_columns(self) -> Collection[str]:
        """Return the columns that a model learns to say of a row and is not given, such as a label, and those that only say how much it counts.

        Empty where the answer is the row, such as a completion: a prompt has several. By default by what the columns hold.
        """
        return row_checks.label_columns(self.columns())

    def input_content(self, row: Row) -> Mapping[str, Any]:
        """Return the `content` that a model is given: a row with a corrected label has the same."""
        targets = self.target_columns()
        return {name: value for name, value in self.content(row).items() if name not in targets}

    def learned_label(self, label: str) -> str:
        """Return a label as it is learned: the same for two labels that `state_of` takes as one but for white space at their ends."""
        if type(self).row_labels is Objective.row_labels:
            return label.strip()
        return as_learned(label, self.state_of)

    def row_labels(self, row: Row) -> Iterable[str]:
        """Return the labels in a row of the train split that encoding needs, as they stand there; `state_of` says which are one."""
        return ()

    def state_of(self, labels: Collection[str]) -> ObjectiveState:
        """Return what encoding needs to know about the whole train split, whose rows have these `row_labels`."""
        return {}

    def summarize(self, rows: Iterable[Row]) -> Any:
        """Return what `state_of_summaries` needs of a part of the train split; by default the `row_labels`."""
        return {label for row in rows for label in self.row_labels(row)}

    def state_of_summaries(self, summaries: Iterable[Any]) -> ObjectiveState:
        """Return what encoding needs to know about the train split, from the summaries of its parts, in their order."""
        return self.state_of(set[str]().union(*summaries))

    def collect_state(self, rows: Iterable[Row]) -> ObjectiveState:
        """Return the same from the rows of the train split."""
        return self.state_of_summaries([self.summarize(rows)])

    def unseen_label(self, row: Row, state: ObjectiveState) -> str | None:
        """Return which label of a row the train split lacks, as a message. The validate stage sets the row aside, or fails."""
        own = {self.learned_label(label) for label in self.row_labels(row)}
        unknown = sorted(own - {*state.get("labels", ())})
        return f"no training row has the label {', '.join(map(repr, unknown))}" if unknown else None

    # The rest of the recipe

    def conflicts(self, *, model: Model, training: Training, launch: Launch) -> Iterable[Problem]:
        """Return what in other sections of the recipe does not work with this objective and its options."""
        if training.arguments.get("label_smoothing_factor") and not self.smooths_labels:
            key = ("training", "arguments", "label_smoothing_factor")
            own = "label_smoothing" in self.options_class.model_fields
            fix = "set objective.label_smoothing instead" if own else "remove it"
            yield Problem(key, "has no effect on this objective's loss", fix)

    def models(self) -> Mapping[tuple[str | int, ...], str]:
        """Return the folders and repositories (`owner/name@commit`) of further models that it reads, by the keys of the recipe that name them."""
        return {}

    def find_model_problems(self) -> Iterable[Problem]:
        """Return what is wrong with these models, for `evergreen check`; it may ask a Hub. A training says it when it loads them."""
        return ()

    def remarks(self, model: Model) -> Iterable[str]:
        """Return what `evergreen check` says about this recipe where it does not say so itself."""
        return ()

    # From rows to batches

    def prepare_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Change the tokenizer before it is used and saved; raise an EvergreenError if it cannot be used."""

    @abstractmethod
    def text(self, row: Row) -> str:
        """Return a row's text as the tokenizer sees it, without special tokens."""

    def texts(self, row: Row) -> Sequence[str]:
        """Return the texts that a model reads of a row by themselves; `text` has all of them."""
        return (self.text(row),)

    def input_text(self, row: Row) -> str:
        """Return what of a row's columns a model is given, without what options add, such as a prefix: a corrected target does not change it."""
        return self.text(row)

    @abstractmethod
    def encode(
        self, rows: Sequence[Row], tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[EncodedRow]:
        """Tokenize each row by itself into sequences of at most `max_length` tokens; a ValueError, KeyError or TypeError: it cannot be encoded."""

    def encode_training(
        self, rows: Sequence[Row], tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[EncodedRow]:
        """As `encode`, for rows of the train split; what `pack` drops may be missing."""
        return self.encode(rows, tokenizer, max_length, state)

    def pack(self, examples: Iterable[Example], max_length: int) -> Iterator[Example]:
        """Yield the sequences to train on; by default the examples as they are."""
        yield from examples

    def augmentation(self, tokenizer: Tokenizer) -> Callable[[Example], Example] | None:
        """Return what changes a training sequence anew in each epoch, by random numbers of seed, epoch and sequence; None if nothing."""
        return None

    def length(self, example: Example) -> int:
        """Return the tokens of an example as a model reads it: those of all its texts."""
        return sum(len(example[name]) for name in token_column_names(example))

    def collate(self, examples: Sequence[Example], tokenizer: Tokenizer) -> dict[str, torch.Tensor]:
        """Pad B examples into a batch: `input_ids` and `attention_mask` (B, T), and `labels` as model or Trainer expects."""
        return pad_batch(examples, tokenizer)

    def says_all(self, row: Row, examples: Sequence[Example], tokenizer: Tokenizer) -> bool:
        """Whether the labels of a row's sequences say all that the row asks for; what a template leaves out, no model has to."""
        return True

    def renders_conversations(self) -> bool:
        """Whether rows are rendered by a chat template."""
        return False

    def reserved_positions(self) -> int:
        """Return how many positions of the model a sequence leaves free, for tokens that are generated after it."""
        return 0

    # Model and training

    def model_class(self) -> type[PreTrainedModel]:
        """Return the class that `auto_class` names."""
        return cast("type[PreTrainedModel]", getattr(transformers, self.auto_class))

    def model_config(self, state: ObjectiveState) -> dict[str, Any]:
        """Return model configuration keys that follow from the data, such as `num_labels`."""
        return {}

    def config_from_validation(self, scores: ScoreColumns, state: ObjectiveState) -> dict[str, Any]:
        """Return keys of a trained model's config.json that follow from its scores of the validation split, such as thresholds."""
        return {}

    def prepare_model(
        self, model: PreTrainedModel, tokenizer: Tokenizer, state: ObjectiveState, new: Collection[str]
    ) -> None:
        """Set what else of a model before training follows from tokenizer or data; `new` are the weights that no base model has."""

    def check_model(self, model: PreTrainedModel) -> None:
        """Raise a RecipeError if this model cannot be trained; for what only the built model can show."""

    def loss_items(self, batch: Mapping[str, Any]) -> torch.Tensor:
        """Return how many items of a batch its loss is a mean over: by default its labels."""
        return count_labels(batch)

    def batch_loss(self, model: Any, batch: Mapping[str, Any], share: MicroBatchShare) -> BatchLoss:
        """Return what a micro-batch adds to the mean loss of its global batch; by default by the model's own loss, a mean."""
        return compute_rescaled_model_loss(model, batch, share, self.loss_items(batch))

    @property
    def label_name(self) -> str:
        """What of a batch the `global_loss` of a whole global batch gets as labels (trainer.loop.global_batch_trainer)."""
        return "labels"

    def prepare_inputs(self, model: PreTrainedModel, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add to a batch what depends on the model, such as `decoder_input_ids`; called once per batch."""
        return batch

    def set_reference(self, start: Callable[[], PreTrainedModel]) -> None:
        """Called before `score_batch` outside of training; `start` returns the model as it was before training."""

    # Scores and metrics

    def with_inputs_of(self, example: Example, other: Example) -> Example | None:
        """Return an example with its labels and the inputs of another row; None if its labels are parts of its inputs, such as next tokens.

        A model that knows something of its rows is worse on such examples: a first release must be (tasks.measurements.other_rows.pairing).
        """
        return None

    @abstractmethod
    def score_names(self, state: ObjectiveState) -> Sequence[str]:
        """Return the names of the K scores of each sequence. The scores of a row's sequences add up to the row's."""

    def score_batch(self, model: PreTrainedModel, batch: Mapping[str, Any], tokenizer: Tokenizer) -> torch.Tensor:
        """Return the scores of a model on a batch: (B, K) float64, one row per sequence, columns as in `score_names`.

        An objective overrides this, or `score_outputs`, which also serves own metrics.
        """
        return self.score_outputs(model, batch, tokenizer).scores

    def score_outputs(self, model: PreTrainedModel, batch: Mapping[str, Any], tokenizer: Tokenizer) -> ScoredBatch:
        """Return the same scores with the outputs and labels that they follow from, for the recipe's own metrics.

        Raises:
            RecipeError: the objective has none.
        """
        what = f"{type(self).__name__} {self.why_no_own_metrics()}"
        raise RecipeError("evaluation.metrics", what, self.instead_of_own_metrics)

    @classmethod
    def why_no_own_metrics(cls) -> str | None:
        """Return why a recipe can have no `evaluation.metrics`; None if it can."""
        if cls.score_outputs is not Objective.score_outputs:
            return None
        return "does not say what outputs and labels a function of yours would get"

    def scores_of_split(
        self, measured: NDArray[np.float64], state: ObjectiveState, documents: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """Return the scores (N, K) of a split's rows; where they depend on others, both, and `documents` (V, L), were only measured, (N, M)."""
        return measured

    def statistics(self, scores: ScoreColumns, state: ObjectiveState) -> Sums:
        """Return numbers of each of N sequences by name, (N,) or (N, ...), whose sums over any set of rows determine the `metrics`.

        By default `rows`, which are ones, and the scores. `scores` are `score_names` and the known `example_counts`. One row of a group may have
        its numbers, others zeros (`bases.rows.group_statistics`).
        """
        own = {name: scores[name] for name in self.score_names(state)}
        return {"rows": np.ones(len(next(iter(own.values())))), **own}

    def additive_statistics(self, scores: ScoreColumns, state: ObjectiveState) -> NDArray[np.float64]:
        """Return the `statistics` of N sequences as a table, (N, S), which can be summed and weighted."""
        return to_table(self.statistics(scores, state))

    def sums(self, totals: NDArray[np.float64], state: ObjectiveState) -> Sums:
        """Return `additive_statistics`, or sums of them, (..., S), by name, (...) or (..., ...)."""
        of_one_row = {name: np.ones(1) for name in (*self.score_names(state), *self.example_counts)}
        return from_table(totals, self.statistics(of_one_row, state))

    def compute_metrics(self, totals: NDArray[np.float64], state: ObjectiveState) -> dict[str, NDArray[np.float64]]:
        """Return the metrics, each (...), of `additive_statistics` summed over rows, (..., S), as far as these say them."""
        sums = self.sums(totals, state)
        values = {name: metric.value(sums) for name, metric in self.metrics.items() if metric.value}
        return {name: value for name, value in values.items() if value is not None}

    def whole_metrics(self, scores: ScoreColumns) -> dict[str, float]:
        """Return the metrics of N rows that no sums determine."""
        return {name: metric.value_of_all(scores) for name, metric in self.metrics.items() if metric.value_of_all}

    def right_rows(self, scores: ScoreColumns) -> NDArray[np.bool_] | None:
        """Return which of N rows the model gets right, (N,), for `evaluation.suites`; None if the scores do not say that."""
        right = next((metric.right for metric in self.metrics.values() if metric.right), None)
        return right(scores) if right else None

    @property
    def judges_rows(self) -> bool:
        """Whether `right_rows` says which rows a model gets right, with these options."""
        return self.judges_some_rows()

    @classmethod
    def judges_some_rows(cls) -> bool:
        """Whether `right_rows` may say it, with some options."""
        return any(metric.right for metric in cls.metrics.values()) or cls.right_rows is not Objective.right_rows

    def row_error(self, scores: ScoreColumns) -> NDArray[np.float64]:
        """Return how badly the model does on each of N rows, (N,); by default the first score, per token."""
        return next(iter(scores.values())) / scores.get("tokens", 1)

    def own_slices(self) -> Mapping[str, Callable[[Row], str]]:
        """Return what the report shows the main metric by, beside the recipe's slices, and what names the part of a row: `3 to 4 words`.

        A name begins with a whole number, which says its place.
        """
        return {}

    def confidence(self, scores: ScoreColumns) -> NDArray[np.float64] | None:
        """Return how sure the model is of each of N rows, (N,) from 0 to 1, whatever their labels are; None if the scores do not say."""
        return None

    def breakdowns(self, scores: ScoreColumns) -> Sequence[RowBreakdown]:
        """Return groups of N rows whose means the report shows, such as the error by tenths of the true number."""
        return ()

    def remap_labels(self, model: PreTrainedModel, state: ObjectiveState) -> PreTrainedModel:
        """Return a model from another run whose outputs mean the labels of this run's `state`; this objective then scores it."""
        return model
