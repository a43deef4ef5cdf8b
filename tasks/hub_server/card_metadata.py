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
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BaseModel, Discriminator, Field, StrictBool, Tag, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent, ScalarEvent

NO_METADATA = "empty or missing yaml metadata in repo card"
_MAX_CHARACTERS = 1 << 17
_MAX_VALUES = 5_000
_MAX_DEPTH = 30
_INTEGERS = (-(1 << 63), (1 << 64) - 1)
"""The smallest and the largest that JSON libraries of other languages read."""
_TOO_MANY = "it has too many values, or too deeply nested ones"


@dataclass(frozen=True)
class ParsedCard:
    body: str
    """The Markdown below the metadata."""
    metadata: dict[str, object] | None = None
    """None if the card has no metadata or it cannot be parsed."""
    errors: list[str] = field(default_factory=list)
    """Why the Hub would refuse the card."""
    warnings: list[str] = field(default_factory=list)


def parse_card(text: str, *, is_model: bool = True) -> ParsedCard:
    """Parse a card and validate its metadata. Never raises: errors are in the result."""
    head, body = split_card(text)
    if head is None:
        return ParsedCard(text, warnings=[NO_METADATA])
    return replace(_read_head(head, is_model=is_model), body=body)


@lru_cache(maxsize=128)  # whoever reads a page of the Hub makes it parse a card
def _read_head(head: str, *, is_model: bool) -> ParsedCard:
    """Return a card with this metadata, without its body."""
    try:
        metadata = _to_json(_parse(head))
    except Exception as error:  # noqa: BLE001 - the parser raises much else: KeyError for `!!bool x`, IndexError for `!!int ''`
        known = isinstance(error, YAMLError | ValueError) and str(error)
        what = known or f"a value or a directive cannot be parsed ({type(error).__name__})"
        shown = what.encode(errors="backslashreplace").decode()  # it may quote a text that no answer can hold
        return ParsedCard("", errors=[f"the metadata is not YAML: {shown}"])
    if metadata is None or metadata == {}:
        return ParsedCard("", warnings=[NO_METADATA])
    if not isinstance(metadata, dict):
        return ParsedCard("", errors=["the metadata is not a mapping of keys to values"])
    return ParsedCard("", metadata, errors=list(_validate(metadata, is_model=is_model)))


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
        return _scalar_to_json(value)

    return convert(root, 0)


def _scalar_to_json(value: object) -> object:
    if value is None:
        return None
    if isinstance(value, int):  # or a truth value
        if not _INTEGERS[0] <= value <= _INTEGERS[1]:
            raise ValueError("an integer has more than 64 bits: quote it")
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, str):
        if any("\ud800" <= char <= "\udfff" for char in value):
            raise ValueError(f"{value[:100]!a} has half of a surrogate pair, which is not a character: remove it")
        return value
    return str(value)


_Names = Annotated[
    Annotated[str, Tag("one")] | Annotated[list[str], Tag("many")],
    Discriminator(lambda value: "many" if isinstance(value, list) else "one"),
]


class _Task(BaseModel):
    type: str
    name: str = ""


class _Dataset(BaseModel):
    type: str
    name: str
    config: str = ""
    split: str = ""
    revision: str = ""


class _Metric(BaseModel):
    type: str
    value: Any
    name: str = ""
    config: str = ""
    verified: StrictBool = False


class _Result(BaseModel):
    task: _Task
    dataset: _Dataset
    metrics: list[_Metric]


class _Model(BaseModel):
    name: str
    results: list[_Result]


class _Metadata(BaseModel):
    license: _Names = ""
    language: _Names = ""
    tags: _Names = ""
    datasets: _Names = ""
    metrics: _Names = ""
    base_model: _Names = ""
    license_name: str = ""
    license_link: str = ""
    library_name: str = ""
    pipeline_tag: str = ""
    thumbnail: str = ""
    widget: list[Any] = []
    models: list[_Model] = Field(default=[], alias="model-index")


_MUST = {"string_type": "must be a string", "bool_type": "must be a boolean", "list_type": "must be an array"}
_MUST |= {"missing": "is required", "model_type": "must be of type object"}


def _validate(metadata: dict[str, object], *, is_model: bool) -> Iterator[str]:
    try:
        _Metadata.model_validate({key: value for key, value in metadata.items() if is_model or key != "model-index"})
    except ValidationError as error:
        for each in error.errors():
            parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in each["loc"]]
            where = "".join(part for part in parts if part not in (".one", ".many")).removeprefix(".")
            yield f'"{where}" {_MUST[each["type"]]}'
