"""docs/benchmarks.md says for each table on which commit it was measured, and has a place for each benchmark of `make benchmark`."""

from __future__ import annotations

import re

import pytest

from benchmarks.__main__ import RUNS
from benchmarks.tables import PAGE, print_table, put_into_page, spread

_MEASURED = re.compile(r"\bcommit [0-9a-f]{8}(?: with changes)?, \d{4}-\d\d-\d\d\b", re.IGNORECASE)


def test_each_table_says_where_it_was_measured() -> None:
    page = PAGE.read_text(encoding="utf-8")
    before = [text for text in re.split(r"^\|.*\n(?:\|.*\n)*", page, flags=re.MULTILINE)[:-1] if text.strip()]
    assert len(before) >= len(RUNS) - 1
    wrong = [text[-200:] for text in before if not _MEASURED.search(text.strip().splitlines()[-1])]
    assert not wrong, (
        f"each of these is followed by a table, and does not end with a line that names its commit: {wrong}"
    )


def test_each_benchmark_has_its_place_once() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert sorted(re.findall("<!-- benchmark: (.*) -->", page)) == sorted(RUNS)
    assert sorted(re.findall("<!-- end: (.*) -->", page)) == sorted(RUNS)


def test_new_figures_replace_only_their_own(tmp_path, capsys) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- benchmark: a -->\nold\n<!-- end: a -->\nbetween\n<!-- benchmark: b -->\n<!-- end: b -->\n"
    )
    print_table(("steps", "ratio"), [["short", spread([1.0, 1.25, 0.5])]])
    printed = capsys.readouterr().out
    put_into_page("a", printed, page)
    table = "| steps | ratio |\n| --- | ---: |\n| short | 1.00 (0.50 to 1.25) |"
    assert page.read_text() == (
        f"before\n<!-- benchmark: a -->\n{table}\n<!-- end: a -->\nbetween\n<!-- benchmark: b -->\n<!-- end: b -->\n"
    )
    with pytest.raises(ValueError, match="needs the line <!-- benchmark: c -->"):
        put_into_page("c", printed, page)
