"""From the arguments of `step` to padded batches: check them, truncate them, add labels.

A row is a sequence of T tokens: `input_ids`, `attention_mask` and `labels`, each (T,); for an encoder-decoder model `labels`
has another length. Tokens that the attention mask excludes at either end are padding and are removed first. So padding is
recognized by its position, never by its id: a tokenizer may pad with its end-of-text token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from trainer.objectives.bases.texts.padding import IGNORE_INDEX

Features = dict[str, torch.Tensor]
"""One row: `{"input_ids": tensor([5, 9, 2]), "attention_mask": tensor([1, 1, 1]), "labels": tensor([-100, 9, 2])}`."""


class RowCollator:
    """Makes rows from the arguments of `step`, and pads rows into batches; evaluation uses it as data collator, too.

    The labels of an `encoder_decoder` are separate sequences. A sequence longer than `max_length` keeps its last tokens, or its
    first without `keep_end`.
    """

    def __init__(self, *, encoder_decoder: bool, tokenizer: Any, max_length: int | None, keep_end: bool) -> None:
        self.encoder_decoder = encoder_decoder
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.keep_end = keep_end

    def rows_of_step(
        self, input_ids: object, attention_mask: object, labels: object, texts: object, texts_labels: object
    ) -> list[Features]:
        """Return the rows of a call of `step`, each with a predicted token; ValueError if the arguments do not fit.

        The tokenizer truncates texts, so that its special tokens stay.
        """
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
        given |= {"texts": texts, "texts_labels": texts_labels}
        names = self._arguments_of_columns(given)
        columns = self._columns(names, given)
        rows = []
        for i, values in enumerate(zip(*columns.values(), strict=True)):
            given_row = dict(zip(columns, values, strict=True))
            self._refuse_other_lengths(given_row, names, i)
            row = self._row(given_row)
            if len(row["input_ids"]) == 0 or self.count_predicted(row["labels"]) == 0:
                raise ValueError(
                    f"step: row {i} has no token to predict: it is too short, masked, or all its labels within "
                    f"max_length are {IGNORE_INDEX}; leave it out, or raise max_length"
                )
            rows.append(row)
        return rows

    def _arguments_of_columns(self, given: Mapping[str, object]) -> dict[str, str]:
        """Return the columns of rows with the arguments of `step` that hold them; ValueError if arguments contradict each other."""
        if (given["input_ids"] is None) == (given["texts"] is None):
            is_neither = given["texts"] is None
            what = "neither input_ids nor texts is given" if is_neither else "both input_ids and texts are given"
            raise ValueError(f"step: {what}; give the rows as one of them")
        if given["texts"] is None:
            names = {"input_ids": "input_ids", "attention_mask": "attention_mask", "labels": "labels"}
            others = ["texts_labels"]
        else:
            names = {"input_ids": "texts", "labels": "texts_labels"}
            others = ["labels", "attention_mask"]
        one, own = names["input_ids"], names["labels"]
        for wrong in others:
            if given[wrong] is not None:
                raise ValueError(f"step: {wrong} does not go with {one}; leave it out, or give {own} for labels")
        if self.encoder_decoder and given[own] is None:
            raise ValueError(f"step: an encoder-decoder model needs labels; give {own}, one for each row")
        return names

    def _columns(self, names: Mapping[str, str], given: Mapping[str, object]) -> dict[str, list[torch.Tensor]]:
        """Return the columns that are given, all with as many rows."""
        columns: dict[str, list[torch.Tensor]] = {}
        for column, name in names.items():
            value = given[name]
            if value is None:
                continue
            columns[column] = self._tokenize(name, value) if "texts" in names.values() else _tensors(name, value)
            own, count = len(columns[column]), len(columns["input_ids"])
            if own != count:
                what = f"{name} has {own} rows, {names['input_ids']} has {count}"
                raise ValueError(f"step: {what}; give as many of both")
        return columns

    def _refuse_other_lengths(self, row: Features, names: Mapping[str, str], i: int) -> None:
        """Raise a ValueError if a column of row `i` has not one value for each token; labels of a second text may."""
        size = len(row["input_ids"])
        for key, column in row.items():
            is_second_text = self.encoder_decoder and key == "labels"
            if len(column) != size and not is_second_text:
                what = f"{names[key]}[{i}] has {len(column)} tokens, {names['input_ids']}[{i}] has {size}"
                raise ValueError(f"step: {what}; give one for each token, or leave {names[key]} out")

    def batches_of_step(
        self, *arguments: object, size: int, own: Callable[[list[Any]], Mapping[str, torch.Tensor]] | None
    ) -> tuple[list[Mapping[str, torch.Tensor]], int]:
        """Return micro-batches of `size` rows, each with labels and a predicted token, and the number of rows.

        A collator of one's `own` gets rows without labels, unless `step` got labels.
        """
        rows = self.rows_of_step(*arguments)
        has_labels = arguments[2] is not None or arguments[4] is not None
        if own and not has_labels:
            rows = [{name: value for name, value in row.items() if name != "labels"} for row in rows]
        batches: list[Mapping[str, torch.Tensor]] = []
        for start in range(0, len(rows), size):
            batch = dict((own or self)(rows[start : start + size]))
            if "labels" not in batch:
                batch["labels"] = self.causal_labels(batch["input_ids"], batch["attention_mask"])
            if self.count_predicted(batch["labels"]) == 0:
                what = f"data_collator left no token to predict in rows {start} to {start + size - 1}"
                raise ValueError(f"step: {what}; leave them out, or use a collator that keeps some of their labels")
            batches.append(batch)
        return batches, len(rows)

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> Features:
        """Return a batch: `input_ids` and `attention_mask` (B, T), and `labels` (B, T) or (B, length of the labels)."""
        names = ("input_ids", "attention_mask", "labels")
        rows = [self._row({n: torch.as_tensor(f[n]) for n in names if f.get(n) is not None}) for f in features]
        choices = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
        pad_token = next(token for token in choices if token is not None)
        padding = {"input_ids": pad_token, "attention_mask": 0, "labels": IGNORE_INDEX}
        return {
            name: pad_sequence([row[name] for row in rows], batch_first=True, padding_value=padding[name])
            for name in names
            if all(name in row for row in rows)
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
            row["labels"] = self.causal_labels(self._truncate(labels[inside]), row["attention_mask"])
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

    def _tokenize(self, name: str, texts: object) -> list[torch.Tensor]:
        key = "text_target" if name == "texts_labels" and self.encoder_decoder else "text"
        tokenizer, side = self.tokenizer, self.tokenizer.truncation_side
        tokenizer.truncation_side = "left" if self.keep_end else "right"
        try:
            options = {"truncation": True, "max_length": self.max_length} if self.max_length else {"verbose": False}
            given = {key: _list(name, texts, str, "texts")}
            encoded = tokenizer(**given, return_attention_mask=False, **options)["input_ids"]
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
