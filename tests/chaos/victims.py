"""A training that tests kill, and the golden run: the same training, never killed, whose files it must equal.

Both run `python -m tasks train` in the same project, one after the other, so that even the paths in their files are equal.
The golden run keeps all of its checkpoints, which does not change what it learns. Files are compared here, without the
product's code.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from params.foundation.artifacts import Artifacts
from tests.support import tiny
from tests.support.project import CODE, ROOT, Project, wait_for
from trainer.checkpoints.sealed import KILL_AT
from trainer.runtime import heartbeat

SIZES = {"train": 1600, "validation": 64, "test": 16}
"""Rows per split: enough for the validation loss to fall for a long time, so that best weights are written often."""
_CLOCKS = ("runtime", "per_second")
_MANIFEST, _STATE, _BEST = "manifest.json", "trainer_state.json", "best.json"
_END_S = 20.0
"""Seconds in which the processes of a training must end; a dataloader worker looks for its parent every five."""


@dataclass(frozen=True)
class StartResult:
    """How a start of the train stage ended, and what it printed."""

    status: int
    output: str

    @property
    def resumed_at(self) -> int | None:
        """The step that it resumed from; None if it ended before it printed that."""
        if found := re.search(r"^train: run \w+ resumes at step (\d+) ", self.output, re.MULTILINE):
            return int(found[1])
        return 0 if re.search(r"^train: run \w+ starts at step 0", self.output, re.MULTILINE) else None

    @property
    def set_aside(self) -> list[str]:
        """The checkpoints that it renamed to `broken-...`, in order."""
        return re.findall(r"^train: set aside \S+/broken-(checkpoint-\d+): ", self.output, re.MULTILINE)


class Victim:
    """A project with the tiny recipe, its golden run and its killed run.

    Args:
        root: an empty folder for the project.
        changes: to tests.support.tiny.RECIPE, as `tiny.recipe` takes them.
        sizes: rows of each split.
        fork: whether a start forks its processes, as `Project.run` does.
    """

    def __init__(
        self, root: Path, changes: dict[str, Any], sizes: dict[str, int] = SIZES, *, fork: bool = False
    ) -> None:
        self._fork = fork
        self.project = Project(root / "project", root / "prefect")
        self.artifacts = Artifacts("tiny", self.project.root)
        self.golden = root / "golden"
        self._changes = changes
        for name in CODE:
            shutil.copytree(ROOT / name, self.project.root / name)
        _, recipe = tiny.tokenized(
            self.project.root, tiny.recipe(changes | {"training.keep_checkpoints": 10**6}), sizes
        )
        self.save_steps = recipe.training.save_steps
        self.keep = tiny.recipe(changes)["training"].get("keep_checkpoints", 2)
        self.processes = recipe.launch.num_processes
        # One thread, so that two runs on two cores do not slow each other down, and sums have a fixed order.
        self.project.environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(self.project.root)}

    def train_golden(self) -> None:
        """Train the golden run, and keep its checkpoints and artifacts."""
        code = Path(__file__).with_name("golden_run.py").read_text(encoding="utf-8")
        self.project.run("python", "-c", code, str(self.golden / "run"))
        for folder in trained_folders(self.artifacts):
            shutil.move(folder, self.golden / folder.name)
        tiny.write(self.artifacts.recipe_path, tiny.recipe(self._changes))
        self.delete_run()

    def delete_run(self) -> None:
        """Delete all artifacts and checkpoints, so that the next start is a new run."""
        for folder in (self.artifacts.scratch, *trained_folders(self.artifacts)):
            shutil.rmtree(folder, ignore_errors=True)

    # Starts

    def start(
        self, kill_at: str | None = None, log: str = "train.log", *, fork: bool = False, **environment: str
    ) -> subprocess.Popen[bytes]:
        """Start the train stage; with `kill_at`, its trainer kills itself at that write point."""
        before = dict(self.project.environment)
        self.project.environment |= environment | ({KILL_AT: kill_at} if kill_at else {})
        try:
            command = ("python", "-m", "tasks", "train", "params/tiny.yaml")
            return self.project.start(*command, log=log, fork=fork or self._fork)
        finally:
            self.project.environment = before

    def wait(self, process: subprocess.Popen[bytes], timeout_s: float = 240) -> StartResult:
        """Wait until a start and all of its processes have ended."""
        status = process.wait(timeout_s)
        self.project.started.remove(process)
        wait_for(lambda: not self.project.processes(), "the end of all processes of a start", _END_S)
        return StartResult(status, (self.project.root / "train.log").read_text(encoding="utf-8"))

    def run(self, *, fork: bool = False, **environment: str) -> StartResult:
        """Run the train stage to its end, without a kill."""
        return self.wait(self.start(fork=fork, **environment))

    # What is on disk

    @property
    def folder(self) -> Path:
        """The run's folder; there is only one, because the recipe does not change."""
        found = list((self.artifacts.scratch / "checkpoints").glob("*"))
        assert len(found) <= 1, found
        return found[0] if found else self.artifacts.scratch / "checkpoints" / "none"

    def checkpoints(self) -> list[Path]:
        """Checkpoints with their final name, newest first."""
        return sorted(self.folder.glob("checkpoint-*"), key=_step, reverse=True)

    def newest_step(self) -> int:
        """The step of the newest checkpoint, 0 if there is none."""
        return next(map(_step, self.checkpoints()), 0)

    def pulses(self) -> dict[int, heartbeat.ProcessState]:
        """The last heartbeats by rank; empty while one is being written."""
        try:
            return {pulse.rank: pulse for pulse in heartbeat.read_process_states(self.folder)}
        except (OSError, ValueError):
            return {}

    # Comparisons with the golden run, which describe every difference

    def differences(self) -> list[str]:
        """Compare the newest checkpoint and the newest best weights of an unfinished run."""
        found = []
        for checkpoint in self.checkpoints()[:1]:
            golden = self.golden / "run" / checkpoint.name
            found += [f"{checkpoint.name}/{name}" for name in folder_differences(golden, checkpoint)]
            if not any(self.folder.glob("best-*")):
                found.append(f"{checkpoint.name} exists without best weights")
        for best in sorted(self.folder.glob("best-*"), key=_step, reverse=True)[:1]:
            found += [f"{best.name}/{name}" for name in self._best_differences(best)]
        return found

    def final_differences(self) -> list[str]:
        """Compare the artifacts of a finished run: last checkpoint, best weights, curves and report."""
        return [
            f"{folder.name}/{name}"
            for folder in trained_folders(self.artifacts)
            for name in folder_differences(self.golden / folder.name, folder)
        ]

    def _best_differences(self, best: Path) -> list[str]:
        found = _manifest_differences(best)
        note = json.loads((best / _BEST).read_text(encoding="utf-8")) if (best / _BEST).exists() else {}
        curve = json.loads((self.golden / "checkpoint" / _STATE).read_text(encoding="utf-8"))["log_history"]
        values = {entry["step"]: entry["eval_loss"] for entry in curve if "eval_loss" in entry}
        if note.get("value") != values.get(_step(best)):
            found.append(f"{_BEST} says {note}, the golden run had {values.get(_step(best))}")
        weights = self.golden / "run" / f"checkpoint-{_step(best)}" / "model.safetensors"
        if weights.exists() and not _same(weights, best / weights.name):
            found.append(weights.name)
        return found


def trained_folders(artifacts: Artifacts) -> tuple[Path, Path, Path]:
    """Return the folders that the train stage writes."""
    return artifacts.checkpoint, artifacts.model, artifacts.history


def folder_differences(golden: Path, other: Path) -> list[str]:
    """Return the files that differ, byte for byte, except in values that depend on the clock."""
    names = {path.relative_to(folder) for folder in (golden, other) for path in folder.rglob("*") if path.is_file()}
    differing = [
        str(name) for name in sorted(names) if name.name != _MANIFEST and not _same(golden / name, other / name)
    ]
    return differing + (_manifest_differences(other) if (golden / _MANIFEST).exists() else [])


def _same(golden: Path, other: Path) -> bool:
    if not (golden.exists() and other.exists()):
        return False
    read = _without_clock if golden.name == _STATE else Path.read_bytes
    return read(golden) == read(other)


def _without_clock(path: Path) -> Any:
    try:
        state = json.loads(path.read_bytes())
    except ValueError:
        return None
    state["log_history"] = [{k: v for k, v in e.items() if not k.endswith(_CLOCKS)} for e in state["log_history"]]
    return state


def _manifest_differences(folder: Path) -> list[str]:
    """Return the files that differ from their folder's manifest."""
    if not (folder / _MANIFEST).exists():
        return [f"{_MANIFEST} is missing"]
    expected, actual = json.loads((folder / _MANIFEST).read_bytes()), manifest(folder)
    names = {name for name in expected.keys() | actual.keys() if expected.get(name) != actual.get(name)}
    return [f"{name} differs from its manifest" for name in sorted(names)]


def manifest(folder: Path) -> dict[str, list[int | str]]:
    """Return the manifest that a checkpoint with these files has: size and SHA-256 of each."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != _MANIFEST]
    return {
        str(path.relative_to(folder)): [path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()]
        for path in files
    }


def _step(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])
