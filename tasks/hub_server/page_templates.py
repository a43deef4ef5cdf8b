"""Render the templates in pages/, with the headers of every page."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

_FOLDER = Path(__file__).with_name("pages")
_STYLE = (_FOLDER / "style.css").read_text(encoding="utf-8")
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src 'self' data:; form-action 'self'"
_DIRECTION = {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
_HEADERS = {
    "Content-Security-Policy": f"{_POLICY}; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-DNS-Prefetch-Control": "off",
    "Referrer-Policy": "same-origin",  # with no-referrer, forms would have no Origin
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def render_page(
    template: str, *, user: str | None, status: int = 200, context: Mapping[str, object] | None = None
) -> HTMLResponse:
    """Render a page."""
    text = _ENVIRONMENT.get_template(template).render(user=user, status=status, **(context or {}))
    return HTMLResponse(text, status, _HEADERS)


def date(seconds: int) -> str:
    """Format seconds since 1970, to the minute."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def size(count: int) -> str:
    """Format a number of bytes."""
    amount = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "bytes" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


class _AsTyped(Markup):
    """A text that goes back into the box in which its reader has typed it."""


def _as_typed(text: str) -> _AsTyped:
    return _AsTyped(escape(text))


def _show_direction(value: object) -> object:
    """Return what a page shows of a value: characters that change the direction of writing are shown by their number.

    They could let a name, or a line of code, pass for another one.
    """
    if not isinstance(value, str) or isinstance(value, _AsTyped):
        return value
    shown = str.translate(value, _DIRECTION)
    return Markup(shown) if isinstance(value, Markup) else shown  # noqa: S704 (the same markup, but for these)


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(_FOLDER),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=_show_direction,
)
_ENVIRONMENT.filters |= {"date": date, "size": size, "quoted": quote, "as_typed": _as_typed}
_ENVIRONMENT.globals["style"] = Markup(_STYLE)  # noqa: S704 (a file of this package)
