"""From what a caller of `step` gives to padded batches: checked, cut, labelled.

A row is a sequence of T tokens: `input_ids`, `attention_mask` and `labels`, each (T,); for an encoder-decoder model
`labels` has a length of its own. What the attention mask leaves out at either end is padding and is taken off first, so
that a token is padding by its place and never by its id: a tokenizer may pad with its end-of-text token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

IGNORED = -100
"""The label of a token that is not learned."""
Row = dict[str, torch.Tensor]


class Rows:
    """Makes rows, and batches of them; as a data collator it also takes the rows of an evaluation.

    Args:
        encoder_decoder: the model has an encoder, and its labels are sequences of their own.
        tokenizer: for texts; a batch is filled with its padding token.
        max_length: longest sequence in tokens; None cuts nothing.
        keep_end: of a longer one, the last tokens stay; otherwise the first.
    """

    def __init__(
        self,
        *,
        encoder_decoder: bool,
        tokenizer: Any,
        max_length: int | None,
        keep_end: bool,
    ) -> None:
        self.encoder_decoder = encoder_decoder
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.keep_end = keep_end

    def of(
        self, input_ids: object, attention_mask: object, labels: object, texts: object, texts_labels: object
    ) -> list[Row]:
        """The rows of a call of `step`, each with something to learn.

        Raises:
            ValueError: an argument is of the wrong type, empty, or contradicts another; or a row has nothing to learn.
        """
        if (input_ids is None) == (texts is None):
            what = "neither input_ids nor texts is given" if texts is None else "both input_ids and texts are given"
            raise ValueError(f"step: {what}; give the rows as one of them")
        one, own_labels = ("input_ids", "labels") if texts is None else ("texts", "texts_labels")
        strangers = (
            {"texts_labels": texts_labels} if texts is None else {"labels": labels, "attention_mask": attention_mask}
        )
        for name, value in strangers.items():
            if value is not None:
                raise ValueError(f"step: {name} does not go with {one}; leave it out, or give {own_labels} for labels")
        if self.encoder_decoder and labels is None and texts_labels is None:
            what = "an encoder-decoder model has to be told what to learn"
            raise ValueError(f"step: {what}; give {own_labels}, one for each row")
        of_tokens = texts is None
        rows = self.of_tensors(input_ids, attention_mask, labels) if of_tokens else self.of_texts(texts, texts_labels)
        for i, row in enumerate(rows):
            if len(row["input_ids"]) == 0 or self.learned(row["labels"]) == 0:
                raise ValueError(
                    f"step: row {i} has no token to learn: it is too short, masked, or all its labels within "
                    f"max_length are {IGNORED}; leave it out, or raise max_length"
                )
        return rows

    def of_tensors(self, input_ids: object, attention_mask: object, labels: object) -> list[Row]:
        """One row for each tensor.

        Raises:
            ValueError: an argument is of the wrong type, empty, or does not fit the others.
        """
        given = {"input_ids": _tensors("input_ids", input_ids)}
        for name, value in (("attention_mask", attention_mask), ("labels", labels)):
            if value is not None:
                given[name] = _tensors(name, value)
                _check_as_many(name, given[name], "input_ids", given["input_ids"])
        aligned = set(given) - ({"labels"} if self.encoder_decoder else set())
        for i, ids in enumerate(given["input_ids"]):
            for name in sorted(aligned):
                if len(given[name][i]) != len(ids):
                    raise ValueError(
                        f"step: {name}[{i}] has {len(given[name][i])} tokens, input_ids[{i}] has {len(ids)}; "
                        f"give {name} one value for each token"
                    )
        return [self._row(dict(zip(given, values, strict=True))) for values in zip(*given.values(), strict=True)]

    def of_texts(self, texts: object, texts_labels: object) -> list[Row]:
        """One row for each text. The tokenizer does the cutting, so that its special tokens stay.

        Raises:
            ValueError: an argument is of the wrong type, empty, or does not fit the other.
        """
        checked = _texts("texts", texts)
        rows = [{"input_ids": ids} for ids in self._tokenized(checked)]
        if texts_labels is not None:
            wanted = _texts("texts_labels", texts_labels)
            _check_as_many("texts_labels", wanted, "texts", checked)
            for i, (row, ids) in enumerate(zip(rows, self._tokenized(wanted, labels=True), strict=True)):
                if not self.encoder_decoder and len(ids) != len(row["input_ids"]):
                    raise ValueError(
                        f"step: texts_labels[{i}] has {len(ids)} tokens, texts[{i}] has {len(row['input_ids'])}; a causal "
                        "model has one label for each token of its input: leave texts_labels out to learn the texts, or "
                        "give input_ids and labels, with -100 for the tokens that are not to be learned"
                    )
                row["labels"] = ids
        return [self._row(row) for row in rows]

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> Row:
        """A batch: `input_ids` and `attention_mask` (B, T), and `labels` (B, T) or (B, T of the labels)."""
        names = ("input_ids", "attention_mask", "labels")
        rows = [self._row({n: torch.as_tensor(f[n]) for n in names if f.get(n) is not None}) for f in features]
        ends = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
        fill = {"input_ids": next(token for token in ends if token is not None), "attention_mask": 0, "labels": IGNORED}
        shared = [name for name in names if all(name in row for row in rows)]
        return {
            name: pad_sequence([row[name] for row in rows], batch_first=True, padding_value=fill[name])
            for name in shared
        }

    def learned(self, labels: torch.Tensor) -> int:
        """How many tokens of a batch's labels are predicted: a causal model does not predict the first of a row."""
        predicted = labels if self.encoder_decoder else labels[..., 1:]
        return int((predicted != IGNORED).sum())

    def causal_labels(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Every token that is not padding."""
        return input_ids.masked_fill(attention_mask == 0, IGNORED)

    def _row(self, given: Row) -> Row:
        """A whole row from `input_ids` and whatever of the others there is; a row that is whole stays as it is."""
        ids = given["input_ids"]
        mask = given.get("attention_mask", torch.ones_like(ids))
        labels = given.get("labels")
        seen = mask.nonzero().flatten().tolist()
        inside = slice(seen[0], seen[-1] + 1) if seen else slice(0, 0)
        row = {"input_ids": self._cut(ids[inside]), "attention_mask": self._cut(mask[inside])}
        if self.encoder_decoder:
            if labels is not None:
                row["labels"] = self._cut(self._without_padding(labels))
        elif labels is None:
            row["labels"] = self.causal_labels(row["input_ids"], row["attention_mask"])
        else:
            row["labels"] = self._cut(labels[inside]).masked_fill(row["attention_mask"] == 0, IGNORED)
        return row

    def _cut(self, sequence: torch.Tensor) -> torch.Tensor:
        if self.max_length is None:
            return sequence
        return sequence[-self.max_length :] if self.keep_end else sequence[: self.max_length]

    def _without_padding(self, labels: torch.Tensor) -> torch.Tensor:
        """Labels have no mask: the padding tokens at their end are padding, but for the one that may end the text."""
        pad, end = self.tokenizer.pad_token_id, len(labels)
        while end and labels[end - 1] == pad:
            end -= 1
        return labels[: end + 1] if pad == self.tokenizer.eos_token_id else labels[:end]

    def _tokenized(self, texts: list[str], *, labels: bool = False) -> list[torch.Tensor]:
        name = "text_target" if labels and self.encoder_decoder else "text"
        tokenizer = self.tokenizer
        side = tokenizer.truncation_side
        tokenizer.truncation_side = "left" if self.keep_end else "right"
        try:
            cut = {"truncation": True, "max_length": self.max_length} if self.max_length else {"verbose": False}
            encoded = tokenizer(**{name: texts}, return_attention_mask=False, **cut)["input_ids"]
        finally:
            tokenizer.truncation_side = side
        return [torch.tensor(ids, dtype=torch.long) for ids in encoded]


def _tensors(name: str, value: object) -> list[torch.Tensor]:
    found = _listed(name, value, "tensors")
    for i, tensor in enumerate(found):
        if not isinstance(tensor, torch.Tensor):
            raise _wrong_type(f"{name}[{i}]", tensor, "a tensor", f"torch.tensor({name}[{i}])")
        if tensor.ndim != 1 or len(tensor) == 0:
            raise ValueError(
                f"step: {name}[{i}] has the shape {tuple(tensor.shape)}; give one row of tokens, which is (T,), T > 0"
            )
        if tensor.is_floating_point() or tensor.is_complex():
            raise ValueError(f"step: {name}[{i}] holds {tensor.dtype}, not integers; give {name}[{i}].long()")
    return [tensor.detach().cpu().long() for tensor in found]


def _texts(name: str, value: object) -> list[str]:
    found = _listed(name, value, "texts")
    for i, text in enumerate(found):
        if not isinstance(text, str):
            raise _wrong_type(f"{name}[{i}]", text, "a text", "a list of str")
    return found


def _listed(name: str, value: object, what: str) -> list[Any]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        fix = f"list({name})" if isinstance(value, torch.Tensor) and value.ndim == 2 else f"[{name}]"
        raise _wrong_type(name, value, f"a list of {what}", f"{fix}, one for each row")
    if len(value) == 0:
        raise ValueError(f"step: {name} is empty; do not call step when there is no row to learn from")
    return list(value)


def _check_as_many(name: str, values: Sequence[object], other: str, others: Sequence[object]) -> None:
    if len(values) != len(others):
        raise ValueError(f"step: {name} has {len(values)} rows, {other} has {len(others)}; give as many of both")


def _wrong_type(what: str, found: object, wanted: str, fix: str) -> ValueError:
    return ValueError(f"step: {what} is of type {type(found).__name__}, not {wanted}; give {fix}")
