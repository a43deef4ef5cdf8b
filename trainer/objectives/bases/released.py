"""The part of an objective that is about released models: how they read rows, and what they answer whoever loads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from params.schema import Section
from trainer.objectives.bases.prompt_form import PromptForm
from trainer.objectives.bases.rows import Example, ObjectiveState, Row

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

OptionsT = TypeVar("OptionsT", bound=Section)


class Released(Generic[OptionsT]):
    """How the models of an objective are used once they are released."""

    options_class: ClassVar[type[Section]]
    """The keys that the recipe's `objective` section takes in addition to `name`."""
    own_options: ClassVar[frozenset[str]] = frozenset()
    """Options that belong to a model, such as a prefix or how long its answers may be: a released model keeps those that it learned by."""
    limits: ClassVar[frozenset[str]] = frozenset()
    """Options that limit a text in tokens; null stands for `tokenization.max_length`."""
    pipeline_tag: ClassVar[str] = "text-generation"
    """The Hub's name of the task, for the model card."""
    served_scores: ClassVar[tuple[str, ...]] = ()
    """Which of `score_names` follow from the probabilities of one model for one row: whoever loads a release can compute them."""
    reader_cuts: ClassVar[bool] = False
    """Whether the call on the model card cuts a text that is longer than the tokenizer's limit, as `encode` does."""

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    # A model of another recipe

    def as_released(self, options: Mapping[str, Any] | None) -> Self:
        """Return this objective as a released model reads rows.

        The model keeps its `own_options` and `limits`. The others say where a row's texts are and how they are scored.

        Args:
            options: those that the model learned by; None if it does not say, or learned by another objective. It is then read
                by the options of this objective.

        Raises:
            ValueError: the model cannot read these rows as it learned to read.
        """
        own = self.own_options | self.limits
        return self.with_options({} if options is None else {name: options.get(name) for name in own})

    def with_options(self, changes: Mapping[str, Any]) -> Self:
        """Return this objective with some options changed; None stands for the default."""
        kept = self.options.model_dump(exclude_unset=True, exclude=set(changes))
        given = {name: value for name, value in changes.items() if value is not None}
        return type(self)(self.options_class.model_validate(kept | given))  # type: ignore[arg-type]

    # For readers of a release

    @classmethod
    def prompt_form(cls, options: Mapping[str, Any]) -> PromptForm:
        """Return how a text is put to a model that learned by these options; of a release, they may be anything.

        By default it is a user's message, if the tokenizer has a chat template.
        """
        return PromptForm(is_chat=True)

    @property
    def call_arguments(self) -> Mapping[str, Any]:
        """Arguments of the call on the model card, with which a release answers as it was evaluated."""
        is_generated = self.pipeline_tag in {"text-generation", "text2text-generation"}
        return {"max_new_tokens": 64, "do_sample": False} if is_generated else {}

    def reader_input(self, row: Row) -> Any:
        """Return what a reader of the model card gives the model for a row: a text, or a conversation; None if nothing."""
        return None

    def answer_scores(
        self, ask: Callable[..., Any], row: Row, example: Example, tokenizer: PreTrainedTokenizerBase
    ) -> Mapping[str, float]:
        """Return those scores of a row, by name, that follow from what a release answers to the call on its model card.

        Args:
            ask: makes that call with an input, `call_arguments` and further ones. It returns what the pipeline does; of text
                generation all tokens, those of the prompt first; of text to text the text.
            row: of the held-out split.
            example: its only sequence, as it was evaluated.
            tokenizer: of the release.

        Raises:
            ValueError: the call gives the model another prompt than the evaluation did.
        """
        return {}

    # For people

    def describe_scores(self, scores: Mapping[str, float], state: ObjectiveState) -> dict[str, str]:
        """Return readable facts about one row's scores: `{"expected": "bye", "predicted": "greeting"}`."""
        return {}

    def prediction_lines(
        self,
        row: Row,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        state: ObjectiveState,
    ) -> list[str]:
        """Return the model's prediction for a row as lines of text."""
        return []
