"""What an objective advises `evergreen new`: which rows it reads, and the values that a specialist would choose for it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Literal

from trainer.objectives.bases.rows import Row
from trainer.objectives.bases.texts.tokenizing import Tokenizer

ModelKind = Literal["encoder", "decoder", "encoder-decoder"]
UpTo = tuple[tuple[float, float], ...]
"""A value by size: for up to so many, this one."""


@dataclass(frozen=True)
class AdvisedValue:
    """A value of a recipe, and why it is that."""

    value: Any
    why: str = ""


class ObjectiveFit(IntEnum):
    """How well rows fit an objective. Those with the best fit are proposed."""

    NOT = 0
    TEXT = 1
    """A text, and nothing to learn about it."""
    COLUMNS = 2
    """Columns with the right names or values, which might be there by chance."""
    NAMED = 3
    """The user names a column that no other objective reads."""
    CONVERSATIONS = 4
    PREFERENCES = 5
    SPANS = 6


@dataclass(frozen=True)
class SeenColumns:
    """What the rows have, by the flags of `evergreen new` that name a column: text, label, spans, prompt and so on."""

    named: frozenset[str]
    """Flags with which the user names a column."""
    found: frozenset[str]
    """Flags for which the rows have a column with a usual name or with the right values."""
    is_text_alone: bool = True
    """Whether the rows are nothing but texts, beside columns that name or number them."""
    answers_have_prompt: bool = False
    """Whether the better and the worse answer are whole conversations, which begin with the prompt."""
    rates_answers: bool = False
    """Whether a column seems to say of each answer how good it is."""
    ranks_documents: bool = False
    """Whether a column says how relevant documents are, several to each query."""
    pairs_documents: bool = False
    """Whether the rows are queries with a document each."""

    def has(self, flag: str) -> bool:
        return flag in self.named or flag in self.found

    @property
    def names_pair(self) -> bool:
        """Whether the user names a prompt or its answer."""
        return not self.named.isdisjoint({"prompt", "completion"})

    @property
    def has_pairs(self) -> bool:
        """Whether the rows are prompts with their answers."""
        return self.names_pair or ({"prompt", "completion"} <= self.found and not self.rates_answers)


class NewRecipeAdvice(ABC):
    """What `evergreen new` needs to know about an objective to propose it, and to write its recipe."""

    meaning: ClassVar[str]
    """What the model learns, for people: `one label per text`."""
    columns: ClassVar[Mapping[str, str]]
    """The columns: flags of `evergreen new`, and options of the objective."""
    templates: ClassVar[frozenset[str]] = frozenset()
    """Flags whose option may be a template of columns."""
    conversations: ClassVar[frozenset[str]] = frozenset()
    """Flags, beside `messages`, whose column may hold messages instead of text."""
    conversation_options: ClassVar[Mapping[str, Any]] = {}
    """Options of a recipe where such a column holds messages."""
    reads_prompts: ClassVar[bool] = False
    """Whether answers are learned from what stands before them, so that no text of a row is left out unless somebody says so."""
    models: ClassVar[tuple[ModelKind, ...]] = ("decoder",)
    """The kinds of models that can learn it; a new one is of the first kind."""
    needs_pretrained: ClassVar[bool] = False
    """Whether a model from random weights cannot learn it."""
    reads_running_text: ClassVar[bool] = False
    """Whether texts are joined and cut into sequences of any length; a new model then learns from them without being asked for."""
    place: ClassVar[int] = 1
    """The place among objectives that fit as well; the lowest is proposed first."""
    rates: ClassVar[UpTo] = ((20e6, 1e-3), (200e6, 1e-4), (2e9, 2e-5), (math.inf, 1e-5))
    """Learning rates of pretrained models by their parameters, for steps of `batch` sequences."""
    lora_rate: ClassVar[float] = 2e-4
    new_rate: ClassVar[float] = 2e-3
    """The learning rate of a small model from random weights."""
    batch: ClassVar[int] = 32
    """Sequences of an optimizer step."""
    least_batch: ClassVar[int] = 2
    """The fewest, however few rows there are."""
    epochs: ClassVar[UpTo] = ((50_000, 3), (500_000, 2), (math.inf, 1))
    """Passes over the training rows by their number."""
    scheduler: ClassVar[Literal["linear", "cosine"]] = "cosine"
    weight_decay: ClassVar[AdvisedValue | None] = None
    """None for what is usual."""
    gates_on_best_metric: ClassVar[bool] = False
    """Whether the metric that selects the best checkpoint decides about the release, too."""

    @abstractmethod
    def fit(self, seen: SeenColumns) -> ObjectiveFit:
        """Return how well the rows fit."""

    def asked(self, seen: SeenColumns) -> Sequence[str]:
        """Return the flags of the columns that a recipe for these rows names."""
        return list(self.columns)

    def options(self, columns: Mapping[str, str], *, has_template: bool) -> dict[str, AdvisedValue]:
        """Return options that name no column, for the columns by flag; `has_template`: the tokenizer has a chat template."""
        return {}

    def found_options(self, columns: Mapping[str, str], rows: Sequence[Row]) -> dict[str, AdvisedValue]:
        """Return options that follow from what some rows hold, beside the columns by flag."""
        return {}

    def found_beside_messages(self, columns: Sequence[str]) -> dict[str, AdvisedValue]:
        """Return options that name columns beside messages, by their usual names: what the system says, and tools."""
        usual = {
            "system_column": (("system", "system_prompt"), "what the system says"),
            "tools_column": (("tools", "functions", "available_tools"), "the tools, which the chat template writes"),
        }
        by_name = {name.lower(): name for name in reversed(columns)}
        found = dict[str, AdvisedValue]()
        for option, (names, why) in usual.items():
            if name := next((by_name[name] for name in names if name in by_name), None):
                found[option] = AdvisedValue(name, why)
        return found

    def asked_options(self, tokenizer: Tokenizer) -> Mapping[str, str]:
        """Return the questions whose answers are options that nothing but the user knows, such as a language, by option."""
        return {}

    def best_metric(self, labels: Mapping[str, int]) -> AdvisedValue:
        """Return the metric that selects the best checkpoint; `labels` has the number of rows, or spans, of each."""
        return AdvisedValue("loss", "of the validation rows")


class ClassifierNewRecipeAdvice(NewRecipeAdvice):
    """For heads over pretrained encoders.

    The rates are from our own trials (docs/own-data.md: Banking77 by a model of 22.7 M parameters, 0.916 accuracy after 4 epochs
    at 3e-4) and from the papers of the models: small models take larger rates than large ones.
    """

    models: ClassVar[tuple[ModelKind, ...]] = ("encoder", "decoder", "encoder-decoder")
    rates: ClassVar[UpTo] = ((60e6, 3e-4), (200e6, 5e-5), (math.inf, 2e-5))
    new_rate = 1e-3
    epochs: ClassVar[UpTo] = ((1_000, 10), (5_000, 6), (50_000, 4), (500_000, 2), (math.inf, 1))
    scheduler = "linear"
