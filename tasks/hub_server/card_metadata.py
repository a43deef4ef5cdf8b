"""Parse and validate the metadata of a model card, the YAML between two lines `---` at its top, as the Hub does.

Validated is what the specification requires (https://github.com/huggingface/hub-docs/blob/main/modelcard.md) and what the
Hub is known to refuse: the shape of `model-index`, and lists of something other than strings. An unknown license is a warning.
Not validated: whether the Hub knows a language, dataset, metric or task. Messages are worded as the Hub's:
`"model-index[0].results[0].dataset.config" must be a string`.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import CollectionNode, Node

NO_METADATA = "empty or missing yaml metadata in repo card"
_MAX_CHARACTERS = 1 << 17
_MAX_VALUES = 20_000
_MAX_DEPTH = 30
_INTEGERS = (-(1 << 63), (1 << 64) - 1)
"""The smallest and the largest that JSON libraries of other languages read."""
_TOO_MANY = "it has too many values, or too deeply nested ones"
_NESTING = {"[": 1, "{": 1, "]": -1, "}": -1}

_LICENSES = """afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0
bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5 cc-by-3.0
cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0
cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0 cdla-permissive-2.0
cdla-sharing-1.0 creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2
fair-noncommercial-research-license gemma gfdl gpl gpl-2.0 gpl-3.0 grok2-community h-research intel-research isc lgpl
lgpl-2.1 lgpl-3.0 lgpl-lr llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by
ofl-1.1 openmdw-1.0 openrail openrail++ osl-3.0 other pddl postgresql unknown unlicense wtfpl zlib"""
LICENSES = frozenset(_LICENSES.split())
"""The licenses that the Hub accepted in May 2026 (https://github.com/huggingface/huggingface_hub/issues/4218)."""


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
    warnings = list(_one_or_many("license", metadata.get("license", "other"), _known_license))
    return Card("", metadata, errors=list(_validate(metadata, is_model=is_model)), warnings=warnings)


def split_card(text: str) -> tuple[str | None, str]:
    """Return the metadata and the body; without a complete block of metadata None and the whole text."""
    lines = text.lstrip("\ufeff \t\r\n").splitlines(keepends=True)
    if lines and lines[0].rstrip() == "---":
        for number, line in enumerate(lines[1:], start=1):
            if line.rstrip() == "---":
                return "".join(lines[1:number]), "".join(lines[number + 1 :])
    return None, text


def _parse(text: str) -> object:
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(f"it is longer than {_MAX_CHARACTERS} characters")
    if max(accumulate(_NESTING.get(char, 0) for char in text), default=0) > _MAX_DEPTH:  # it would take seconds
        raise ValueError(_TOO_MANY)
    yaml = YAML(typ="safe", pure=True)
    constructor, parser = yaml.get_constructor_parser(io.StringIO(text))
    next_event, events = parser.get_event, itertools.count()

    def get_event() -> object:
        if next(events) > _MAX_VALUES:
            raise ValueError(_TOO_MANY)
        return next_event()

    parser.get_event = get_event
    node = constructor.composer.get_single_node()
    if node is None:
        return None
    _check_size(node)
    return constructor.construct_document(node)


def _check_size(root: Node) -> None:
    """Refuse nodes that would become too many values, or too deeply nested ones; a few lines of aliases can do that.

    An alias and a merge key count as a copy of what they stand for. Each node is looked at once.
    """
    measured: dict[Node, tuple[int, int]] = {}

    def measure(node: Node, depth: int) -> tuple[int, int]:
        """Return the number of values and of levels in a node."""
        if depth > _MAX_DEPTH:  # perhaps an alias inside of itself
            raise ValueError(_TOO_MANY)
        if node not in measured:
            parts = node.value if isinstance(node, CollectionNode) else ()
            children = [child for part in parts for child in (part if isinstance(part, tuple) else (part,))]
            found = [measure(child, depth + 1) for child in children]
            measured[node] = 1 + sum(size for size, _ in found), 1 + max((levels for _, levels in found), default=0)
        size, levels = measured[node]
        if size > _MAX_VALUES or depth + levels > _MAX_DEPTH + 1:
            raise ValueError(_TOO_MANY)
        return size, levels

    measure(root, 0)


def _to_json(value: object) -> object:
    """Convert YAML values to those of JSON; ValueError for one that no answer of the Hub could hold."""
    if isinstance(value, dict):
        return {str(_to_json(key)): _to_json(item) for key, item in value.items()}
    if isinstance(value, int) and not _INTEGERS[0] <= value <= _INTEGERS[1]:
        raise ValueError("an integer has more than 64 bits: quote it")
    if isinstance(value, str):
        _check_encodable(value)
    if isinstance(value, (list, tuple, set)):
        return [_to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def _check_encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{text[:100]!a} has half of a surrogate pair, which is not a character: remove it") from None


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


def _known_license(where: str, value: object) -> _Errors:
    if isinstance(value, str) and value not in LICENSES:
        yield f'"{where}" was not among the licenses of huggingface.co in May 2026: {", ".join(sorted(LICENSES))}'


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
