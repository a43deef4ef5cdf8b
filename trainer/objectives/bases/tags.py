"""Tags of sub-words, B-label and I-label or O, and the spans that they stand for."""

from __future__ import annotations

from collections.abc import Sequence

OUTSIDE = "O"
Span = tuple[str, int, int]
"""Label, start and end: in characters, or in sub-words."""


def spans_from_bio_tags(tags: Sequence[str | None]) -> list[Span]:
    """Return label, first sub-word and sub-word after the last of each span of B- and I-tags, as seqeval reads them.

    An I-tag that does not continue the span before it begins one.
    """
    found: list[Span] = []
    for place, tag in enumerate(tags):
        kind, _, label = (tag or OUTSIDE).partition("-")
        if kind == "I" and found and (found[-1][0], found[-1][2]) == (label, place):
            found[-1] = (label, found[-1][1], place + 1)
        elif kind != OUTSIDE:
            found.append((label, place, place + 1))
    return found
