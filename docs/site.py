"""Build the pages as a site with search: `make docs`, or `python docs/site.py`. A dead link fails.

The front page is README.md. Links lead where they lead in the repository, so a file that a page links to comes along.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / ".scratch/site"


class _Links(HTMLParser):
    """The links of a page, and the places in it that a link can lead to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.places = {""}
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in {"id", "name"} and value:
                self.places.add(value)
            elif name in {"href", "src", "srcset"} and value and not urlsplit(value).scheme:
                self.targets.add(unquote(value))


def main() -> None:
    """Copy the pages, build the site, and check every link."""
    with tempfile.TemporaryDirectory() as folder:  # zensical skips what git ignores
        copy_pages(Path(folder, "pages"))
        shutil.copy(ROOT / "docs/zensical.toml", folder)
        subprocess.run([Path(sys.executable).with_name("zensical"), "build", "--strict"], check=True, cwd=folder)
        shutil.rmtree(SITE, ignore_errors=True)
        shutil.copytree(Path(folder, "site"), SITE)
    if dead := dead_links(SITE):
        sys.exit("dead links:\n" + "\n".join(dead))
    print(f"open {SITE.relative_to(ROOT)}/index.html")


def copy_pages(to: Path) -> None:
    """Copy every page and each file of the project that one of them links to."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    linked = set()
    for page in pages:
        text = page.read_text(encoding="utf-8")
        found = re.findall(r"\]\(([^)#\s]+)|(?:src|srcset)=\"([^\"]+)\"", text)
        linked |= {(page.parent / unquote(a or b)).resolve() for a, b in found if not urlsplit(a or b).scheme}
    for path in linked.union(pages):
        if path.is_file():
            copy = to / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)


def dead_links(site: Path) -> list[str]:
    """Return the links, as `page: link`, to a file or to a place on a page that the site does not have."""
    pages = {path: _Links(path) for path in site.rglob("*.html")}
    dead = []
    for page, links in pages.items():
        if page.name == "404.html":
            continue  # its links hold from the root of a server
        for target in sorted(links.targets):
            file, place = urldefrag(target)
            path = (page.parent / file).resolve() if file else page
            path = path / "index.html" if path.is_dir() else path
            if not path.exists() or (path in pages and place not in pages[path].places):
                dead.append(f"{page.relative_to(site)}: {target}")
    return dead


if __name__ == "__main__":
    main()
