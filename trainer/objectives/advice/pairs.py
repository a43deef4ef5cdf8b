"""Advice about pairs: texts that are read together, and prompts with answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from trainer.column_template import names_columns
from trainer.objectives.advice import base

TEXT_FLAGS: Final[Mapping[str, str]] = {"text": "text_column", "text-pair": "text_pair_column"}
"""Flags of `evergreen new`, and the options that they name."""
_NUMBERED: Final = (("1", "2"), ("_1", "_2"), ("_a", "_b"), ("a", "b"))
_USUAL: Final = (
    *(("premise", "hypothesis"), ("text", "text_pair"), ("question", "passage"), ("question", "sentence")),
    *(("question", "context"), ("query", "document"), ("query", "passage"), ("claim", "evidence")),
    *((f"{what}{one}", f"{what}{two}") for what in ("sentence", "question", "text", "title") for one, two in _NUMBERED),
)
"""Usual names of the columns of two texts that are read together."""


class TextOrPairAdvice(base.ClassifierNewRecipeAdvice):
    """Advice for what is said of a text or a pair of texts, in the last of its columns."""

    def fit(self, seen: base.SeenColumns) -> base.ObjectiveFit:
        *_, said = self.columns
        if said in seen.named:
            return base.ObjectiveFit.NAMED
        is_pair = seen.names_pair or seen.rates_answers
        return base.ObjectiveFit.COLUMNS if said in seen.found and not is_pair else base.ObjectiveFit.NOT

    def asked(self, seen: base.SeenColumns) -> Sequence[str]:
        return [flag for flag in self.columns if flag != "text-pair" or seen.has(flag)]


def find_usual_pair(columns: Iterable[str]) -> dict[str, str]:
    """Return by flag which of the columns with texts are a pair by their names; empty if none are."""
    names = {name.lower(): name for name in columns}
    found = next((pair for pair in _USUAL if names.keys() >= set(pair)), ())
    return dict(zip(TEXT_FLAGS, (names[name] for name in found), strict=False))


class AnswersAdvice(base.NewRecipeAdvice):
    """Advice for prompts with answers that people have judged: by itself, for a better and a worse one."""

    columns: ClassVar[Mapping[str, str]] = {name: f"{name}_column" for name in ("prompt", "chosen", "rejected")}
    templates = frozenset({"prompt"})
    reads_prompts = True
    conversations = frozenset({"prompt", "chosen", "rejected"})
    conversation_options: ClassVar[Mapping[str, Any]] = {"chat": True}
    batch = 16
    epochs: ClassVar[base.UpTo] = ((5_000, 3), (math.inf, 1))
    scheduler = "linear"

    def asked(self, seen: base.SeenColumns) -> Sequence[str]:
        has_prompt = "prompt" in seen.named or ("prompt" in seen.found and not seen.answers_have_prompt)
        return list(self.columns) if has_prompt else ["chosen", "rejected"]

    def options(self, columns: Mapping[str, str], *, has_template: bool) -> dict[str, base.AdvisedValue]:
        if "prompt" not in columns:
            return {"prompt_column": base.AdvisedValue(None, "each answer begins with its prompt")}
        is_template = names_columns(columns["prompt"])
        return {"separator": base.AdvisedValue("\n\n", "between prompt and answer")} if is_template else {}
