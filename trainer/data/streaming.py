"""Sequences from a stream, which is read pass after pass and resumes where a checkpoint left it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from params import DataError
from trainer.data.order import SampleKey
from trainer.data.randomness import seeded

logger = logging.getLogger(__name__)

STREAM_STATE = "__stream__"
"""Key under which the last example of a micro-batch carries the state of its stream."""


class ShuffledWindows(IterableDataset[Any]):
    """A dataset as a stream: windows of neighbouring rows in random order, shuffled within, read one window at a time."""

    def __init__(self, data: Any, *, seed: int, window: int = 1024) -> None:
        self._data = data
        self._seed = seed
        self._window = window
        self._epoch = self._taken = 0

    def numbers(self, column: str) -> Any:
        """Return the row ids and the integers of a column of all rows, as `Sequences` does."""
        return self._data.numbers(column)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass."""
        self._epoch, self._taken = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        """Return how many rows of the pass were taken."""
        return {"taken": self._taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after that many rows; at most one window is read again."""
        self._taken = state["taken"]

    def __iter__(self) -> Iterator[Any]:
        generator = torch.Generator().manual_seed((self._seed * 1_000_003 + self._epoch) % 2**63)
        starts = range(0, len(self._data), self._window)
        behind = 0
        for number in torch.randperm(len(starts), generator=generator).tolist():
            window = range(starts[number], min(starts[number] + self._window, len(self._data)))
            order = torch.randperm(len(window), generator=generator).tolist()
            skipped = min(max(self._taken - behind, 0), len(window))
            behind += len(window)
            if skipped == len(window):
                continue
            read = [self._data[i] for i in window]
            for place in order[skipped:]:
                self._taken += 1
                yield read[place]


class StreamByPosition(Dataset[Any]):
    """Examples of a stream by sample key; the key's number counts the sequences before it.

    Each process reads the whole stream and keeps its own sequences. A stream with `state_dict` and `load_state_dict` goes to a
    checkpoint's position at once; any other is read again up to there. If the stream has `set_epoch(n)`, it is called before
    the n-th pass. Randomness in the stream depends on the seed and the position.
    """

    def __init__(self, stream: Any, seed: int) -> None:
        self._stream = stream
        self._seed = seed
        self._taken = self._pass = self._of_pass = 0
        self._iterator: Iterator[Any] | None = None

    def __getitems__(self, keys: list[SampleKey]) -> list[tuple[SampleKey, Any]]:
        """Return the examples of one micro-batch; the last one carries the state of the stream after it."""
        while self._taken < keys[0][1]:
            self._next()
        found = [(key, self._next()) for key in keys]
        found[-1] = (keys[-1], {**found[-1][1], STREAM_STATE: self.state_dict()})
        return found

    def state_dict(self) -> dict[str, Any]:
        inner = self._stream.state_dict() if _resumes_exactly(self._stream) else None
        return {"taken": self._taken, "pass": self._pass, "of_pass": self._of_pass, "stream": inner}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a position of a stream of the same data."""
        self._taken, self._pass, self._of_pass = state["taken"], state["pass"], state["of_pass"]
        self._open()
        if state["stream"] is not None:
            self._stream.load_state_dict(state["stream"])
            return
        again, self._of_pass = self._of_pass, 0
        logger.info("train: the stream cannot resume in the middle of a pass: reading %d sequences again", again)
        self._taken -= again
        for _ in range(again):
            self._next()

    def _open(self) -> None:
        if hasattr(self._stream, "set_epoch"):
            self._stream.set_epoch(self._pass)
        self._iterator = None

    def _next(self) -> Any:
        while True:
            if self._iterator is None:
                if self._of_pass == 0:
                    self._open()
                self._iterator = iter(self._stream)
            try:
                with seeded(self._seed, "stream", self._taken):
                    example = next(self._iterator)
            except StopIteration:
                if self._of_pass == 0:
                    raise DataError("the training data", "the stream is empty", "give it rows") from None
                self._pass, self._of_pass, self._iterator = self._pass + 1, 0, None
                continue
            self._taken += 1
            self._of_pass += 1
            return example


def _resumes_exactly(stream: Any) -> bool:
    """Whether a stream resumes with the next example; the shuffle buffer of `datasets` loses its content."""
    inner = getattr(stream, "_ex_iterable", None)
    while inner is not None and type(inner).__name__ != "BufferShuffledExamplesIterable":
        inner = getattr(inner, "ex_iterable", None)
    return inner is None and hasattr(stream, "state_dict") and hasattr(stream, "load_state_dict")
