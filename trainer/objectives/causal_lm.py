r"""Causal language modelling: predict every next token of a text.

    {"text": "abs(x, /)\n\nReturn the absolute value of the argument."}

Training packs: texts are joined by an end-of-text token and cut into full sequences; the model may attend across that
token. Evaluation does not pack: each text is scored alone, in windows of `max_length`, so that scores are per row. The loss
is the mean negative log-likelihood per predicted token, in nats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from params import ModelError
from params.schema import Section
from trainer.objectives.bases.likelihood import TokenLikelihood
from trainer.objectives.bases.objective import ColumnKind, Example, ObjectiveState, Row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Options(Section):
    """Keys of the recipe's `objective` section."""

    text_column: str = "text"
    """The column with the text."""
    packing: bool = True
    """Fill training sequences up to `max_length` with several texts; otherwise each sequence is one padded text."""


class CausalLM(TokenLikelihood[Options]):
    """Next-token prediction."""

    options_class = Options
    example_rows: ClassVar[tuple[Row, ...]] = (
        {"text": "abs(x, /)\n\nReturn the absolute value of the argument."},
        {"text": "Return True if the string is a valid identifier, False otherwise."},
    )

    def columns(self) -> Mapping[str, ColumnKind]:
        return {self.options.text_column: "string"}

    def text(self, row: Row) -> str:
        return str(row[self.options.text_column])

    def encode(
        self, row: Row, tokenizer: PreTrainedTokenizerBase, max_length: int, state: ObjectiveState
    ) -> list[Example]:
        """Windows of the row's tokens; the last window ends with the end-of-text token, which has a loss too."""
        if tokenizer.eos_token_id is None:
            raise ModelError("tokenization.tokenizer", "has no end-of-text token", "use one of a causal language model")
        text = self.text(row)
        encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        ids = [*encoding["input_ids"], tokenizer.eos_token_id]
        if len(ids) == 1:
            return []
        ends = [*(end for _, end in encoding["offset_mapping"]), len(text)]
        starts = list(range(0, len(ids), max_length))
        if len(ids) - starts[-1] == 1:
            starts[-1] -= 1  # a window of one token predicts nothing, so the end of the text would have no loss
        return [
            {
                "row_id": row["row_id"],
                "input_ids": ids[start:end],
                "labels": ids[start:end],
                # the first token of a window is not predicted
                "bytes": len(text[ends[start] : ends[end - 1]].encode()),
            }
            for start, end in pairwise([*starts, len(ids)])
        ]

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
                yield {"row_id": first_row, "input_ids": block, "labels": list(block)}
                first_row = example["row_id"]
