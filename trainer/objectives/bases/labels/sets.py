"""Any number of labels of a row: from a list, from a record that says yes or no of each, or from a column for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

_YES: Final = frozenset({"true", "yes", "y", "t", "x"})
_NO: Final = frozenset({"false", "no", "n", "f"})


def says_yes(value: Any) -> bool:
    """Whether a value says that a row has a label: true, yes, or a number from 0.5 to 1; ValueError if it says neither yes nor no.

    Numbers between 0 and 1 are shares of people, for example, of which at least half must agree.
    """
    text = str(value).strip().lower()
    if text in _YES or text in _NO:
        return text in _YES
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise ValueError(f"{value!r} says neither yes nor no: write 1 or 0, true or false, yes or no")
    return number >= 0.5


def list_labels_in(value: Any) -> Iterator[str]:
    """Yield the labels in a list, or those keys of a record, such as spaCy's `cats`, whose value says yes; null says no.

    TypeError for anything else, and ValueError for a value that says neither yes nor no.
    """
    if isinstance(value, Mapping):
        yield from (str(label) for label, own in value.items() if own is not None and says_yes(own))
    elif isinstance(value, list | tuple):
        yield from map(str, value)
    else:
        raise TypeError(f"{value!r} is neither a list of labels nor a record of them")


def why_labels_unusable(column: str, value: Any) -> str | None:
    """Return what is wrong with the labels in a column with a list or a record of them; None if nothing."""
    try:
        is_blank = any(not label.strip() for label in list_labels_in(value))
    except (TypeError, ValueError) as error:
        return f"of its {column}, {error}"
    return f"one of its {column} is blank" if is_blank else None
