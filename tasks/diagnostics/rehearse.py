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
import random
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
from params.foundation.artifacts import STAGES, Artifacts
from params.resolve import save
from tasks import stages
from tasks.diagnostics.check import check
from tasks.diagnostics.rehearsal_rows import RehearsalRows, Row, read_rows
from tasks.hub_client.connection import LOCAL
from tasks.report.formatting import duration
from tasks.stages import read_report
from tasks.tokenization.report import TokenizationReport
from tasks.validation.checks import BY_KEY, ROW_BY_ROW
from tasks.validation.report import ValidationReport
from trainer import objectives
from trainer.loop.batch import interval_steps, total_steps
from trainer.reporting.step_clock import ProcessTimings, StepClock
from trainer.runtime.lifetime import hold_file_lock

logger = logging.getLogger(__name__)
_ROWS: Final = 1000
_HELD_OUT_ROWS: Final = 128
_WARM_UP: Final = 2
"""Steps that are not timed: they also load kernels and fill caches."""
_TIMED_STEPS: Final = (4, 30)
_TIMED_S: Final = 12.0
"""How long the timed steps take, about."""
_BUSY: Final = 1.3
"""A machine on which the work takes so many times as long as it would alone is busy."""
_ADVICE: Final = (
    "other programs use this machine: OMP_WAIT_POLICY=passive can make the training many times as fast beside them"
)
_CLOCK: Final = "clock.json"
_UP_TO_TRAIN: Final = STAGES[: STAGES.index("train") + 1]


@dataclass(frozen=True)
class _Pass:
    """What one pass through the stages took, on few rows."""

    rows: int
    seconds: dict[str, float]
    clock: ProcessTimings
    report: TokenizationReport
    quarantined: int
    disk_bytes: int
    """The size of the last checkpoint."""

    @property
    def steps_s(self) -> list[float]:
        """Seconds of the timed steps."""
        return self.clock.steps_s[_WARM_UP:] or self.clock.steps_s

    @property
    def slowdown(self) -> float:
        """How many times as long, at least, the steps took as without other programs; on a GPU, nobody knows.

        CPU time is an upper limit: a thread that waits for another may spin.
        """
        cpu_s = sum(self.clock.steps_cpu_s[-len(self.steps_s) :]) / self.clock.threads
        return 1.0 if self.clock.gpu_memory_bytes else max(1.0, sum(self.steps_s) / cpu_s)


@dataclass(frozen=True)
class RealRunEstimate:
    """What the real run takes on this machine."""

    steps: int
    seconds: dict[str, float]
    """By stage, on the machine as it is now. To send the release to a Hub over a network comes on top."""
    slowdown: float
    """How many times as long that is, at least, as without other programs."""
    basis: str
    """What was measured."""
    memory_bytes: int
    """Memory of each training process, on batches of the longest rows."""
    gpu_memory_bytes: int
    disk_bytes: int
    """The size of the checkpoints that are kept."""

    def lines(self) -> list[str]:
        """Return the estimate for people."""
        stages = ", ".join(f"{stage} {duration(seconds)}" for stage, seconds in self.seconds.items())
        total, alone = sum(self.seconds.values()), ""
        if self.slowdown > _BUSY:
            alone = f"; without other programs at most {duration(total / self.slowdown)}"
        memory = f"{self.memory_bytes / 2**30:.1f} GiB"
        if self.gpu_memory_bytes:
            memory += f", and {self.gpu_memory_bytes / 2**30:.1f} GiB of its GPU"
        return [
            f"time: about {duration(total)} ({stages}; {self.steps:,} steps){alone}",
            f"the time follows from {self.basis}",
            f"memory: {memory} for each training process, with the longest rows",
            f"disk: {self.disk_bytes / 2**30:.1f} GiB for checkpoints",
            *([_ADVICE] if alone and "OMP_WAIT_POLICY" not in os.environ else []),
        ]


def rehearse(recipe_path: Path) -> RealRunEstimate:
    """Run all stages of a recipe on few rows, twice: on the longest rows to the training, on usual rows to the release.

    Prints what each stage does, and the estimate.

    Raises:
        EvergreenError: what the real run would fail with, too.
    """
    check(recipe_path)
    recipe, artifacts = load(recipe_path), Artifacts(recipe_path.stem)
    folder = artifacts.scratch.absolute() / "rehearsal"
    with hold_file_lock(artifacts.scratch / "rehearsal.lock", f"a rehearsal of {artifacts.recipe}"):
        shutil.rmtree(folder, ignore_errors=True)
        try:
            rows = read_rows(recipe.data)
            read = ", ".join(
                f"{split} {'' if one.is_whole else 'more than '}{one.total:,}" for split, one in rows.items()
            )
            logger.info("rehearse: rows of the source: %s", read)
            hardest, steps = None, _TIMED_STEPS[0]
            count = recipe.training.global_batch_size + 2 * recipe.launch.eval_batch_size
            if len(rows["train"].pool) > count:
                longest = _dealt(recipe, rows["train"], rows["train"].longest(count), {})
                hardest = _run("the longest rows", recipe, longest, folder / "longest", names=_UP_TO_TRAIN, steps=2)
                fitting = round(_TIMED_S / hardest.clock.steps_s[-1])
                steps = min(max(fitting, _TIMED_STEPS[0]), _TIMED_STEPS[1])
            held_out = {split: one for split, one in rows.items() if split != "train"}
            some = _dealt(recipe, rows["train"], rows["train"].usual(_ROWS), held_out)
            usual = _run("usual rows", recipe, some, folder / "usual", names=STAGES, steps=_WARM_UP + steps)
        except (KeyboardInterrupt, InterruptedTrainingError):
            raise KeyboardInterrupt("a rehearsal keeps nothing\n  start again, or start the real run") from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    has_champion = artifacts.receipt.exists()
    found = _estimate(recipe, rows, usual, hardest or usual, has_champion=has_champion)
    would = "compared with the published one" if has_champion else "published as the first release"
    sent = f"the release was built, and nothing was sent; a model that passes the gate would be {would}"
    for line in [*_warnings(recipe, usual), sent, *found.lines()]:
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
        clock=ProcessTimings(**json.loads((root / _CLOCK).read_text(encoding="utf-8"))),
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
    content["data"]["group_by"] = []  # rows are dealt one by one, and would be set aside as groups in two splits
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
    content["publish"]["adapter"] = "merged"  # its Hub does not have the base model
    return Recipe.model_validate(content)


def _with_enough_sequences(recipe: Recipe, artifacts: Artifacts) -> Recipe:
    """Return the recipe with a global batch that the sequences of few rows can fill: packing leaves few of them."""
    sequences = read_report(artifacts, TokenizationReport).splits["train"].sequences
    processes, size = recipe.launch.num_processes, recipe.training.global_batch_size
    if sequences >= size:
        return recipe
    size = max(processes, sequences // processes * processes)
    return recipe.model_copy(update={"training": recipe.training.model_copy(update={"global_batch_size": size})})


def _dealt(
    recipe: Recipe, train: RehearsalRows, rows: Sequence[Row], held_out: Mapping[str, RehearsalRows]
) -> dict[str, pa.Table]:
    """Deal training rows out to the splits that have no rows of their own. Training sees each label of the held-out rows."""
    labels = [column for column, kind in objectives.build(recipe.objective).columns().items() if kind == "label"]

    def label_of(row: Row) -> tuple[str, ...]:
        return tuple(str(row.get(column)) for column in labels)

    known = {label_of(row): row for row in rows}
    kept = {id(row) for row in known.values()}
    others = [row for row in rows if id(row) not in kept]
    random.Random(0).shuffle(others)  # noqa: S311 - files are often sorted by a label
    count = min(_HELD_OUT_ROWS, len(others) // 4)
    tables = {}
    for split in ("validation", "test"):
        source = held_out.get(split)
        if source:
            found = [row for row in source.usual(_HELD_OUT_ROWS) if label_of(row) in known]
        else:
            found, others = others[:count], others[count:]
        if found:
            tables[split] = (source or train).table(found)
    return {"train": train.table([*known.values(), *others]), **tables}


@contextlib.contextmanager
def _own_hub() -> Iterator[None]:
    """Let `local` mean the Hub in the rehearsal's folder; what the stage says of a release there is not shown."""
    endpoint, said = os.environ.pop("HF_ENDPOINT", None), logging.getLogger("tasks.publishing")
    level = said.level
    said.setLevel(logging.WARNING)
    try:
        yield
    finally:
        said.setLevel(level)
        if endpoint is not None:
            os.environ["HF_ENDPOINT"] = endpoint


def _estimate(
    recipe: Recipe, rows: Mapping[str, RehearsalRows], usual: _Pass, hardest: _Pass, *, has_champion: bool
) -> RealRunEstimate:
    split, training = recipe.data.split, recipe.training
    total = {name: one.total for name, one in rows.items()}
    train_rows = total["train"]
    for name in ("validation", "test"):
        if name not in total:
            total[name] = round(train_rows * getattr(split, name))
            total["train"] -= total[name]
    counted = usual.report.splits["train"]
    steps = total_steps(training, round(total["train"] * counted.sequences / max(1, counted.rows)))
    speed, step_s = usual.clock.eval_rows_per_s[-1], statistics.fmean(usual.steps_s)
    evaluations = 1 + math.ceil(steps / interval_steps(training.eval_steps, steps))
    models = 1 + recipe.evaluation.compare_untrained + has_champion

    def of_all_rows(stage: str) -> float:
        """The seconds of a stage whose work is that on its rows; the first pass also imports what it needs."""
        return hardest.seconds[stage] + usual.seconds[stage] * max(0.0, sum(total.values()) / usual.rows - 1)

    seconds = {stage: of_all_rows(stage) for stage in STAGES[: STAGES.index("train")]}
    validated = usual.report.splits["validation"].sequences
    start_s = usual.seconds["train"] - sum(usual.clock.steps_s) - 2 * validated / speed
    seconds["train"] = max(0.0, start_s) + steps * step_s + evaluations * total["validation"] / speed
    seconds["evaluate"] = usual.seconds["evaluate"] + models * total[recipe.evaluation.split] / speed
    seconds["publish"] = usual.seconds["publish"]
    return RealRunEstimate(
        steps=steps,
        seconds=seconds,
        slowdown=usual.slowdown,
        basis=f"{len(usual.steps_s)} steps of {duration(step_s)} and evaluations of {speed:,.0f} rows/s",
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
