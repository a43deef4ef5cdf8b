"""Values of a column that says whether an answer is good, in the forms that people have them."""

from __future__ import annotations

from typing import Any, Final

GOOD: Final = frozenset(
    {"true", "1", "1.0", "good", "yes", "positive", "up", "thumbs_up", "correct", "accept", "accepted"}
)
BAD: Final = frozenset(
    {"false", "0", "0.0", "-1", "bad", "no", "negative", "down", "thumbs_down", "wrong", "reject", "rejected"}
)


def is_good(value: Any) -> bool:
    """Whether a value says that an answer is good; ValueError if it says neither that nor that it is bad."""
    said = str(value).strip().lower()
    if said not in GOOD | BAD:
        raise ValueError(
            f"{value!r:.40} says neither that the answer is good, such as true, nor that it is bad, such as false"
        )
    return said in GOOD
