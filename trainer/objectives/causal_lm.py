r"""Causal language modelling: predict every next token of a text.

    {"text": "abs(x, /)\n\nReturn the absolute value of the argument."}

Training packs: texts stand one after another, an end-of-text token between them, cut into full sequences; the model
may look across that token. Evaluation does not pack: each text is scored by itself, in windows of `max_length`, so
that figures are per row. The loss is the mean negative log-likelihood per predicted token, in nats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from params import ModelError
from params.schema import Section
from trainer.objectives.bases.likelihood import TokenLikelihood, next_token_losses, pad_batch, token_scores
from trainer.objectives.bases.objective import Example, Kind, Row, State

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Options(Section):
    """Keys of the recipe's `objective` section."""

    text_column: str = "text"
    """The column with the text."""
    packing: bool = True
    """Fill training sequences to `max_length` with several texts; otherwise one text each, padded."""


class CausalLM(TokenLikelihood[Options]):
    """Next-token prediction."""

    options_class = Options
    pipeline_tag = "text-generation"
    examples: ClassVar[tuple[Row, ...]] = (
        {"text": "abs(x, /)\n\nReturn the absolute value of the argument."},
        {"text": "Return True if the string is a valid identifier, False otherwise."},
    )

    def columns(self) -> Mapping[str, Kind]:
        return {self.options.text_column: "string"}

    def text(self, row: Row) -> str:
        return str(row[self.options.text_column])

    def encode(self, row: Row, tokenizer: PreTrainedTokenizerBase, max_length: int, state: State) -> list[Example]:
        """Windows of the row's tokens; the last one ends with the end-of-text token, which is predicted too."""
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
            starts[-1] -= 1  # a window of one token would predict nothing, and leave the end of the text unlearned
        return [
            {
                "row_id": row["row_id"],
                "input_ids": ids[start:end],
                "labels": ids[start:end],
                "bytes": len(
                    text[ends[start] : ends[end - 1]].encode()
                ),  # the first token of a window is not predicted
            }
            for start, end in pairwise([*starts, len(ids)])
        ]

    def pack(self, examples: Iterable[Example], max_length: int) -> Iterator[Example]:
        """Full sequences only: the tokens left over at the end of the split are not trained on."""
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

    def collate(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
        return pad_batch(examples, tokenizer)

    def model_class(self) -> type[PreTrainedModel]:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM  # type: ignore[no-any-return]

    def losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """(B, T, V) logits and (B, T) labels to (B, T); the first token of a sequence is not predicted."""
        return next_token_losses(logits, labels)

    def score(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """(B, T, V) logits and (B, T) labels to summed negative log-likelihood, tokens and correct tokens, (B, 3)."""
        return token_scores(logits[:, :-1], labels[:, 1:])
