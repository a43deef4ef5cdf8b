"""verify-resume: does a killed run of this recipe end like one that was left alone?

The first steps of the recipe's own training, as the train stage would make them, are made once without a disturbance and
once with kills, and both runs are compared bit for bit (tasks.diagnostics.compare_runs). When they differ, the undisturbed run is made
again: if it differs from itself, the model or the data is not deterministic, and resuming cannot be judged by it.

    uninterrupted   ----------------------------------|
    killed          ----------x     ----------x     --|       x: SIGKILL to one process; the rest starts again
                           ------------    -----------        from the newest checkpoint before it

It works in a folder of its own: artifacts, and checkpoints of the train stage, are not touched.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from params import DataError, KilledError, ModelError, PreemptedError, Recipe, RecipeError, load
from params.artifacts import Artifacts
from params.schema import Training
from tasks.diagnostics.compare_runs import Part, compare, first
from tasks.training.supervisor import supervise
from trainer.checkpoints.resume import choose
from trainer.checkpoints.sealed import newest_step
from trainer.data import tokens
from trainer.job import Job
from trainer.loop.batch import total_steps
from trainer.runtime import heartbeat
from trainer.runtime.heartbeat import Pulse
from trainer.runtime.lifetime import exclusive

logger = logging.getLogger(__name__)
_SAVE_INTERVALS = 3
_MOST_STEPS = 30
"""Default of `--steps`: three of the recipe's save intervals, but no more than these, which take minutes and not hours."""
_STEPS_A_KILL = 4
"""Default of `--steps` is not below so many for each start."""
_LOOK_S = 0.002
"""Seconds between two looks at how far a process is that is to be killed."""
_UNMOVED = ("rows", "random state", "learning rate", "schedule", "random state, saved")
"""Parts that do not follow from weights and losses: noise in these does not reach them."""
_FIXES = {
    "rows": "the order of the data comes from somewhere else than the seed",
    "random state": "something draws more or fewer random numbers each time",
    "loss": "draw random numbers in model and collator from Python, NumPy or torch, which are seeded for each step; if there "
    "are none, try training.arguments.full_determinism: true",
}


@dataclass(frozen=True)
class Kill:
    """One SIGKILL."""

    step: int
    """Sent when the process has made so many steps, or a few more on a machine that is busy or fast."""
    rank: int
    checkpoint: int
    """The checkpoint that must be on disk: without one a run starts anew, and nothing is tried."""


@dataclass(frozen=True)
class Plan:
    """What is done at which step."""

    steps: int
    """Steps that are made, and the last of them."""
    save_steps: int
    eval_steps: int
    kills: tuple[Kill, ...]


def verify_resume(recipe_path: Path, *, steps: int | None = None, kills: int = 2) -> None:
    """Make the first steps of a recipe's training with and without kills, and print how the runs compare.

    Args:
        recipe_path: params/<recipe>.yaml; its tokens must be there.
        steps: how many steps. By default three of the recipe's save intervals, but at most 30.
        kills: how many kills; with several processes another one is killed each time.

    Raises:
        ModelError: the runs are not equal; the error names the first difference, and whether resuming makes it.
        DataError: the recipe has no tokens yet.
        RecipeError: there are too few steps for so many kills.
        EvergreenError: whatever else keeps the recipe from being trained.
    """
    recipe = load(recipe_path)
    artifacts = Artifacts(recipe_path.stem)
    folder = artifacts.verify_resume
    wanted = plan(_steps_of(recipe, artifacts), recipe.training.save_steps, recipe.launch.num_processes, steps, kills)
    with exclusive(artifacts.verify_resume_lock, f"verify-resume of {artifacts.recipe}"):
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.ExitStack() as at_end:
            at_end.callback(shutil.rmtree, folder, ignore_errors=True)
            _say_plan(wanted)
            alone = _job(recipe, artifacts, folder / "uninterrupted", wanted)
            killed = _job(recipe, artifacts, folder / "killed", wanted)
            logger.info("\nverify-resume: run 1, uninterrupted")
            _start(alone)
            logger.info("\nverify-resume: run 2, with kills")
            count = _run_with_kills(killed, wanted)
            parts = _print_comparison(alone, killed)
            if first(parts) is None:
                print(
                    f"\nverify-resume: equal, bit for bit, over {newest_step(alone.folder)} steps and {count} kill(s)",
                    flush=True,
                )
                return
            at_end.pop_all()  # the runs stay, to be looked at
            again = _job(recipe, artifacts, folder / "uninterrupted-again", wanted)
            logger.info("\nverify-resume: not equal. Run 3, uninterrupted again: does the training equal itself?")
            _start(again)
            raise judge(parts, _print_comparison(alone, again), folder)


def plan(total: int, save_steps: int, processes: int, steps: int | None, kills: int) -> Plan:
    """When to save, to evaluate and to kill.

    A kill stands half-way between two checkpoints. The evaluation stands between the last kill and the checkpoint before
    it, so that it is made twice; it is the only one after the start, because it may take long.

    Args:
        total: steps of the whole training.
        save_steps: those of the recipe.
        processes: how many there are to kill.
        steps: how many to make, if the user said so.
        kills: how many kills.

    Raises:
        RecipeError: there are too few steps.
    """
    usual = max(min(_SAVE_INTERVALS * save_steps, _MOST_STEPS), _STEPS_A_KILL * (kills + 1))
    made = min(steps or usual, total)
    every = made // (kills + 1) if kills > 0 else 0
    if every < 2:
        what = f"{made} of the training's {total} steps, and {kills} kill(s): each start needs two steps of its own"
        raise RecipeError(
            "verify-resume", what, "give at least one of --kills, and --steps at least twice as many, and 2"
        )
    at = [Kill(every * n + every // 2, n % processes, every * n) for n in range(1, kills + 1)]
    return Plan(steps=made, save_steps=every, eval_steps=every * kills + 1, kills=tuple(at))


def table(parts: list[Part]) -> str:
    """One line for each part: what was compared, and whether it is equal."""
    lines = [("part", "compared", "result"), *((p.name, f"{p.compared} {p.unit}", p.result) for p in parts)]
    widths = [max(len(line[column]) for line in lines) for column in (0, 1)]
    return "\n".join(f"  {name:{widths[0]}}  {count:{widths[1]}}  {result}" for name, count, result in lines)


def judge(disturbed: list[Part], repeated: list[Part], folder: Path) -> ModelError:
    """What two comparisons say together.

    Args:
        disturbed: the uninterrupted run and the killed one, which differ.
        repeated: the uninterrupted run and itself, made again.
        folder: where the runs are.
    """
    found, own = first(disturbed), first(repeated)
    assert found
    killed = (
        f"a killed run does not end like one that was left alone; first difference in the {found.name}, {found.first}"
    )
    kept = f"the runs are in {folder}"
    if own is None:
        fix = f"two runs that were left alone are equal, so what a checkpoint brings back is not all that there was; {kept}"
        return ModelError("verify-resume", killed, fix)
    what = "the training is not deterministic by itself: two runs that were left alone differ, first in the "
    what += f"{own.name}, {own.first}"
    equal = {part.name for part in repeated if part.first is None}
    if lost := first(part for part in disturbed if part.name in equal and part.name in _UNMOVED):
        what += f"; and resuming is not exact: after kills alone the {lost.name} differ(s), {lost.first}"
    return ModelError("verify-resume", what, f"{_FIXES.get(own.name, _FIXES['loss'])}; {kept}")


def _say_plan(wanted: Plan) -> None:
    logger.info(
        "verify-resume: %d steps on the recipe's own schedule; a checkpoint every %d steps, an evaluation at step %d, "
        "SIGKILL at %s",
        wanted.steps,
        wanted.save_steps,
        wanted.eval_steps,
        " and ".join(f"step {kill.step} to rank {kill.rank}" for kill in wanted.kills),
    )


def _print_comparison(one: Job, other: Job) -> list[Part]:
    parts = compare(one.folder, other.folder, one.direction)
    print(f"\n{one.folder.parent.name} and {other.folder.parent.name}\n{table(parts)}", flush=True)
    return parts


def _steps_of(recipe: Recipe, artifacts: Artifacts) -> int:
    """Steps of the recipe's whole training."""
    if recipe.launch.num_machines > 1:
        fix = "set launch.num_machines to 1 in a copy of the recipe"
        raise RecipeError("launch.num_machines", "verify-resume kills processes of this machine only", fix)
    if not (artifacts.tokens / "train.arrow").exists():
        fix = f"make them with `dvc repro tokenize@{artifacts.recipe}`"
        raise DataError(str(artifacts.tokens), "there are no tokens to train on yet", fix)
    training = recipe.training
    rows = len(tokens.read_split(artifacts.tokens, "train"))
    return total_steps(training, rows)


def _job(recipe: Recipe, artifacts: Artifacts, folder: Path, wanted: Plan) -> Job:
    """The recipe's training, which saves and evaluates more often, stops early and writes down what it sees."""
    cadence = {"save_steps": wanted.save_steps, "save_minutes": None, "eval_steps": wanted.eval_steps, "resume": "auto"}
    training: Training = recipe.training.model_copy(update=cadence)
    return Job.plan(
        folder,
        seed=recipe.seed,
        objective=recipe.objective,
        model=recipe.model,
        training=training,
        launch=recipe.launch,
        metrics=recipe.evaluation.metrics,
        tokens=artifacts.tokens,
        stop_at_step=wanted.steps,
        record=True,
    )


def _run_with_kills(job: Job, wanted: Plan) -> int:
    """Start `job` again after each kill, until it has made its steps; how many kills there were.

    Raises:
        ModelError: it was over before it could be killed once.
    """
    sent = 0
    for kill in (*wanted.kills, None):
        victim = _start(job, kill)
        if victim is None or newest_step(job.folder) == wanted.steps:  # the kill came so late that all was on disk
            break
        sent += 1
        logger.info("verify-resume: starting again")
    if not sent:
        raise ModelError("verify-resume", "the training was over before it could be killed", "give more --steps")
    if sent < len(wanted.kills):
        logger.info("verify-resume: %d of %d kills came in time", sent, len(wanted.kills))
    return sent


def _start(job: Job, kill: Kill | None = None) -> Pulse | None:
    """Start the processes of `job`; how far the one was that was killed, or None when all steps were made."""
    heartbeat.clear(job.folder)
    with _killing(job, kill) as killed:
        try:
            supervise(job, lambda: choose(job.folder, job.identity, "auto"))
        except KilledError:
            if not killed:
                raise
            return killed[0]
        except PreemptedError as error:  # it stops at its last step as if it was asked to
            if newest_step(job.folder) != job.stop_at_step:
                raise PreemptedError("verify-resume", error.what, "start it again; it begins anew") from None
    return None


@contextlib.contextmanager
def _killing(job: Job, kill: Kill | None) -> Iterator[list[Pulse]]:
    """Kill a process in the block when it has made its steps; the list then holds how far it was."""
    killed: list[Pulse] = []
    over = threading.Event()

    def watch(kill: Kill) -> None:
        victim: psutil.Process | None = None
        while not over.wait(_LOOK_S):
            with contextlib.suppress(ValueError, OSError, psutil.Error):  # read while it was being written, or gone
                pulse = next((p for p in heartbeat.pulses(job.folder) if p.rank == kill.rank), None)
                if pulse and (victim is None or victim.pid != pulse.pid):
                    victim = psutil.Process(pulse.pid)
                is_due = pulse and pulse.step >= kill.step and pulse.phase != "finished"
                if victim and pulse and is_due and newest_step(job.folder) >= kill.checkpoint:
                    victim.kill()
                    killed.append(pulse)
                    others = "; the others may complain of its end" if job.launch.num_processes > 1 else ""
                    said = "\nverify-resume: killed rank %d (process %d) after %d steps%s"
                    logger.info(said, pulse.rank, pulse.pid, pulse.step, others)
                    return

    watcher = threading.Thread(target=watch, args=(kill,), daemon=True) if kill else None
    if watcher:
        watcher.start()
    try:
        yield killed
    finally:
        over.set()
        if watcher:
            watcher.join()
