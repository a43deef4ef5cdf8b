"""The train stage in real processes: killed, stopped, out of disk, and still the same weights."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import time

import psutil
import pytest
import torch
from safetensors.torch import load_file

from params.foundation.artifacts import Artifacts
from tasks.recipes.loading import load
from tasks.training import stage
from tests.support import forked, releases, tiny
from tests.support.project import ROOT
from tests.support.training import curve, run_train
from trainer.checkpoints.sealed import find_manifest_mismatch

STEPS = {"training.max_steps": 16, "training.eval_steps": 6, "training.save_steps": 2}


def project(root, changes=None):
    """A project with a recipe and tokens, before training."""
    return tiny.tokenized(root, tiny.recipe(STEPS | (changes or {})))[0]


def start(artifacts, *, log="train.log", preexec=None, fork=False):
    """Start `python -m tasks train` in the project's folder, in a new session; with `fork`, of forked processes."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (artifacts.root / log).open("wb") as file:
        return subprocess.Popen(
            ["python" if fork else sys.executable, "-m", "tasks", "train", "params/tiny.yaml"],
            cwd=artifacts.root,
            env=forked.commands(environment) if fork else environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=preexec,  # noqa: PLW1509 (the tests have no threads)
        )


def finish(process, artifacts, *, log="train.log"):
    """The exit status and the output of a training."""
    code = process.wait(90)
    return code, (artifacts.root / log).read_text()


def wait_for(condition, timeout_s=60.0):
    give_up = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < give_up, "waited in vain"
        time.sleep(0.002)
    return found


def workers(artifacts):
    """The living trainer processes of this project."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            command, is_here = process.cmdline(), process.cwd() == str(artifacts.root)
            is_worker = "trainer.worker" in command and "trainer.runtime.launcher" not in command
            if is_here and is_worker and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def run_folder(artifacts):
    (found,) = (artifacts.scratch / "checkpoints").iterdir()
    return found


def same_weights(first, second):
    left, right = load_file(first / "model.safetensors"), load_file(second / "model.safetensors")
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """An uninterrupted run; `kept` is its run folder before the artifacts were written."""
    artifacts = project(tmp_path_factory.mktemp("uninterrupted"))
    recipe = load(artifacts.root / "params" / "tiny.yaml")
    collect = stage._collect

    def keep_and_collect(artifacts, arms, commit):
        shutil.copytree(arms[0].folder, artifacts.root / "kept")
        return collect(artifacts, arms, commit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "_collect", keep_and_collect)
        report = run_train(artifacts, recipe)
    return artifacts, recipe, report


def test_run_leaves_model_checkpoint_and_history(uninterrupted):
    artifacts, _, report = uninterrupted
    assert {p.name for p in artifacts.model.iterdir()} >= {"model.safetensors", "config.json", "tokenizer.json"}
    assert not [p.name for p in artifacts.model.iterdir() if p.suffix in {".bin", ".pt", ".pth"}]
    assert find_manifest_mismatch(artifacts.checkpoint) is None
    assert {"optimizer.pt", "scheduler.pt", "trainer_state.json"} < {p.name for p in artifacts.checkpoint.iterdir()}
    assert (report.steps, report.best_metric) == (16, "loss")
    assert report.parameters == sum(t.numel() for t in load_file(artifacts.model / "model.safetensors").values())
    assert json.loads(artifacts.report("train").read_text()) == report.model_dump()
    losses = {row["step"]: row["loss"] for row in curve(artifacts, "validation")}
    assert list(losses) == [0, 6, 12, 16], "at start, every eval_steps, and at the end"
    assert report.best_value == pytest.approx(min(losses.values()), rel=1e-9)
    assert losses[report.best_step] == pytest.approx(report.best_value, rel=1e-9)
    assert [row["step"] for row in curve(artifacts, "train")] == list(range(1, 17))
    assert list((artifacts.scratch / "checkpoints").iterdir()) == [], "a finished run leaves no checkpoints"


@pytest.fixture
def finished_before(uninterrupted, tmp_path):
    """A project whose training has finished, and left its run folder but no artifacts."""
    first, _, report = uninterrupted
    artifacts = Artifacts("tiny", tmp_path)
    shutil.copytree(first.root / "params", artifacts.root / "params")
    shutil.copytree(first.tokens, artifacts.tokens)
    shutil.copytree(first.root / "kept", artifacts.scratch / "checkpoints" / report.run)
    return artifacts


def assert_same_artifacts(artifacts, first):
    for folder in ("model", "checkpoint"):
        assert same_weights(getattr(artifacts, folder), getattr(first, folder)), folder
    for name in ("train.csv", "validation.csv"):
        assert (artifacts.history / name).read_text() == (first.history / name).read_text()


def test_finished_run_becomes_artifacts_without_a_process(uninterrupted, finished_before, monkeypatch):
    first, recipe, report = uninterrupted
    monkeypatch.setattr(stage, "supervise_training", lambda *_: pytest.fail("a training was started"))
    assert run_train(finished_before, recipe).model_dump() == report.model_dump()
    assert_same_artifacts(finished_before, first)


@pytest.mark.parametrize("damaged", ["checkpoint-16/optimizer.pt", "finished.json"])
def test_damaged_finished_run_is_trained_from_its_last_valid_checkpoint(uninterrupted, finished_before, damaged):
    first, recipe, report = uninterrupted
    (run_folder(finished_before) / damaged).unlink()
    assert run_train(finished_before, recipe).model_dump() == report.model_dump()
    assert_same_artifacts(finished_before, first)


def test_under_dvc_a_finished_run_stays_until_dvc_lock_records_it(uninterrupted, finished_before, monkeypatch):
    first, recipe, report = uninterrupted
    monkeypatch.setenv("DVC_STAGE", "train@tiny")
    monkeypatch.setattr(stage, "supervise_training", lambda *_: pytest.fail("a training was started"))
    run_train(finished_before, recipe)  # DVC is killed now, and deletes the outputs before the next run
    for folder in (finished_before.model, finished_before.checkpoint, finished_before.history):
        shutil.rmtree(folder)
    run_train(finished_before, recipe)
    assert_same_artifacts(finished_before, first)
    stage.delete_recorded_run_folder(finished_before)
    assert run_folder(finished_before).name == report.run
    md5 = hashlib.md5(finished_before.report("train").read_bytes(), usedforsecurity=False).hexdigest()
    outs = [{"path": "runs/tiny/history/training.json", "md5": md5}]
    (finished_before.root / "dvc.lock").write_text(json.dumps({"stages": {"train@tiny": {"outs": outs}}}))
    stage.delete_recorded_run_folder(finished_before)
    assert list(finished_before.checkpoints.iterdir()) == []


def test_killed_worker_is_transient_and_the_next_start_ends_with_the_same_bits(uninterrupted, tmp_path):
    artifacts = project(tmp_path)
    first = start(artifacts)
    wait_for(lambda: list(artifacts.scratch.glob("checkpoints/*/checkpoint-4")))
    (worker,) = workers(artifacts)
    worker.suspend()

    second = start(artifacts, log="second.log", fork=True)
    code, output = finish(second, artifacts, log="second.log")
    assert code == os.EX_TEMPFAIL
    assert f"a training of tiny is already running in process {first.pid}" in output
    assert "Traceback" not in output

    assert not (run_folder(artifacts) / "finished.json").exists(), "the worker finished before this test stopped it"
    worker.kill()
    code, output = finish(first, artifacts)
    assert code == os.EX_TEMPFAIL, output
    assert "KilledError" in output
    assert not artifacts.model.exists()

    code, output = finish(start(artifacts, fork=True), artifacts)
    assert code == 0, output
    assert "resumes at step 4 from " in output
    whole = uninterrupted[0]
    assert (artifacts.model / "model.safetensors").read_bytes() == (whole.model / "model.safetensors").read_bytes()
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt"):
        assert (artifacts.checkpoint / name).read_bytes() == (whole.checkpoint / name).read_bytes(), name
    for name in ("train.csv", "validation.csv"):
        assert (artifacts.history / name).read_text() == (whole.history / name).read_text()


@pytest.mark.slow
def test_killed_supervisor_leaves_no_worker_and_two_processes_give_the_same_losses(uninterrupted, tmp_path):
    artifacts = project(tmp_path, {"launch.num_processes": 2})
    supervisor = start(artifacts)
    wait_for(lambda: len(workers(artifacts)) == 2)
    supervisor.kill()
    supervisor.wait()
    wait_for(lambda: not workers(artifacts), timeout_s=5)

    code, output = finish(start(artifacts, fork=True), artifacts)
    assert code == 0, output
    whole, recipe, _ = uninterrupted
    assert releases.evaluate(artifacts, recipe).model == pytest.approx(releases.evaluate(whole, recipe).model, rel=1e-3)


def test_best_weights_may_precede_the_last_step(tmp_path):
    """At this learning rate the model diverges: the first evaluation is the best."""
    artifacts = project(tmp_path, {"training.learning_rate": 30.0, "training.max_steps": 4})
    code, output = finish(start(artifacts, fork=True), artifacts)
    assert code == 0, output
    report = json.loads(artifacts.report("train").read_text())
    assert report["best_step"] == 0
    assert not same_weights(artifacts.model, artifacts.checkpoint)


def test_pretrained_pickle_weights_are_refused(tmp_path):
    (tmp_path / "pickles").mkdir()
    for name in ("config.json", "pytorch_model.bin"):
        (tmp_path / "pickles" / name).write_text('{"model_type": "llama"}')
    artifacts = project(tmp_path, {"model": {"pretrained": "pickles"}})
    code, output = finish(start(artifacts, fork=True), artifacts)
    assert code == os.EX_NOINPUT, output
    assert "ModelError: pickles: has weights as pickle only" in output


@pytest.mark.slow
def test_full_disk_is_named_and_keeps_the_earlier_model(uninterrupted, tmp_path):
    artifacts = project(tmp_path)
    shutil.copytree(uninterrupted[0].model, artifacts.model)
    weights = (artifacts.model / "model.safetensors").stat().st_size
    room = weights * 3 // 2  # enough for the weights, too little for the optimizer state

    process = start(artifacts, fork=True, preexec=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)))
    code, output = finish(process, artifacts)
    assert code == os.EX_IOERR, output
    assert "StorageError: " in output
    assert "MiB free on that disk" in output
    assert same_weights(artifacts.model, uninterrupted[0].model)
    assert not artifacts.checkpoint.exists()
