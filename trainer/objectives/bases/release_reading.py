"""How a released model reads rows, and what people see of its answers: the part of an objective's interface about releases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

from params.sections.base import Section
from trainer.column_template import names_columns
from trainer.objectives.bases.lazy_imports import PreTrainedModel
from trainer.objectives.bases.rows import Example, ObjectiveState, PromptForm, Row
from trainer.objectives.bases.texts.tokenizing import Tokenizer

OptionsT = TypeVar("OptionsT", bound=Section)


class ReleaseReading(Generic[OptionsT]):
    """What a release does with rows as its model card says, and how an objective's options stand to it."""

    options_class: ClassVar[type[Section]]
    """The keys that the recipe's `objective` section takes in addition to `name`."""
    own_options: ClassVar[frozenset[str]] = frozenset()
    """Options that belong to a model, such as a prefix or how long its answers may be: a released model keeps those that it learned by."""
    prompt_option: ClassVar[str | None] = None
    """The option that is a column or a template of columns. A template belongs to a model, a column to the rows."""
    limits: ClassVar[frozenset[str]] = frozenset()
    """Options that limit a text in tokens; null stands for `tokenization.max_length`."""
    pipeline_tag: ClassVar[str] = "text-generation"
    """The Hub's name of the task, for the model card."""
    served_scores: tuple[str, ...] = ()
    """Which of `score_names` follow from the probabilities of one model for one row: whoever loads a release can compute them."""
    reader_cuts: ClassVar[bool] = False
    """Whether the call on the model card cuts a text that is longer than the tokenizer's limit, as `encode` does."""
    reader_strides: ClassVar[bool] = False
    """Whether that call reads such a text in windows that overlap, which `encode` splits."""
    release_format: ClassVar[ReleaseFormat | None] = None
    """How another library than transformers loads a release."""

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    @property
    def reads_as_its_release(self) -> bool:
        """Whether the limit of a release decides how much of a text is read: its card's call cuts a longer one, or splits it."""
        return self.reader_cuts or self.reader_strides

    @property
    def generates_as_released(self) -> bool:
        """Whether a release generates a text for a row: the call on its card, of `reader_input`."""
        return self.pipeline_tag == "text-generation" and type(self).reader_input is not ReleaseReading.reader_input

    @property
    def answers_rows(self) -> bool:
        """Whether the model gives a row a text: that, or `prediction_lines`."""
        return self.generates_as_released or type(self).prediction_lines is not ReleaseReading.prediction_lines

    def as_released(self, options: Mapping[str, Any] | None) -> Self:
        """Return this objective as a released model reads rows; ValueError if the model cannot read these as it learned to read.

        `options` are those that the model learned by; None if it does not say, or learned by another objective. The model keeps its
        `own_options` and `limits`. The others say where a row's texts are and how they are scored.
        """
        own = self.own_options | self.limits if options is not None else frozenset()
        if (name := self.prompt_option) and options is not None:
            prompts = [str(getattr(self.options, name)), str(options.get(name, ""))]
            own |= {name} if any(map(names_columns, prompts)) else set()
        known = self.options_class.model_fields  # null has a meaning of its own, and what is not given the default
        defaults = {name: known[name].get_default(call_default_factory=True) for name in own}
        return self.with_options({name: (options or {}).get(name, defaults[name]) for name in own})

    def with_options(self, changes: Mapping[str, Any]) -> Self:
        """Return this objective with some options changed."""
        options = {**self.options.model_dump(exclude_unset=True), **changes}
        return type(self)(self.options_class.model_validate(options))  # type: ignore[arg-type]

    @classmethod
    def prompt_form(cls, options: Mapping[str, Any]) -> PromptForm:
        """Return how a text is put to a model that learned by these options, in a release anything; by default as a user's message to one that generates text."""
        return PromptForm(is_chat=cls.pipeline_tag == "text-generation")

    @property
    def call_arguments(self) -> Mapping[str, Any]:
        """Arguments of the call on the model card, with which a release answers as it was evaluated."""
        is_generated = self.pipeline_tag in {"text-generation", "text2text-generation"}
        return {"max_new_tokens": 64, "do_sample": False} if is_generated else {}

    def card_input(self, read_tokenizer: Callable[[], Tokenizer]) -> str:
        """Return what the call on the card of a classifier is given, as Python code."""
        return '"The text to classify."'

    def reader_input(self, row: Row) -> Any:
        """Return what a reader of the model card gives the model for a row: a text, or a conversation; None if nothing."""
        return None

    def reader_arguments(self, row: Row) -> Mapping[str, Any]:
        """Return what the call is given beside `reader_input` and `call_arguments`, such as the tools of a row."""
        return {}

    def expected_answer(self, row: Row) -> str | None:
        """Return what a reader is to get for a row, where `evaluation.suites` compare generated texts; None if the row does not say it."""
        return None

    def answer_scores(
        self, ask: Callable[..., Any], row: Row, example: Example, tokenizer: Tokenizer
    ) -> Mapping[str, float]:
        """Return those scores of a row, by name, that follow from what a release answers to the call on its model card.

        `ask` makes that call with an input, `call_arguments` and further ones. It returns what the pipeline does, of text generation all
        tokens, the prompt's first. `example` is the row's only sequence, as evaluated. ValueError if the call gives another prompt.
        """
        return {}

    def describe_scores(self, scores: Mapping[str, float], state: ObjectiveState) -> dict[str, str]:
        """Return readable facts about one row's scores: `{"expected": "bye", "predicted": "greeting"}`."""
        return {}

    def prediction_lines(
        self, row: Row, model: PreTrainedModel, tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[str]:
        """Return the model's prediction for a row as lines of text."""
        return []


class ReleaseFormat(NamedTuple):
    """How another library loads a release."""

    library: str
    """Its name on the Hub, as `library_name` of a model card."""
    write_files: Callable[[Path], None]
    """Adds to a complete folder of a model and its tokenizer what the library needs."""
    code: Callable[[str, Path], str]
    """Returns the code of the model card, for a repository, and the folder of its model."""
