"""Names of labels: which of two sets mean the same, and which look alike."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

FEW_ROWS: Final = 4
"""So many rows of a label may all be held out by chance: with 30 % held out, all of five rows are once in 400 times."""
_NO_NAME: Final = re.compile(r"LABEL_\d+")
"""What transformers calls labels that nobody has named."""
_WHOLE: Final = re.compile(r"^(-?\d+)\.0+$")
"""A whole number with decimals: pandas writes integers like that in a file where one is missing."""
_OTHER_TAGS: Final[Mapping[str, tuple[str, ...]]] = {"B": ("U-", "S-"), "I": ("", "L-", "E-")}
"""What other schemes, such as IO and BILOU, call a tag of BIO: `PER` without a scheme is inside of a person."""


def are_unnamed(labels: Sequence[str]) -> bool:
    """Whether these are the names that transformers gives labels without one."""
    return all(_NO_NAME.fullmatch(label) for label in labels)


def require_one_output(config: Any) -> None:
    """Raise a ValueError if a model, of which this is the configuration, gives other than one number for a text."""
    if config.num_labels != 1:
        raise ValueError(
            f"it gives {config.num_labels} numbers for a text, such as one for each label, and not one score"
        )


def require_problem_type(config: Any, wanted: str) -> None:
    """Raise a ValueError if the configuration of a model says that its outputs are those of another problem."""
    if (kind := getattr(config, "problem_type", None)) not in {None, wanted}:
        raise ValueError(f"problem_type in its config.json is {kind}, and not {wanted}")


def match_labels(known: Sequence[str], wanted: Sequence[str]) -> list[int | None]:
    """Return for each wanted label the place of the same one among those that a model knows, or None.

    It is the one with the same name, or else the only one whose name differs in nothing but case, Unicode form and white space. Tags
    of spans (O, B-date, I-date, ...) are also found under their names in other schemes. If a model's labels have no names, and the wanted ones
    are the numbers of all of them, each is at its number, because a model that learned numbers has them there.
    """
    if len(known) > 1 and are_unnamed(known) and {*wanted} == {*map(str, range(len(known)))}:
        return [int(label) for label in wanted]
    are_tags = wanted[:1] == ["O"] and all(re.match("[BI]-", label) for label in wanted[1:])
    alike, twins = {label: _folded(label) for label in (*known, *wanted)}, Counter(map(_folded, wanted))
    places = {name: [i for i, label in enumerate(known) if alike[label] == name] for name in set(alike.values())}

    def find(label: str) -> int | None:
        if label in known:
            return known.index(label)
        found = places.get(_folded(label), [])
        return found[0] if len(found) == 1 and twins[_folded(label)] <= 1 else None

    def find_tag(tag: str) -> int | None:
        names = [tag, *(other + tag[2:] for other in _OTHER_TAGS.get(tag[0], ()))]
        return next((place for name in names if (place := find(name)) is not None), None)

    return [find_tag(label) if are_tags else find(label) for label in wanted]


def describe_look_alikes(labels: Mapping[str, int], state_of: Callable[[Collection[str]], Any]) -> list[str]:
    """Return a sentence for each group of labels that differ in nothing but case, Unicode form or white space, or as 1 and 1.0 do.

    `labels` has the number of rows of each. What `state_of` returns says whether the labels of a group are learned as one.
    """
    groups: dict[str, list[str]] = {}
    for label in sorted(labels):
        groups.setdefault(_WHOLE.sub(r"\1", _folded(label)), []).append(label)
    found = []
    for group in (one for one in groups.values() if len(one) > 1):
        said = f"the labels {' and '.join(f'{label!r} ({labels[label]:,} rows)' for label in group)} look alike"
        are_one = state_of(group) == state_of([group[0].strip()])
        found.append(f"{said}, and are learned as {'one' if are_one else 'several: write them alike if they are one'}")
    return found


def as_learned(label: str, state_of: Callable[[Collection[str]], Any]) -> str:
    """Return a label without the white space at its ends, if `state_of` learns both as one."""
    bare = label.strip()
    return bare if bare != label and state_of({bare}) == state_of({label}) else label


def list_labels(labels: Sequence[str], limit: int = 10) -> str:
    """Return the names of labels for a message, of many only the first."""
    more = f" and {len(labels) - limit:,} more" if len(labels) > limit else ""
    return ", ".join(map(repr, labels[:limit])) + more


def _folded(label: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", label).casefold().split())
