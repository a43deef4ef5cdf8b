"""What a stage says in one line when it is done."""

from __future__ import annotations

from tasks.ingestion.report import IngestReport
from tasks.validation.report import CheckReport, FailingRow, ValidationReport


def test_ingest_tells_the_rows_of_each_split_by_source() -> None:
    report = IngestReport(source="files", revision="", rows={"train": 420, "test": 1200}, columns={}, data_sha256={})
    assert report.summary == "420 train, 1,200 test rows"
    sources = {"base": {"train": 347, "test": 0}, "live": {"train": 73, "test": 1200}}
    several = report.model_copy(update={"sources": sources, "left_out": {"not of data.where": 50}})
    assert several.summary == "420 train (347 base, 73 live), 1,200 test (1,200 live) rows; 50 left out"


def test_validate_tells_which_checks_set_rows_aside() -> None:
    kinds = (("time_is_known", "quarantine", 4), ("labels_differ", "report", 9), ("row_is_usable", "quarantine", 0))
    checks = [
        CheckReport(
            type=name, arguments={}, on_failure=rule, origin="recipe", success=not count, unexpected_count=count
        )
        for name, rule, count in kinds
    ]
    counts = {"rows_in": {"train": 580}, "rows_out": {"train": 576}, "share": 0.01, "max_quarantined": 0.05}
    report = ValidationReport(**counts, quarantined=4, checks=checks)
    assert report.summary == "4 of 580 rows set aside (time_is_known: 4)"
    example = FailingRow(row_id=7, split="test", value="message 2, of the assistant, is empty")
    unusable = checks[2].model_copy(update={"unexpected_count": 3, "examples": [example]})
    said = report.model_copy(update={"checks": [checks[0], unusable]}).summary
    assert said.endswith(
        "(time_is_known: 4, row_is_usable: 3, such as row 7 of test: message 2, of the assistant, is empty)"
    )
    clean = report.model_copy(update={"quarantined": 0, "checks": checks[1:]})
    assert clean.summary == "0 of 580 rows set aside (2 checks)"
