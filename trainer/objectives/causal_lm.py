r"""Causal language modelling: predict every next token of a text.

    {"text": "abs(x, /)\n\nReturn the absolute value of the argument."}

A text begins with what its tokenizer puts before each text, if anything, as a pipeline puts it before a prompt, and ends with the end-of-text
token. Training packs: texts are joined and cut into full sequences; the model may attend across their ends. Evaluation does not pack: each
text is scored alone, in windows of `max_length`, so that scores are per row. The loss is the mean negative log-likelihood per predicted
token, in nats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

from params.defaults import ObjectiveDefaults
from params.sections.base import Section
from trainer.objectives.advice.base import NewRecipeAdvice, ObjectiveFit, SeenColumns
from trainer.objectives.bases.lazy_imports import Encoding
from trainer.objectives.bases.likelihood import TokenLikelihood, tokens_contain_texts_in_order
from trainer.objectives.bases.objective import ColumnKind, EncodedRow, Example, ObjectiveState, PromptForm, Row
from trainer.objectives.bases.texts.tokenizing import Tokenizer, encode_texts, strip_repeated_special_tokens


class Options(Section):
    """Keys of the recipe's `objective` section."""

    text_column: str = "text"
    """The column with the text."""
    packing: bool = True
    """Fill training sequences up to `max_length` with several texts; otherwise each sequence is one padded text."""


class _Advice(NewRecipeAdvice):
    meaning = "the next token of a text"
    columns: ClassVar[Mapping[str, str]] = {"text": "text_column"}
    reads_running_text = True

    def fit(self, seen: SeenColumns) -> ObjectiveFit:
        return ObjectiveFit.TEXT if seen.has("text") and seen.is_text_alone else ObjectiveFit.NOT


class CausalLM(TokenLikelihood[Options]):
    """Next-token prediction."""

    options_class = Options
    defaults = ObjectiveDefaults(epochs=1.0)
    advice = _Advice()
    example_rows: ClassVar[tuple[Row, ...]] = (
        {"text": "abs(x, /)\n\nReturn the absolute value of the argument."},
        {"text": "Return True if the string is a valid identifier, False otherwise."},
    )

    def columns(self) -> Mapping[str, ColumnKind]:
        return {self.options.text_column: "string"}

    def content(self, row: Row) -> Mapping[str, Any]:
        """The text as it stands: all of its characters are learned, those at its ends, too."""
        return {self.options.text_column: row[self.options.text_column]}

    def text(self, row: Row) -> str:
        return str(row[self.options.text_column])

    @classmethod
    def prompt_form(cls, options: Mapping[str, Any]) -> PromptForm:
        return PromptForm()

    def says_all(self, row: Row, examples: Sequence[Example], tokenizer: Tokenizer) -> bool:
        texts = strip_repeated_special_tokens([self.text(row)], tokenizer, ends=True)
        (encoding,) = encode_texts(texts, tokenizer, add_special_tokens=False)
        return tokens_contain_texts_in_order(encoding.ids, texts, tokenizer)

    def encode(
        self,
        rows: Sequence[Row],
        tokenizer: Tokenizer,
        max_length: int,
        state: ObjectiveState,
        *,
        count_bytes: bool = True,
    ) -> list[EncodedRow]:
        """Windows of each row's tokens; the last window ends with the end-of-text token, which has a loss too."""
        texts = strip_repeated_special_tokens(map(self.text, rows), tokenizer, ends=True)
        front = _tokens_before_text(tokenizer)
        encoded = []
        found = encode_texts(texts, tokenizer, offsets=count_bytes, add_special_tokens=False)
        for row, text, encoding in zip(rows, texts, found, strict=True):
            if not encoding.ids:
                encoded.append(EncodedRow([]))
                continue
            ids = [*front, *encoding.ids]
            starts = list(range(0, len(ids) + 1, max_length))
            ids.append(tokenizer.eos_token_id)
            if len(ids) - starts[-1] == 1:
                starts[-1] -= 1  # a window of one token predicts nothing, so the end of the text would have no loss
            examples = []
            for start, end in pairwise([*starts, len(ids)]):
                window = ids[start:end]
                example = {"row_id": row["row_id"], "input_ids": window, "labels": window}
                if count_bytes:  # the first token of a window is not predicted
                    first = _end_of_token(encoding, start - len(front))
                    last = _end_of_token(encoding, end - 1 - len(front)) if end < len(ids) else len(text)
                    example["bytes"] = len(text[first:last].encode())
                examples.append(example)
            encoded.append(EncodedRow(examples))
        return encoded

    def encode_training(
        self, rows: Sequence[Row], tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[EncodedRow]:
        """As `encode`; without bytes if `pack` drops them, which makes it twice as fast."""
        return self.encode(rows, tokenizer, max_length, state, count_bytes=not self.options.packing)

    def pack(self, examples: Iterable[Example], max_length: int) -> Iterator[Example]:
        """Full sequences only: the remaining tokens at the end of the split are dropped."""
        if not self.options.packing:
            yield from examples
            return
        buffer: list[int] = []
        first_row = -1
        for example in examples:
            if not buffer:
                first_row = example["row_id"]
            buffer.extend(example["input_ids"])
            while len(buffer) >= max_length:
                block, buffer = buffer[:max_length], buffer[max_length:]
                yield {"row_id": first_row, "input_ids": block, "labels": block}
                first_row = example["row_id"]


def _tokens_before_text(tokenizer: Tokenizer) -> list[int]:
    """Return the special tokens that a tokenizer's own call puts before each text."""
    (encoding,) = encode_texts(["a"], tokenizer)
    return list(encoding.ids[: encoding.sequence_ids.index(0)])


def _end_of_token(encoding: Encoding, token: int) -> int:
    """Return where a token ends in its text; 0 of a token before it, whose number is below 0."""
    place = encoding.token_to_chars(token) if token >= 0 else None
    return place[1] if place else 0
