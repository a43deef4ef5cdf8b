"""`python -m tasks verify-resume` with real processes: in a correct project, and in two with a fault."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support import tiny
from tests.support.project import ROOT, Project

COMMAND = ("python", "-m", "tasks", "verify-resume", "params/tiny.yaml", "--steps", "8", "--kills", "1")
LONGER = {"training.max_steps": 40}
"""More steps than are trained, as with a recipe of a user."""


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_correct_project_is_equal(tmp_path: Path, processes: int) -> None:
    changes = {"launch.num_processes": processes, "launch.micro_batch_size": 2, "launch.dataloader_workers": 1}
    artifacts, _ = tiny.tokenized(tmp_path, tiny.recipe(LONGER | changes))
    before = {path: path.read_bytes() for path in artifacts.run.rglob("*") if path.is_file()}
    project = Project(tmp_path, tmp_path)
    project.environment["PYTHONPATH"] = str(ROOT)
    out = project.run(*COMMAND)
    assert re.search(rf"killed rank {processes - 1} \(process \d+\) after \d+ steps", out)
    assert re.search(r"verify-resume: starting again\n.* resumes at step 4", out)
    table = re.findall(r"^  (\S.*?)  +(\d+) \D+?  +(\S.*)$", out, re.MULTILINE)
    assert len(table) == 13
    assert {result for _, _, result in table} == {"equal"}, out
    counts = {name: int(count) for name, count, _ in table}
    assert counts["steps"] == 8 * processes
    assert counts["random state"] >= 8 * processes + 2, "repeated steps are compared each time"
    assert counts["rows"] == counts["random state"] * 4 / processes
    assert "equal, bit for bit, over 8 steps and 1 kill(s)" in out
    assert not (artifacts.scratch / "verify-resume").exists()
    assert not (artifacts.scratch / "checkpoints").exists()
    assert before == {path: path.read_bytes() for path in artifacts.run.rglob("*") if path.is_file()}


def verify(project: Project, **changes: Any) -> str:
    """Return the error of the command in a project with a fault."""
    tiny.tokenized(project.root, tiny.recipe(LONGER | changes))
    out = project.run(*COMMAND, ok=False, timeout_s=300)
    assert "Traceback" not in out
    assert (project.root / ".scratch" / "tiny" / "verify-resume" / "killed").is_dir(), "kept for the user"
    return out.rpartition("ModelError: verify-resume: ")[2]


def test_a_position_that_is_not_restored_is_found(project: Project) -> None:
    project.edit("trainer/data/loading.py", 'self.epoch, self._batch = order["epoch"], order["batch"]', "pass")
    found = verify(project)
    assert re.search(
        r"first difference in the rows, step 5, rank 0 \(repeated\), micro-batch 1: \[\d+, .*\] and \[\d+, ", found
    )
    assert "two uninterrupted runs are equal" in found


@pytest.mark.slow
def test_a_nondeterministic_training_is_not_mistaken_for_a_faulty_resume(project: Project) -> None:
    """Its collator draws random numbers that cannot be seeded."""
    project.edit(
        "trainer/objectives/bases/objective.py",
        "        return pad_batch(examples, tokenizer)\n",
        "        import os\n\n        batch = pad_batch(examples, tokenizer)\n"
        '        batch["input_ids"][0, 0] = 3 + os.urandom(1)[0]\n        return batch\n',
    )
    found = verify(project)
    assert re.search(r"not deterministic: .* first in the loss, step 1, rank 0, micro-batch 1: [\d.]+ and ", found)
    assert "resuming is not exact" not in found
