"""The page in a browser: no requests, no console messages, and it fits a phone."""

from __future__ import annotations

import pytest

from tasks.report.page import write_report
from tests.support.browser import needs_browser, open_page
from tests.unit.tasks.report.test_page import TIMINGS


@needs_browser
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True), (360, False)])
def test_page_loads_nothing_and_fits(published, tmp_path, width, dark):
    page = write_report(published, timings=TIMINGS)
    text = page.read_text(encoding="utf-8")
    assert text.count("<details>") >= 4
    page.write_text(text.replace("<details>", "<details open>"), encoding="utf-8")
    visit = open_page(page, width=width, dark=dark, screenshot=tmp_path / "page.png")
    assert visit.console == []
    assert visit.requests == [page.as_uri()]
    assert visit.content_width <= width
    assert "Published" in visit.dom


@needs_browser
def test_browser_detects_requests_and_overflow(published, tmp_path):
    page = tmp_path / "report.html"
    text = write_report(published, timings=TIMINGS).read_text(encoding="utf-8")
    page.write_text(
        text.replace("<main>", '<main><img src="http://127.0.0.1:9/x.png"><p style="width: 900px">wide</p>')
    )
    visit = open_page(page, width=390)
    assert visit.console
    assert visit.content_width > 390
