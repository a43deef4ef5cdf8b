"""Pages from templates: one HTML file each, escaped, with the shared style, which loads and executes nothing."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from tasks.evaluation.report import format_confidence_level
from tasks.report import formatting
from tasks.validation.report import escape_direction_characters

if TYPE_CHECKING:
    import jinja2


def render_template(template: str, content: Mapping[str, Any]) -> str:
    """Return a page; `template` is a path below tasks/, as templates name each other."""
    return escape_direction_characters(_environment().get_template(template).render(content))


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: files("tasks").joinpath(name).read_text("utf-8")),
        autoescape=True,  # by name it would miss the suffix of our templates
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {name: own for name, own in vars(formatting).items() if inspect.isfunction(own)}
    environment.filters |= {
        "at_most": formatting.truncate_and_escape_invisible,
        "confidence_text": format_confidence_level,
    }
    return environment
