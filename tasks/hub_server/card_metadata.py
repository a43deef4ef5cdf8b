"""Parse and validate the metadata of a model card, the YAML between two lines `---` at its top, as the Hub does.

Validated is what the specification requires (https://github.com/huggingface/hub-docs/blob/main/modelcard.md) and what the
Hub is known to refuse: the shape of `model-index`, and lists of something other than strings. Not validated: whether the Hub
knows a license, language, dataset, metric or task. Messages are worded as the Hub's:
`"model-index[0].results[0].dataset.config" must be a string`.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent, ScalarEvent

NO_METADATA = "empty or missing yaml metadata in repo card"
_MAX_CHARACTERS = 1 << 17
_MAX_VALUES = 20_000
_MAX_DEPTH = 30
_INTEGERS = (-(1 << 63), (1 << 64) - 1)
"""The smallest and the largest that JSON libraries of other languages read."""
_TOO_MANY = "it has too many values, or too deeply nested ones"


@dataclass(frozen=True)
class Card:
    """A parsed README.md."""

    body: str
    """The Markdown below the metadata."""
    metadata: dict[str, object] | None = None
    """None if the card has no metadata or it cannot be parsed."""
    errors: list[str] = field(default_factory=list)
    """Why the Hub would refuse the card."""
    warnings: list[str] = field(default_factory=list)


def read_card(text: str, *, is_model: bool = True) -> Card:
    """Parse a card and validate its metadata. Never raises: errors are in the result."""
    head, body = split_card(text)
    return (
        Card(text, warnings=[NO_METADATA]) if head is None else replace(_read_head(head, is_model=is_model), body=body)
    )


@lru_cache(maxsize=64)  # whoever reads a page of the Hub makes it parse a card
def _read_head(head: str, *, is_model: bool) -> Card:
    """Return a card with this metadata, without its body."""
    try:
        metadata = _to_json(_parse(head))
    except Exception as error:  # noqa: BLE001 - the parser raises much else: KeyError for `!!bool x`, IndexError for `!!int ''`
        known = isinstance(error, YAMLError | ValueError) and str(error)
        what = known or f"a value or a directive cannot be parsed ({type(error).__name__})"
        shown = what.encode(errors="backslashreplace").decode()  # it may quote a text that no answer can hold
        return Card("", errors=[f"the metadata is not YAML: {shown}"])
    if metadata is None or metadata == {}:
        return Card("", warnings=[NO_METADATA])
    if not isinstance(metadata, dict):
        return Card("", errors=["the metadata is not a mapping of keys to values"])
    return Card("", metadata, errors=list(_validate(metadata, is_model=is_model)))


def split_card(text: str) -> tuple[str | None, str]:
    """Return the metadata and the body; without a complete block of metadata None and the whole text."""
    lines = text.lstrip("\ufeff \t\r\n").splitlines(keepends=True)
    if lines and lines[0].rstrip() == "---":
        for number, line in enumerate(lines[1:], start=1):
            if line.rstrip() == "---":
                return "".join(lines[1:number]), "".join(lines[number + 1 :])
    return None, text


def _parse(text: str) -> object:
    """Read YAML. Merge keys are refused: a few lines of them can stand for more values than fit in memory."""
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(f"it is longer than {_MAX_CHARACTERS} characters")
    constructor, parser = YAML(typ="safe", pure=True).get_constructor_parser(io.StringIO(text))
    next_event, events, depth = parser.get_event, itertools.count(), 0

    def get_event() -> object:
        nonlocal depth
        event = next_event()
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if next(events) > _MAX_VALUES or depth > _MAX_DEPTH:
            raise ValueError(_TOO_MANY)
        if isinstance(event, ScalarEvent) and event.value == "<<":
            raise ValueError("it has a merge key `<<`: write out what it stands for")
        return event

    parser.get_event = get_event
    return constructor.get_single_data()


def _to_json(root: object) -> object:
    """Convert YAML values to those of JSON; ValueError for one that no answer of the Hub could hold.

    An alias counts as a copy of what it stands for, so a few lines of aliases are too many values.
    """
    values = itertools.count()

    def convert(value: object, depth: int) -> object:
        if next(values) > _MAX_VALUES or depth > _MAX_DEPTH:  # perhaps an alias inside of itself
            raise ValueError(_TOO_MANY)
        if isinstance(value, dict):
            return {str(convert(key, depth + 1)): convert(item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple, set)):
            return [convert(item, depth + 1) for item in value]
        if isinstance(value, int) and not _INTEGERS[0] <= value <= _INTEGERS[1]:
            raise ValueError("an integer has more than 64 bits: quote it")
        if isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
            raise ValueError(f"{value[:100]!a} has half of a surrogate pair, which is not a character: remove it")
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)

    return convert(root, 0)


_Errors = Iterator[str]
_Check = Callable[[str, object], _Errors]


def _validate(metadata: dict[str, object], *, is_model: bool) -> _Errors:
    for key in ("license", "language", "tags", "datasets", "metrics", "base_model"):
        if key in metadata:
            yield from _one_or_many(key, metadata[key], _string)
    for key in ("license_name", "license_link", "library_name", "pipeline_tag", "thumbnail"):
        if key in metadata:
            yield from _string(key, metadata[key])
    if "widget" in metadata and not isinstance(metadata["widget"], list):
        yield '"widget" must be an array'
    if is_model and "model-index" in metadata:
        yield from _MODEL_INDEX("model-index", metadata["model-index"])


def _string(where: str, value: object) -> _Errors:
    if not isinstance(value, str):
        yield f'"{where}" must be a string'


def _boolean(where: str, value: object) -> _Errors:
    if not isinstance(value, bool):
        yield f'"{where}" must be a boolean'


def _anything(_where: str, _value: object) -> _Errors:
    yield from ()


def _one_or_many(where: str, value: object, check: _Check) -> _Errors:
    yield from _array_of(check)(where, value) if isinstance(value, list) else check(where, value)


def _array_of(check: _Check) -> _Check:
    def check_array(where: str, value: object) -> _Errors:
        if not isinstance(value, list):
            yield f'"{where}" must be an array'
            return
        for number, item in enumerate(value):
            yield from check(f"{where}[{number}]", item)

    return check_array


def _object(required: dict[str, _Check], optional: dict[str, _Check] | None = None) -> _Check:
    def check_object(where: str, value: object) -> _Errors:
        if not isinstance(value, dict):
            yield f'"{where}" must be of type object'
            return
        for key, check in {**required, **(optional or {})}.items():
            if key in value:
                yield from check(f"{where}.{key}", value[key])
            elif key in required:
                yield f'"{where}.{key}" is required'

    return check_object


_TASK = _object({"type": _string}, {"name": _string})
_DATASET = _object({"type": _string, "name": _string}, dict.fromkeys(("config", "split", "revision"), _string))
_METRIC = _object({"type": _string, "value": _anything}, {"name": _string, "config": _string, "verified": _boolean})
_RESULT = _object({"task": _TASK, "dataset": _DATASET, "metrics": _array_of(_METRIC)})
_MODEL_INDEX = _array_of(_object({"name": _string, "results": _array_of(_RESULT)}))
