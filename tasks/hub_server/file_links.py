"""Links from Markdown to the files of a repository at one revision."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from markupsafe import Markup

from tasks.hub_server.cards import FileLink, render_markdown
from tasks.hub_server.content_types import opens_in_browser
from tasks.hub_server.names import pull_ref
from tasks.hub_server.requests import Target


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
