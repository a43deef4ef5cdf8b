"""Where a span of a text is, if it also has its own text, which may contradict its offsets.

Browsers and other programs count units of UTF-16 or bytes, in which an emoji is more than one; some count the last character in. The span's own
text says which of these it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def locate_span(span: Mapping[str, Any], text: str) -> tuple[int, int] | None:
    """Return the characters of a span with `start` and `end`, from the first up to, but not including, the last.

    They are those of its offsets, unless its own `text` says otherwise; None if that is not where any count of its offsets says, nor just once in
    the text.
    """
    start, end, said = int(span["start"]), int(span["end"]), span.get("text")
    if not isinstance(said, str) or not said.strip() or _alike(text[max(0, start) : max(0, end)], said):
        return start, end
    for place in _other_counts(start, end, text):
        if text[slice(*place)].strip() == said.strip():
            return place
    if text.count(said) == 1:
        return text.index(said), text.index(said) + len(said)
    return None


def is_moved(span: Mapping[str, Any], text: str) -> bool:
    """Whether a span is read elsewhere than its offsets say."""
    return locate_span(span, text) not in (None, (int(span["start"]), int(span["end"])))


def _other_counts(start: int, end: int, text: str) -> Iterator[tuple[int, int]]:
    """Yield the characters that offsets stand for in units of UTF-16, in bytes of UTF-8, and if the last one counts, too."""
    if not 0 <= start <= end:
        return
    yield start, end + 1
    for encoding, size in (("utf-16-le", 2), ("utf-8", 1)):
        units = text.encode(encoding, "surrogatepass")
        for last in (end, end + 1):
            before, whole = (units[: size * place].decode(encoding, "ignore") for place in (start, last))
            yield len(before), len(whole)


def _alike(found: str, said: str) -> bool:
    """Whether two texts are the same but for case and white space."""
    return "".join(found.split()).casefold() == "".join(said.split()).casefold()
