"""Lists and records that stand in a cell of a table as JSON, Python or numpy write them: `["a"]`, `['a', None]` or `['a' 'b']`.

Python's tuples and sets, `('a',)` and `{'a', 'b'}`, are lists, too; a set is written in the order of its values.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
from typing import Any, Final

_TOKEN: Final = re.compile(
    r"""\s*+(?:(?P<text>'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")|(?P<begin>[\[{(])|(?P<end>[\]})])|(?P<mark>[,:])|(?P<word>[^\s,:\[\]{}()'"]++))""",
    re.DOTALL,
)
_BEGINNING: Final = r"""['"\d\[{(-]|np\.|nan|array|None|True|False|true|false|null"""
_LIST_OR_RECORD: Final = re.compile(
    rf"""\s*+(\[\s*+(({_BEGINNING}).*)?\]|\(\s*+(({_BEGINNING}).*,.*)?\)|\{{\s*+(['"\d].*)?\}}|(frozen)?set\(.*\))\s*+""",
    re.DOTALL,
)
_TYPE: Final = re.compile(r"np\.\w+|(frozen)?set")
"""What Python and numpy 2 write before a value in brackets, as in `set()`, `frozenset({'a'})` and `[np.str_('a')]`."""


def looks_written(text: str) -> bool:
    """Whether a text begins and ends as a list or a record of values does."""
    return bool(_LIST_OR_RECORD.fullmatch(text))


def parse_written(text: str) -> Any:
    """Return the list or the record that a text says.

    Raises:
        ValueError: it is neither JSON nor what Python or numpy write.
    """
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    what = f"{text[:60]!r} is no list or record as JSON, Python or numpy write it"
    try:
        value = ast.literal_eval(_as_python(text))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(what) from error
    if not isinstance(value, list | dict | tuple | set):
        raise ValueError(what)  # noqa: TRY004 - it is a text that says something else
    return _with_lists(value)


def _with_lists(value: Any) -> Any:
    """Return a value with lists in place of tuples and sets, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _with_lists(own) for key, own in value.items()}
    if isinstance(value, set):
        return [_with_lists(own) for own in sorted(value, key=lambda own: (str(type(own)), str(own)))]
    return [_with_lists(own) for own in value] if isinstance(value, list | tuple) else value


def _as_python(text: str) -> str:
    """Return the text with commas between values, which numpy leaves out, and without its names of types."""
    found, place, was_value = list[str](), 0, False
    while match := _TOKEN.match(text, place):
        place = match.end()
        kind, part = str(match.lastgroup), match[0].strip()
        if kind == "word" and _TYPE.fullmatch(part):
            continue
        if was_value and kind in ("text", "word", "begin"):
            found.append(",")
        found.append("None" if part == "nan" else part)
        was_value = kind in ("text", "word", "end")
    if text[place:].strip() or "..." in found:
        raise ValueError("it is cut off")
    return " ".join(found)
