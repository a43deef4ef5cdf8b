"""A measurement is one folder: made from the blocks of docs/add-a-measurement.md, it is seen by evaluate, the gate, the page and the card."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from params import RecipeError
from params.foundation.artifacts import Artifacts
from params.schema import Recipe
from tasks import measurement, measurements
from tasks.evaluation.report import Blessing, EvaluationDetails
from tasks.history.cells import runs_terminal_table
from tasks.history.run_recorder import RunRecorder
from tasks.measurement import Measurement
from tasks.publishing.model_card import render_model_card
from tasks.publishing.provenance import collect_provenance
from tasks.report.page import render_report_page
from tasks.stages import Report, read_report
from tests.support import installed, releases, tiny
from tests.support.html import Outline
from tests.support.project import ROOT

pytestmark = pytest.mark.usefixtures("no_hub_settings")
PAGE = (ROOT / "docs/add-a-measurement.md").read_text(encoding="utf-8")
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifacts, Recipe]:
    artifacts, recipe = releases.tokenized(tmp_path_factory.mktemp("measured"), tiny.recipe(**tiny.CLASSES))
    releases.learn(artifacts, recipe, 18)
    return artifacts, recipe


@pytest.fixture(params=["in the folder", "of an installed package"])
def added(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement of the page, in a folder of its own."""
    if request.param == "in the folder":
        monkeypatch.setattr(measurements, "__path__", [*measurements.__path__, str(tmp_path)])
        folder = tmp_path / "largest_error"
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        (folder / "measurement.py").write_text(CODE)
    else:
        point = {"largest_error": "our_measurements.largest_error:LargestError"}
        modules = {"our_measurements/largest_error.py": CODE}
        installed.install(tmp_path, "our-measurements", "1.0", {"evergreen.measurements": point}, modules)
        monkeypatch.syspath_prepend(tmp_path)
    measurement.forget_measurements()
    yield
    measurement.forget_measurements()


def limited(monkeypatch: pytest.MonkeyPatch, limit: float) -> None:
    (own,) = (one for one in measurement.list_measurements() if one.name == "largest_error")
    monkeypatch.setattr(type(own), "limit", limit)


def test_a_measurement_is_seen_wherever_one_is_asked_for(
    evaluated: tuple[Artifacts, Recipe], added: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts, recipe = evaluated
    limited(monkeypatch, 1e9)
    assert releases.evaluate(artifacts, recipe).verdict == "publish"
    details = json.loads(artifacts.report("details").read_text())
    value = details["largest_error"]
    assert value == pytest.approx(details["worst"][0]["row_error"])
    assert f"The largest error of a row is {value:.3g}." in Outline(render_report_page(artifacts, timings={})).text
    candidate = releases.candidate(artifacts)
    card = render_model_card(candidate, collect_provenance(artifacts, "merged"), None)
    assert f"## Largest error\n\nThe largest error of a row is {value:.3g}.\n\n## Training" in card
    with RunRecorder(artifacts, run_id="run 1") as run, run.stage("evaluate", done := {}):
        done["evaluate"] = "ran"
    assert run.entry is not None
    heading, line = runs_terminal_table([run.entry])
    assert "largest error" in heading
    assert f"  {value:.3g}  " in line

    limited(monkeypatch, value / 2)
    assert releases.evaluate(artifacts, recipe).verdict == "refuse"
    (reason,) = read_report(artifacts, Blessing).reasons
    assert reason == f"the largest error of a row, {value:.3g}, is above {value / 2:.3g}"


def test_without_it_its_findings_are_those_of_an_older_report(evaluated: tuple[Artifacts, Recipe]) -> None:
    artifacts, recipe = evaluated
    releases.evaluate(artifacts, recipe)
    assert "largest_error" not in json.loads(artifacts.report("details").read_text())
    assert "largest_error" not in {one.name for one in measurement.list_measurements()}
    details = read_report(artifacts, EvaluationDetails)
    assert all(
        one.kind.model_fields.keys() >= details.findings(one.kind).model_fields_set
        for one in measurement.list_measurements()
    )


def test_two_measurements_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The blessing and the log of runs know them by it."""
    [suites] = [one for one in measurement.list_measurements() if one.name == "suites"]
    twin = type("Twin", (Measurement,), {"__module__": "ours.suites", "kind": Report})
    monkeypatch.setattr(measurement, "_classes", lambda: [type(suites), twin])
    with pytest.raises(RecipeError, match=r"measurement suites: there are two: .* and ours\.suites\.Twin"):
        measurement.list_measurements()
