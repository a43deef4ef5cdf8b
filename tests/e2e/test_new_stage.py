"""A new stage is a line in the list, a folder and a stage in dvc.yaml: made from the blocks of docs/add-a-stage.md, it runs among the others."""

from __future__ import annotations

import json
import re
import textwrap

import pytest

from params.foundation.stages import STAGES
from tests.support.project import ROOT

PAGE = (ROOT / "docs/add-a-stage.md").read_text(encoding="utf-8")
STAGE, PLACE, CODE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
(DVC,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_stage_of_the_page_runs_where_it_stands_in_the_list(project) -> None:
    indented = textwrap.indent(STAGE.rstrip(), " " * 4)
    project.edit(
        "params/foundation/stages.py",
        '    Stage(\n        name="publish"',
        f'{indented},\n    Stage(\n        name="publish"',
    )
    project.edit("params/foundation/artifacts.py", '    review = _Below("run"', f'    {PLACE}    review = _Below("run"')
    project.edit("dvc.yaml", "  publish:\n    foreach", f"{DVC}\n  publish:\n    foreach")
    folder = project.root / "tasks/audit"
    folder.mkdir()
    (folder / "__init__.py").write_text('"""What somebody should look at."""\n')
    (folder / "stage.py").write_text(CODE)

    said = project.run("python", "-m", "tasks", "audit", "tiny", ok=False)
    assert "audit needs what evaluate makes, and it is missing" in said
    assert "run `evergreen evaluate params/tiny.yaml` first" in said
    assert "audit" in project.run("python", "-m", "tasks", "--help")

    said = project.run("python", "-m", "flows.cli", "run", "tiny", timeout_s=1500)
    assert "audit@tiny" in said
    assert json.loads((project.root / "runs/tiny/audit/audit.json").read_text()) == {"split": "test", "rows": 0}
    (entry,) = map(json.loads, (project.root / "runs/tiny/runs.jsonl").read_text().splitlines())
    assert list(entry["stages"]) == [*STAGES[:-1], "audit", STAGES[-1]]
    assert "audit" in (project.root / "runs/tiny/report.html").read_text()
