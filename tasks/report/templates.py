"""Pages from templates: one HTML file each, escaped, with the shared style, which loads and executes nothing."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tasks.evaluation.report import format_confidence_level
from tasks.report import formatting
from tasks.templates import escape_direction_characters, make_environment

if TYPE_CHECKING:
    import jinja2


def render_template(template: str, content: Mapping[str, Any]) -> str:
    """Return a page; `template` is a path below tasks/, as templates name each other."""
    return escape_direction_characters(_environment().get_template(template).render(content))


@functools.cache
def _environment() -> jinja2.Environment:
    filters: dict[str, Any] = {name: own for name, own in vars(formatting).items() if inspect.isfunction(own)}
    filters |= {"at_most": formatting.truncate_and_escape_invisible, "confidence_text": format_confidence_level}
    return make_environment(filters)
