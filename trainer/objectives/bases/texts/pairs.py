"""One text, or two that are read together, such as premise and hypothesis: encoded as the tokenizer and its pipeline do it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Self

from params import ModelError, Problem
from params.schema import Launch, Model, Training
from params.sections.base import Section
from trainer.objectives.bases.objective import ColumnKind, Example, Objective, OptionsT, PromptForm, Row
from trainer.objectives.bases.texts.tokenizing import TOKEN_TYPES, Tokenizer, encode_texts, gives_types

_PAIR: Final = {"text", "text_pair"}


class TextOrPairOptions(Section):
    """Where the texts of a row are."""

    text_column: str = "text"
    """The column with the text."""
    text_pair_column: str | None = None
    """The column with a second text, such as a hypothesis, which is read together with the first. Of texts that are too long together,
    the longer one loses its end."""


class TextOrPairObjective(Objective[OptionsT]):
    """An objective whose model has a head for whole texts, or pairs of them."""

    text_options: ClassVar[tuple[str, str]] = ("text_column", "text_pair_column")
    """The options that name the columns of both texts."""
    own_options = frozenset({"text_pair_column"})
    reader_cuts = True
    cut_texts_are_easier = False
    auto_class = "AutoModelForSequenceClassification"
    pipeline_tag = "text-classification"

    def text_columns(self) -> dict[str, ColumnKind]:
        names = [getattr(self.options, option) for option in self.text_options]
        return {name: "string" for name in names if name is not None}

    def conflicts(self, *, model: Model, training: Training, launch: Launch) -> Iterable[Problem]:
        first, second = self.text_options
        if (name := getattr(self.options, first)) == getattr(self.options, second):
            what = f"is `{name}`, as `{first}` is: the model would read each text twice"
            yield Problem(("objective", second), what, "name the column with the second text, or remove it")
        yield from super().conflicts(model=model, training=training, launch=launch)

    def prepare_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Let the tokenizer put a token between two texts, if it is one that would write them without a gap."""
        if len(self.text_columns()) > 1:
            separate_texts_of_pairs(tokenizer)

    def texts(self, row: Row) -> Sequence[str]:
        return tuple(str(row[name]) for name in self.text_columns())

    def text(self, row: Row) -> str:
        return "\n".join(self.texts(row))

    def encode_inputs(self, rows: Sequence[Row], tokenizer: Tokenizer, max_length: int) -> list[tuple[Example, bool]]:
        """Return `row_id` and at most `max_length` tokens of each row, and whether it has more.

        Pairs have the types of their tokens if the tokenizer gives them to models.
        """
        texts: list[Any] = [found if len(found := self.texts(row)) > 1 else found[0] for row in rows]
        has_types = len(self.text_columns()) > 1 and gives_types(tokenizer)
        inputs = []
        for row, one in zip(rows, encode_texts(texts, tokenizer, truncation=True, max_length=max_length), strict=True):
            example = {"row_id": row["row_id"], "input_ids": one.ids}
            if has_types:
                example[TOKEN_TYPES] = one.type_ids
            inputs.append((example, len(example["input_ids"]) == max_length and bool(one.overflowing)))
        return inputs

    @property
    def call_arguments(self) -> Mapping[str, Any]:
        return {"truncation": True}

    def card_input(self, read_tokenizer: Callable[[], Tokenizer]) -> str:
        pair = '{"text": "The first text.", "text_pair": "The second text."}'
        return pair if len(self.text_columns()) > 1 else super().card_input(read_tokenizer)

    def reader_input(self, row: Row) -> str | dict[str, str]:
        text, *pair = self.texts(row)
        return {"text": text, "text_pair": pair[0]} if pair else text

    @classmethod
    def prompt_form(cls, options: Mapping[str, Any]) -> PromptForm:
        return PromptForm(is_pair=options.get("text_pair_column") is not None)

    def as_released(self, options: Mapping[str, Any] | None) -> Self:
        """As the base class; of a model that reads pairs, too, the second text is in the column of today's rows."""
        name = self.text_options[1]
        own = getattr(self.options, name)
        if own is not None and options is not None and options.get(name) is not None:
            options = {**options, name: own}
        return super().as_released(options)


def read_pair(text: str) -> dict[str, str] | None:
    """Return the pair that a text is as JSON, `{"text": ..., "text_pair": ...}`; None if it is another text."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    is_pair = isinstance(found, dict) and found.keys() == _PAIR and all(isinstance(one, str) for one in found.values())
    return found if is_pair else None


def separate_texts_of_pairs(tokenizer: Tokenizer) -> None:
    """Let a tokenizer put a special token between the texts of a pair, if it puts none there. It is saved with the tokenizer.

    A pair then has what stands around one text, too: `<s> A </s> B </s>` where one text is `<s> A </s>`.

    ModelError if it has no such token.
    """
    pair: Any = ("a", "b")
    (found,) = encode_texts([pair], tokenizer)
    places = found.sequence_ids
    if None in places[places.index(0) : places.index(1)]:
        return
    token = tokenizer.sep_token or tokenizer.eos_token
    if token is None:
        what = "has neither a separator nor an end-of-text token to put between two texts"
        raise ModelError("tokenization.tokenizer", what, "use one of a model that reads pairs, such as a BERT")
    backend = tokenizer.backend_tokenizer
    rules = json.loads(backend.to_str())["post_processor"]
    steps = _steps_of_post_processor(rules)
    template = next((step for step in steps if step["type"] == "TemplateProcessing"), None)
    if template is None:
        template = {"type": "TemplateProcessing", "single": [_sequence("A", 0)], "special_tokens": {}}
        steps.append(template)
    place = next(i for i, part in enumerate(template["single"]) if "Sequence" in part)
    before, behind = template["single"][:place], template["single"][place + 1 :]
    own = {"id": token, "ids": [tokenizer.convert_tokens_to_ids(token)], "tokens": [token]}
    template["special_tokens"].setdefault(token, own)
    between = behind or [{"SpecialToken": {"id": token, "type_id": 0}}]
    of_second = [{"SpecialToken": {**part["SpecialToken"], "type_id": 1}} for part in behind]
    template["pair"] = [*before, _sequence("A", 0), *between, _sequence("B", 1), *of_second]
    backend.post_processor = _build_post_processor({"type": "Sequence", "processors": steps})


def _steps_of_post_processor(rules: Any) -> list[dict[str, Any]]:
    if not rules:
        return []
    steps: list[dict[str, Any]] = rules["processors"] if rules["type"] == "Sequence" else [rules]
    return steps


def _sequence(name: str, kind: int) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": kind}}


def _build_post_processor(rules: Mapping[str, Any]) -> Any:
    from tokenizers import Tokenizer, models

    empty = json.loads(Tokenizer(models.BPE()).to_str())
    return Tokenizer.from_str(json.dumps(empty | {"post_processor": rules})).post_processor
