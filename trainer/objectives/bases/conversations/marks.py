"""Marks around the assistant's text, where a conversation is rendered to find it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

START, STOP = "\ufdd0", "\ufdd1"
"""Stand around the assistant's text where a template is rendered to find it; Unicode has them for such uses."""
MARKS = re.compile(f"([{START}{STOP}])")
GENERATION_START = re.compile(r"(\{%[-+]?\s*generation\s*)(-%\}|\+%\}|%\}\n?)")
GENERATION_STOP = re.compile(r"(\{%-|\{%\+|(?:^[ \t]*)?\{%)(\s*endgeneration\s*[-+]?%\})", re.MULTILINE)
CAPTURE = re.compile(r"\{%[-+]?\s*(macro|call|filter|set\b[^=]*%\})")
"""What keeps a text that a template writes, and may change it: with marks in it, it could become another one."""


def mark_answers(template: str) -> str | None:
    """Return a chat template that also writes marks around what it has in {% generation %}; None if it has nothing there."""
    marked = GENERATION_START.sub(lambda m: f"{m[1]}%}}{{{{ '{START}' {'-' * (m[2][0] == '-')}}}}}", template)
    marked = GENERATION_STOP.sub(lambda m: f"{{{{{'-' * m[1].endswith('-')} '{STOP}' }}}}{{%{m[2]}", marked)
    return marked if marked != template else None


def find_marks(text: str, marked: str) -> list[tuple[int, int]] | None:
    """Return the spans of a text between the marks of its other rendering; None if that is another text, or its marks are no pairs."""
    pieces = MARKS.split(marked)
    if "".join(pieces[::2]) != text or pieces[1::2] != [START, STOP] * (len(pieces) // 4):
        return None
    ends = list(accumulate(map(len, pieces[::2])))
    return list(zip(ends[:-1:2], ends[1::2], strict=True))


def marked_spans(text: str, marked: str) -> list[tuple[int, int]]:
    """Return the spans between the marks that a template writes; ValueError if there are none."""
    if not (spans := find_marks(text, marked)):
        what = "writes nothing between" if spans == [] else "changes what it writes between"
        where = "{% generation %} and {% endgeneration %}, so the assistant's tokens cannot be found"
        raise ValueError(f"the chat template {what} {where}")
    return spans


def cut_at_spans(text: str, spans: Sequence[tuple[int, int]]) -> list[str]:
    """Return the parts of a text by turns: what is before the first span, the span, what is before the next one, and so on."""
    return [text[start:stop] for start, stop in pairwise([0, *chain.from_iterable(spans), len(text)])]


def may_say_marks(turn: Mapping[str, Any]) -> bool:
    """Whether a message has a mark in what it says, or has more keys, which are not looked at."""
    return turn.keys() != {"role", "content"} or any(MARKS.search(text) for text in turn.values())
