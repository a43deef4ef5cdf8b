"""Saving and reading the reports of the stages."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NoReturn

import pytest

from params import DataError, EvergreenError, ModelError, TransientError
from params.foundation.artifacts import Artifacts
from params.foundation.stages import STAGES
from tasks import stage_run
from tasks.evaluation.report import Blessing, EvaluationDetails
from tasks.ingestion.report import IngestReport
from tasks.stage_command import _report_lines, run_stage_as_command
from tasks.stages import Report, read_report, save_report
from tests.support.releases import SOURCE

BLESSING = Blessing(
    verdict="publish",
    reasons=("it is better",),
    metric="accuracy",
    first_release=True,
    model="m",
    data="d",
    recipe="r",
    champion=None,
)


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    found = Artifacts("tiny", tmp_path)
    save_report(BLESSING, found.blessing)
    return found


def test_report_is_read_back_unchanged(artifacts: Artifacts) -> None:
    assert read_report(artifacts, Blessing) == BLESSING


def test_missing_report_names_the_stage_to_run(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        read_report(Artifacts("tiny", tmp_path), Blessing)
    assert caught.value.where.endswith("runs/tiny/evaluation/blessing.json")
    assert caught.value.what == "is missing"
    assert caught.value.fix.startswith("run `evergreen evaluate ")


def test_damaged_report_is_an_error(artifacts: Artifacts) -> None:
    artifacts.blessing.write_bytes(artifacts.blessing.read_bytes()[:40])
    with pytest.raises(ModelError, match=r"blessing\.json: is damaged: Invalid JSON"):
        read_report(artifacts, Blessing)


@pytest.mark.parametrize(
    ("changes", "what"),
    [({"added": 1}, "added: Extra inputs are not permitted"), ({"revision": 1}, "revision: Input should be")],
)
def test_report_of_another_version_names_the_key(artifacts: Artifacts, changes: object, what: str) -> None:
    file = artifacts.report("ingest")
    save_report(SOURCE, file)
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(ModelError, match=f"was written by another version of Evergreen: {what}"):
        read_report(artifacts, IngestReport)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"added": 1}, "added"),
        ({"verdict": "maybe"}, "verdict: Input should be"),
        ({"suites": None}, "suites"),
        ({"suites": {"greetings": 1}}, "greetings"),
    ],
)
def test_blessing_of_another_version_blesses_nothing(artifacts: Artifacts, changes: object, what: str) -> None:
    found = json.loads(artifacts.blessing.read_text())
    artifacts.blessing.write_text(json.dumps(found | {"suites": {"greetings": "0123"}}))
    assert read_report(artifacts, Blessing).judged_rows["suites"] == {"greetings": "0123"}
    artifacts.blessing.write_text(json.dumps(found | changes))
    with pytest.raises(ModelError, match=f"was written by another version of Evergreen: .*{what}"):
        read_report(artifacts, Blessing)


class _Lengths(Report):
    mean: float = 0.0


class _Slices(Report):
    slices: str = ""


def test_findings_that_the_gate_could_not_read_are_refused() -> None:
    """Else they would be left out with a warning, and with them their reasons against a release."""
    details = EvaluationDetails(confidence=0.95, resamples=200, directions={}, intervals={}, comparisons=[], slices=[])
    found = details.with_findings(_Lengths(mean=2.5))
    assert found.findings(_Lengths).mean == 2.5
    with pytest.raises(TypeError, match="_Lengths cannot be read back from JSON"):
        details.with_findings(_Lengths(mean=math.nan))
    with pytest.raises(TypeError, match="_Lengths: details has mean already"):
        found.with_findings(_Lengths(mean=3.5))
    with pytest.raises(TypeError, match="_Slices: details has slices already"):
        details.with_findings(_Slices(slices="none"))


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_returns_its_report_type(stage: str) -> None:
    function = stage_run.import_stage_function(stage)
    report = function.__globals__[function.__annotations__["return"]]
    assert report.saved_as == stage


@pytest.mark.parametrize("kind", [DataError, TransientError])
def test_stage_that_fails_leaves_a_page(kind: type[EvergreenError], tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may end with an error that passes: nobody knows which attempt is the last one."""

    def fail(*_: object) -> NoReturn:
        raise kind("the Hub", "does not answer", "start the run again")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stage_run, "run_stage", fail)
    with pytest.raises(kind):
        run_stage_as_command("evaluate", Path("params/tiny.yaml"))
    assert "does not answer" in Path("runs/tiny/report.html").read_text()


def test_values_are_logged_in_short() -> None:
    lines = _report_lines({"a": {"b": 0.123456789, "c": [1, 2]}, "d": None})
    assert list(lines) == ["a.b: 0.123457", "a.c: 2", "d: None"]
