"""The page of validation: whatever the data, it loads nothing and runs nothing."""

from __future__ import annotations

import re

import pytest

from params import DataError
from params.sections.rows import Expectation
from tasks.measurements.drift.report import DriftReport
from tasks.validation.page import ShownRow, render_validation_page
from tasks.validation.report import CheckReport, ValidationReport, shorten_value
from tests.support.html import Outline
from tests.support.validation import LONG, run_validation, write_raw
from tests.unit.tasks.report import example

EVIL = "<script src='https://evil.example/x.js'>alert(1)</script><img src=//evil.example/p onerror=alert(2)>\"'&amp;"


def assert_self_contained(page: str) -> Outline:
    outline = Outline(page)
    assert outline.addresses == []
    assert set(outline.tags).isdisjoint({"script", "link", "img", "iframe", "object", "base", "form", "svg"})
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    assert "url(" not in style
    assert "@import" not in style
    return outline


@pytest.mark.parametrize("on_failure", ["quarantine", "fail", "report"])
def test_validation_page_escapes_data(tmp_path, on_failure):
    rows = {"text": ["good", "good too", EVIL], EVIL: ["x", EVIL, EVIL]}
    artifacts = write_raw(tmp_path, train=rows, validation={k: v[:1] for k, v in rows.items()}, test=rows)
    short = Expectation(type=LONG.type, column="text", max_value=20, on_failure=on_failure)
    forbidden = Expectation(
        type="expect_column_values_to_not_be_in_set", column=EVIL, value_set=[EVIL], on_failure=on_failure
    )
    page = artifacts.validated / "report.html"
    try:
        run_validation(artifacts, short, forbidden)
    except DataError:
        page = artifacts.scratch / "validation-failed" / "report.html"
    outline = assert_self_contained(page.read_text())
    assert "<script src='https://evil.example/x.js'>alert(1)</script>" in outline.text


def test_page_of_a_passed_validation(tmp_path):
    artifacts = write_raw(tmp_path, train={"text": ["good"]})
    run_validation(artifacts)
    text = assert_self_contained((artifacts.validated / "report.html").read_text()).text
    assert "trial: validation passed" in text
    assert "All 3 rows go on" in text


def test_page_shows_fifty_rows_fatal_ones_first(tmp_path):
    artifacts = write_raw(tmp_path, train={"text": ["no"] * 60 + ["good"] * 60}, test={"text": ["held out", "fatal"]})
    fatal = Expectation(
        type="expect_column_values_to_not_be_in_set", column="text", value_set=["fatal"], on_failure="fail"
    )
    run_validation(artifacts, LONG)
    page = (artifacts.validated / "report.html").read_text()
    assert "The first 50 of 60" in page
    assert page.count('<dd class="value">&#39;no&#39;</dd>') == 50
    with pytest.raises(DataError):
        run_validation(artifacts, LONG, fatal)
    page = (artifacts.scratch / "validation-failed" / "report.html").read_text()
    assert page.index('<dd class="value">&#39;fatal&#39;</dd>') < page.index('<dd class="value">&#39;no&#39;</dd>')


def test_page_without_rows():
    empty = {"train": 0, "validation": 0, "test": 0}
    report = ValidationReport(
        rows_in=empty,
        rows_out=empty,
        quarantined=0,
        share=0,
        max_quarantined=0,
        checks=[
            CheckReport(type="t", arguments={}, on_failure="fail", origin="recipe", success=True, unexpected_count=None)
        ],
    )
    assert_self_contained(render_validation_page(report, recipe="r", failures=["no row"], rows=[], failing=0))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "'plain'"),
        ("a\nb\x00\u3000", r"'a\nb\x00\u3000'"),
        ("\u202egnp", r"'\u202egnp'"),  # right-to-left override
        ("x" * 11, "'xxxxxxxxxx…"),
        (None, "null"),
        (list(range(9)), "[0, 1, 2, …"),
    ],
)
def test_shorten(value, shown):
    assert shorten_value(value, 10) == shown


def test_page_escapes_what_drifted():
    for text in (EVIL, "a\u202eb"):
        drift = DriftReport.model_validate(example.drift(text))
        report = ValidationReport(
            rows_in={"train": 1},
            rows_out={"train": 1},
            quarantined=0,
            share=0.0,
            max_quarantined=1.0,
            checks=[],
            drift=drift,
        )
        page = render_validation_page(report, recipe="r", failures=[], rows=[], failing=0)
        outline = assert_self_contained(page)
        assert "\u202e" not in page
        assert ("alert(1)" in outline.text) == (text == EVIL)
        assert "The new rows drifted, comparing 98 new rows with 900 rows of release-cafe" in outline.text
        assert "row" in outline.text


def test_column_names_cannot_change_the_direction_of_writing():
    name = "a\u202eb"
    rows = [ShownRow(row_id=0, split="train", reasons=[], values=[(name, "'x'")])]
    report = ValidationReport(
        rows_in={"train": 1}, rows_out={"train": 0}, quarantined=1, share=1.0, max_quarantined=1.0, checks=[]
    )
    page = render_validation_page(report, recipe="r", failures=[f"column {name}"], rows=rows, failing=1)
    assert name not in page
    assert "<dt>a\\u202eb</dt>" in page
