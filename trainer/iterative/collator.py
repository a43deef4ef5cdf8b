"""From the arguments of `step` to padded batches: check them, truncate them, add labels.

A row is a sequence of T tokens: `input_ids`, `attention_mask` and `labels`, each (T,); for an encoder-decoder model `labels`
has another length. Tokens that the attention mask excludes at either end are padding and are removed first. So padding is
recognized by its position, never by its id: a tokenizer may pad with its end-of-text token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from trainer.objectives.bases.padding import IGNORE_INDEX

Features = dict[str, torch.Tensor]
"""One row: `{"input_ids": tensor([5, 9, 2]), "attention_mask": tensor([1, 1, 1]), "labels": tensor([-100, 9, 2])}`."""


class RowCollator:
    """Makes rows from the arguments of `step`, and pads rows into batches; evaluation uses it as data collator, too.

    Args:
        encoder_decoder: whether the model has an encoder, so that its labels are separate sequences.
        tokenizer: for texts, and for the padding token of batches.
        max_length: maximum length of a sequence in tokens; None truncates nothing.
        keep_end: whether a longer sequence keeps its last tokens; otherwise its first.
    """

    def __init__(self, *, encoder_decoder: bool, tokenizer: Any, max_length: int | None, keep_end: bool) -> None:
        self.encoder_decoder = encoder_decoder
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.keep_end = keep_end

    def rows_of_step(
        self, input_ids: object, attention_mask: object, labels: object, texts: object, texts_labels: object
    ) -> list[Features]:
        """Return the rows of a call of `step`, each with a predicted token; ValueError if the arguments do not fit."""
        if (input_ids is None) == (texts is None):
            what = "neither input_ids nor texts is given" if texts is None else "both input_ids and texts are given"
            raise ValueError(f"step: {what}; give the rows as one of them")
        one, own_labels = ("input_ids", "labels") if texts is None else ("texts", "texts_labels")
        other_form = (
            {"texts_labels": texts_labels} if texts is None else {"labels": labels, "attention_mask": attention_mask}
        )
        for name, value in other_form.items():
            if value is not None:
                raise ValueError(f"step: {name} does not go with {one}; leave it out, or give {own_labels} for labels")
        if self.encoder_decoder and labels is None and texts_labels is None:
            raise ValueError(f"step: an encoder-decoder model needs labels; give {own_labels}, one for each row")
        if texts is None:
            rows = self.rows_of_tensors(input_ids, attention_mask, labels)
        else:
            rows = self.rows_of_texts(texts, texts_labels)
        for i, row in enumerate(rows):
            if len(row["input_ids"]) == 0 or self.count_predicted(row["labels"]) == 0:
                raise ValueError(
                    f"step: row {i} has no token to predict: it is too short, masked, or all its labels within "
                    f"max_length are {IGNORE_INDEX}; leave it out, or raise max_length"
                )
        return rows

    def rows_of_tensors(self, input_ids: object, attention_mask: object, labels: object) -> list[Features]:
        """Return one row for each tensor.

        Raises:
            ValueError: an argument has the wrong type, is empty, or does not fit the others.
        """
        given = {"input_ids": _tensors("input_ids", input_ids)}
        for name, value in (("attention_mask", attention_mask), ("labels", labels)):
            if value is not None:
                given[name] = _tensors(name, value)
                _check_same_length(name, given[name], "input_ids", given["input_ids"])
        aligned = set(given) - ({"labels"} if self.encoder_decoder else set())
        for i, ids in enumerate(given["input_ids"]):
            for name in sorted(aligned):
                if len(given[name][i]) != len(ids):
                    raise ValueError(
                        f"step: {name}[{i}] has {len(given[name][i])} tokens, input_ids[{i}] has {len(ids)}; "
                        f"give {name} one value for each token"
                    )
        return [self._row(dict(zip(given, values, strict=True))) for values in zip(*given.values(), strict=True)]

    def rows_of_texts(self, texts: object, texts_labels: object) -> list[Features]:
        """Return one row for each text. The tokenizer truncates, so that its special tokens stay.

        Raises:
            ValueError: an argument has the wrong type, is empty, or does not fit the other.
        """
        checked = _list("texts", texts, str, "texts")
        rows = [{"input_ids": ids} for ids in self._tokenize(checked)]
        if texts_labels is not None:
            targets = _list("texts_labels", texts_labels, str, "texts")
            _check_same_length("texts_labels", targets, "texts", checked)
            for i, (row, ids) in enumerate(zip(rows, self._tokenize(targets, labels=True), strict=True)):
                if not self.encoder_decoder and len(ids) != len(row["input_ids"]):
                    raise ValueError(
                        f"step: texts_labels[{i}] has {len(ids)} tokens, texts[{i}] has {len(row['input_ids'])}; a causal "
                        "model has one label for each token of its input: leave texts_labels out to train on the texts, or "
                        f"give input_ids and labels, with {IGNORE_INDEX} for tokens without a loss"
                    )
                row["labels"] = ids
        return [self._row(row) for row in rows]

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> Features:
        """Return a batch: `input_ids` and `attention_mask` (B, T), and `labels` (B, T) or (B, length of the labels)."""
        names = ("input_ids", "attention_mask", "labels")
        rows = [self._row({n: torch.as_tensor(f[n]) for n in names if f.get(n) is not None}) for f in features]
        choices = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
        pad_token = next(token for token in choices if token is not None)
        padding = {"input_ids": pad_token, "attention_mask": 0, "labels": IGNORE_INDEX}
        shared = [name for name in names if all(name in row for row in rows)]
        return {
            name: pad_sequence([row[name] for row in rows], batch_first=True, padding_value=padding[name])
            for name in shared
        }

    def count_predicted(self, labels: torch.Tensor) -> int:
        """Return how many labels of a batch are predicted: a causal model does not predict the first token of a row."""
        predicted = labels if self.encoder_decoder else labels[..., 1:]
        return int((predicted != IGNORE_INDEX).sum())

    def causal_labels(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the input as labels, ignored where it is padding."""
        return input_ids.masked_fill(attention_mask == 0, IGNORE_INDEX)

    def _row(self, given: Features) -> Features:
        """Return a complete, truncated row from `input_ids` and any of the others; a complete row stays as it is."""
        ids = given["input_ids"]
        mask = given.get("attention_mask", torch.ones_like(ids))
        labels = given.get("labels")
        tokens = mask.nonzero().flatten().tolist()
        inside = slice(tokens[0], tokens[-1] + 1) if tokens else slice(0, 0)
        row = {"input_ids": self._truncate(ids[inside]), "attention_mask": self._truncate(mask[inside])}
        if self.encoder_decoder:
            if labels is not None:
                row["labels"] = self._truncate(self._without_padding(labels))
        elif labels is None:
            row["labels"] = self.causal_labels(row["input_ids"], row["attention_mask"])
        else:
            row["labels"] = self._truncate(labels[inside]).masked_fill(row["attention_mask"] == 0, IGNORE_INDEX)
        return row

    def _truncate(self, sequence: torch.Tensor) -> torch.Tensor:
        if self.max_length is None:
            return sequence
        return sequence[-self.max_length :] if self.keep_end else sequence[: self.max_length]

    def _without_padding(self, labels: torch.Tensor) -> torch.Tensor:
        """Remove padding tokens at the end of labels, which have no mask; keep one if it also ends the text."""
        pad, end = self.tokenizer.pad_token_id, len(labels)
        while end and labels[end - 1] == pad:
            end -= 1
        return labels[: end + 1] if pad == self.tokenizer.eos_token_id else labels[:end]

    def _tokenize(self, texts: list[str], *, labels: bool = False) -> list[torch.Tensor]:
        name = "text_target" if labels and self.encoder_decoder else "text"
        tokenizer = self.tokenizer
        side = tokenizer.truncation_side
        tokenizer.truncation_side = "left" if self.keep_end else "right"
        try:
            options = {"truncation": True, "max_length": self.max_length} if self.max_length else {"verbose": False}
            encoded = tokenizer(**{name: texts}, return_attention_mask=False, **options)["input_ids"]
        finally:
            tokenizer.truncation_side = side
        return [torch.tensor(ids, dtype=torch.long) for ids in encoded]


def _tensors(name: str, value: object) -> list[torch.Tensor]:
    values = _list(name, value, torch.Tensor, "integer tensors of shape (T,) with T > 0")
    for i, tensor in enumerate(values):
        if tensor.ndim != 1 or len(tensor) == 0 or tensor.is_floating_point() or tensor.is_complex():
            found = f"{tensor.dtype} of the shape {tuple(tensor.shape)}"
            raise ValueError(
                f"step: {name}[{i}] holds {found}; give integer tokens of one row, of shape (T,) with T > 0"
            )
    return [tensor.detach().cpu().long() for tensor in values]


def _list(name: str, value: Any, kind: type, what: str) -> list[Any]:
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    places = {f"{name}[{i}]": one for i, one in enumerate(value)} if is_list else {name: value}
    for where, one in places.items():
        if not (is_list and isinstance(one, kind)):
            raise ValueError(f"step: {where} is of type {type(one).__name__}; give a list of {what}, one for each row")
    if not places:
        raise ValueError(f"step: {name} is empty; call step only with rows")
    return list(value)


def _check_same_length(name: str, values: Sequence[object], other: str, others: Sequence[object]) -> None:
    if len(values) != len(others):
        raise ValueError(f"step: {name} has {len(values)} rows, {other} has {len(others)}; give as many of both")
