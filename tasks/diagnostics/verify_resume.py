"""verify-resume: does a killed training of this recipe end like an uninterrupted one?

It trains the first steps of the recipe, as the train stage would, once without and once with kills, and compares the two runs
bit for bit (tasks.diagnostics.compare_runs). If they differ, it repeats the uninterrupted run: a run that differs from its own repetition
is not deterministic, which is another fault than a resume that loses state.

    uninterrupted   ----------------------------------|
    killed          ----------x     ----------x     --|       x: SIGKILL to one process; the training starts again
                           ------------    -----------        from the newest checkpoint before it

The runs have a folder of their own; artifacts and the checkpoints of the train stage are not touched.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import psutil

from params import DataError, KilledError, ModelError, PreemptedError, Recipe, RecipeError
from params.foundation.artifacts import Artifacts
from params.foundation.file_lock import hold_file_lock
from tasks.diagnostics.compare_runs import ComponentComparison, compare_training_runs, earliest_differing_comparison
from tasks.recipes.loading import load
from tasks.training.supervisor import supervise_training
from trainer.checkpoints.resume import prepare_resume
from trainer.checkpoints.sealed import newest_checkpoint_step
from trainer.job import Job
from trainer.loop.batch import interval_steps
from trainer.loop.replay import steps_of
from trainer.runtime import heartbeat

logger = logging.getLogger(__name__)
_SAVE_INTERVALS = 3
_MAX_STEPS = 30
_MIN_STEPS_PER_START = 4
"""By default, verify-resume trains three of the recipe's save intervals, but at most 30 steps and at least 4 per start."""
_POLL_S = 0.002
"""Seconds between two readings of the heartbeat of the process to kill."""
_INDEPENDENT = ("rows", "random state", "learning rate", "scheduler", "saved random state")
"""Components that do not depend on weights or losses, so noise in those does not reach them."""
_FIXES = {
    "rows": "derive the order of the rows from the seed alone",
    "random state": "find the code that draws a varying number of random numbers",
    "loss": "draw random numbers in model and collator from Python, NumPy or torch, which are seeded for each step; if they "
    "draw none, try training.arguments.full_determinism: true",
}


class PlannedKill(NamedTuple):
    step: int
    """Earliest step of the process at which it is killed; on a busy or fast machine it may be a few steps further."""
    rank: int
    checkpoint: int
    """The checkpoint that must exist before the kill: without one, the next start would have nothing to resume."""


class KillPlan(NamedTuple):
    """How far to train, and when to save, to evaluate and to kill."""

    steps: int
    save_steps: int
    eval_steps: int
    kills: tuple[PlannedKill, ...]


def verify_resume(recipe_path: Path, *, steps: int | None = None, kills: int = 2) -> None:
    """Train the first steps of a recipe with and without kills, and print how the two runs compare.

    Raises:
        ModelError: the runs differ; the error names the first difference and says whether resuming causes it.
        DataError: the recipe has no tokens yet.
        RecipeError: there are too few steps for so many kills.
    """
    recipe = load(recipe_path)
    artifacts = Artifacts(recipe_path.stem)
    folder = artifacts.verify_resume
    if recipe.launch.num_machines > 1:
        fix = "set launch.num_machines to 1 in a copy of the recipe"
        raise RecipeError("launch.num_machines", "verify-resume kills processes of this machine only", fix)
    if not (artifacts.tokens / "train").exists():
        fix = f"run `dvc repro tokenize@{artifacts.recipe}`"
        raise DataError(str(artifacts.tokens), "there are no tokens to train on yet", fix)
    total = steps_of(Job.of(recipe, artifacts))
    planned = plan_kills(
        total, interval_steps(recipe.training.save_steps, total), recipe.launch.num_processes, steps, kills
    )
    uninterrupted, killed, repeated = (
        _job(recipe, artifacts, folder / name, planned) for name in ("uninterrupted", "killed", "uninterrupted-again")
    )
    with hold_file_lock(artifacts.verify_resume_lock, f"verify-resume of {artifacts.recipe}"):
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.ExitStack() as at_end:
            at_end.callback(shutil.rmtree, folder, ignore_errors=True)
            what = "verify-resume: %d steps of the recipe's own schedule; a checkpoint every %d steps, "
            what += "an evaluation at step %d, SIGKILL at %s"
            kill_places = " and ".join(f"step {kill.step} to rank {kill.rank}" for kill in planned.kills)
            logger.info(what, planned.steps, planned.save_steps, planned.eval_steps, kill_places)
            logger.info("\nverify-resume: run 1, uninterrupted")
            _train(uninterrupted)
            logger.info("\nverify-resume: run 2, with kills")
            count = _train_with_kills(killed, planned)
            comparisons = _print_comparison(uninterrupted, killed)
            if earliest_differing_comparison(comparisons) is None:
                made = newest_checkpoint_step(uninterrupted.folder)
                print(f"\nverify-resume: equal, bit for bit, over {made} steps and {count} kill(s)", flush=True)
                return
            at_end.pop_all()  # keeps the runs, so that the user can inspect them
            logger.info("\nverify-resume: the runs differ. Run 3, uninterrupted: is the training itself deterministic?")
            _train(repeated)
            raise resume_difference_error(comparisons, _print_comparison(uninterrupted, repeated), folder)


def plan_kills(total: int, save_steps: int, processes: int, steps: int | None, kills: int) -> KillPlan:
    """Plan when to save, to evaluate and to kill.

    A kill is half-way between two checkpoints. The evaluation is between the last kill and the checkpoint before it, so that
    it is repeated. It is the only one after the start, because evaluations may take long. `total` counts the steps of the whole
    training, `steps` those that the user asked for.

    Raises:
        RecipeError: there are too few steps.
    """
    default = max(min(_SAVE_INTERVALS * save_steps, _MAX_STEPS), _MIN_STEPS_PER_START * (kills + 1))
    trained = min(steps or default, total)
    interval = trained // (kills + 1) if kills > 0 else 0
    if interval < 2:
        what = f"{trained} of the training's {total} steps with {kills} kill(s): needs a kill, and two steps per start"
        fix = "set --kills to 1 or more, and --steps to at least 2 * (kills + 1)"
        raise RecipeError("verify-resume", what, fix)
    planned = [PlannedKill(interval * n + interval // 2, n % processes, interval * n) for n in range(1, kills + 1)]
    return KillPlan(steps=trained, save_steps=interval, eval_steps=interval * kills + 1, kills=tuple(planned))


def format_comparisons(comparisons: list[ComponentComparison]) -> str:
    """Return one line per component: what was compared, and the result."""
    rows = [(c.component, f"{c.compared} {c.unit}", str(c)) for c in comparisons]
    rows.insert(0, ("component", "compared", "result"))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"  {name:{widths[0]}}  {count:{widths[1]}}  {result}" for name, count, result in rows)


def resume_difference_error(
    killed: list[ComponentComparison], repeated: list[ComponentComparison], folder: Path
) -> ModelError:
    """Return what the uninterrupted run's comparisons with a killed one, which differs, and with its repetition show together."""
    lost, noise = earliest_differing_comparison(killed), earliest_differing_comparison(repeated)
    assert lost
    runs = f"the runs are in {folder}"
    if noise is None:
        what = f"a killed run ends differently; first difference in the {lost.component}, {lost.first}"
        fix = f"find the state that checkpoints lack, as two uninterrupted runs are equal; {runs}"
        return ModelError("verify-resume", what, fix)
    what = f"the training is not deterministic: two uninterrupted runs differ, first in the {noise.component}, {noise.first}"
    exact = {comparison.component for comparison in repeated if not comparison.differing}.intersection(_INDEPENDENT)
    if lost := earliest_differing_comparison(comparison for comparison in killed if comparison.component in exact):
        what += f"; and resuming is not exact: only after kills the {lost.component} differ(s), {lost.first}"
    return ModelError("verify-resume", what, f"{_FIXES.get(noise.component, _FIXES['loss'])}; {runs}")


def _print_comparison(one: Job, other: Job) -> list[ComponentComparison]:
    comparisons = compare_training_runs(one.folder, other.folder, one.direction)
    print(f"\n{one.folder.parent.name} and {other.folder.parent.name}\n{format_comparisons(comparisons)}", flush=True)
    return comparisons


def _job(recipe: Recipe, artifacts: Artifacts, folder: Path, planned: KillPlan) -> Job:
    """Return the recipe's training, but with the plan's intervals, an early stop and a record of each step."""
    intervals = {"save_steps": planned.save_steps, "save_minutes": None, "eval_steps": planned.eval_steps}
    training = recipe.training.model_copy(update={**intervals, "resume": "auto"})
    job = Job.of(recipe.model_copy(update={"training": training}), artifacts)
    update = {"folder": folder.absolute() / job.folder.name, "stop_at_step": planned.steps, "record": True}
    return job.model_copy(update=update)


def _train_with_kills(job: Job, planned: KillPlan) -> int:
    """Train to the last step, starting again after each kill; return the number of kills."""
    sent = 0
    for kill in (*planned.kills, None):
        # a kill after the last save is none
        if not _train(job, kill) or newest_checkpoint_step(job.folder) == planned.steps:
            break
        sent += 1
        logger.info("verify-resume: starting again")
    if not sent:
        raise ModelError("verify-resume", "the training ended before it could be killed", "increase --steps")
    if sent < len(planned.kills):
        logger.info("verify-resume: %d of %d kills came in time", sent, len(planned.kills))
    return sent


def _train(job: Job, kill: PlannedKill | None = None) -> bool:
    """Train until the kill or the last step; return whether the kill ended it."""
    heartbeat.delete_process_states(job.folder)
    is_over = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        was_killed = pool.submit(_kill_when_due, job, kill, is_over) if kill else None
        try:
            supervise_training(job, lambda: prepare_resume(job.folder, job.identity, "auto"))
        except KilledError:
            is_over.set()
            if was_killed is None or not was_killed.result():
                raise
            return True
        except PreemptedError as error:  # the job stops at its last step as if it was asked to
            if newest_checkpoint_step(job.folder) != job.stop_at_step:
                raise PreemptedError("verify-resume", error.what, "run it again; it starts from scratch") from None
        finally:
            is_over.set()
    return False


def _kill_when_due(job: Job, kill: PlannedKill, is_over: threading.Event) -> bool:
    """Carry out `kill` as soon as its step and its checkpoint are there; return whether that came before the end."""
    victim: psutil.Process | None = None
    while not is_over.wait(_POLL_S):
        with contextlib.suppress(ValueError, OSError, psutil.Error):  # a half-written heartbeat, an ended process
            for pulse in heartbeat.read_process_states(job.folder):
                if pulse.rank != kill.rank:
                    continue
                if victim is None or victim.pid != pulse.pid:
                    victim = psutil.Process(pulse.pid)
                is_due = pulse.step >= kill.step and pulse.phase != "finished"
                if is_due and newest_checkpoint_step(job.folder) >= kill.checkpoint:
                    victim.kill()
                    others = "; the others may report lost connections" if job.launch.num_processes > 1 else ""
                    text = "\nverify-resume: killed rank %d (process %d) after %d steps%s"
                    logger.info(text, pulse.rank, pulse.pid, pulse.step, others)
                    return True
    return False
