"""The Markdown of the model card: templates that are filled with names and texts from the data, which are escaped."""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from typing import TYPE_CHECKING, Any

from tasks.evaluation.report import format_confidence_level
from tasks.templates import make_environment

if TYPE_CHECKING:
    import jinja2

_MAX_NAME = 80
"""Characters; templates set other limits for sentences and for texts of rows."""


def render_markdown(template: str, **content: Any) -> str:
    """Return a text; `template` is a path below tasks/."""
    return _environment().get_template(template).render(content)


@functools.cache
def _environment() -> jinja2.Environment:
    filters = {
        "text": _text,
        "code": _code,
        "number": lambda value: f"{value:.4f}" if abs(value) < 1000 else f"{value:,.1f}",
        # what a model's scores of a row say, before another fact
        "notes": lambda notes: "".join(f"{_text(name)} {_text(note)}, " for name, note in notes.items()),
        # a text on one line; JSON writes printable text as Python does, in double quotes
        "python": lambda value: json.dumps(value, ensure_ascii=False) if value.isprintable() else repr(value),
    }
    environment = make_environment(filters, is_html=False)
    environment.globals.update(confidence_text=format_confidence_level)
    return environment


def code_block_fence(text: str, least: int = 3) -> str:
    """Return marks that begin and end code with this text, whatever marks it holds itself."""
    return "`" * max(least, 1 + max(map(len, re.findall("`+", text)), default=0))


def shorten_to_line(value: object, limit: int = _MAX_NAME) -> str:
    """One line without control characters."""
    shown = "".join(" " if unicodedata.category(c)[0] in "CZ" else c for c in str(value))
    line = " ".join(shown.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def _text(value: object, limit: int = _MAX_NAME) -> str:
    """Text from the data or the recipe, escaped for Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>|~&#!$@]|:(?=//)|(?<=www)\.)", r"\\\1", shorten_to_line(value, limit))


def _code(value: object) -> str:
    """Text from the data or the recipe as a code span."""
    line = shorten_to_line(value).replace("|", "\\|")
    marks = code_block_fence(line, least=1)
    return f"{marks}{line}{marks}" if len(marks) == 1 else f"{marks} {line} {marks}"
