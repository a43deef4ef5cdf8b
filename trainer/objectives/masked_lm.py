r"""Masked language modelling: tell the tokens of a text that were masked. It adapts an encoder to the texts of a domain.

    {"text": "The tenant shall give notice in writing."}

Of each text, a share of the tokens is chosen, or of the words with `whole_words`, and at least one. Of those, 80 % become the mask
token, 10 % another token, and 10 % stay as they are (Devlin et al. 2019, https://arxiv.org/abs/1810.04805, section 3.1). In training,
each epoch chooses others (Liu et al. 2019, https://arxiv.org/abs/1907.11692): they follow from seed, epoch and sequence alone, so that
neither the number of processes nor a resume changes them. In evaluations, they follow from the text alone, so that two models with the
same tokenizer are asked for the same tokens.

Training packs as run_mlm.py of transformers does: texts with their special tokens follow each other, cut into full sequences.
Evaluation does not pack: each text is scored alone, in windows of `max_length` that do not overlap. The loss is the mean negative
log-likelihood per chosen token, in nats. Bits per byte count the bytes of the chosen tokens' text; between two tokenizers they compare
about as much text, but not the same words.

The released model fills masks (`fill-mask`). As `model.pretrained` of another recipe, a copy of it starts a classifier or an embedding.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Annotated, Any, ClassVar

from pydantic import Field

from params import ModelError
from params.defaults import ObjectiveDefaults
from params.sections.base import Section
from trainer.objectives.advice.base import NewRecipeAdvice, ObjectiveFit, SeenColumns, UpTo
from trainer.objectives.bases.lazy_imports import Encoding, np, torch
from trainer.objectives.bases.likelihood import TokenLikelihood, micro_batch_loss_share, without_labels
from trainer.objectives.bases.loss import BatchLoss, MicroBatchShare
from trainer.objectives.bases.objective import ColumnKind, EncodedRow, Example, ObjectiveState, Row
from trainer.objectives.bases.texts.padding import IGNORE_INDEX, count_labels
from trainer.objectives.bases.texts.tokenizing import Tokenizer, encode_texts

_MASKED, _REPLACED = 0.8, 0.1
"""Shares of the chosen tokens that become the mask token, and another token."""


class Options(Section):
    """Keys of the recipe's `objective` section."""

    text_column: str = "text"
    """The column with the text."""
    mlm_probability: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15
    """The share of tokens, or of words, that are chosen."""
    whole_words: bool = False
    """Choose whole words, as the tokenizer finds them, and not single sub-words, which the rest of their word gives away."""
    packing: bool = True
    """Fill training sequences up to `max_length` with several texts; otherwise each text has sequences of its own."""


class _Advice(NewRecipeAdvice):
    meaning = "the masked tokens of a text"
    columns: ClassVar[Mapping[str, str]] = {"text": "text_column"}
    models = ("encoder",)
    place = 3
    reads_running_text = True
    # as in Gururangan et al. 2020 (https://arxiv.org/abs/2004.10964, table 13) for a model of 125 M parameters
    rates: ClassVar[UpTo] = ((60e6, 3e-4), (200e6, 1e-4), (float("inf"), 5e-5))
    new_rate = 1e-3
    scheduler = "linear"

    def fit(self, seen: SeenColumns) -> ObjectiveFit:
        return ObjectiveFit.TEXT if seen.has("text") and seen.is_text_alone else ObjectiveFit.NOT


class MaskedLM(TokenLikelihood[Options]):
    """Prediction of masked tokens."""

    options_class = Options
    defaults = ObjectiveDefaults(5e-5, 3.0)
    advice = _Advice()
    auto_class = "AutoModelForMaskedLM"
    pipeline_tag = "fill-mask"
    example_rows: ClassVar[tuple[Row, ...]] = (
        {"text": "The tenant shall give notice in writing."},
        {"text": "Rent is due on the first day of each month, and in advance."},
    )

    def columns(self) -> Mapping[str, ColumnKind]:
        return {self.options.text_column: "string"}

    def content(self, row: Row) -> Mapping[str, Any]:
        """The text as it stands: all of its characters are learned, those at its ends, too."""
        return {self.options.text_column: row[self.options.text_column]}

    def text(self, row: Row) -> str:
        return str(row[self.options.text_column])

    def prepare_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Add a mask token to a tokenizer without one; ModelError if `whole_words` is asked of one that finds no words."""
        if tokenizer.mask_token_id is None:
            tokenizer.add_special_tokens({"mask_token": "<mask>"})
        (encoding,) = encode_texts(["a b"], tokenizer, offsets=True)
        if self.options.whole_words and len(set(encoding.word_ids) - {None}) < 2:
            what = "does not say which tokens are one word, so whole words cannot be masked"
            raise ModelError("tokenization.tokenizer", what, "set objective.whole_words to false")

    def encode(
        self, rows: Sequence[Row], tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[EncodedRow]:
        """Windows of each row's tokens, of which some are masked, always the same of the same window."""
        mask = Masking(tokenizer, self.options.mlm_probability)
        encoded = []
        for row, whole, text in self._whole(rows, tokenizer):
            examples, told = [], 0
            for window in _windows(whole, max_length):
                content = repr((window["input_ids"], self.options.mlm_probability)).encode()
                chance = np.random.default_rng(int.from_bytes(blake2b(content, digest_size=8).digest(), "big"))
                places, sizes = window.pop("places"), 0
                example = mask(window, chance)
                for (start, end), label in zip(places, example["labels"], strict=True):
                    # a character that several tokens share counts once, for its first one
                    own = text[max(start, told) : end]
                    sizes, told = sizes + (len(own.encode()) if label != IGNORE_INDEX else 0), max(told, end)
                examples.append({"row_id": row["row_id"], **example, "bytes": sizes})
            encoded.append(EncodedRow(examples))
        return encoded

    def encode_training(
        self, rows: Sequence[Row], tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[EncodedRow]:
        """Each row's tokens before any are masked, with a label for each that may be; not cut if `pack` does it."""
        encoded = []
        for row, whole, _ in self._whole(rows, tokenizer):
            windows = [whole] if self.options.packing and whole["places"] else _windows(whole, max_length)
            examples = [{"row_id": row["row_id"], **_without(window, "places", "ends")} for window in windows]
            encoded.append(EncodedRow(examples))
        return encoded

    def pack(self, examples: Iterable[Example], max_length: int) -> Iterator[Example]:
        """Full sequences only: the remaining tokens at the end of the split are dropped."""
        if not self.options.packing:
            yield from examples
            return
        buffers: dict[str, list[int]] = {}
        first_row = -1
        for example in examples:
            if not any(buffers.values()):
                first_row = example["row_id"]
            for name, value in example.items():
                if isinstance(value, list):
                    buffers.setdefault(name, []).extend(value)
            while len(buffers["input_ids"]) >= max_length:
                yield {"row_id": first_row, **{name: own[:max_length] for name, own in buffers.items()}}
                buffers = {name: own[max_length:] for name, own in buffers.items()}
                first_row = example["row_id"]

    def augmentation(self, tokenizer: Tokenizer) -> Callable[[Example], Example]:
        """Return what masks a training sequence; it draws from `random`, which is seeded by seed, epoch and sequence."""
        mask = Masking(tokenizer, self.options.mlm_probability)
        return lambda example: mask(example, np.random.default_rng(random.getrandbits(64)))

    def says_all(self, row: Row, examples: Sequence[Example], tokenizer: Tokenizer) -> bool:
        """Whether the tokens are all of the text: some tokenizers know no upper case, or leave out what they do not know."""
        (encoding,) = encode_texts([self.text(row)], tokenizer, add_special_tokens=False)
        (found,) = tokenizer.backend_tokenizer.decode_batch([encoding.ids], skip_special_tokens=True)
        return "".join(found.split()) == "".join(self.text(row).split())

    def loss_items(self, batch: Mapping[str, Any]) -> torch.Tensor:
        return count_labels(batch)

    def batch_loss(self, model: Any, batch: Mapping[str, Any], share: MicroBatchShare) -> BatchLoss:
        """Return the cross-entropy of the chosen tokens; of the others, no logits are copied."""
        outputs = model(**without_labels(batch))
        chosen = batch["labels"] != IGNORE_INDEX  # (B, T)
        logits, labels = outputs.logits[chosen], batch["labels"][chosen]
        loss = micro_batch_loss_share(logits, labels, share.items, smoothing=share.smoothing)
        return BatchLoss(loss * share.processes, outputs)

    @property
    def _shift(self) -> int:
        return 0

    def _whole(self, rows: Sequence[Row], tokenizer: Tokenizer) -> Iterator[tuple[Row, Example, str]]:
        """Yield each row with its tokens, the `labels` of those that may be chosen, their `places` in its text, and the text.

        With `whole_words`, `starts` has 1 where a word begins. `ends` has how many special tokens stand before and behind.
        """
        texts = [self.text(row) for row in rows]
        for row, text, encoding in zip(rows, texts, encode_texts(texts, tokenizer, offsets=True), strict=True):
            special = encoding.special_tokens_mask
            labels = [IGNORE_INDEX if one else token for token, one in zip(encoding.ids, special, strict=True)]
            whole = {"input_ids": encoding.ids, "labels": labels, "places": encoding.offsets if 0 in special else []}
            whole["ends"] = (special.index(0), special[::-1].index(0)) if 0 in special else (0, 0)
            yield row, whole | ({"starts": _word_starts(encoding)} if self.options.whole_words else {}), text


class Masking:
    """Chooses tokens of a sequence to tell, and hides most of them."""

    def __init__(self, tokenizer: Tokenizer, probability: float) -> None:
        self._mask: int = tokenizer.mask_token_id
        special = {*tokenizer.all_special_ids}
        self._others = np.array([number for number in range(len(tokenizer)) if number not in special])
        self._probability = probability

    def __call__(self, example: Example, chance: np.random.Generator) -> Example:
        """Return an example with a label at each chosen place only.

        Its `labels` are the tokens that may be chosen. `starts` has 1 where a word begins, which is chosen as a whole; it may be absent.
        """
        ids, labels = np.array(example["input_ids"]), np.array(example["labels"])  # (T,)
        may_be = labels != IGNORE_INDEX
        starts = example.get("starts")
        words = np.arange(len(ids)) if starts is None else np.cumsum(starts) - starts[0]
        is_chosen = chance.random(len(ids)) < self._probability
        chosen = is_chosen[words] & may_be
        if not chosen.any():
            chosen = (words == chance.choice(words[may_be])) & may_be
        kind = chance.random(len(ids))
        others = self._others[chance.integers(len(self._others), size=len(ids))]
        ids = np.where(chosen & (kind < _MASKED), self._mask, ids)
        ids = np.where(chosen & (kind >= _MASKED) & (kind < _MASKED + _REPLACED), others, ids)
        labels = np.where(chosen, labels, IGNORE_INDEX)
        return {**_without(example, "starts"), "input_ids": ids.tolist(), "labels": labels.tolist()}


def _word_starts(encoding: Encoding) -> list[int]:
    words = encoding.word_ids
    return [int(word is None or i == 0 or word != words[i - 1]) for i, word in enumerate(words)]


def _windows(whole: Example, max_length: int) -> Iterator[Example]:
    """Yield parts of a text's tokens that do not overlap, each between the special tokens of the whole; none of a text without tokens."""
    front, back = whole["ends"]
    room, end = max_length - front - back, len(whole["input_ids"]) - back
    if room < 1:
        raise ValueError(f"max_length {max_length} leaves no room for text beside the special tokens")
    for start in range(front, end if whole["places"] else front, room):
        stop = min(start + room, end)
        yield {
            name: [*value[:front], *value[start:stop], *value[end:]] for name, value in whole.items() if name != "ends"
        }


def _without(example: Example, *names: str) -> Example:
    return {name: value for name, value in example.items() if name not in names}
