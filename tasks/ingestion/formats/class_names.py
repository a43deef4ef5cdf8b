"""Names of classes that `datasets` keeps in the schema of a Parquet file: its `ClassLabel`. The rows hold their numbers.

A row gets the names in place of the numbers; -1, which says that a row has no label, becomes null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from params import DataError

_KEY: Final = b"huggingface"
_LISTS: Final = ("Sequence", "List", "LargeList")


def find_class_features(schema: pa.Schema) -> dict[str, Any]:
    """Return the features of the columns that hold numbers of classes, themselves or inside of their values."""
    try:
        features = json.loads((schema.metadata or {}).get(_KEY, b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    if not isinstance(features, dict):
        return {}
    return {name: own for name, own in features.items() if name in schema.names and _holds_classes(own)}


def name_classes(rows: pa.RecordBatch, features: Mapping[str, Any], where: str) -> pa.RecordBatch:
    """Return rows with the names of classes in place of their numbers.

    Raises:
        DataError: a number has no name.
    """
    columns = list[pa.Array]()
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if name not in features:
            columns.append(column)
            continue
        try:
            columns.append(pa.array([_named(value, features[name]) for value in column.to_pylist()]))
        except LookupError as error:
            fix = "write the file again: the names in its schema (ClassLabel) are fewer than its classes"
            raise DataError(where, f"column `{name}`: {error.args[0]}", fix) from error
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def _holds_classes(feature: Any) -> bool:
    if isinstance(feature, list):
        return any(map(_holds_classes, feature))
    if not isinstance(feature, dict):
        return False
    return bool(_class_names(feature)) or any(map(_holds_classes, feature.values()))


def _class_names(feature: Any) -> Sequence[str]:
    is_class = isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
    names = feature.get("names") if is_class else None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()


def _named(value: Any, feature: Any) -> Any:
    """Return a value with names in place of the numbers of classes that its feature names."""
    if names := _class_names(feature):
        return _name(value, names)
    is_list = isinstance(feature, dict) and feature.get("_type") in _LISTS
    items = feature.get("feature") if is_list else feature[0] if isinstance(feature, list) and feature else None
    if isinstance(value, list):
        return [_named(one, items) for one in value]
    if isinstance(value, dict) and is_list:  # `datasets` stores a list of records as a record of lists
        return {key: _named(own, [_feature_of(items, key)]) for key, own in value.items()}
    if isinstance(value, dict):
        return {key: _named(own, _feature_of(feature, key)) for key, own in value.items()}
    return value


def _name(value: Any, names: Sequence[str]) -> Any:
    if type(value) is not int:
        return value
    if not -1 <= value < len(names):
        raise LookupError(f"the class {value} has no name")
    return None if value == -1 else names[value]


def _feature_of(feature: Any, key: str) -> Any:
    return feature.get(key) if isinstance(feature, dict) else None
