"""Render the templates in pages/, with the headers of every page, and the Markdown of cards and comments.

Markdown has tables and no raw HTML; the parser itself leaves links such as `javascript:` as text. An image from another host
becomes text, because its host would learn who reads the card; the policy of the pages does not let a browser load it, either.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import posixpath
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

from tasks.hub_server.routes_downloads import opens_in_browser

_FOLDER = Path(__file__).with_name("pages")
_STYLE = (_FOLDER / "style.css").read_text(encoding="utf-8")
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src 'self' data:; form-action 'self'"
_DIRECTION = {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
_MAX_CHARACTERS = 128 << 10
"""Most characters of a text that is rendered."""
_MAX_STEPS = 30_000
"""Most steps of the parser for a text: attempts to read something at a place of it. A card of ours has a few thousand."""
_HEADERS = {
    "Content-Security-Policy": f"{_POLICY}; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-DNS-Prefetch-Control": "off",
    "Referrer-Policy": "same-origin",  # with no-referrer, forms would have no Origin
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def render_page(
    template: str,
    *,
    user: str | None,
    status: int = 200,
    context: Mapping[str, object] | None = None,
    forms_to: str = "",
) -> HTMLResponse:
    """Render a page. `forms_to` is another address that its forms may be sent to."""
    text = _ENVIRONMENT.get_template(template).render(user=user, status=status, **(context or {}))
    answer = HTMLResponse(text, status, _HEADERS)
    if forms_to:
        policy = _HEADERS["Content-Security-Policy"]
        answer.headers["Content-Security-Policy"] = policy.replace("form-action", f"form-action {forms_to}")
        answer.headers["Referrer-Policy"] = "origin"  # with same-origin, the form would have no Origin there
    return answer


def render_markdown(text: str, *, base: str, revision: str, folder: str = "", anchors: bool = True) -> Markup:
    """Render Markdown as HTML that is safe to show.

    Relative links start from `folder` of a revision of the repository whose page is `base`: they lead to a file's page,
    or to the file itself if browsers show it. Headings have ids if `anchors`; a page must not hold two such texts. A text that
    is too long, or takes the parser too many steps, is shown as it is: a few characters can be a lot of work for it.
    """
    return _render_markdown(text, base, revision, folder, anchors=anchors)[0]


def render_comments(base: str, revision: str) -> Callable[[str], Markup]:
    """Return a function that renders the comments of one page, which take the parser no more steps than a card or two."""
    spent = 0

    def render(text: str) -> Markup:
        nonlocal spent
        if spent >= _MAX_STEPS:
            return _show_as_typed(text)
        html, steps = _render_markdown(text, base, revision, "", anchors=False)
        spent += steps
        return html

    return render


class _TooMuchWorkError(Exception):
    """A text takes the parser of Markdown too many steps."""


def _show_as_typed(text: str) -> Markup:
    return Markup("<pre>{}</pre>").format(text)


@lru_cache(maxsize=64)  # a page is often visited again
def _render_markdown(text: str, base: str, revision: str, folder: str, *, anchors: bool) -> tuple[Markup, int]:
    """Return the HTML of a text, and how many steps the parser took."""
    if len(text) > _MAX_CHARACTERS:
        return _show_as_typed(text), _MAX_STEPS
    steps = itertools.count()

    def count_step(*_: object) -> bool:
        """A rule of the parser that comes first wherever it tries its rules, and matches nothing."""
        if next(steps) >= _MAX_STEPS:
            raise _TooMuchWorkError
        return False

    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    ends_of = ["paragraph", "reference", "blockquote", "list"]
    parser.block.ruler.before("table", "count_step", count_step, {"alt": ends_of})
    parser.inline.ruler.before("text", "count_step", count_step)
    try:
        tokens = parser.parse(text)
    except _TooMuchWorkError:
        return _show_as_typed(text), _MAX_STEPS
    slugs: dict[str, int] = {}
    for number, token in enumerate(tokens):
        if anchors and token.type == "heading_open":
            token.attrSet("id", _slug(tokens[number + 1].content, slugs))
        if token.type in ("th_open", "td_open") and (style := token.attrs.pop("style", None)):
            token.attrSet("class", str(style).removeprefix("text-align:"))
        for child in token.children or ():
            if child.type == "link_open":
                _lead_to_file(child, "href", base, revision, folder)
            elif child.type == "image":
                _lead_to_file(child, "src", base, revision, folder)
    html = Markup(parser.renderer.render(tokens, parser.options, {}))  # noqa: S704 (from the parser, which escapes HTML)
    return html, next(steps)


def _lead_to_file(token: Token, attribute: str, base: str, revision: str, folder: str) -> None:
    """Let a relative link or image lead to the file of the repository that it names."""
    url = str(token.attrs[attribute])
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    path = unquote(parts.path)
    if parts.scheme or parts.netloc:
        token.attrSet("rel", "noopener noreferrer nofollow")
        if token.type == "image" and parts.scheme != "data":
            token.type, token.content = "text", f"[image: {token.content or url}]"
    elif path and not path.startswith("/") and "\0" not in path:
        file = posixpath.normpath(posixpath.join(folder, path))
        shown = "resolve" if token.type == "image" or opens_in_browser(file) else "blob"
        fragment = f"#{parts.fragment}" if parts.fragment else ""
        token.attrSet(attribute, f"{base}/{shown}/{quote(revision, safe='')}/{quote(file)}{fragment}")


def _slug(title: str, taken: dict[str, int]) -> str:
    """Return the anchor of a heading: its words in lower case, joined by hyphens."""
    slug = re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
    taken[slug] = taken.get(slug, -1) + 1
    return f"{slug}-{taken[slug]}" if taken[slug] else slug


def metadata_value_texts(value: object) -> list[str]:
    """Return a value, or the values of a list, of a card's metadata as text."""
    values = value if isinstance(value, list) else [value]
    return [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in values]


class _AsTyped(Markup):
    """A text that goes back into the box in which its reader has typed it."""


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
_ENVIRONMENT.filters["date"] = lambda seconds: datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
_ENVIRONMENT.filters |= {
    "quoted": quote,
    "texts": metadata_value_texts,
    "as_typed": lambda text: _AsTyped(escape(text)),
}
_ENVIRONMENT.globals["style"] = Markup(_STYLE)  # noqa: S704 (a file of this package)
