"""rehearse: run the whole pipeline on few rows, publishing nowhere, and estimate what the real run takes.

What would fail after hours fails here within a minute or two: a batch of the longest rows that does not fit into memory, a metric of
your own, the report, the card, the upload. The release goes to a Hub of its own, which is deleted with all other traces.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shutil
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from params import InterruptedTrainingError, Recipe, load
from params.artifacts import STAGES, Artifacts
from params.resolve import save
from tasks import stages
from tasks.diagnostics.check import check
from tasks.diagnostics.rehearsal_rows import RehearsalRows, read_rows
from tasks.hub_client.connection import LOCAL
from tasks.report.formatting import duration
from tasks.stages import read_report
from tasks.tokenization.report import TokenizationReport
from tasks.validation.kinds import BY_KEY, ROW_BY_ROW
from tasks.validation.report import ValidationReport
from trainer import objectives
from trainer.loop.batch import every, total_steps
from trainer.reporting.step_clock import Clock, StepClock
from trainer.runtime.lifetime import exclusive

logger = logging.getLogger(__name__)
_STEPS: Final = 6
_WARM_UP: Final = 2
"""Steps that are not timed: they also load kernels and fill caches."""
_ROWS: Final = {"train": 1000, "validation": 64, "test": 64}
_CLOCK: Final = "clock.json"
_UP_TO_TRAIN: Final = STAGES[: STAGES.index("train") + 1]


@dataclass(frozen=True)
class _Pass:
    """What one pass through the stages took, on few rows."""

    rows: int
    seconds: dict[str, float]
    clock: Clock
    report: TokenizationReport
    quarantined: int
    disk_bytes: int
    """Of the run's folder: a checkpoint, weights, and what the stages made of the rows."""


@dataclass(frozen=True)
class Estimate:
    """What the real run takes on this machine."""

    steps: int
    seconds: dict[str, float]
    """By stage. To send the release to a Hub over a network comes on top."""
    memory_bytes: int
    """Of each training process, on batches of the longest rows."""
    gpu_memory_bytes: int
    disk_bytes: int
    """Of the checkpoints that are kept."""

    def lines(self) -> list[str]:
        """Return the estimate for people."""
        stages = ", ".join(f"{stage} {duration(seconds)}" for stage, seconds in self.seconds.items())
        memory = f"{self.memory_bytes / 2**30:.1f} GiB"
        if self.gpu_memory_bytes:
            memory += f", and {self.gpu_memory_bytes / 2**30:.1f} GiB of its GPU"
        return [
            f"time: about {duration(sum(self.seconds.values()))} ({stages}; {self.steps:,} steps)",
            f"memory: {memory} for each training process, with the longest rows",
            f"disk: {self.disk_bytes / 2**30:.1f} GiB for checkpoints",
        ]


def rehearse(recipe_path: Path) -> Estimate:
    """Run all stages of a recipe on few rows, twice: on usual rows to the release, on the longest rows to the training.

    Prints what each stage takes, and the estimate.

    Raises:
        EvergreenError: what the real run would fail with, too.
    """
    check(recipe_path)
    recipe, artifacts = load(recipe_path), Artifacts(recipe_path.stem)
    folder = artifacts.scratch.absolute() / "rehearsal"
    with exclusive(artifacts.scratch / "rehearsal.lock", f"a rehearsal of {artifacts.recipe}"):
        shutil.rmtree(folder, ignore_errors=True)
        try:
            longest = recipe.training.global_batch_size + 2 * recipe.launch.eval_batch_size
            rows = read_rows(recipe.data, _ROWS, longest)
            read = ", ".join(
                f"{split} {'' if one.is_whole else 'more than '}{one.total:,}" for split, one in rows.items()
            )
            logger.info("rehearse: rows of the source: %s", read)
            chosen = {split: one.table(one.usual) for split, one in rows.items()}
            usual = _run("usual rows", recipe, chosen, folder / "usual", names=STAGES, steps=_STEPS)
            hardest = usual
            if dealt := _longest(recipe, rows["train"]):
                hardest = _run(
                    "the longest rows", recipe, dealt, folder / "longest", names=_UP_TO_TRAIN, steps=_WARM_UP
                )
        except (KeyboardInterrupt, InterruptedTrainingError):
            raise KeyboardInterrupt("a rehearsal keeps nothing\n  start again, or start the real run") from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    found = _estimate(recipe, rows, usual, hardest)
    for line in [*_warnings(recipe, usual), *found.lines()]:
        logger.info("rehearse: %s", line)
    return found


def _run(
    what: str, recipe: Recipe, rows: Mapping[str, pa.Table], root: Path, *, names: Sequence[str], steps: int
) -> _Pass:
    """Run stages on some rows of each split, with `root` in the place of the project's folder."""
    (root / "data").mkdir(parents=True)
    for split, table in rows.items():
        pq.write_table(table, root / "data" / f"{split}.parquet")
    artifacts, seconds = Artifacts("rehearsal", root), {}
    small = _small(recipe, root, list(rows), steps)
    for stage in names:
        if stage == "train":
            small = _with_enough_sequences(small, artifacts)
        save(small, artifacts.recipe_path)
        logger.info("rehearse: %s: %s", what, stage)
        start = time.monotonic()
        with _own_hub() if stage in ("evaluate", "publish") else contextlib.nullcontext():
            stages.call(stage, artifacts, small)
        seconds[stage] = time.monotonic() - start
    return _Pass(
        rows=sum(map(len, rows.values())),
        seconds=seconds,
        clock=Clock(**json.loads((root / _CLOCK).read_text(encoding="utf-8"))),
        report=read_report(artifacts, TokenizationReport),
        quarantined=read_report(artifacts, ValidationReport).quarantined,
        disk_bytes=sum(path.stat().st_size for path in artifacts.checkpoint.rglob("*") if path.is_file()),
    )


def _small(recipe: Recipe, root: Path, splits: Sequence[str], steps: int) -> Recipe:
    """Return the recipe of a rehearsal: its rows, its steps, and a Hub of its own; nothing else is another one."""
    content: dict[str, Any] = recipe.model_dump(mode="json")
    content["data"]["source"] = {
        "kind": "files",
        **{split: str(root / "data" / f"{split}.parquet") for split in splits},
    }
    for split, share in content["data"]["split"].items():
        content["data"]["split"][split] = share and max(share, 0.1)
    content["validation"] |= {"max_quarantined": 0.99, "drift": "off"}
    for expectation in content["validation"]["expectations"]:
        if expectation["type"] not in ROW_BY_ROW | BY_KEY:  # few rows say nothing about a whole column
            expectation["on_failure"] = "report"
    clock = {"name": f"{StepClock.__module__}:{StepClock.__name__}", "arguments": {"path": str(root / _CLOCK)}}
    content["training"] |= {"epochs": None, "max_steps": steps, "eval_steps": steps, "save_steps": steps}
    content["training"] |= {"save_minutes": None, "early_stopping_patience": None, "resume": "never"}
    content["training"]["callbacks"].append(clock)
    content["training"]["arguments"].pop("report_to", None)
    content["launch"] |= {"mirror": "none", "max_hours": None, "data_workers": 1, "data_cluster": None}
    content["evaluation"] |= {"compare_untrained": False, "gate": {}}
    content["publish"] |= {"endpoint": LOCAL, "approval": "none", "dry_run": False}
    return Recipe.model_validate(content)


def _with_enough_sequences(recipe: Recipe, artifacts: Artifacts) -> Recipe:
    """Return the recipe with a global batch that the sequences of few rows can fill: packing leaves few of them."""
    sequences = read_report(artifacts, TokenizationReport).splits["train"].sequences
    processes, size = recipe.launch.num_processes, recipe.training.global_batch_size
    if sequences >= size:
        return recipe
    size = max(processes, sequences // processes * processes)
    return recipe.model_copy(update={"training": recipe.training.model_copy(update={"global_batch_size": size})})


def _longest(recipe: Recipe, rows: RehearsalRows) -> dict[str, pa.Table]:
    """Deal the longest rows out to the splits; empty if they are too few. Training sees each label of the held-out rows."""
    labels = [column for column, kind in objectives.build(recipe.objective).columns().items() if kind == "label"]
    first: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows.longest:
        first.setdefault(tuple(str(row.get(column)) for column in labels), row)
    train = list(first.values())
    known = {id(row) for row in train}
    others = [row for row in rows.longest if id(row) not in known]
    held_out = min(recipe.launch.eval_batch_size, len(others) // 4)
    if not held_out:
        return {}
    validation, test, more = others[:held_out], others[held_out : 2 * held_out], others[2 * held_out :]
    return {"train": rows.table(train + more), "validation": rows.table(validation), "test": rows.table(test)}


@contextlib.contextmanager
def _own_hub() -> Iterator[None]:
    """Let `local` mean the Hub in the rehearsal's folder."""
    endpoint = os.environ.pop("HF_ENDPOINT", None)
    try:
        yield
    finally:
        if endpoint is not None:
            os.environ["HF_ENDPOINT"] = endpoint


def _estimate(recipe: Recipe, rows: Mapping[str, RehearsalRows], usual: _Pass, hardest: _Pass) -> Estimate:
    split, training = recipe.data.split, recipe.training
    total = {name: one.total for name, one in rows.items()}
    for name in ("validation", "test"):
        if name not in total:
            total[name] = round(rows["train"].total * getattr(split, name))
            total["train"] -= total[name]
    counted = usual.report.splits["train"]
    steps = total_steps(training, round(total["train"] * counted.sequences / max(1, counted.rows)))
    speed = statistics.median(usual.clock.eval_rows_per_s)
    step_s = statistics.fmean(usual.clock.steps_s[_WARM_UP:])
    evaluations = 1 + math.ceil(steps / every(training.eval_steps, steps))
    models = 2 + recipe.evaluation.compare_untrained  # the champion is the second

    def more_rows(stage: str) -> float:
        """The seconds of a stage whose work is that on its rows."""
        a_row = (usual.seconds[stage] - hardest.seconds[stage]) / max(1, usual.rows - hardest.rows)
        return usual.seconds[stage] + max(0.0, a_row) * (sum(total.values()) - usual.rows)

    seconds = {stage: more_rows(stage) for stage in STAGES[: STAGES.index("train")]}
    start_s = (
        usual.seconds["train"] - sum(usual.clock.steps_s) - 2 * usual.report.splits["validation"].sequences / speed
    )
    seconds["train"] = max(0.0, start_s) + steps * step_s + evaluations * total["validation"] / speed
    seconds["evaluate"] = usual.seconds["evaluate"] + models * total[recipe.evaluation.split] / speed
    seconds["publish"] = usual.seconds["publish"]
    return Estimate(
        steps=steps,
        seconds=seconds,
        memory_bytes=max(usual.clock.memory_bytes, hardest.clock.memory_bytes),
        gpu_memory_bytes=max(usual.clock.gpu_memory_bytes, hardest.clock.gpu_memory_bytes),
        disk_bytes=usual.disk_bytes * (training.keep_checkpoints + 1),
    )


def _warnings(recipe: Recipe, usual: _Pass) -> Iterator[str]:
    limit = recipe.validation.max_quarantined
    if usual.quarantined > limit * usual.rows:
        yield (
            f"{usual.quarantined} of {usual.rows} rows were set aside, more than validation.max_quarantined, {limit:.1%}, allows; "
            "of few rows, some can be labels that training never sees"
        )
