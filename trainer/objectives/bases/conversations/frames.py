"""What a chat template writes around messages, found by rendering placeholders in their place."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain

from trainer.objectives.bases.conversations.marks import MARKS
from trainer.objectives.bases.conversations.messages import Turns

_SPACE = "\u2003"
_PLACEHOLDER = re.compile(f"({_SPACE}?)(\ue000[0-9]+\ue001)({_SPACE}?)")
"""Stands for a message, by its number. A space that templates do not write is around it, unless the message is stripped."""


@dataclass(frozen=True)
class Frame:
    """What a template writes around messages of some roles."""

    pieces: list[str]
    """Before, between and behind messages, with marks of what is the assistant's."""
    stripped: list[bool] | None = None
    """Of each message, whether it is stripped of white space; None if the template may do more with what it says."""

    def fill(self, contents: Sequence[str]) -> str:
        """Return the marked text of messages that are written as they are."""
        return _interleave(self.pieces, contents)

    def render(self, contents: Sequence[str]) -> tuple[str, list[tuple[int, int]]] | None:
        """Return the text of messages, and its spans that are the assistant's; None if the template has to be asked."""
        if self.stripped is None or not all(contents):
            return None
        own = [text.strip() if strips else text for text, strips in zip(contents, self.stripped, strict=True)]
        text = _interleave(self._unmarked, own)
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


def find_frame(
    roles: Sequence[str], mark: Callable[[Turns], str | None], render: Callable[[Turns], str] | None = None
) -> Frame | None:
    """Return the frame of messages of these roles; None if it cannot be found.

    `mark` renders messages with marks of what is the assistant's. `render` renders them without; it is given if the template does nothing
    with what they say but write it, as it is, stripped, or as JSON.
    """
    names = [f"\ue000{i}\ue001" for i in range(len(roles))]
    split = _PLACEHOLDER.split(mark(_turns(roles, [f"{_SPACE}{name}{_SPACE}" for name in names])) or "")
    pieces, before, found, after = (split[i::4] for i in range(4))
    if found != names:
        return None
    frame = Frame(pieces, [not space for space in before] if before == after else None)
    others = ['"'] * len(roles)  # other than their JSON, and than what the template or a role writes like a placeholder
    is_known = render and (known := frame.render(others)) and known[0] == render(_turns(roles, others))
    return frame if is_known else Frame(pieces)


def _interleave(pieces: Sequence[str], contents: Sequence[str]) -> str:
    """Return pieces of a text with contents between them."""
    return "".join(chain.from_iterable(zip(pieces, contents, strict=False))) + pieces[-1]


def _turns(roles: Sequence[str], contents: Sequence[str]) -> Turns:
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
