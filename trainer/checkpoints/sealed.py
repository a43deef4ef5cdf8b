"""Checkpoints that exist completely or not at all.

A checkpoint is written to `.staging`, gets a manifest (size and SHA-256 of every file), is flushed to disk and renamed to
`checkpoint-<step>`. A run resumes from the newest valid one: it matches its manifest and lacks nothing that a run needs. An
invalid one is renamed to `broken-checkpoint-<step>` with a warning. The best weights are kept apart, as `best-<step>`; new
ones are sealed before the old ones are deleted, so that valid ones always exist.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from params import CheckpointError
from params.foundation.artifacts import flush_path_to_disk, flush_tree_to_disk
from params.foundation.hashing import file_sha256
from params.sections.base import Direction

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
IDENTITY = "run.json"
"""File with the identity of the run that a checkpoint belongs to, see trainer.identity."""
FINISHED = "finished.json"
"""File in the folder of a run that has ended: its steps, parameters and log."""
STAGING = ".staging"
POSITION = "position.json"
BEST_NOTE = "best.json"
_NAME = re.compile(r"checkpoint-\d+")
_REQUIRED = {
    "the weights": ("*.safetensors", "pytorch_model_fsdp*", "global_step*"),
    "the optimizer's state": ("optimizer.pt", "optimizer_0", "optimizer.bin", "global_step*"),
    "the learning-rate schedule": ("scheduler.pt",),
    "the random state": ("rng_state*.pth",),
    "the trainer's state": ("trainer_state.json",),
    "the position in the data": (POSITION,),
    "the run's identity": (IDENTITY,),
}
"""What a run needs to resume, and file patterns for each. Trainer itself would resume without most of it."""
KILL_AT = "EVERGREEN_KILL_AT"
"""Environment variable `<point>:<n>`, for tests: the process kills itself when it reaches the point for the n-th time."""
_counts = Counter[str]()


def pass_kill_point(point: str) -> None:
    """Mark that what a point of a save names is done. A kill at any of them must do no harm."""
    _counts[point] += 1
    if os.environ.get(KILL_AT) == f"{point}:{_counts[point]}":
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class ResumePosition:
    """Where a run continues, in addition to what Trainer itself stores."""

    order: dict[str, int]
    """Position in the order of the rows, see trainer.data.order."""
    stream: dict[str, Any] | None
    """State of the stream, for streamed data."""
    losses: list[float]
    """Training loss of each process since the last log line, in total."""
    last_logged_step: int
    lacks_evaluation: bool
    """Whether the evaluation at this step is still to be done."""
    finished: bool
    """Whether the run ended with this checkpoint."""
    processes: int
    """Number of processes that wrote the checkpoint."""

    def loss_of(self, process: int, processes: int) -> float:
        """Return the loss of a process since the last log line; on another number of processes, the mean of all."""
        return self.losses[process] if processes == len(self.losses) else sum(self.losses) / len(self.losses)

    def save(self, checkpoint: Path) -> None:
        (checkpoint / POSITION).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")

    @classmethod
    def load(cls, checkpoint: Path) -> ResumePosition:
        """Read it from a checkpoint's folder; CheckpointError if it is missing or damaged."""
        try:
            return cls(**json.loads((checkpoint / POSITION).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            what = f"its position in the data cannot be read: {error!r}"
            raise CheckpointError(str(checkpoint), what, "resume from another one") from error


def identity_to_json(identity: Mapping[str, str]) -> str:
    """Return the content of `run.json` in a run's folder and in each of its checkpoints."""
    return json.dumps(dict(identity), indent=1)


def seal_and_rename(staged: Path, target: Path, kind: Literal["checkpoint", "best"] = "checkpoint") -> None:
    """Write the manifest of the folder `staged`, flush it to disk and rename it to `target`."""
    (staged / MANIFEST).write_text(json.dumps(_manifest(staged), indent=1, sort_keys=True), encoding="utf-8")
    pass_kill_point(f"{kind}.manifest")
    flush_tree_to_disk(staged)
    pass_kill_point(f"{kind}.flushed")
    if target.exists():
        shutil.rmtree(target)
    staged.rename(target)
    flush_path_to_disk(target.parent)
    pass_kill_point(f"{kind}.renamed")


def find_manifest_mismatch(checkpoint: Path) -> str | None:
    """Return how `checkpoint` differs from its manifest, or None; a file on a bad sector counts as different."""
    try:
        promised = dict(json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8")))
        found = _manifest(checkpoint)
    except FileNotFoundError:
        return "it has no manifest"
    except (ValueError, TypeError):
        return "its manifest is damaged"
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return f"the disk cannot read it: {error}"
    if promised == found:
        return None
    changed = sorted(name for name in promised.keys() | found.keys() if promised.get(name) != found.get(name))
    return f"not as it was written: {', '.join(changed)}"


def find_checkpoint_defect(checkpoint: Path) -> str | None:
    """Return why no run can resume from `checkpoint`, or None."""
    return find_manifest_mismatch(checkpoint) or _missing(checkpoint)


def find_newest_setting_broken_aside(folder: Path, run: str) -> Path | None:
    """Return the newest checkpoint in a run's folder that it can resume from, and rename invalid newer ones.

    `run` is the content of the run's `run.json`; a checkpoint with another one belongs to another run.
    """
    for checkpoint in list_checkpoints(folder):
        found = find_checkpoint_defect(checkpoint)
        if found is None and (checkpoint / IDENTITY).read_text(encoding="utf-8") != run:
            found = "it belongs to another run"
        if found is None:
            return checkpoint
        aside = folder / f"broken-{checkpoint.name}"
        shutil.rmtree(aside, ignore_errors=True)
        checkpoint.rename(aside)
        logger.warning("train: set aside %s: %s", aside, found)
    return None


@dataclass(frozen=True)
class BestWeights:
    """The weights of the best evaluation so far."""

    folder: Path
    step: int
    metric: str
    value: float


def replace_best_weights(staged: Path, *, step: int, metric: str, value: float, keep_others: bool = False) -> None:
    """Make the weights in `staged`, a folder in the run's folder, its best weights, and delete the earlier ones."""
    folder = staged.parent
    (staged / BEST_NOTE).write_text(json.dumps({"step": step, "metric": metric, "value": value}), encoding="utf-8")
    if (run := _run_of(folder)) is not None:
        (staged / IDENTITY).write_text(run, encoding="utf-8")
    target = folder / f"best-{step}"
    seal_and_rename(staged, target, "best")
    for other in () if keep_others else folder.glob("best-*"):
        if other != target:
            shutil.rmtree(other)
    pass_kill_point("best.retired")


def find_best_weights(folder: Path, direction: Direction) -> BestWeights | None:
    """Return the valid best weights in a run's folder; `direction` is `min` if the smallest value is best, else `max`."""
    found = [
        BestWeights(place, **json.loads((place / BEST_NOTE).read_text(encoding="utf-8")))
        for place in folder.glob("best-*")
        if find_manifest_mismatch(place) is None and _run_of(place) == _run_of(folder)
    ]
    choose = min if direction == "min" else max
    return choose(found, key=lambda best: best.value, default=None)


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in `folder`, valid or not, newest first."""
    return sorted((p for p in folder.glob("checkpoint-*") if _NAME.fullmatch(p.name)), key=_number, reverse=True)


def newest_checkpoint_step(folder: Path) -> int:
    """Return the step of the newest checkpoint in `folder`, valid or not; 0 if there is none."""
    return max(map(_number, list_checkpoints(folder)), default=0)


def delete_old_checkpoints(folder: Path, keep: int) -> None:
    """Delete all but the `keep` newest checkpoints."""
    for old in list_checkpoints(folder)[keep:]:
        shutil.rmtree(old)
    pass_kill_point("checkpoint.retained")


def read_checkpoint_step(checkpoint: Path) -> int:
    """Return the number of optimizer steps before a checkpoint; CheckpointError if its state cannot be read."""
    try:
        return int(json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))["global_step"])
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(str(checkpoint), f"its state cannot be read: {error}", "use another one") from error


def _number(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("checkpoint-"))


def _run_of(folder: Path) -> str | None:
    path = folder / IDENTITY
    return path.read_text(encoding="utf-8") if path.exists() else None


def _missing(checkpoint: Path) -> str | None:
    lacking = [what for what, names in _REQUIRED.items() if not any(any(checkpoint.glob(n)) for n in names)]
    if lacking:
        return f"it lacks {', '.join(lacking)}"
    processes = ResumePosition.load(checkpoint).processes
    random_states = len(list(checkpoint.glob("rng_state*.pth")))
    if random_states != processes:
        return f"it has the random state of {random_states} of {processes} processes"
    return None


def _manifest(folder: Path) -> dict[str, list[int | str]]:
    entries: dict[str, list[int | str]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != MANIFEST:
            entries[path.relative_to(folder).as_posix()] = [path.stat().st_size, file_sha256(path)]
    return entries
