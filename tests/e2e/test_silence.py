"""No command is silent for long, and a run says little: every command with a clock between what it writes."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.clock import Heard, listen
from tests.support.project import ROOT, STAGES, Project

LIBRARIES = {"torch", "transformers", "prefect", "dvc", "datasets", "great_expectations", "pandas", "sklearn", "scipy"}
ORDER = f"""
import runpy, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name in {LIBRARIES!r}:
            signs = sys.modules.get("trainer.reporting.signs_of_life")
            print("import of", name, "after the signs" if signs and signs._current else "too soon", file=sys.stderr)

sys.meta_path.insert(0, Watch())
module, sys.argv = sys.argv[1], sys.argv[1:]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
ON_TERMINAL_S, ELSEWHERE_S = 2.0, 10.0
BUSY = 2.5
"""How much longer a silence may be on a machine where other programs run."""
COMMANDS = {
    "new": ("new", "two", "--data", "data/sentences.csv", "--model", "new", "--objective", "causal_lm", "--yes"),
    "remove": ("remove", "two", "--yes"),
    "check": ("check", "tiny"),
    "show": ("show", "tiny"),
    "rehearse": ("rehearse", "tiny"),
    "run": ("run", "tiny"),
    "nothing new": ("run", "tiny"),
    **{stage: (stage, "tiny") for stage in STAGES},
    "trace": ("trace", "tiny", "--row", "3"),
    "try": ("try", "tiny", "The king"),
    "verify-resume": ("verify-resume", "tiny", "--steps", "6", "--kills", "1"),
    "report": ("report", "tiny"),
    "history": ("history",),
    "releases": ("releases",),
    "clean": ("clean", "--yes"),
}


def heard(project: Project, *command: str, on_terminal: bool = False) -> Heard:
    environment = {**project.environment, "TERM": "xterm"}
    return listen("evergreen", *command, folder=project.root, environment=environment, on_terminal=on_terminal)


@pytest.mark.parametrize(
    ("module", "command", "imports"),
    [("flows.evergreen", ("history",), "prefect"), ("tasks", ("trace", "tiny", "--row", "1"), "pandas")],
)
def test_signs_of_life_start_before_the_libraries_are_imported(project: Project, module, command, imports) -> None:
    python = [sys.executable, "-c", ORDER, module, *command]
    environment = {**project.environment, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(python, cwd=project.root, env=environment, capture_output=True, text=True, check=False)
    assert f"import of {imports} after the signs" in done.stderr, done.stderr + done.stdout
    assert "too soon" not in done.stderr


@pytest.mark.slow  # the test above and tests/unit/trainer/reporting/test_signs_of_life.py show the same in short
@pytest.mark.parametrize("on_terminal", [True, False])
def test_no_command_is_silent_for_long(project: Project, on_terminal: bool) -> None:
    limit_s = BUSY * (ON_TERMINAL_S if on_terminal else ELSEWHERE_S)
    for name, command in COMMANDS.items():
        found = heard(project, *command, on_terminal=on_terminal)
        assert found.status == 0, (name, found.lines)
        assert found.silences[0][0] < limit_s, (name, found.silences[:3])
        assert not any("Loading weights" in line for line in found.lines), (name, "a bar of transformers")


@pytest.mark.slow
def test_a_run_says_little_and_its_logs_say_all(project: Project) -> None:
    found = heard(project, "run", "tiny")
    assert found.status == 0, found.lines
    assert len(found.lines) <= 60, found.lines
    assert not any("git add" in line or "Updating lock" in line for line in found.lines), found.lines
    logs = {stage: (project.root / f"runs/tiny/logs/{stage}.log").read_text() for stage in STAGES}
    assert all("To track the changes with git, run:" in text for text in logs.values())
    assert "train: step 5 of 20, loss" in logs["train"]
    assert "rows.train: " in logs["ingest"]


@pytest.mark.slow
def test_an_error_is_printed_once_and_ends_the_output(project: Project) -> None:
    project.edit("params/tiny.yaml", "max_quarantined: 0.05", "max_quarantined: 0.0")
    path = project.root / "data/sentences.csv"
    path.write_text(path.read_text() + '""\n' * 40)
    found = heard(project, "run", "tiny")
    assert found.status != 0
    text = "\n".join(found.lines)
    fix = re.findall(r"  fix: .*", text)
    assert len(fix) == 1, text
    assert found.lines[-1] == fix[0]
