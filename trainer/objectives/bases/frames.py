"""What a chat template writes around messages, found by rendering placeholders in their place."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain

from trainer.objectives.bases.marks import MARKS
from trainer.objectives.bases.messages import Turns

_PLACEHOLDER = re.compile("(\ue000[0-9]+\ue001)")
"""Stands for a message, by its number, in private characters that templates do not write."""


@dataclass(frozen=True)
class Frame:
    """What a template writes around messages of some roles."""

    pieces: list[str]
    """Before, between and behind messages, with marks of what is the assistant's."""
    stripped: list[bool] | None = None
    """Of each message, whether it is stripped of white space; None if the template may do more with what it says."""

    def fill(self, contents: Sequence[str]) -> str:
        """Return the marked text of messages that are written as they are."""
        return "".join(chain.from_iterable(zip(self.pieces, contents, strict=False))) + self.pieces[-1]

    def render(self, contents: Sequence[str]) -> tuple[str, list[tuple[int, int]]] | None:
        """Return the text of messages, and its spans that are the assistant's; None if the template has to be asked."""
        if self.stripped is None or not all(contents):
            return None
        own = [text.strip() if strips else text for text, strips in zip(contents, self.stripped, strict=True)]
        text = "".join(chain.from_iterable(zip(self._unmarked, own, strict=False))) + self._unmarked[-1]
        lengths = [0, *accumulate(map(len, own))]
        ends = [place + lengths[i] for i, place in self._marks]
        return None if MARKS.search(text) else (text, list(zip(ends[::2], ends[1::2], strict=True)))

    @cached_property
    def _unmarked(self) -> list[str]:
        return [MARKS.sub("", piece) for piece in self.pieces]

    @cached_property
    def _marks(self) -> list[tuple[int, int]]:
        """The piece that each mark is in, and where it is if all messages are empty."""
        found, place = list[tuple[int, int]](), 0
        for i, piece in enumerate(self.pieces):
            *before, last = MARKS.split(piece)[::2]
            for text in before:
                place += len(text)
                found.append((i, place))
            place += len(last)
        return found


def find_frame(roles: Sequence[str], mark: Callable[[Turns], str | None], *, is_verbatim: bool) -> Frame | None:
    """Return the frame of messages of these roles; None if it cannot be found.

    `mark` renders messages with marks of what is the assistant's; `is_verbatim` says that it writes them as they are, or stripped.
    """
    pieces, padded = (_pieces_around(roles, mark, padding) for padding in ("", " "))
    return Frame(pieces, _find_stripped(pieces, padded) if is_verbatim else None) if pieces and padded else None


def _pieces_around(roles: Sequence[str], mark: Callable[[Turns], str | None], padding: str) -> list[str] | None:
    """Return what is written around messages; each is a placeholder, with padding on both sides."""
    names = [f"\ue000{i}\ue001" for i in range(len(roles))]
    turns = [{"role": role, "content": f"{padding}{name}{padding}"} for role, name in zip(roles, names, strict=True)]
    pieces = _PLACEHOLDER.split(mark(turns) or "")
    return pieces[::2] if pieces[1::2] == names else None


def _find_stripped(pieces: Sequence[str], padded: Sequence[str]) -> list[bool] | None:
    """Return which messages are stripped, by what is around those with a space on both sides; None if that has other differences."""
    found, before = list[bool](), ""
    for piece, with_spaces in zip(pieces[:-1], padded, strict=False):
        after = with_spaces.removeprefix(f"{before}{piece}")
        if after not in {"", " "} or with_spaces != f"{before}{piece}{after}":
            return None
        found.append(not after)
        before = after
    return found if padded[-1] == f"{before}{pieces[-1]}" else None
