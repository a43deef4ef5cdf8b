"""What tells a row from others: what an objective reads and learns of it. Rows with the same content are one row, wherever rows are compared.

A model that has learned from one of them would know the answer to another one. So the content has neither the form of what is learned, such as
the order of choices, nor what only helps to learn it, such as negatives. White space at the ends of a text is no content: a copied row
often gains or loses some. Running text is the exception, of which a language model learns every character. Case and white space inside of
a text stay, because tokens differ by them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainer.column_template import PromptTemplate
from trainer.objectives.bases.rows import ColumnKind, Row


def read_columns(columns: Mapping[str, ColumnKind], row: Row, as_label: Callable[[str], str]) -> dict[str, Any]:
    """Return the content of a row whose columns mean what their kind says; `as_label` returns a label as it is learned."""
    found: dict[str, Any] = {}
    for name, kind in columns.items():
        value = row[name]
        if kind == "label" and value is not None:
            found[name] = as_label(str(value))
        elif kind == "number" and value is not None:
            found[name] = float(value) + 0.0  # -0.0 becomes 0.0
        else:
            found[name] = without_outer_space(value)
    return found


def without_outer_space(value: Any) -> Any:
    """Return a value whose texts have no white space at their ends; a text of nothing else, and a key without a value, is left out."""
    if isinstance(value, str):
        return value.strip() or None
    if isinstance(value, Mapping):
        items = ((key, without_outer_space(own)) for key, own in value.items())
        return {key: own for key, own in items if own is not None}
    if isinstance(value, list | tuple):
        return [without_outer_space(own) for own in value]
    return value


def read_template(template: PromptTemplate, row: Row) -> dict[str, Any]:
    """Return what the columns of a template hold as the content of its first one: the others are in it.

    What stands around the columns is no content: a row that a model has learned is the same row with another prompt. So white space between
    two words is none either, which may be of the prompt or of a column.
    """
    first, *others = template.columns
    if not others:
        return {first: without_outer_space(row[first])}
    words = [word for name in template.columns if row[name] is not None for word in str(row[name]).split()]
    return {first: " ".join(words) or None, **dict.fromkeys(others)}
