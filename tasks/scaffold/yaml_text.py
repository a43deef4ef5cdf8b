"""Values as YAML on one line."""

from __future__ import annotations

import json
import re
from typing import Any, Final

_PLAIN: Final = re.compile(r"(\.\.?/)*[A-Za-z/][\w./@+-]*", re.ASCII)
_RESERVED: Final = {"yes", "no", "on", "off", "true", "false", "null", "y", "n"}


def scalar(value: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float):
        text = f"{value:g}"
        return f"{value:.0e}".replace("e-0", "e-") if "e" in text or value < 0.001 else text
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _RESERVED
        return value if is_plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{', '.join(map(scalar, value))}]"
    return str(value)
