"""The languages that tokenizers of translation models, such as mBART and NLLB, write into texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from params import RecipeError
from params.loading import suggestion
from params.schema import Model
from trainer.objectives.bases.texts import Tokenizer

OPTIONS: Final[Mapping[str, str]] = {"source_language": "src_lang", "target_language": "tgt_lang"}
"""Options, and what transformers' tokenizers call them."""
_TOKENIZERS: Final = frozenset({"MBartTokenizer", "MBart50Tokenizer", "NllbTokenizer", "M2M100Tokenizer"})
"""Tokenizers with languages; transformers takes English for the source, and the source's for the target."""


def ask(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the question for each option; none for a tokenizer without languages."""
    codes = ", ".join(code for code in _known(tokenizer) if code not in {*tokenizer.special_tokens_map.values()})
    texts = {"source_language": "inputs", "target_language": "targets"}
    return {option: f"Language of the {own}, one of {codes}" for option, own in texts.items()} if codes else {}


def set_languages(tokenizer: Tokenizer, options: Any) -> None:
    """Let a tokenizer write the languages of the options, or those that it names itself; a RecipeError if it cannot."""
    known = _known(tokenizer)
    for option, name in OPTIONS.items():
        language = getattr(options, option)
        if language and not known:
            what, fix = "has no effect: the tokenizer knows no languages", "remove it; a T5 takes a `prefix`"
            raise RecipeError(f"objective.{option}", what, fix)
        if not known:
            continue
        language = language or tokenizer.init_kwargs.get(name)
        if language not in known:
            what = (
                f"the tokenizer has no language {language!r}" if language else "is not set, and the tokenizer needs it"
            )
            raise RecipeError(f"objective.{option}", what, suggestion(language or "", known, "special tokens"))
        setattr(tokenizer, name, language)
        tokenizer.init_kwargs[name] = language  # what is saved has it, too


def read_folder(options: Any, model: Model) -> dict[str, str | None]:
    """Return the languages that the tokenizer in a model's folder writes, by option; None if nobody names it."""
    try:
        path = Path(str(model.pretrained)) / "tokenizer_config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # a repository, or a folder that other checks report
    if str(config.get("tokenizer_class")).removesuffix("Fast") not in _TOKENIZERS:
        return {}
    return {option: getattr(options, option) or config.get(name) for option, name in OPTIONS.items()}


def _known(tokenizer: Tokenizer) -> list[str]:
    return sorted(tokenizer.get_added_vocab()) if hasattr(tokenizer, "set_tgt_lang_special_tokens") else []
