"""`python -m tasks verify-resume`, on real processes that are killed: on a sound project, and on two that are not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import tiny
from tests.support.project import ROOT, Project

COMMAND = [sys.executable, "-m", "tasks", "verify-resume", "params/tiny.yaml", "--steps", "8", "--kills", "1"]
LONGER = {"training.max_steps": 40}
"""So that the training is stopped on its way, as that of a user is."""


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_sound_project_is_equal(tmp_path: Path, processes: int) -> None:
    changes = {"launch.num_processes": processes, "launch.micro_batch_size": 2, "launch.dataloader_workers": 1}
    artifacts, _ = tiny.tokenized(tmp_path, tiny.recipe(LONGER | changes))
    before = {path: path.read_bytes() for path in artifacts.run.rglob("*") if path.is_file()}
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(COMMAND, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout
    assert re.search(rf"killed rank {processes - 1} \(process \d+\) after \d+ steps", said)
    assert re.search(r"verify-resume: starting again\n.* goes on at step 4", said)
    parts = re.findall(r"^  (\S.*?)  +(\d+) \D+?  +(\S.*)$", said, re.MULTILINE)
    assert len(parts) == 13
    assert {result for _, _, result in parts} == {"equal"}, said
    counts = {name: int(count) for name, count, _ in parts}
    assert counts["steps"] == 8 * processes
    assert counts["random state"] >= 8 * processes + 2, "steps that were made twice are compared twice"
    assert counts["rows"] == counts["random state"] * 4 / processes
    assert "equal, bit for bit, over 8 steps and 1 kill(s)" in said
    assert not (artifacts.scratch / "verify-resume").exists()
    assert not (artifacts.scratch / "checkpoints").exists()
    assert before == {path: path.read_bytes() for path in artifacts.run.rglob("*") if path.is_file()}


def verify(project: Project, **changes: Any) -> str:
    """What the command says of a project that is not sound."""
    tiny.tokenized(project.root, tiny.recipe(LONGER | changes))
    said = project.run(*COMMAND, ok=False, timeout_s=300)
    assert "Traceback" not in said
    assert (project.root / ".scratch" / "tiny" / "verify-resume" / "killed").is_dir(), "kept, to be looked at"
    return said.rpartition("ModelError: verify-resume: ")[2]


def test_a_place_in_the_data_that_is_not_taken_up_is_found(project: Project) -> None:
    project.edit("trainer/data/order.py", 'self.epoch, self.batch = state["epoch"], state["batch"]', "pass")
    found = verify(project)
    assert re.search(
        r"first difference in the rows, step 5, rank 0 \(repeated\), micro-batch 1: \[\d+, .*\] and \[\d+, ", found
    )
    assert "two runs that were left alone are equal" in found


@pytest.mark.slow
def test_a_training_that_does_not_equal_itself_is_told_from_a_fault_of_resuming(project: Project) -> None:
    """Its collator draws from a source of randomness that nobody can seed."""
    project.edit(
        "trainer/objectives/causal_lm.py",
        "        return pad_batch(examples, tokenizer)\n",
        "        import os\n\n        batch = pad_batch(examples, tokenizer)\n"
        '        batch["input_ids"][0, 0] = 3 + os.urandom(1)[0]\n        return batch\n',
    )
    found = verify(project)
    assert re.search(
        r"not deterministic by itself: .* first in the loss, step 1, rank 0, micro-batch 1: [\d.]+ and ", found
    )
    assert "resuming is not exact" not in found
