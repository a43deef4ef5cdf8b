"""Real trainings that are killed, stopped, interrupted, hung and short of memory, as their user sees them."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from params import InterruptedTrainingError, PreemptedError
from tests.support import tiny
from tests.support.project import Project, wait_for
from trainer.runtime import heartbeat
from trainer.runtime.heartbeat import ProcessState

LONG = {"training.max_steps": 2000, "training.eval_steps": 1000, "training.save_steps": 1000}
"""Longer than any of these tests: no checkpoint comes by itself."""
TWO = {"launch.num_processes": 2}


class Run:
    """A project with tokens, and `python -m tasks train` in it as a shell would start it."""

    def __init__(self, project: Project, changes: dict[str, Any], sizes: dict[str, int] = tiny.SIZES) -> None:
        self.project = project
        self.recipe = tiny.recipe({"training.save_steps": 10, "training.logging_steps": 10} | changes)
        tiny.tokenized(project.root, self.recipe, sizes)

    def start(self) -> None:
        """Start it, and wait for its tenth step."""
        self.process = self.train()
        wait_for(lambda: self.pulses() and all(p.step >= 10 for p in self.pulses()), "some steps", 60)
        assert len(self.pulses()) == self.recipe["launch"]["num_processes"]

    def train(self) -> subprocess.Popen[bytes]:
        return self.project.start("python", "-m", "tasks", "train", "params/tiny.yaml", log="train.log")

    def end(self, timeout_s: float = 60, status: int = os.EX_TEMPFAIL) -> str:
        """The last lines of the run, the error, after a check that nothing of it is left."""
        self.process.wait(timeout_s)
        assert self.project.processes() == []
        assert self.process.returncode == status, self.log()
        return self.log().rpartition("\n\n")[2]

    def finish(self) -> str:
        """Start it again, and let it come to its end."""
        return self.project.run("python", "-m", "tasks", "train", "params/tiny.yaml")

    def log(self) -> str:
        return (self.project.root / "train.log").read_text(encoding="utf-8")

    def pulses(self) -> list[ProcessState]:
        return [pulse for folder in self.folders() for pulse in heartbeat.read_process_states(folder)]

    def folders(self) -> list[Path]:
        return list((self.project.root / ".scratch/tiny/checkpoints").glob("*"))

    def checkpoints(self) -> list[str]:
        return sorted(path.name for folder in self.folders() for path in folder.glob("checkpoint-*"))


@pytest.mark.slow
def test_one_killed_rank_ends_the_other_and_is_named(project: Project) -> None:
    run = Run(project, TWO | {"training.max_steps": 300})
    run.start()
    wait_for(run.checkpoints, "a checkpoint")
    victim = run.pulses()[1]
    start = time.monotonic()
    psutil.Process(victim.pid).kill()
    error = run.end()
    assert time.monotonic() - start < 10
    assert re.match(rf"KilledError: train: rank 1 \(process {victim.pid}\) was killed by SIGKILL at step \d+\n", error)
    newest = max(int(name.removeprefix("checkpoint-")) for name in run.checkpoints())
    assert f" resumes at step {newest} from " in run.finish()


@pytest.mark.slow
def test_a_stopped_rank_is_found_out(project: Project) -> None:
    run = Run(project, TWO | LONG | {"launch.stall_timeout_s": 6.0})
    run.start()
    victim = run.pulses()[1]
    psutil.Process(victim.pid).suspend()
    error = run.end()
    assert re.match(
        rf"StalledError: train: rank 1 \(process {victim.pid}\) has made no progress for \d+ s: step \d+, \w+, stopped\n",
        error,
    )
    assert "rank 0" not in error
    assert re.search(r"^    at trainer/.+\.py:\d+ in \w+$", error, re.MULTILINE), "it went on to write its stack"


@pytest.mark.slow
def test_user_code_that_hangs_on_one_rank_is_named_with_its_line(project: Project) -> None:
    hang = "import os, time\n        while os.environ['RANK'] == '1' and os.path.exists('hang'): time.sleep(1)\n"
    path = "trainer/objectives/bases/objective.py"
    project.edit(path, "        return pad_batch(", f"        {hang}        return pad_batch(")
    run = Run(project, TWO | LONG | {"launch.stall_timeout_s": 6.0})
    run.start()
    (project.root / "hang").touch()
    error = run.end()
    assert re.match(
        r"StalledError: train: rank 1 \(process \d+\) has made no progress for \d+ s: .*, sleeping\n", error
    )
    assert "rank 0" not in error
    assert re.search(rf"^    at {path}:\d+ in collate$", error, re.MULTILINE)


@pytest.mark.slow  # tests/e2e/test_terminal.py and the supervisor's unit tests show it in short
@pytest.mark.parametrize(
    ("changes", "number"),
    [
        pytest.param({}, signal.SIGTERM, id="SIGTERM"),
        pytest.param(TWO, signal.SIGINT, id="Ctrl-C on two processes"),
    ],
)
def test_a_training_that_is_asked_to_stop_goes_on_from_the_step_that_it_names(
    project: Project, changes: dict[str, Any], number: signal.Signals
) -> None:
    run = Run(project, LONG | changes | {"training.max_steps": 120})
    run.start()
    os.killpg(run.process.pid, number)  # as a terminal does, and `flows.child_process`
    kind = InterruptedTrainingError if number == signal.SIGINT else PreemptedError
    error = run.end(status=kind.exit_code)
    (checkpoint,) = run.checkpoints()
    step = checkpoint.removeprefix("checkpoint-")
    assert error == (
        f"{kind.__name__}: train: stopped by {number.name}; its newest checkpoint is of step {step}\n"
        f"  fix: start again: it resumes from step {step}\n"
    )
    assert "Traceback" not in run.log()
    assert "death signal" not in run.log(), "it reached the launcher too"
    errors = [pulse.error for pulse in run.pulses()]
    assert len(errors) == run.recipe["launch"]["num_processes"]
    assert {(type(e), e.what) for e in errors if e} == {(PreemptedError, f"stopped on request at step {step} of 120")}
    said = run.finish()
    assert f" resumes at step {step} from " in said
    logged = re.findall(r"step (\d+) of 120", (project.root / "runs/tiny/logs/train.log").read_text())
    logged = [number for number in logged if number != step]  # in the words of the error, too
    assert f"{int(step) // 10 * 10 + 10}" in logged
    assert len(logged) == len(set(logged)), "a step was trained twice"


WIDE = {
    "tokenization.max_length": 1024,
    "model.config.hidden_size": 8,
    "model.config.intermediate_size": 32768,
    "training.max_steps": 2,
    "training.global_batch_size": 2,
    "training.eval_steps": 2,
    "launch.micro_batch_size": 2,
    "launch.eval_batch_size": 1,
}
"""Little to compute and much to remember: 1.3 GiB for each sequence of a forward pass, 1.6 GiB without any."""


@pytest.mark.slow
@pytest.mark.parametrize(("limit_gib", "fits"), [(3.7, True), (2.2, False)])
def test_short_of_memory_the_micro_batch_is_halved(project: Project, limit_gib: float, fits: bool) -> None:
    Run(project, WIDE, {"train": 1200, "validation": 60, "test": 60})
    limit = int(limit_gib * 2**30)
    done = subprocess.run(
        [sys.executable, "-m", "tasks", "train", "params/tiny.yaml"],
        cwd=project.root,
        env=project.environment | {"OMP_NUM_THREADS": "2"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    said = done.stdout
    halved = "train: out of memory: launch.micro_batch_size goes from 2 to 1, at the same global batch\n"
    assert said.count(halved) == 1, said
    if fits:
        assert done.returncode == 0, said
        assert "2 steps; step " in said
    else:
        assert done.returncode == os.EX_NOINPUT
        assert "MemoryExhaustedError: launch.micro_batch_size: out of memory with 1 sequence(s)" in said
    assert project.processes() == []
