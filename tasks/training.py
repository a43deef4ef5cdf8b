"""train: supervise one training, from tokens to a model.

`accelerate launch -m trainer.worker` trains, in a folder outside of DVC's outputs that is named after everything that
determines the run; an interrupted run is taken up there, a changed one finds its own folder empty. Only a finished run
becomes artifacts: model/ (best weights and tokenizer), checkpoint/ (the last full state) and history/ (the curves).
"""

from __future__ import annotations

import csv
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import params
from params import EvergreenError, KilledError, ModelError
from params.artifacts import Artifacts, whole_folder
from params.schema import Launch, Model, ObjectiveChoice, Training
from tasks.provenance import git_commit, versions
from tasks.stages import Report, save_report
from trainer import objectives
from trainer.checkpoints import BEST_NOTE, MANIFEST, all_checkpoints, best_weights
from trainer.job import Job, identity, run_key
from trainer.process import SUPERVISOR, die_with_parent, exclusive
from trainer.resuming import choose

logger = logging.getLogger(__name__)
_SILENT = ("epoch", "runtime", "samples_per_second", "steps_per_second", "model_preparation_time")


class TrainingReport(Report):
    """What the train stage reached."""

    run: str
    """Key of everything that determines the run."""
    steps: int
    parameters: int
    best_step: int
    best_metric: str
    best_value: float
    final_train_loss: float | None
    git_commit: str | None
    """Commit of the code that trained; `+` follows when the code had changes that were not committed."""
    versions: dict[str, str]
    """Of Python and of the libraries that decide on the weights."""


def train(
    artifacts: Artifacts, *, seed: int, objective: ObjectiveChoice, model: Model, training: Training, launch: Launch
) -> TrainingReport:
    """Train the model, or finish a training that was interrupted.

    Raises:
        ModelError: the model cannot be built or trained as the recipe asks.
        TransientError: another process trains this recipe.
        KilledError: the trainer was killed; the next start goes on from its last checkpoint.
        StorageError: the disk is full; the last checkpoint is intact.
    """
    determined = identity(seed=seed, objective=objective, model=model, training=training, tokens=artifacts.tokens)
    key = run_key(determined)
    folder = artifacts.scratch / "checkpoints" / key
    with exclusive(artifacts.scratch / "train.lock", f"a training of {artifacts.recipe}"):
        job = Job(
            seed=seed,
            objective=objective,
            model=model,
            training=training,
            launch=launch,
            tokens=artifacts.tokens.absolute(),
            folder=folder.absolute(),
            identity=determined,
            checkpoint=choose(folder.absolute(), determined, training.resume),
        )
        _launch(job)
        report = _collect(artifacts, job, key)
        shutil.rmtree(folder)
    return report


def launch_command(launch: Launch, job_path: Path) -> list[str]:
    """The command that starts the processes.

    `--multi_gpu` is accelerate's name for starting more than one process; without it, and without a GPU, accelerate
    starts one whatever `--num_processes` says.
    """
    command = [sys.executable, "-m", "accelerate.commands.launch", "--quiet"]
    if launch.accelerate_config:
        command += ["--config_file", launch.accelerate_config]
    elif launch.num_processes > 1:
        command += ["--multi_gpu", "--main_process_port", "0"]
    command += ["--num_processes", str(launch.num_processes), "--num_machines", "1"]
    command += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    return [*command, "-m", "trainer.worker", str(job_path)]


def _launch(job: Job) -> None:
    """Run the worker processes to their end, and turn a failure into its error."""
    for name in ("started", "error.json", "finished.json"):
        (job.folder / name).unlink(missing_ok=True)
    job_path = job.folder / "job.json"
    job.save(job_path)
    threads = max(1, (os.cpu_count() or 1) // job.launch.num_processes)
    environment = {
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        **os.environ,
        SUPERVISOR: str(os.getpid()),
    }
    process = subprocess.Popen(
        launch_command(job.launch, job_path),
        env=environment,
        preexec_fn=die_with_parent,  # noqa: PLW1509
    )
    code = process.wait()
    if code == 0 and (job.folder / "finished.json").exists():
        return
    note = job.folder / "error.json"
    if note.exists():
        error = json.loads(note.read_text(encoding="utf-8"))
        kind: type[EvergreenError] = getattr(params, error.pop("type"))
        raise kind(**error)
    if (job.folder / "started").exists():
        raise KilledError("train", f"the trainer was killed (exit status {code})", "start again: it goes on")
    raise ModelError("train", f"the trainer did not start (exit status {code})", "the launcher's own words stand above")


def _collect(artifacts: Artifacts, job: Job, key: str) -> TrainingReport:
    """Turn a finished run's folder into artifacts."""
    folder = job.folder
    finished = json.loads((folder / "finished.json").read_text(encoding="utf-8"))
    best = best_weights(folder, objectives.find(job.objective.name).metrics[job.training.best_metric])
    if best is None:
        raise ModelError("train", "no evaluation gave a finite figure", "lower training.learning_rate")
    history = finished["history"]
    losses = [entry["loss"] for entry in history if "loss" in entry]
    report = TrainingReport(
        run=key,
        steps=finished["step"],
        parameters=finished["parameters"],
        best_step=best.step,
        best_metric=best.metric,
        best_value=best.value,
        final_train_loss=losses[-1] if losses else None,
        git_commit=git_commit(artifacts.root),
        versions=versions(),
    )
    with whole_folder(artifacts.model) as target:
        aside = shutil.ignore_patterns(MANIFEST, BEST_NOTE)
        shutil.copytree(best.folder, target, dirs_exist_ok=True, ignore=aside)
        shutil.copytree(artifacts.tokenizer, target, dirs_exist_ok=True)
    with whole_folder(artifacts.checkpoint) as target:
        shutil.copytree(all_checkpoints(folder)[0], target, dirs_exist_ok=True)
    with whole_folder(artifacts.history) as target:
        _write_curve(target / "train.csv", (e for e in history if "loss" in e))
        _write_curve(target / "validation.csv", (e for e in history if "eval_loss" in e))
        save_report(report, target / artifacts.report("train").name)
    return report


def _write_curve(path: Path, entries: Iterable[dict[str, Any]]) -> None:
    rows = []
    for entry in entries:
        figures = {name.removeprefix("eval_"): value for name, value in entry.items()}
        rows.append({name: value for name, value in sorted(figures.items()) if name not in _SILENT})
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["step", *(n for n in (rows[0] if rows else {}) if n != "step")])
        writer.writeheader()
        writer.writerows(rows)
