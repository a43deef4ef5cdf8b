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
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from params import InterruptedTrainingError, Recipe
from params.foundation.artifacts import CORPUS, SPLITS, Artifacts
from params.foundation.file_lock import hold_file_lock
from params.foundation.stages import STAGES, UP_TO_TRAIN
from tasks.diagnostics.check import check
from tasks.diagnostics.few_rows import RehearsalRows, deal_rows, open_sources, read_split
from tasks.hub_client.connection import LOCAL
from tasks.recipes.loading import load
from tasks.recipes.resolve import write_complete_recipe
from tasks.report.formatting import format_duration
from tasks.stage_run import call_stage_function
from tasks.stages import read_report
from tasks.tokenization.report import TokenizationReport
from tasks.training.processes import trainings_are_forked
from tasks.training.supervisor import supervise_training
from tasks.validation.checks import BY_KEY, ROW_BY_ROW
from tasks.validation.report import ValidationReport
from trainer import objectives
from trainer.checkpoints.resume import prepare_resume
from trainer.environment import environment_variable
from trainer.job import Job
from trainer.loop.batch import interval_steps, total_steps
from trainer.reporting import signs_of_life
from trainer.reporting.step_clock import ProcessMeasurements, StepClock

logger = logging.getLogger(__name__)
_ROWS: Final = 1000
_WARM_UP: Final = 2
"""Steps that are not timed: they also load kernels and fill caches."""
_TIMED_STEPS: Final = (4, 30)
_TIMED_S: Final = 12.0
"""How long the timed steps take, about."""
_BUSY: Final = 1.3
"""A machine on which the work takes so many times as long as it would alone is busy."""
_ADVICE: Final = (
    "other programs use this machine: OMP_WAIT_POLICY=passive can make the training twice as fast beside them"
)
_CLOCK: Final = "clock.json"


class _Pass(NamedTuple):
    """What one pass through the stages took, on few rows."""

    rows: int
    seconds: dict[str, float]
    clock: ProcessMeasurements
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


def rehearse(recipe_path: Path) -> None:
    """Run all stages of a recipe on few rows, twice: on the longest rows to the training, on usual rows to the release.

    Prints what each stage does, and the estimate.

    Raises:
        EvergreenError: what the real run would fail with, too.
    """
    check(recipe_path)
    recipe, artifacts = load(recipe_path), Artifacts(recipe_path.stem)
    folder = artifacts.scratch.absolute() / "rehearsal"
    lock = hold_file_lock(artifacts.scratch / "rehearsal.lock", f"a rehearsal of {artifacts.recipe}")
    with lock, trainings_are_forked(recipe.launch):
        shutil.rmtree(folder, ignore_errors=True)
        try:
            method, sources = objectives.build_objective(recipe.objective), open_sources(recipe.data.row_sources)
            kinds, space = method.columns(), method.vector_space
            rows = {
                split: read_split(sources, split, kinds) for split in SPLITS if any(split in own for *_, own in sources)
            }
            corpus: dict[str, pa.Table] = {}
            if recipe.data.corpus and space and space.document_column:
                found = read_split(
                    open_sources({"corpus": recipe.data.corpus}), "train", {space.document_column: "string"}
                )
                corpus = {CORPUS: found.table(found.usual(_ROWS))}
            read = [f"{split} {'' if one.is_whole else 'more than '}{one.total:,}" for split, one in rows.items()]
            logger.info("rehearse: rows of the source: %s", ", ".join(read))
            hardest, steps = None, _TIMED_STEPS[0]
            count = recipe.training.global_batch_size + 2 * recipe.launch.eval_batch_size
            if len(rows["train"].pool) > count:
                longest = sorted(rows["train"].pool, key=lambda row: len(str(row)), reverse=True)[:count]
                dealt = deal_rows(recipe, longest, {"train": rows["train"]}) | corpus
                hardest = _run("the longest rows", recipe, dealt, folder / "longest", to_release=False, steps=2)
                fitting = round(_TIMED_S / hardest.clock.steps_s[-1])
                steps = min(max(fitting, _TIMED_STEPS[0]), _TIMED_STEPS[1])
            some = deal_rows(recipe, rows["train"].usual(_ROWS), rows) | corpus
            usual = _run("usual rows", recipe, some, folder / "usual", to_release=True, steps=_WARM_UP + steps)
        except (KeyboardInterrupt, InterruptedTrainingError):
            raise KeyboardInterrupt("a rehearsal keeps nothing\n  start again, or start the real run") from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    has_champion = artifacts.receipt.exists()
    would = "compared with the published one" if has_champion else "published as the first release"
    sent = f"the release was built, and nothing was sent; a model that passes the gate would be {would}"
    estimate = _estimate(recipe, rows, usual, hardest or usual, has_champion=has_champion)
    for line in [*_remarks(recipe, usual), sent, *estimate]:
        logger.info("rehearse: %s", line)


def _remarks(recipe: Recipe, usual: _Pass) -> Iterator[str]:
    """Say what of the rows was set aside, if that is much, and what of the recipe was left out."""
    if usual.quarantined > (limit := recipe.validation.max_quarantined) * usual.rows:
        aside = f"{usual.quarantined} of {usual.rows} rows were set aside, more than validation.max_quarantined, {limit:.1%}, allows"
        yield f"{aside}; of few rows, some can be labels that training never sees"
    named: dict[str, Any] = {"data.corrections": recipe.data.corrections, "evaluation.suites": recipe.evaluation.suites}
    named |= {"model.start": recipe.model.start != "base"}
    named |= {"weights of data.sources": any(one.weight != 1 for one in recipe.data.row_sources.values())}
    if found := ", ".join(name for name, is_set in named.items() if is_set):
        yield f"not rehearsed, although the recipe has it: {found}"


def _run(what: str, recipe: Recipe, rows: Mapping[str, pa.Table], root: Path, *, to_release: bool, steps: int) -> _Pass:
    """Run all stages, or those up to one evaluation of the training, on some rows of each split, with `root` as the project's folder."""
    (root / "data").mkdir(parents=True)
    for split, table in rows.items():
        pq.write_table(table, root / "data" / f"{split}.parquet")
    artifacts, seconds = Artifacts("rehearsal", root), {}
    clock = {"path": str(root / _CLOCK), "evaluates_first": to_release}
    small = _small(recipe, root, list(rows), steps, clock)
    for stage in STAGES if to_release else UP_TO_TRAIN:
        if stage == "train":  # packing may leave too few sequences for a global batch
            sequences = read_report(artifacts, TokenizationReport).splits["train"].sequences
            processes, size = recipe.launch.num_processes, recipe.training.global_batch_size
            size = min(size, max(processes, sequences // processes * processes))
            small = small.model_copy(update={"training": small.training.model_copy(update={"global_batch_size": size})})
        write_complete_recipe(small, artifacts.recipe_path)
        logger.info("rehearse: %s: %s", what, stage)
        signs_of_life.note(f"rehearse: {what}: {stage}")
        start = time.monotonic()
        if stage == "train" and not to_release:
            job = Job.of(small, artifacts)
            supervise_training(job, partial(prepare_resume, job.folder, job.identity, small.training.resume))
        else:
            with _own_hub() if stage in ("evaluate", "publish") else contextlib.nullcontext():
                call_stage_function(stage, artifacts, small)
        seconds[stage] = time.monotonic() - start
    return _Pass(
        rows=sum(len(own) for name, own in rows.items() if name != CORPUS),
        seconds=seconds,
        clock=ProcessMeasurements(**json.loads((root / _CLOCK).read_text(encoding="utf-8"))),
        report=read_report(artifacts, TokenizationReport),
        quarantined=read_report(artifacts, ValidationReport).quarantined,
        disk_bytes=sum(path.stat().st_size for path in artifacts.checkpoint.rglob("*") if path.is_file()),
    )


def _small(recipe: Recipe, root: Path, splits: Sequence[str], steps: int, clock: Mapping[str, Any]) -> Recipe:
    """Return the recipe of a rehearsal: its rows, its steps, and a Hub of its own; nothing else is another one."""
    content: dict[str, Any] = recipe.model_dump(mode="json")
    files = {split: str(root / "data" / f"{split}.parquet") for split in splits}
    # rows are dealt one by one, and would be set aside as groups in two splits
    corpus = files.pop(CORPUS, None)
    content["data"] = {"source": {"kind": "files", **files}, "corpus": corpus}
    content["validation"] |= {"max_quarantined": 0.99, "drift": "off"}
    for expectation in content["validation"]["expectations"]:
        if expectation["type"] not in ROW_BY_ROW | BY_KEY:  # few rows say nothing about a whole column
            expectation["on_failure"] = "report"
    content["training"] |= {"epochs": None, "max_steps": steps, "eval_steps": steps, "save_steps": steps}
    content["training"] |= {"save_minutes": None, "early_stopping_patience": None, "resume": "never"}
    content["training"]["callbacks"].append(
        {"name": f"{StepClock.__module__}:{StepClock.__name__}", "arguments": clock}
    )
    content["training"]["arguments"].pop("report_to", None)
    content["launch"] |= {"mirror": "none", "max_hours": None, "data_workers": 1, "data_cluster": None}
    content["evaluation"] |= {"compare_untrained": False, "gate": {}, "suites": []}  # few steps pass none of them
    content["publish"] |= {"endpoint": LOCAL, "approval": "none", "dry_run": False}
    content["publish"]["adapter"] = "merged"  # its Hub does not have the base model
    return Recipe.model_validate(content)


@contextlib.contextmanager
def _own_hub() -> Iterator[None]:
    """Let `local` mean the Hub in the rehearsal's folder; what a stage says of a model of few steps, or of a release there, is not shown."""
    loggers = [logging.getLogger(name) for name in ("tasks.evaluation", "tasks.publishing")]
    levels = [one.level for one in loggers]
    try:
        for one in loggers:
            one.setLevel(logging.WARNING)
        with environment_variable("HF_ENDPOINT", None):
            yield
    finally:
        for one, level in zip(loggers, levels, strict=True):
            one.setLevel(level)


def _estimate(
    recipe: Recipe, rows: Mapping[str, RehearsalRows], usual: _Pass, hardest: _Pass, *, has_champion: bool
) -> list[str]:
    """Return what the real run takes on this machine, as it is now, without sending the release over a network."""
    training, clock = recipe.training, usual.clock
    total = {name: one.total for name, one in rows.items()}
    train_rows = total["train"]
    for name in ("validation", "test"):
        if name not in total:
            total[name] = round(train_rows * getattr(recipe.data.split, name)) if recipe.data.split.by == "hash" else 0
            total["train"] -= total[name]
    counted = usual.report.splits["train"]
    steps = total_steps(training, round(total["train"] * counted.sequences / max(1, counted.rows)))
    speed, step_s = clock.eval_rows_per_s[-1], statistics.fmean(usual.steps_s)
    evaluations = 1 + math.ceil(steps / interval_steps(training.eval_steps, steps))
    models = 1 + recipe.evaluation.compare_untrained + has_champion
    more_rows = max(0.0, sum(total.values()) / usual.rows - 1)  # the first pass also imports what a stage needs
    seconds = {stage: hardest.seconds[stage] + usual.seconds[stage] * more_rows for stage in UP_TO_TRAIN[:-1]}
    start_s = usual.seconds["train"] - sum(clock.steps_s) - 2 * usual.report.splits["validation"].sequences / speed
    seconds["train"] = max(0.0, start_s) + steps * step_s + evaluations * total["validation"] / speed
    seconds["evaluate"] = usual.seconds["evaluate"] + models * total[recipe.evaluation.split] / speed
    seconds["publish"] = usual.seconds["publish"]
    all_s, is_busy = sum(seconds.values()), usual.slowdown > _BUSY
    alone = f"; without other programs at most {format_duration(all_s / usual.slowdown)}" if is_busy else ""
    by_stage = ", ".join(f"{stage} {format_duration(one)}" for stage, one in seconds.items())
    memory = f"{max(clock.memory_bytes, hardest.clock.memory_bytes) / 2**30:.1f} GiB"
    if on_gpu := max(clock.gpu_memory_bytes, hardest.clock.gpu_memory_bytes):
        memory += f", and {on_gpu / 2**30:.1f} GiB of its GPU"
    disk = usual.disk_bytes * (training.keep_checkpoints + 1) / 2**30
    return [
        f"time: about {format_duration(all_s)} ({by_stage}; {steps:,} steps){alone}",
        f"the time follows from {len(usual.steps_s)} steps of {format_duration(step_s)} and evaluations of {speed:,.0f} rows/s",
        f"memory: {memory} for each training process, with the longest rows; a whole training may need a third more",
        f"disk: {disk:.1f} GiB for checkpoints",
        *([_ADVICE] if is_busy and "OMP_WAIT_POLICY" not in os.environ else []),
    ]
