"""Values as YAML on one line."""

from __future__ import annotations

import re
from typing import Any, Final

_PLAIN: Final = re.compile(r"(\.\.?/)*[A-Za-z/][\w./@+-]*", re.ASCII)
_RESERVED: Final = {"yes", "no", "on", "off", "true", "false", "null", "y", "n"}


def scalar(value: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float):
        text = f"{value:.12g}"
        return f"{value:.3e}".replace("e-0", "e-").replace(".000e", "e") if 0 < value < 0.01 and len(text) > 4 else text
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _RESERVED
        return value if is_plain else _quoted(value)
    if isinstance(value, list):
        return f"[{', '.join(map(scalar, value))}]"
    return str(value)


def to_comment_line(line: str) -> str:
    """Return a line whose comment may quote rows: what ends a line, or is not allowed in YAML, is a space. Values have none of that."""
    return "".join(c if c.isprintable() else " " for c in line)


def _quoted(text: str) -> str:
    """Return a text in double quotes; characters that YAML does not allow are escaped."""
    known = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}
    return f'"{"".join(known.get(c, c if c.isprintable() else f"{chr(92)}U{ord(c):08x}") for c in text)}"'
