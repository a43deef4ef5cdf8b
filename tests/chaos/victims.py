"""A training that is killed again and again, and beside it the golden run, which nobody touched and which it must equal.

Both run as a user runs them, `python -m tasks train`, in one project of their own, one after the other: so even the paths
in what they write are the same. The golden run keeps all of its checkpoints, which is nothing that a run is determined
by. What is compared is read here from the files alone, without the product's own judgement.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from params.artifacts import Artifacts
from tests.support import tiny
from tests.support.project import CODE, ROOT, Project, wait_for
from trainer.checkpoints.fault_points import KILL_AT
from trainer.runtime import heartbeat

EX_TEMPFAIL = 75
SIZES = {"train": 1600, "validation": 64, "test": 16}
"""Rows: so many that the validation loss falls for a long time, and best weights are written again and again."""
_CLOCKS = ("runtime", "per_second")
_MANIFEST, _STATE, _BEST = "manifest.json", "trainer_state.json", "best.json"
_END_S = 20.0
"""How long the processes of a training may take to end; a loader's worker looks for its parent every five seconds."""


@dataclass(frozen=True)
class Left:
    """What a start left behind when it ended, however it ended."""

    status: int
    said: str
    """What it wrote to the screen."""

    @property
    def resumed_at(self) -> int | None:
        """The step that it went on from; None if it ended before it could say so."""
        if found := re.search(r"^train: run \w+ goes on at step (\d+) ", self.said, re.MULTILINE):
            return int(found[1])
        return 0 if re.search(r"^train: run \w+ starts at step 0", self.said, re.MULTILINE) else None

    @property
    def set_aside(self) -> list[str]:
        """The checkpoints that it did not trust, in the order in which it said so."""
        return re.findall(r"^train: set aside \S+/broken-(checkpoint-\d+): ", self.said, re.MULTILINE)


class Victim:
    """One project with the tiny recipe, its golden run, and the starts of the run that is to become like it.

    Args:
        root: an empty folder for the project.
        changes: to tests.support.tiny.RECIPE, as `tiny.recipe` takes them.
        sizes: rows of each split.
    """

    def __init__(self, root: Path, changes: dict[str, Any], sizes: dict[str, int] = SIZES) -> None:
        self.project = Project(root / "project", root / "prefect")
        self.artifacts = Artifacts("tiny", self.project.root)
        self.golden = root / "golden"
        self._changes = changes
        for name in CODE:
            shutil.copytree(ROOT / name, self.project.root / name, ignore=shutil.ignore_patterns("__pycache__"))
        _, recipe = tiny.tokenized(
            self.project.root, tiny.recipe(changes | {"training.keep_checkpoints": 10**6}), sizes
        )
        self.save_steps = recipe.training.save_steps
        self.keep = tiny.recipe(changes)["training"].get("keep_checkpoints", 2)
        self.processes = recipe.launch.num_processes
        # Two runs beside each other on two cores shall not wait for each other's threads, nor sum in another order.
        self.project.environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(self.project.root)}

    def train_golden(self) -> None:
        """Train what all starts are compared with, and keep its checkpoints and artifacts."""
        self.project.run(sys.executable, str(Path(__file__).with_name("golden_run.py")), str(self.golden / "run"))
        for place in (self.artifacts.checkpoint, self.artifacts.model, self.artifacts.history):
            shutil.move(place, self.golden / place.name)
        tiny.write(self.artifacts.recipe_path, tiny.recipe(self._changes))
        self.forget()

    def forget(self) -> None:
        """Begin with a new run: no artifacts, no checkpoints."""
        for place in (self.artifacts.scratch, self.artifacts.checkpoint, self.artifacts.model, self.artifacts.history):
            shutil.rmtree(place, ignore_errors=True)

    # Starts

    def start(self, kill_at: str | None = None, log: str = "train.log", **environment: str) -> subprocess.Popen[bytes]:
        """Start the train stage; it kills its trainer at a write point if `kill_at` says so."""
        before = dict(self.project.environment)
        self.project.environment |= environment | ({KILL_AT: kill_at} if kill_at else {})
        try:
            return self.project.start(sys.executable, "-m", "tasks", "train", "params/tiny.yaml", log=log)
        finally:
            self.project.environment = before

    def wait(self, process: subprocess.Popen[bytes], timeout_s: float = 240) -> Left:
        """Wait for the end of a start, and of all that it started."""
        status = process.wait(timeout_s)
        self.project.started.remove(process)
        wait_for(lambda: not self.project.processes(), "the end of all processes of a start", _END_S)
        return Left(status, (self.project.root / "train.log").read_text(encoding="utf-8"))

    def run(self, **environment: str) -> Left:
        """Start the train stage and leave it alone."""
        return self.wait(self.start(**environment))

    # What is there

    @property
    def folder(self) -> Path:
        """The run's own folder; there is one, as the recipe does not change."""
        found = list((self.artifacts.scratch / "checkpoints").glob("*"))
        assert len(found) <= 1, found
        return found[0] if found else self.artifacts.scratch / "checkpoints" / "none"

    def checkpoints(self) -> list[Path]:
        """Folders under a checkpoint's final name, newest first."""
        return sorted(self.folder.glob("checkpoint-*"), key=_step, reverse=True)

    def newest_step(self) -> int:
        """The step of the newest checkpoint, 0 if there is none."""
        return next(map(_step, self.checkpoints()), 0)

    def pulses(self) -> dict[int, heartbeat.Pulse]:
        """The last signs of life, by rank; empty while one is being written."""
        try:
            return {pulse.rank: pulse for pulse in heartbeat.pulses(self.folder)}
        except (OSError, ValueError):
            return {}

    # Comparisons with the golden run: what differs, in words; an empty list is what must come out

    def differences(self) -> list[str]:
        """In what an unfinished run has on disk: its newest checkpoint, and the newest of its best weights."""
        found = []
        for checkpoint in self.checkpoints()[:1]:
            golden = self.golden / "run" / checkpoint.name
            found += [f"{checkpoint.name}/{odd}" for odd in folder_differences(golden, checkpoint)]
            if not any(self.folder.glob("best-*")):
                found.append(f"{checkpoint.name} is there, and no best weights are")
        for best in sorted(self.folder.glob("best-*"), key=_step, reverse=True)[:1]:
            found += [f"{best.name}/{odd}" for odd in self._best_differences(best)]
        return found

    def final_differences(self) -> list[str]:
        """In the artifacts of a finished run: last full state, best weights, curves and report."""
        return [
            f"{place.name}/{odd}"
            for place in (self.artifacts.checkpoint, self.artifacts.model, self.artifacts.history)
            for odd in folder_differences(self.golden / place.name, place)
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


def folder_differences(golden: Path, other: Path) -> list[str]:
    """The files of `other` that are not the golden ones, bit for bit; readings of a clock do not count."""
    names = {path.relative_to(folder) for folder in (golden, other) for path in folder.rglob("*") if path.is_file()}
    odd = [str(name) for name in sorted(names) if name.name != _MANIFEST and not _same(golden / name, other / name)]
    return odd + (_manifest_differences(other) if (golden / _MANIFEST).exists() else [])


def _same(golden: Path, other: Path) -> bool:
    if not (golden.exists() and other.exists()):
        return False
    return _without_clock(golden) == _without_clock(other) if golden.name == _STATE else _bytes(golden) == _bytes(other)


def _bytes(path: Path) -> bytes:
    return path.read_bytes()


def _without_clock(path: Path) -> Any:
    try:
        state = json.loads(_bytes(path))
    except ValueError:
        return None
    state["log_history"] = [{k: v for k, v in e.items() if not k.endswith(_CLOCKS)} for e in state["log_history"]]
    return state


def _manifest_differences(folder: Path) -> list[str]:
    """Files that are not as the manifest beside them says."""
    if not (folder / _MANIFEST).exists():
        return [f"{_MANIFEST} is missing"]
    promised = json.loads(_bytes(folder / _MANIFEST))
    found = {str(p.relative_to(folder)): p for p in folder.rglob("*") if p.is_file() and p.name != _MANIFEST}
    wrong = [n for n in promised if n not in found or promised[n][1] != hashlib.sha256(_bytes(found[n])).hexdigest()]
    return [f"{name} is not as its manifest says" for name in sorted({*wrong, *(found.keys() - promised.keys())})]


def _step(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])
