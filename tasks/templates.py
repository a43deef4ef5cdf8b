"""The templates below tasks/: those of pages, in HTML, and that of the model card, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2


def make_environment(filters: Mapping[str, Any], *, is_html: bool = True) -> jinja2.Environment:
    """Return what fills the templates, which name each other by their paths below tasks/."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: files("tasks").joinpath(name).read_text("utf-8")),
        autoescape=is_html,  # noqa: S701 - Markdown has its own; a name would not tell, with the suffix of our templates
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=is_html,
    )
    environment.filters |= filters
    return environment


def escape_direction_characters(page: str) -> str:
    """Return `page` with the characters escaped that change the direction of writing, and could disguise a name."""
    return page.translate({code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))})
