"""The tests' browser, on a page that breaks every rule that other tests check."""

from __future__ import annotations

from pathlib import Path

from tests.support.browser import needs_browser, open_page

PAGE = """<!doctype html><title>page</title>
<style>body { width: 50rem; background: white } @media (prefers-color-scheme: dark) { body { background: black } }</style>
<p>before</p><img src="https://elsewhere.example/x.png"><iframe src="data:text/html,<img src='http://inner.example'>">
</iframe><script>console.log("said"); document.querySelector("p").textContent = "after"; nothing()</script>"""


@needs_browser
def test_browser_reports_requests_console_and_rendering(tmp_path: Path) -> None:
    page, picture = tmp_path / "page.html", tmp_path / "picture.png"
    page.write_text(PAGE)
    visit = open_page(page, width=400, screenshot=picture)
    assert visit.requests[0] == visit.url == page.as_uri()
    assert visit.hosts == {"elsewhere.example", "inner.example"}
    assert "log: said" in visit.console
    assert any("nothing is not defined" in line for line in visit.console), visit.console
    assert any(line.startswith("error: Failed to load resource") for line in visit.console), visit.console
    assert "<p>after</p>" in visit.dom
    assert visit.content_width >= 800
    assert picture.read_bytes().startswith(b"\x89PNG")
    policy = "<meta http-equiv='Content-Security-Policy' content=\"img-src 'none'\">"
    page.write_text(PAGE.replace("<title>", policy + "<title>"))
    held_back = open_page(page)
    assert held_back.blocked[:1] == ["https://elsewhere.example/x.png"]
    assert held_back.hosts == set()
    in_the_dark = tmp_path / "dark.png"
    quiet = tmp_path / "quiet.html"
    quiet.write_text(PAGE.partition("<p>")[0])
    seen = open_page(quiet, width=400, dark=True, screenshot=in_the_dark)
    assert (seen.console, seen.hosts) == ([], set())
    open_page(quiet, width=400, screenshot=picture)
    assert picture.read_bytes() != in_the_dark.read_bytes()
