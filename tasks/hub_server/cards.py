"""Render a model card as HTML: Markdown with tables, without raw HTML, with safe links and images.

Links lead to files of the same repository and revision, to other pages of this Hub, or to http(s) and mailto addresses;
others, such as `javascript:`, become plain text. Images come from the repository; one from elsewhere becomes a link,
because loading it would tell its host who reads the card.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Sequence
from urllib.parse import quote, unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from tasks.hub_server.content_types import opens_in_browser
from tasks.hub_server.names import pull_ref
from tasks.hub_server.requests import Target

FileLink = Callable[[str], str]
"""Path of a file in the repository -> its URL."""

MAX_CHARACTERS = 128 << 10
"""Most characters of a text that is rendered."""
_SCHEMES = frozenset({"http", "https", "mailto"})


def render_markdown(text: str, *, folder: str, page_of: FileLink, content_of: FileLink, anchors: bool = True) -> Markup:
    """Render Markdown as HTML that is safe to show.

    Relative links start from `folder`. `page_of` gives the URL of a file's page, for links; `content_of` that of its
    content, for images. Headings have ids if `anchors`; a page must not hold two such texts. A text of more than
    `MAX_CHARACTERS` is shown as it is: for some texts, the parser's time grows with the square of their length.
    """
    if len(text) > MAX_CHARACTERS:
        return Markup("<pre>{}</pre>").format(text)
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    parser.validateLink = _accept_any_link  # type: ignore[method-assign, assignment]
    tokens = parser.parse(text)
    slugs: dict[str, int] = {}
    for number, token in enumerate(tokens):
        if anchors and token.type == "heading_open":
            token.attrSet("id", _slug(tokens[number + 1].content, slugs))
        if token.type in ("th_open", "td_open") and (style := token.attrs.pop("style", None)):
            token.attrSet("class", str(style).removeprefix("text-align:"))
        if token.children:
            token.children = _rewrite_links(token.children, folder, page_of, content_of)
    return Markup(parser.renderer.render(tokens, parser.options, {}))  # noqa: S704 (from the parser, which escapes HTML)


def _accept_any_link(_url: str) -> bool:
    """Accept every link in the parser; `_rewrite_links` checks them."""
    return True


def _rewrite_links(tokens: Sequence[Token], folder: str, page_of: FileLink, content_of: FileLink) -> list[Token]:
    """Return the tokens of a line of text with safe links and images."""
    rewritten: list[Token] = []
    opened: list[bool] = []
    for token in tokens:
        if token.type == "link_open":
            url = link_target(str(token.attrs.get("href", "")), folder, page_of)
            opened.append(url is not None)
            if url is None:
                continue
            token.attrSet("href", url)
            if urlsplit(url).scheme:
                token.attrSet("rel", "noopener noreferrer nofollow")
        elif token.type == "link_close" and not opened.pop():
            continue
        elif token.type == "image":
            rewritten += _rewrite_image(token, folder, content_of, is_in_link=any(opened))
            continue
        rewritten.append(token)
    return rewritten


def _rewrite_image(token: Token, folder: str, content_of: FileLink, *, is_in_link: bool) -> list[Token]:
    source = str(token.attrs.get("src", ""))
    path = _repository_path(source, folder)
    if path is not None:
        token.attrSet("src", content_of(path))
        token.attrSet("loading", "lazy")
        return [token]
    text = Token("text", "", 0, content=f"[image: {token.content or source}]")
    if is_in_link or urlsplit(source).scheme not in ("http", "https"):
        return [text]
    attributes: dict[str, str | int | float] = {"href": source, "rel": "noopener noreferrer nofollow"}
    return [Token("link_open", "a", 1, attrs=attributes), text, Token("link_close", "a", -1)]


def link_target(url: str, folder: str, page_of: FileLink) -> str | None:
    """Return the URL for a link of a card; None if the link is not allowed."""
    try:
        scheme, fragment = urlsplit(url).scheme, urlsplit(url).fragment
    except ValueError:
        return None
    if scheme:
        return url if scheme.lower() in _SCHEMES else None
    if url.startswith("#") or re.match(r"/(?![/\\]|%5[Cc])", url):
        return url
    path = _repository_path(url, folder)
    return None if path is None else page_of(path) + (f"#{fragment}" if fragment else "")


def _repository_path(url: str, folder: str) -> str | None:
    """Resolve a relative URL to a path in the repository; None if it leads elsewhere."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    path = unquote(parts.path)
    if parts.scheme or parts.netloc or not path or path.startswith("/") or "\\" in path or "\0" in path:
        return None
    joined = posixpath.normpath(posixpath.join(folder, path))
    return None if joined == ".." or joined.startswith("../") else joined


def _slug(title: str, taken: dict[str, int]) -> str:
    """Return the anchor of a heading: its words in lower case, joined by hyphens."""
    slug = re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
    taken[slug] = taken.get(slug, -1) + 1
    return f"{slug}-{taken[slug]}" if taken[slug] else slug


def quote_revision(revision: str) -> str:
    """Return a revision as one part of a URL's path."""
    return quote(revision, safe="")


def file_links(target: Target, revision: str, sha: str) -> tuple[FileLink, FileLink]:
    """Return the functions that give the URL of a file's page and that of its content."""
    base, at = f"/{target.page}", quote_revision(revision)
    folders = {entry.path for entry in target.repository.entries(sha, recursive=True) if entry.is_folder}

    def content_of(path: str) -> str:
        return f"{base}/resolve/{at}/{quote(path)}"

    def page_of(path: str) -> str:
        if path in folders or path == ".":
            return f"{base}/tree/{at}/{quote(path.removeprefix('.'))}".rstrip("/")
        return content_of(path) if opens_in_browser(path) else f"{base}/blob/{at}/{quote(path)}"

    return page_of, content_of


def comment_renderer(target: Target, number: int) -> Callable[[str], Markup]:
    """Return the function that renders comments on a pull request as HTML, with links to the files of its branch."""
    revision = pull_ref(number).decode()
    page_of, content_of = file_links(target, revision, target.repository.resolve(revision))

    def render(text: str) -> Markup:
        return render_markdown(text, folder="", page_of=page_of, content_of=content_of, anchors=False)

    return render


def show_metadata(metadata: dict[str, object]) -> list[tuple[str, list[str]]]:
    """Return the metadata as rows of a table: a key and its values as text; one line for each result of `model-index`."""
    rows = []
    for key, value in metadata.items():
        if key == "model-index":
            if lines := [line for model in _as_list(value) for line in _results(model)]:
                rows.append(("results", lines))
        else:
            rows.append((key, [item if isinstance(item, str) else _json(item) for item in _as_list(value)]))
    return rows


def _results(model: object) -> list[str]:
    lines = []
    for result in _as_list(_get(model, "results")):
        dataset = _get(_get(result, "dataset"), "name") or ""
        for metric in _as_list(_get(result, "metrics")):
            name, value = _get(metric, "name") or _get(metric, "type"), _get(metric, "value")
            shown = f"{value:.4g}" if isinstance(value, float) else str(value)
            lines.append(f"{name} {shown} on {dataset}" if dataset else f"{name} {shown}")
    return lines


def _get(value: object, key: str) -> object:
    return value.get(key) if isinstance(value, dict) else None


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
