"""What a command says, without the lines that a slow machine gets for its silence (trainer.reporting.signs_of_life)."""

from __future__ import annotations

import re
from typing import Final

_SIGN: Final = re.compile(r"\w+: .+ \([0-9]+ s\)\n")


def without_signs_of_life(text: str) -> str:
    """Return a text without its lines that only tell what goes on, and for how many seconds."""
    return "".join(line for line in text.splitlines(keepends=True) if not _SIGN.fullmatch(line))
