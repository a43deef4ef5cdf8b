"""Render a model card as HTML: Markdown with tables, without raw HTML; relative links and images lead to files of the repository.

The parser itself leaves links such as `javascript:` as text. An image from another host becomes text, because its host would learn
who reads the card; the policy of the pages (page_templates.py) does not let a browser load it, either.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable
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


def render_markdown(text: str, *, folder: str, page_of: FileLink, content_of: FileLink, anchors: bool = True) -> Markup:
    """Render Markdown as HTML that is safe to show.

    Relative links start from `folder`. `page_of` gives the URL of a file's page, for links; `content_of` that of its
    content, for images. Headings have ids if `anchors`; a page must not hold two such texts. A text of more than
    `MAX_CHARACTERS` is shown as it is: for some texts, the parser's time grows with the square of their length.
    """
    if len(text) > MAX_CHARACTERS:
        return Markup("<pre>{}</pre>").format(text)
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    tokens = parser.parse(text)
    slugs: dict[str, int] = {}
    for number, token in enumerate(tokens):
        if anchors and token.type == "heading_open":
            token.attrSet("id", _slug(tokens[number + 1].content, slugs))
        if token.type in ("th_open", "td_open") and (style := token.attrs.pop("style", None)):
            token.attrSet("class", str(style).removeprefix("text-align:"))
        for child in token.children or ():
            if child.type == "link_open":
                _lead_to_file(child, "href", folder, page_of)
            elif child.type == "image":
                _lead_to_file(child, "src", folder, content_of)
    return Markup(parser.renderer.render(tokens, parser.options, {}))  # noqa: S704 (from the parser, which escapes HTML)


def _lead_to_file(token: Token, attribute: str, folder: str, url_of: FileLink) -> None:
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
        file = url_of(posixpath.normpath(posixpath.join(folder, path)))
        token.attrSet(attribute, f"{file}#{parts.fragment}" if parts.fragment else file)


def _slug(title: str, taken: dict[str, int]) -> str:
    """Return the anchor of a heading: its words in lower case, joined by hyphens."""
    slug = re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
    taken[slug] = taken.get(slug, -1) + 1
    return f"{slug}-{taken[slug]}" if taken[slug] else slug


def quote_revision(revision: str) -> str:
    """Return a revision as one part of a URL's path."""
    return quote(revision, safe="")


def file_url_functions(target: Target, revision: str, sha: str) -> tuple[FileLink, FileLink]:
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
    page_of, content_of = file_url_functions(target, revision, target.repository.resolve(revision))

    def render(text: str) -> Markup:
        return render_markdown(text, folder="", page_of=page_of, content_of=content_of, anchors=False)

    return render


def metadata_table_rows(metadata: dict[str, object]) -> list[tuple[str, list[str]]]:
    """Return the metadata as rows of a table: a key and its values as text. Metrics are left out: the card itself shows them."""
    rows = []
    for key, value in metadata.items():
        if key != "model-index" and value is not None:
            values = value if isinstance(value, list) else [value]
            rows.append(
                (key, [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in values])
            )
    return rows
