"""The page of all runs: its numbers are those of the log, its text is escaped, and it stays small and quick for years."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from html import unescape
from pathlib import Path

import pytest

from params.foundation.artifacts import Artifacts
from tasks.history.cells import age_text, runs_markdown_table, runs_terminal_table
from tasks.history.page import render_history_page, write_history_page
from tasks.history.recipe_history import RecipeHistory, Schedule, read_recipe_histories
from tasks.history.run_log import RunEntry
from tasks.report.formatting import MISSING, format_signed_gain
from tests.support.browser import needs_browser, open_page
from tests.support.html import Outline
from tests.unit.tasks.history import example
from tests.unit.tasks.history.example import FIRST, entry, runs
from tests.unit.tasks.report.example import EVIL, STRANGE

NOW = FIRST + timedelta(days=30, hours=5)
NIGHTLY = Schedule("by cron 0 3 * * *, UTC", NOW - timedelta(days=2))


def history(entries: list[RunEntry], *, recipe: str = "tiny", succeeded: bool = True) -> RecipeHistory:
    last = max((one.ended for one in entries if one.succeeded), default=None) if succeeded else None
    made = [one for one in entries if one.outcome in {"published", "rolled back"}]
    release = max(made, key=lambda run: run.ended, default=None)
    return RecipeHistory(recipe, entries, [NIGHTLY], last, release)


def page_of(*histories: RecipeHistory, root: Path = Path("nowhere"), now=NOW) -> str:
    page = render_history_page(root, histories, now=now)
    outline = Outline(page)
    assert {"script", "link", "img", "iframe", "object", "base", "form", "image", "foreignobject"}.isdisjoint(
        outline.tags
    )
    assert len(outline.ids) == len(set(outline.ids))
    inside = {f"#{name}" for name in outline.ids}
    assert all(a in inside or a.startswith("https://") or a.endswith("report.html") for a in outline.addresses)
    assert "@import" not in page
    assert "url(" not in re.sub(r"url\(#\w+\)", "", page)
    for tag, attributes in outline.elements:
        assert tag != "th" or attributes["scope"] == "col"
        assert tag != "svg" or (attributes["role"] == "img" and attributes["aria-label"])
    assert not re.search(r"\b(nan|inf|None|Undefined)\b", outline.text), outline.text
    return page


def words(page: str) -> str:
    return " ".join(Outline(page).text.split())


def table(page: str) -> list[list[str]]:
    """The rows of the table of runs, as the texts of their cells."""
    bodies = re.findall(r"<tbody>(.*?)</tbody>", page, re.DOTALL)
    rows = [row for body in bodies for row in re.findall(r"<tr.*?>(.*?)</tr>", body, re.DOTALL)]
    return [
        [
            " ".join(unescape(re.sub(r"<.*?>", " ", cell)).split())
            for cell in re.findall(r"<td.*?>(.*?)</td>", row, re.DOTALL)
        ]
        for row in rows
    ]


def test_numbers_on_the_page_are_those_of_the_log(tmp_path):
    entries = runs(30)
    example.write(Artifacts("tiny", tmp_path), entries)
    (read,) = read_recipe_histories(tmp_path, {"tiny": [NIGHTLY]}, {})
    page = page_of(read, root=tmp_path)
    shown = table(page)
    assert len(shown) == 30
    for cells, run in zip(shown, reversed(entries), strict=True):
        when, outcome, why, value, gain, rows, took, cost = cells
        assert when == f"{run.started:%Y-%m-%d %H:%M}"
        assert outcome.split()[0] == run.outcome.split()[0]
        assert rows.startswith(f"{run.rows['train'] + 502:,}")
        assert float(cost.replace(",", "")) == pytest.approx(run.cost, abs=0.005)
        minutes = sum(int(n) * m for n, m in zip(re.findall(r"\d+", took)[:2], (60, 1), strict=True))
        if " h " in took.partition(" train")[0]:
            assert minutes == pytest.approx((run.ended - run.started).total_seconds() / 60, abs=1)
        if run.evaluated:
            assert float(value.split()[0]) == pytest.approx(run.evaluated.value, abs=5e-4)
            low, high = (float(end) for end in re.search(r"(\S+) to (\S+)", value).groups())
            assert (low, high) == (
                pytest.approx(run.evaluated.low, abs=5e-3),
                pytest.approx(run.evaluated.high, abs=5e-3),
            )
            assert gain.split()[0] == format_signed_gain(
                run.evaluated.gain, run.evaluated.gain_low, run.evaluated.gain_high
            )
            if run.evaluated.champion is not None:
                assert float(value.split()[-1]) == pytest.approx(run.evaluated.champion, abs=5e-4)
            assert why == run.reasons[0]
        else:
            assert (value, gain) == (MISSING, MISSING)
        assert run.error is None or (run.error.what in why and f"fix: {run.error.fix}" in why)
    total = sum(run.cost for run in entries if run.started > NOW - timedelta(days=30))
    assert f"cost {total:,.2f}" in words(page)
    assert page.count('class="bad-row"') == sum(run.outcome in {"failed", "crashed", "refused"} for run in entries)


def test_state_of_a_recipe_is_at_the_top():
    entries = [entry(1), entry(2, outcome="kept"), entry(28, outcome="failed", error=example.ERROR, evaluated=None)]
    text = words(page_of(history(entries)))
    for part in (
        "Overdue No success for more than twice the interval of its schedule: tiny.",
        "tiny overdue last run failed",
        "published release-000000000001 since 2026-01-02, 29 days tests/tiny on the Hub in .hub",
        "last success 28 days ago due by cron 0 3 * * *, UTC last run 2026-01-29 03:00: failed",
        "last 30 days 3 h 15 min · cost 8.13 3 runs: 1 published, 1 kept, 1 failed",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    ("last", "title"),
    [({"outcome": "kept"}, "Up to date"), ({"outcome": "refused"}, "Needs a look"), ({"outcome": "crashed"}, "Needs a look")],
)  # fmt: skip
def test_headline(last, title):
    entries = [entry(29), entry(30, **last)]
    assert f"<h1>{title}</h1>" in page_of(history(entries))
    assert "<h1>Overdue</h1>" in page_of(history(entries), history([entry(2, recipe="b")], recipe="b"))


def test_a_rollback_is_what_is_published_now():
    rollback = entry(
        9, run_id="", stages={}, outcome="rolled back", reasons=("by ann: wrong answers",), tag="release-1"
    )
    rollback = rollback.model_copy(update={"evaluated": None, "rows": {}, "cost": None})
    page = page_of(history([entry(8), rollback]))
    assert "release-1 by a rollback since 2026-01-10" in words(page)
    assert table(page)[0][2] == "to release-1 by ann: wrong answers"


def test_empty_histories():
    assert "No run yet" in words(page_of())
    text = words(page_of(history([])))
    for part in ("No run yet", "published nothing", "last success none due by cron", f"last 30 days {MISSING} no run"):
        assert part in text, part


def test_runs_without_a_candidate_have_a_table_and_no_chart():
    page = page_of(history([entry(1, outcome="failed", evaluated=None, error=example.ERROR, cost=None, rows={})]))
    assert len(table(page)) == 1
    assert "champion of the day" not in page
    assert "cost" not in words(page)


def test_text_of_the_logs_is_escaped():
    evil = entry(
        1,
        reasons=(EVIL, STRANGE),
        repo_id=EVIL,
        endpoint="javascript:alert(1)//",
        tag=EVIL,
        evaluated=example.evaluated(0.5, 0.4).model_copy(update={"metric": EVIL}),
        stages={EVIL: {"outcome": "ran", "seconds": 1.0}},
    )
    failed = entry(2, outcome="failed", error={"type": EVIL, "where": EVIL, "what": EVIL + STRANGE, "fix": STRANGE})
    page = page_of(history([evil, failed]))
    outline = Outline(page)
    assert outline.text.count("<script src='https://evil.example/x.js'>alert(1)</script>") > 5
    assert "\u202e" not in page
    assert "\x00" not in page
    assert 'href="javascript' not in page
    markdown = runs_markdown_table([evil, failed])
    assert len(markdown.splitlines()) == 4
    assert "<script" not in markdown.replace("\\<script", "")
    assert all(line.isprintable() for line in runs_terminal_table([evil, failed]))


def test_a_release_on_a_hub_is_a_link():
    page = page_of(history([entry(1, endpoint="https://hub.example")]))
    assert f'href="https://hub.example/tests/tiny/tree/{1:040}"' in page


def test_another_metric_before_is_left_out_of_the_chart_and_said():
    older = [entry(n, evaluated=example.evaluated(0.5, 0.4).model_copy(update={"metric": "loss"})) for n in (1, 2)]
    page = page_of(history([*older, entry(3)]))
    assert "2 earlier candidates were judged by another metric" in words(page)
    assert "accuracy of 1 candidate" in page


def test_values_far_away_do_not_flatten_the_chart():
    from tasks.history.metric_chart import axis_range

    def ends(*values: float, outcome: str = "kept") -> tuple[float, float]:
        made = [entry(n, evaluated=example.evaluated(0.8 + n / 100, 0.8)) for n in range(10)]
        made += [entry(20, outcome=outcome, evaluated=example.evaluated(value, 0.8)) for value in values]
        return axis_range([(one, one.evaluated) for one in made])

    usual = ends()
    assert 0.7 < usual[0] < 0.78
    assert 0.9 < usual[1] < 1
    assert ends(-900.0) == usual
    assert ends(0.7)[0] < usual[0]
    assert ends(0.7, outcome="refused") == usual
    alone = entry(1, outcome="refused", evaluated=example.evaluated(0.5, None))
    assert axis_range([(alone, alone.evaluated)])[0] < 0.48


@pytest.mark.timeout(60)
def test_years_of_runs_stay_readable_small_and_quick():
    entries = runs(5000, every=timedelta(hours=6))
    now = entries[-1].ended + timedelta(hours=1)
    start = time.monotonic()
    page = page_of(history(entries), now=now)
    took = time.monotonic() - start
    assert len(table(page)) == 100
    assert "4,900 older runs are not shown here" in words(page)
    drawn = sum(run.evaluated is not None for run in entries)
    assert f"accuracy of {drawn:,} candidates" in page
    assert len(page.encode()) < 2_000_000
    assert took < 20


def test_a_table_for_the_terminal_has_a_line_for_each_run():
    entries = runs(12)
    lines = runs_terminal_table(entries)
    assert len(lines) == 13
    assert lines[0].split()[:3] == ["when", "(UTC)", "recipe"]
    for line, run in zip(lines[1:], entries, strict=True):
        assert line.startswith(f"{run.started:%Y-%m-%d %H:%M}  tiny    {run.outcome} ")
    quiet = runs_terminal_table([entry(1, cost=None)])
    assert "cost" not in quiet[0]


def test_drift_is_shown_where_something_moved():
    drifted, quiet = entry(1, drift="labels (intent), words"), entry(2, drift="none")
    assert words(page_of(history([drifted, quiet]))).count("drift: ") == 1
    assert "drift: labels (intent), words" in words(page_of(history([drifted])))
    lines = runs_terminal_table([drifted, quiet])
    assert [("labels (intent), words" in line, " none " in line) for line in lines[1:]] == [
        (True, False),
        (False, True),
    ]
    assert "drift" not in runs_terminal_table([entry(1)])[0]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "less than a minute"), (59, "less than a minute"), (60, "1 min"), (3599, "59 min"), (3600, "1 h"), (86_400, "24 h"),
     (172_799, "47 h"), (172_800, "2 days"), (-5, "less than a minute")],
)  # fmt: skip
def test_age(seconds, shown):
    assert age_text(seconds) == shown


def test_a_page_is_written_whole(tmp_path):
    path = write_history_page(tmp_path, [history(runs(3))], now=NOW)
    assert path == tmp_path / "runs/index.html"
    assert path.read_text(encoding="utf-8") == page_of(history(runs(3)), root=tmp_path)


@needs_browser
@pytest.mark.parametrize(
    ("width", "dark"),
    [pytest.param(1280, False, marks=pytest.mark.slow), (390, True), pytest.param(360, False, marks=pytest.mark.slow)],
)
def test_page_loads_nothing_and_fits(tmp_path, width, dark):
    others = history(runs(3, seed=4, recipe="other"), recipe="other")
    page = write_history_page(tmp_path, [history(runs(30)), others, history([], recipe="third")], now=NOW)
    visit = open_page(page, width=width, dark=dark)
    assert visit.console == []
    assert visit.requests == [page.as_uri()]
    assert visit.content_width <= width
