"""Mirroring checkpoints to a branch of the Hub and fetching them, with the real client."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from pathlib import Path

import huggingface_hub.constants
import pytest
from huggingface_hub import HfApi
from huggingface_hub.utils import disable_progress_bars

from params import RecipeError
from params.foundation.artifacts import Artifacts
from tasks.commands import main
from tasks.mirror.upload import UploadQueue, upload_during_run
from tasks.recipes.loading import load
from tests.support import tiny
from tests.support.faulty_hub import Fault, FaultyHub
from tests.support.project import ROOT
from tests.support.training import plan_job
from trainer.checkpoints import sealed

TOKEN = "hf_tokenoftests"
REPO = "tests/tiny"
RECIPE = "params/tiny.yaml"
PARTS = {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"}
SIZES = {"train": 20, "validation": 8, "test": 8}


class Machine:
    """A project with tokens as the working directory; its checkpoints are written by the test."""

    def __init__(self, root):
        self.root = root
        self.artifacts, _ = tiny.tokenized(root, tiny.recipe(), SIZES)
        self.write_recipe()

    def write_recipe(self, **changes):
        """Write the recipe with some keys changed, such as `launch__mirror`."""
        keys = {"launch.mirror": "last", "publish.timeout_s": 1.0}
        keys |= {key.replace("__", "."): value for key, value in changes.items()}
        recipe = load(tiny.write(self.root / RECIPE, tiny.recipe(keys)))
        self.job = plan_job(self.artifacts, recipe)
        self.queue = self.root / ".scratch" / "tiny" / "mirror" / self.job.folder.name

    def checkpoint(self, folder, step, parts=PARTS):
        """A complete checkpoint of this run, with files of a few bytes."""
        staged = folder / ".staging"
        staged.mkdir(parents=True)
        for name in parts:
            (staged / name).write_bytes(f"{name} at step {step}".encode())
        (staged / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        tiny.position().save(staged)
        (staged / sealed.IDENTITY).write_text(sealed.identity_to_json(self.job.identity))
        sealed.seal_and_rename(staged, folder / f"checkpoint-{step}")
        return folder / f"checkpoint-{step}"

    def best(self, folder, step):
        """Best weights of this run."""
        staged = folder / ".best"
        staged.mkdir(parents=True)
        (staged / "model.safetensors").write_text(f"weights of step {step}")
        (folder / sealed.IDENTITY).write_text(sealed.identity_to_json(self.job.identity))
        sealed.replace_best_weights(staged, step=step, metric="loss", value=1.0)
        return folder / f"best-{step}"

    def checkpoints(self):
        return sorted(p.name for p in self.job.folder.glob("*")) if self.job.folder.exists() else []


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    disable_progress_bars()
    with FaultyHub(tmp_path / "hub", tokens={TOKEN: "tests", "hf_tokenofbob": "bob"}) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield running


@pytest.fixture(autouse=True)
def every_line(caplog):
    caplog.set_level(logging.INFO)


@pytest.fixture
def api(hub):
    return HfApi(endpoint=hub.endpoint, token=TOKEN)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    made = Machine(tmp_path / "project")
    monkeypatch.chdir(made.root)
    return made


def files(api, revision="checkpoints"):
    return set(api.list_repo_files(REPO, revision=revision)) - {".gitattributes"}


def content(api, path, tmp_path):
    place = tmp_path / "downloaded"
    shutil.rmtree(place, ignore_errors=True)
    return Path(api.hf_hub_download(REPO, path, revision="checkpoints", local_dir=place)).read_bytes()


def commits(api):
    return len(list(api.list_repo_commits(REPO, revision="checkpoints")))


def test_mirror_replaces_checkpoint_and_best_weights_in_one_commit(machine, api, tmp_path):
    machine.checkpoint(machine.queue, 4)
    machine.best(machine.queue, 4)
    templates = machine.artifacts.tokenizer / "additional_chat_templates"
    templates.mkdir()
    (templates / "tool_use.jinja").write_text("{{ tools }}")
    assert main(["mirror", RECIPE]) == os.EX_OK
    assert commits(api) == 1, "older checkpoints take no room for ever"
    first = files(api)
    assert {"last-checkpoint/optimizer.pt", "best/model.safetensors", "best/tokenizer.json"} <= first
    assert "best/additional_chat_templates/tool_use.jinja" in first
    machine.checkpoint(machine.queue, 8, PARTS - {"scheduler.pt"} | {"another.pt"})
    assert main(["mirror", RECIPE]) == os.EX_OK
    assert commits(api) == 1
    assert files(api) == first - {"last-checkpoint/scheduler.pt"} | {"last-checkpoint/another.pt"}
    assert content(api, "last-checkpoint/model.safetensors", tmp_path) == b"model.safetensors at step 8"
    assert files(api, "main") == set()
    assert api.model_info(REPO).private
    assert not machine.queue.exists(), "uploaded files leave the queue"


def test_a_hub_that_rewrites_no_branch_gets_every_checkpoint(machine, hub, api, caplog):
    """Such as one of an earlier version."""
    hub.faults.append(Fault("super-squash", "before", 404, times=2))
    for step in (4, 8):
        machine.checkpoint(machine.queue, step)
        assert main(["mirror", RECIPE]) == os.EX_OK
    assert commits(api) == 3, "with the first one of main"
    assert content(api, "last-checkpoint/model.safetensors", machine.root) == b"model.safetensors at step 8"
    assert "older checkpoints stay in the history of the branch" in caplog.text


def test_fetch_restores_the_mirrored_files(machine, api, caplog):
    checkpoint = machine.checkpoint(machine.root / "sealed", 4)
    best = machine.best(machine.root / "sealed", 2)
    for path in (checkpoint, best):
        shutil.copytree(path, machine.queue / path.name)
    assert main(["mirror", RECIPE]) == os.EX_OK
    assert main(["fetch", RECIPE]) == os.EX_OK
    assert f"fetch: step 4 of run {machine.job.folder.name} from " in caplog.text
    assert machine.checkpoints() == ["best-2", "checkpoint-4"]
    for path in (checkpoint, best):
        assert {p.name: p.read_bytes() for p in path.iterdir()} == {
            p.name: p.read_bytes() for p in (machine.job.folder / path.name).iterdir()
        }
    assert main(["fetch", RECIPE]) == os.EX_OK
    assert "nothing to do: this machine is at step 4" in caplog.text


def test_fetch_takes_the_newest_checkpoint_of_this_run(machine, api):
    machine.write_recipe(launch__mirror="all", seed=4)
    machine.checkpoint(machine.queue, 100)
    machine.write_recipe(launch__mirror="all")
    for step in (2, 4, 10):
        machine.checkpoint(machine.queue, step)
    assert main(["mirror", RECIPE]) == os.EX_OK
    assert {p.partition("/")[0] for p in files(api)} == {f"checkpoint-{step}" for step in (2, 4, 10, 100)}
    assert main(["fetch", RECIPE]) == os.EX_OK
    assert machine.checkpoints() == ["checkpoint-10"]


def upload(api, path, what):
    api.upload_file(path_or_fileobj=what, path_in_repo=path, repo_id=REPO, revision="checkpoints")


DAMAGE = {
    "a flipped bit": (
        lambda api: upload(api, "last-checkpoint/optimizer.pt", b"optimizer.pt at step 5"),
        "last-checkpoint: not as it was written: optimizer.pt",
    ),
    "a file is gone": (
        lambda api: api.delete_file("last-checkpoint/scheduler.pt", REPO, revision="checkpoints"),
        "last-checkpoint: lacks last-checkpoint/scheduler.pt",
    ),
    "no manifest": (
        lambda api: api.delete_file("last-checkpoint/manifest.json", REPO, revision="checkpoints"),
        "last-checkpoint: lacks last-checkpoint/manifest.json",
    ),
    "a torn manifest": (
        lambda api: upload(api, "last-checkpoint/manifest.json", b'{"model.sa'),
        "last-checkpoint/manifest.json: is damaged: ",
    ),
    "the best weights": (
        lambda api: upload(api, "best/model.safetensors", b"weights of step 5"),
        "best: not as it was written: model.safetensors",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_fetch_refuses_damaged_files(machine, api, capsys, damage, message):
    machine.checkpoint(machine.queue, 4)
    machine.best(machine.queue, 4)
    assert main(["mirror", RECIPE]) == os.EX_OK
    damage(api)
    assert main(["fetch", RECIPE]) == os.EX_NOINPUT
    printed = capsys.readouterr().err
    assert f"CheckpointError: {api.endpoint}/{REPO}, branch checkpoints, {message}" in printed
    assert "fix: " in printed
    assert machine.checkpoints() == []


def test_fetch_refuses_a_checkpoint_of_another_run(machine, api, capsys):
    machine.checkpoint(machine.queue, 4)
    assert main(["mirror", RECIPE]) == os.EX_OK
    machine.write_recipe(training__learning_rate=0.5)
    assert main(["fetch", RECIPE]) == os.EX_NOINPUT
    assert "is of another run: training.learning_rate was 0.01, is 0.5\n" in capsys.readouterr().err
    assert machine.checkpoints() == []


def test_fetch_without_a_checkpoint_is_an_error(machine, api, capsys):
    assert main(["fetch", RECIPE]) == os.EX_NOPERM
    assert "404" in capsys.readouterr().err
    api.create_repo(REPO)
    assert main(["fetch", RECIPE]) == os.EX_NOPERM
    assert "there is no checkpoint\n  fix: train on the other machine with `launch.mirror" in capsys.readouterr().err
    shutil.rmtree(machine.artifacts.tokens)
    assert main(["fetch", RECIPE]) == os.EX_DATAERR
    assert "fix: run `evergreen tokenize params/tiny.yaml`" in capsys.readouterr().err


def test_mirror_does_not_upload_an_older_checkpoint(machine, api, caplog, tmp_path):
    machine.checkpoint(machine.queue, 8)
    assert main(["mirror", RECIPE]) == os.EX_OK
    caplog.clear()
    machine.checkpoint(machine.queue, 8)
    assert main(["mirror", RECIPE]) == os.EX_OK
    assert "checkpoint-8" not in caplog.text, "already on the branch"
    machine.checkpoint(machine.queue, 4)
    assert main(["mirror", RECIPE]) == os.EX_OK
    assert "checkpoint-4 stays here: the branch has step 8 of this run" in caplog.text
    assert content(api, "last-checkpoint/model.safetensors", tmp_path).endswith(b"step 8")
    machine.write_recipe(seed=4)  # another run replaces it, whatever its step
    machine.checkpoint(machine.queue, 4)
    assert main(["mirror", RECIPE]) == os.EX_OK
    assert content(api, "last-checkpoint/model.safetensors", tmp_path).endswith(b"step 4")


def test_mirror_leaves_out_a_damaged_checkpoint(machine, api, caplog):
    machine.write_recipe(launch__mirror="all")
    machine.checkpoint(machine.queue, 2)
    (machine.checkpoint(machine.queue, 4) / "optimizer.pt").write_bytes(b"optimizer.pt at step 5")
    assert main(["mirror", RECIPE]) == os.EX_OK
    assert {p.partition("/")[0] for p in files(api)} == {"checkpoint-2"}
    assert "checkpoint-4 is left out: " in caplog.text


@pytest.mark.parametrize(
    ("token", "message"),
    [("hf_tokenofnobody", "401"), ("hf_tokenofbob", "40"), ("hf_broken intwo", "white space"), ("", "no token")],
    ids=["unknown", "of another", "malformed", "none"],
)
def test_refused_upload_hides_the_token_and_keeps_the_queue(machine, hub, monkeypatch, capsys, caplog, token, message):
    machine.checkpoint(machine.queue, 4)
    monkeypatch.setenv("HF_TOKEN", token)
    assert main(["mirror", RECIPE]) == os.EX_NOPERM
    printed = "".join([caplog.text, *capsys.readouterr()])
    assert "HubRefusedError" in printed
    assert message in printed
    assert not token or token not in printed
    assert not token or token.split()[0] not in printed
    assert (machine.queue / "checkpoint-4" / "manifest.json").exists()


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("error", [None, StoppedError], ids=["finished", "stopped"])
def test_last_checkpoint_of_a_training_is_uploaded(machine, api, monkeypatch, error):
    """The mirror has just started when the training ends."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    patience = {"grace_s": 60.0 if error else 0.1, "stall_timeout_s": 0.1 if error else 60.0}
    launch = machine.job.launch.model_copy(update=patience)
    artifacts = Artifacts("tiny", machine.root)
    with (
        pytest.raises(error) if error else contextlib.nullcontext(),
        upload_during_run(artifacts, launch, machine.queue.name),
    ):
        machine.checkpoint(machine.job.folder, 4)
        if error:
            raise error
    assert "last-checkpoint/manifest.json" in files(api)


def test_private_run_is_not_mirrored_to_a_public_repository(machine, api, capsys):
    api.create_repo(REPO, private=False)
    machine.checkpoint(machine.queue, 4)
    assert main(["mirror", RECIPE]) == os.EX_NOPERM
    assert "the repository is public" in capsys.readouterr().err
    machine.write_recipe(publish__private=False)
    assert main(["mirror", RECIPE]) == os.EX_OK


def test_mirror_leaves_main_alone(machine, api):
    api.create_repo(REPO, private=True)
    api.upload_file(path_or_fileobj=b"released", path_in_repo="model.safetensors", repo_id=REPO)
    machine.checkpoint(machine.queue, 4)
    assert main(["mirror", RECIPE]) == os.EX_OK
    assert files(api, "main") == {"model.safetensors"}
    assert {p.partition("/")[0] for p in files(api)} == {"last-checkpoint"}


@pytest.mark.parametrize("keep_all", [False, True])
def test_queue_keeps_needed_checkpoints_after_their_deletion(machine, keep_all, monkeypatch, caplog):
    run, queue = machine.job.folder, UploadQueue(machine.queue, keep_all=keep_all)
    queue.collect(run)
    assert queue.next() == []
    for steps in ((2, 4), (6,)):
        for step in steps:
            machine.checkpoint(run, step)
            machine.best(run, step - 1)
        queue.collect(run)
        sealed.delete_old_checkpoints(run, 0)
    expected = {"best-5", "checkpoint-6"} | ({"checkpoint-2", "checkpoint-4"} if keep_all else set())
    assert {p.name for p in machine.queue.iterdir()} == expected
    assert [p.name for p in queue.next()] == ["checkpoint-2" if keep_all else "checkpoint-6", "best-5"]
    assert all(sealed.find_manifest_mismatch(p) is None for p in machine.queue.iterdir())

    machine.checkpoint(run, 8)
    monkeypatch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(1000, 990, 10))
    queue.collect(run)
    uploading = {"checkpoint-2" if keep_all else "checkpoint-6", "best-5"}
    assert {p.name for p in machine.queue.iterdir()} == uploading | {"checkpoint-8"}
    assert ("no room on the disk: not uploaded: checkpoint-6, checkpoint-4" in caplog.text) is keep_all


def test_queue_ignores_a_checkpoint_that_is_being_deleted(machine, caplog):
    run, queue = machine.job.folder, UploadQueue(machine.queue, keep_all=True)
    (machine.checkpoint(run, 2) / "optimizer.pt").unlink()
    queue.collect(run)
    assert queue.next() == []
    assert "left out" not in caplog.text, "it will be gone in a moment"
    for _ in range(3):
        queue.collect(run)
    assert queue.next() == []
    assert caplog.text.count("checkpoint-2 is left out: files are missing") == 1


@pytest.mark.parametrize(
    ("command", "changes", "message"),
    [
        ("mirror", {"launch__mirror": "none"}, "launch.mirror: is `none`"),
        ("fetch", {"training__resume": "never"}, "training.resume: is `never`"),
    ],
)
def test_mirror_and_fetch_refuse_a_recipe_that_disables_them(machine, hub, capsys, command, changes, message):
    machine.write_recipe(**changes)
    assert main([command, RECIPE]) == os.EX_CONFIG
    assert f"RecipeError: {message}" in capsys.readouterr().err


@pytest.mark.parametrize("run", ["../../../kept", "..", "a" * 15, "A" * 16])
def test_run_that_is_no_key_touches_nothing(machine, run, capsys):
    kept = machine.root / "kept/file"
    kept.parent.mkdir()
    kept.touch()
    assert main(["mirror", RECIPE, "--run", run]) == RecipeError.exit_code
    assert "is no key of a run" in capsys.readouterr().err
    assert kept.exists()
