"""A finished run is trained longer: the same bits as one run with all of the steps, or a start at step 0 that says why."""

from __future__ import annotations

import inspect
import json
import logging
import shutil

import pytest

from params import KilledError
from params.foundation.artifacts import Artifacts
from params.schema import ObjectiveChoice, Training
from tasks.diagnostics.check import find_recipe_problems
from tasks.recipes.loading import load, read_yaml_document
from tasks.tokenization.stage import tokenize
from tasks.training import run_folders, stage
from tests.support import tiny
from tests.support.settings_check import check_settings_in_this_process
from tests.support.training import assert_same, run_train
from trainer.checkpoints import sealed
from trainer.checkpoints.sealed import KILL_AT
from trainer.job import Job
from trainer.loop.batch import is_evaluated_on_the_way
from trainer.loop.other_length import (
    ENDLESS_SCHEDULES,
    find_continued_checkpoint,
    find_runs_of_other_length,
    find_what_depends_on_steps,
)
from trainer.objectives.causal_lm import CausalLM

LANGUAGE = ObjectiveChoice(name="causal_lm")
CONSTANT = {
    "training.lr_scheduler": "constant_with_warmup",
    "training.eval_steps": 4,
    "training.save_steps": 3,
    "launch.dataloader_workers": 0,
}


def project(root, changes):
    return tiny.tokenized(root, tiny.recipe(CONSTANT | changes))


def edited(artifacts, changes):
    """The recipe of a project after an edit."""
    return load(tiny.write(artifacts.recipe_path, tiny.recipe(CONSTANT | changes)))


def with_tokens(artifacts, root):
    """Another project with the same rows and tokens."""
    shutil.copytree(artifacts.tokens, Artifacts("tiny", root).tokens)
    return Artifacts("tiny", root)


LENGTHS = {
    "the last step is evaluated anyway": ({"training.max_steps": 12}, {"training.max_steps": 20}, 12),
    "epochs": (
        {"training.epochs": 1, "training.max_steps": ..., "training.eval_steps": 1, "objective.packing": False},
        {"training.epochs": 1.5, "training.max_steps": ..., "training.eval_steps": 1, "objective.packing": False},
        30,
    ),
    "evaluations begin late": (
        {"training.max_steps": 12, "training.arguments": {"eval_delay": 16}},
        {"training.max_steps": 20, "training.arguments": {"eval_delay": 16}},
        9,
    ),
    "the schedule goes by evaluations": (
        {"training.max_steps": 12, "training.lr_scheduler": "reduce_lr_on_plateau"},
        {"training.max_steps": 20, "training.lr_scheduler": "reduce_lr_on_plateau"},
        12,
    ),
    "the best weights are early ones": (
        {"training.max_steps": 14, "training.learning_rate": 1.0},
        {"training.max_steps": 20, "training.learning_rate": 1.0},
        12,
    ),
    "a run that would stop early": (
        {"training.max_steps": 12, "training.learning_rate": 1.0, "training.early_stopping_patience": 3},
        {"training.max_steps": 20, "training.learning_rate": 1.0, "training.early_stopping_patience": 3},
        9,
    ),
}


LONG = {
    "the last step is evaluated anyway",
    "evaluations begin late",
    "the best weights are early ones",
    "the schedule goes by evaluations",
}
"""What the other cases train, too, and `of_steps` shows without a training."""


@pytest.mark.parametrize(
    ("first", "then", "step"),
    [pytest.param(*case, id=name, marks=pytest.mark.slow if name in LONG else ()) for name, case in LENGTHS.items()],
)
def test_a_longer_run_ends_like_one_with_all_of_the_steps(tmp_path, caplog, first, then, step):
    artifacts, recipe = project(tmp_path / "one", first)
    whole = with_tokens(artifacts, tmp_path / "whole")
    run_train(artifacts, recipe)
    assert not list(artifacts.checkpoints.iterdir())
    shutil.rmtree(artifacts.run / "checkpoint")  # as DVC does before it runs the stage
    shutil.rmtree(artifacts.run / "model")
    with caplog.at_level(logging.INFO):
        run_train(artifacts, edited(artifacts, then))
    assert f"goes on from step {step} of run " in caplog.text
    assert f"resumes at step {step} " in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO):
        run_train(whole, edited(whole, then))
    assert "starts at step 0" in caplog.text
    assert_same(whole, artifacts)


def test_a_longer_run_that_is_killed_ends_with_the_same_bits(tmp_path, monkeypatch, caplog):
    """The last step of the shorter run is between two evaluations, so it goes on from an earlier one."""
    artifacts, recipe = project(tmp_path / "one", {"training.max_steps": 14})
    whole = with_tokens(artifacts, tmp_path / "whole")
    run_train(artifacts, recipe)
    longer = edited(artifacts, {"training.max_steps": 26})
    with caplog.at_level(logging.INFO):
        for point in ("checkpoint.optimizer:1", "checkpoint.optimizer:2"):
            monkeypatch.setenv(KILL_AT, point)
            with pytest.raises(KilledError):
                run_train(artifacts, longer)
    assert "goes on from step 12 of run " in caplog.text
    assert "resumes at step 12 " in caplog.text
    monkeypatch.delenv(KILL_AT)
    run_train(artifacts, longer)
    run_train(whole, edited(whole, {"training.max_steps": 26}))
    assert_same(whole, artifacts)


def test_an_unfinished_run_may_become_longer_and_shorter(tmp_path, monkeypatch, caplog):
    artifacts, recipe = project(tmp_path / "one", {"training.max_steps": 16})
    whole = with_tokens(artifacts, tmp_path / "whole")
    monkeypatch.setenv(KILL_AT, "checkpoint.optimizer:4")
    with pytest.raises(KilledError):
        run_train(artifacts, recipe)
    monkeypatch.delenv(KILL_AT)
    with caplog.at_level(logging.INFO):
        run_train(artifacts, edited(artifacts, {"training.max_steps": 12}))
    assert "goes on from step 9 of run " in caplog.text
    run_train(whole, edited(whole, {"training.max_steps": 12}))
    assert_same(whole, artifacts)


STARTS = {
    "linear": ({"training.lr_scheduler": "linear"}, "`lr_scheduler: linear` ends with the steps"),
    "a share of warm-up": ({"training.warmup_steps": 0.1}, "`warmup_steps` is a share of them"),
    "a share of evaluations": ({"training.eval_steps": 0.25}, "`eval_steps`, 0.25, is a share of them"),
    "two reasons": ({"training.lr_scheduler": "cosine", "training.eval_steps": 0.25}, "a number of steps)"),
}


@pytest.mark.parametrize(("changes", "why"), STARTS.values(), ids=STARTS)
def test_what_depends_on_the_number_of_steps_is_named(tmp_path, changes, why):
    own = load(tiny.write(tmp_path / "params/tiny.yaml", tiny.recipe(CONSTANT | changes))).training
    assert why.removesuffix(")") in (find_what_depends_on_steps(own, LANGUAGE) or "")


def test_what_depends_on_the_number_of_steps_starts_at_step_0_and_says_why(tmp_path, caplog):
    changes, why = STARTS["two reasons"]
    artifacts, recipe = project(tmp_path, {"training.max_steps": 4} | changes)
    report = run_train(artifacts, recipe)
    assert not list(artifacts.finished_run.glob("*/checkpoint-*")), "it would take space for nothing"
    with caplog.at_level(logging.INFO):
        run_train(artifacts, edited(artifacts, {"training.max_steps": 8} | changes))
    assert f"starts at step 0, although run {report.run} differs in its number of steps only" in caplog.text
    assert why in caplog.text
    assert "resumes at step" not in caplog.text


@pytest.fixture(scope="module")
def four_steps(tmp_path_factory):
    """A project whose training of four steps has ended, its recipe and its report."""
    artifacts, recipe = project(tmp_path_factory.mktemp("four"), {"training.max_steps": 4})
    return artifacts, recipe, run_train(artifacts, recipe)


@pytest.fixture
def trained(four_steps, tmp_path):
    """A copy of it."""
    artifacts, recipe, report = four_steps
    shutil.copytree(artifacts.root, tmp_path, dirs_exist_ok=True)
    return Artifacts("tiny", tmp_path), recipe, report


def test_other_data_and_another_seed_start_at_step_0(trained, caplog):
    artifacts, recipe, _ = trained
    with caplog.at_level(logging.INFO):
        run_train(artifacts, edited(artifacts, {"training.max_steps": 8, "seed": 4}))
    assert "goes on" not in caplog.text
    tiny.write_sentences(artifacts, {"train": 248, "validation": 40, "test": 40})
    tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    with caplog.at_level(logging.INFO):
        run_train(artifacts, edited(artifacts, {"training.max_steps": 12, "seed": 4}))
    assert "goes on" not in caplog.text
    assert caplog.text.count("starts at step 0") == 2


def test_a_damaged_state_is_not_gone_on_from(trained, caplog):
    artifacts, *_ = trained
    (weights,) = artifacts.finished_run.glob("*/checkpoint-4/optimizer.pt")
    weights.write_bytes(weights.read_bytes()[:-1])
    with caplog.at_level(logging.INFO):
        run_train(artifacts, edited(artifacts, {"training.max_steps": 8}))
    assert "this run comes by none of the checkpoints that are left of it" in caplog.text
    assert "resumes at step" not in caplog.text


def test_a_round_that_the_end_has_cut_is_not_gone_on_from(tmp_path, monkeypatch):
    run, job = of_steps(tmp_path, {"training.max_steps": 20}, steps=(12,))
    assert find_continued_checkpoint(run, job, 12) is None, "there is nothing to train"
    for rounds, is_usable in ((1, True), (4, True), (5, False)):
        monkeypatch.setattr(CausalLM, "steps_per_round", rounds, raising=False)
        assert (find_continued_checkpoint(run, job, 20) is not None) == is_usable, rounds


def test_endless_schedules_are_those_of_transformers_that_get_no_number_of_steps():
    from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION

    known = {kind.value: inspect.signature(make).parameters for kind, make in TYPE_TO_SCHEDULER_FUNCTION.items()}
    endless = {name: given for name, given in known.items() if not {"num_training_steps"} & set(given)}
    assert {name: "num_warmup_steps" in given for name, given in endless.items()} == ENDLESS_SCHEDULES


def test_a_warm_up_that_the_schedule_ignores_does_no_harm(tmp_path):
    made = load(tiny.write(tmp_path / "params/tiny.yaml", tiny.recipe(CONSTANT))).training
    for name, takes_warmup in ENDLESS_SCHEDULES.items():
        own = made.model_copy(update={"lr_scheduler": name, "warmup_steps": 0.1})
        assert (find_what_depends_on_steps(own, LANGUAGE) is not None) == takes_warmup


def test_code_of_your_own_may_depend_on_the_number_of_steps(tmp_path, monkeypatch):
    made = load(tiny.write(tmp_path / "params/tiny.yaml", tiny.recipe(CONSTANT))).training
    why = "code of your own may depend on them"
    assert find_what_depends_on_steps(made, LANGUAGE) is None
    for own in ({"trainer": "mine:MyTrainer"}, {"callbacks": ["mine:Callback"]}):
        assert find_what_depends_on_steps(Training.model_validate(made.model_dump() | own), LANGUAGE) == why
    monkeypatch.setattr(CausalLM, "trainer_class", "trainer.objectives.mine:MyTrainer")
    assert find_what_depends_on_steps(made, LANGUAGE) == why


def test_under_dvc_the_state_is_kept_when_dvc_lock_records_the_run(tmp_path, monkeypatch):
    artifacts, recipe = project(tmp_path, {"training.max_steps": 4})
    monkeypatch.setenv("DVC_STAGE", "train@tiny")
    report = run_train(artifacts, recipe)
    assert not artifacts.finished_run.exists()
    monkeypatch.setattr(stage, "is_training_recorded", lambda _: True)
    stage.delete_recorded_run_folder(artifacts)
    assert not list(artifacts.checkpoints.iterdir())
    assert {path.name for path in (artifacts.finished_run / report.run).glob("*-4")} == {"best-4", "checkpoint-4"}


def test_check_says_where_a_longer_training_starts(trained, tmp_path, monkeypatch, caplog):
    artifacts, _, report = trained
    monkeypatch.chdir(tmp_path)
    check_settings_in_this_process(monkeypatch)
    for changes, said in (
        ({"training.max_steps": 8}, f"goes on from step 4 of run {report.run}, if rows and code are as they were"),
        ({"training.max_steps": 8, "seed": 4}, None),
        ({"training.max_steps": 4}, None),
        ({"training.max_steps": 3}, None),
    ):
        edited(artifacts, changes)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            find_recipe_problems(read_yaml_document(artifacts.recipe_path))
        assert (said in caplog.text) if said else ("check: training" not in caplog.text), changes


def of_steps(root, changes, *, steps=(9, 12), last=12, best=0):
    """The folder of a run that ended at its last step, and the job of a longer one; its weights are none."""
    recipe, run = load(tiny.write(root / "params/tiny.yaml", tiny.recipe(CONSTANT | changes))), root / "run"
    state = {"global_step": 0, "max_steps": last, "best_global_step": best}
    for step in steps:
        (place := run / ".staging").mkdir(parents=True)
        for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", sealed.IDENTITY):
            (place / name).touch()
        tiny.position().save(place)
        (place / "trainer_state.json").write_text(json.dumps(state | {"global_step": step}))
        sealed.seal_and_rename(place, run / f"checkpoint-{step}")
    for step in (0, last):
        (run / ".best").mkdir()
        sealed.seal_and_rename(run / ".best", run / f"best-{step}", "best")
    sections = {name: getattr(recipe, name) for name in ("seed", "objective", "model", "training", "launch")}
    return run, Job(**sections, tokens=root / "tokens", folder=root / "longer", identity={})


@pytest.mark.parametrize(("delay", "step"), [(0, 12), (8, 12), (12, 12), (12.5, 9), (100, 9)])
def test_an_evaluation_that_is_made_at_the_end_only_is_not_gone_on_from(tmp_path, delay, step):
    """`eval_delay` postpones all evaluations but that at the start and, in a shorter run, that at the end."""
    run, job = of_steps(tmp_path, {"training.max_steps": 20, "training.arguments": {"eval_delay": delay}})
    found = find_continued_checkpoint(run, job, 20)
    assert found == (run / f"checkpoint-{step}", run / ("best-12" if step == 12 else "best-0"))
    assert is_evaluated_on_the_way(12, 4, delay) == (step == 12)


def test_a_kill_while_a_finished_run_is_put_away_leaves_no_part_of_it(tmp_path, monkeypatch):
    """Its best weights may be those of a last step that a longer run does not go on from: without them, others would be the best."""
    run, job = of_steps(tmp_path, {"training.max_steps": 14}, steps=(12, 14), last=14)
    artifacts = Artifacts("tiny", tmp_path / "project")
    artifacts.checkpoints.mkdir(parents=True)
    folder = run.rename(artifacts.checkpoints / "run")
    job.save(folder / "job.json")

    def kill(path, **_):
        if path.name.startswith("best-"):
            raise KeyboardInterrupt

    monkeypatch.setattr(run_folders.shutil, "rmtree", kill)
    with pytest.raises(KeyboardInterrupt):
        run_folders.keep_finished_run(artifacts, folder)
    assert not list(artifacts.checkpoints.iterdir())
    monkeypatch.undo()
    left = artifacts.finished_run / "run"
    assert find_continued_checkpoint(left, job, 20) == (left / "checkpoint-12", left / "best-0")


@pytest.mark.parametrize("text", ["", "\0\0", "7", "{"])
def test_a_damaged_identity_is_that_of_no_run(tmp_path, text):
    artifacts = Artifacts("tiny", tmp_path)
    for runs, content in ((artifacts.checkpoints, text), (artifacts.finished_run, '{"training.max_steps": "8"}')):
        (runs / "run").mkdir(parents=True)
        (runs / "run/run.json").write_text(content)
    found = find_runs_of_other_length(artifacts, {"training.max_steps": "12"})
    assert list(found) == [artifacts.finished_run / "run"]
