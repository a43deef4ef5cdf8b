"""HTTP headers for files of a repository, which may hold anything that a user has uploaded.

HTML is shown, because reports are HTML, but in a sandbox: it runs no script, sends no form, makes no request to any host,
this Hub included, and has no access to the Hub's own pages.
"""

from __future__ import annotations

from urllib.parse import quote

_TEXT = "text/plain; charset=utf-8"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".htm": "text/html; charset=utf-8",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".avif": "image/avif",
    ".svg": "image/svg+xml",
}
_TEXTS = frozenset(
    {".cff", ".cfg", ".css", ".csv", ".gitattributes", ".ini", ".jinja", ".js", ".json", ".jsonl", ".log", ".md", ".py"}
    | {".rst", ".sh", ".toml", ".tsv", ".txt", ".xml", ".yaml", ".yml"}
)
_POLICY = (
    "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'; font-src data:; frame-ancestors 'none'"
)


def file_headers(path: str, *, as_attachment: bool) -> dict[str, str]:
    """Return the headers for a file's content."""
    name = path.rpartition("/")[2]
    disposition = "attachment" if as_attachment else "inline"
    return {
        "Content-Type": content_type(path),
        "Content-Disposition": f"{disposition}; filename*=UTF-8''{quote(name, safe='')}",
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "X-DNS-Prefetch-Control": "off",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "private, no-cache",
    }


def content_type(path: str) -> str:
    """Return the content type of a file; plain text or bytes for everything that a browser should not interpret."""
    name = path.rpartition("/")[2].lower()
    suffix = "." + name.rpartition(".")[2]
    if suffix in _TEXTS or "." not in name:
        return _TEXT
    return _TYPES.get(suffix, "application/octet-stream")


def opens_in_browser(path: str) -> bool:
    """Whether a link should lead to the file itself and not to a page about it."""
    return content_type(path).startswith(("text/html", "image/"))


def is_image(path: str) -> bool:
    """Whether the file is an image."""
    return content_type(path).startswith("image/")
