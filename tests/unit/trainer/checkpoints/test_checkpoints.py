"""Checkpoints on disk: sealing, verification, resuming and saving."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from collections import namedtuple

import pytest
import torch

from params import CheckpointError, StorageError
from params.foundation.hashing import file_sha256
from tests.support import tiny
from trainer.checkpoints import saver, sealed
from trainer.checkpoints.resume import prepare_resume
from trainer.checkpoints.saver import BackgroundWorker, TensorSnapshotter, guard_disk_space

RUN = sealed.identity_to_json({"seed": "3"})


def checkpoint_of(folder, step, content=b"weights", without=(), processes=1):
    staged = folder / ".staging" / f"checkpoint-{step}"
    staged.mkdir(parents=True)
    (staged / "model.safetensors").write_bytes(content * 100)
    (staged / "rng_state.pth").write_bytes(b"state")
    (staged / "optimizer.pt").write_bytes(b"state")
    (staged / "scheduler.pt").write_bytes(b"state")
    (staged / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    tiny.position(processes).save(staged)
    (staged / "run.json").write_text(RUN)
    for name in without:
        (staged / name).unlink()
    sealed.seal_and_rename(staged, folder / f"checkpoint-{step}")
    return folder / f"checkpoint-{step}"


def test_sealed_checkpoint_verifies(tmp_path):
    assert sealed.find_manifest_mismatch(checkpoint_of(tmp_path, 5)) is None
    assert sealed.find_newest_setting_broken_aside(tmp_path, RUN) == tmp_path / "checkpoint-5"


def test_newest_checkpoint_has_the_highest_step(tmp_path):
    for step in (900, 1000, 20):
        checkpoint_of(tmp_path, step)
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / "broken-checkpoint-2000").mkdir()
    assert sealed.find_newest_setting_broken_aside(tmp_path, RUN) == tmp_path / "checkpoint-1000"
    assert [p.name for p in sealed.list_checkpoints(tmp_path)] == ["checkpoint-1000", "checkpoint-900", "checkpoint-20"]


def _truncate(checkpoint):
    (checkpoint / "model.safetensors").write_bytes((checkpoint / "model.safetensors").read_bytes()[:-1])


def _flip(checkpoint):
    content = bytearray((checkpoint / "model.safetensors").read_bytes())
    content[len(content) // 2] ^= 1
    (checkpoint / "model.safetensors").write_bytes(content)


def _empty(checkpoint):
    for path in sorted(checkpoint.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


DAMAGE = {
    "truncated": (_truncate, "not as it was written: model.safetensors"),
    "a flipped bit": (_flip, "not as it was written: model.safetensors"),
    "a file is gone": (lambda c: (c / "rng_state.pth").unlink(), "not as it was written: rng_state.pth"),
    "a file too many": (lambda c: (c / "extra").write_text("x"), "not as it was written: extra"),
    "no manifest": (lambda c: (c / "manifest.json").unlink(), "it has no manifest"),
    "a incomplete manifest": (lambda c: (c / "manifest.json").write_text('{"model'), "its manifest is damaged"),
    "an empty manifest": (lambda c: (c / "manifest.json").write_text(""), "its manifest is damaged"),
    "a manifest of another kind": (lambda c: (c / "manifest.json").write_text("[1]"), "its manifest is damaged"),
    "a manifest that is no text": (lambda c: (c / "manifest.json").write_bytes(b"\xff\xfe"), "its manifest is damaged"),
    "empty": (_empty, "it has no manifest"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_damaged_checkpoint_is_set_aside_for_an_older_one(tmp_path, caplog, damage, message):
    checkpoint_of(tmp_path, 5)
    damage(checkpoint_of(tmp_path, 10))
    assert sealed.find_manifest_mismatch(tmp_path / "checkpoint-10") == message
    with caplog.at_level(logging.WARNING):
        assert sealed.find_newest_setting_broken_aside(tmp_path, RUN) == tmp_path / "checkpoint-5"
    assert (tmp_path / "broken-checkpoint-10").is_dir()
    assert [p.name for p in sealed.list_checkpoints(tmp_path)] == ["checkpoint-5"]
    assert f"set aside {tmp_path / 'broken-checkpoint-10'}: {message}" in caplog.text
    damage(checkpoint_of(tmp_path, 10))  # again: an earlier one set aside does not conflict
    assert sealed.find_newest_setting_broken_aside(tmp_path, RUN) == tmp_path / "checkpoint-5"


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES])
def test_bad_sector_is_damage_and_a_forbidden_file_is_not(tmp_path, monkeypatch, error):
    checkpoint_of(tmp_path, 5)
    checkpoint_of(tmp_path, 10)

    def read(path):
        if "checkpoint-10" in path.parts:
            raise OSError(error, os.strerror(error), str(path))
        return file_sha256(path)

    monkeypatch.setattr(sealed, "file_sha256", read)
    if error == errno.EIO:
        assert sealed.find_newest_setting_broken_aside(tmp_path, RUN) == tmp_path / "checkpoint-5"
        assert (tmp_path / "broken-checkpoint-10").is_dir()
    else:
        with pytest.raises(PermissionError):
            sealed.find_newest_setting_broken_aside(tmp_path, RUN)


def test_newest_valid_is_none_without_a_valid_checkpoint(tmp_path):
    assert sealed.find_newest_setting_broken_aside(tmp_path, RUN) is None
    (tmp_path / ".staging" / "checkpoint-7").mkdir(parents=True)
    assert sealed.find_newest_setting_broken_aside(tmp_path, RUN) is None, "it is not sealed"
    _flip(checkpoint_of(tmp_path, 5))
    assert sealed.find_newest_setting_broken_aside(tmp_path, RUN) is None


def test_sealing_again_replaces_the_checkpoint(tmp_path):
    checkpoint_of(tmp_path, 5, b"old")
    assert (checkpoint_of(tmp_path, 5, b"new") / "model.safetensors").read_bytes() == b"new" * 100
    assert sealed.find_manifest_mismatch(tmp_path / "checkpoint-5") is None


def test_retain_keeps_the_newest(tmp_path):
    for step in (2, 4, 10, 8):
        checkpoint_of(tmp_path, step)
    sealed.delete_old_checkpoints(tmp_path, 2)
    assert [p.name for p in sealed.list_checkpoints(tmp_path)] == ["checkpoint-10", "checkpoint-8"]


def best_of(folder, step: int, value: float) -> None:
    staged = folder / ".best"
    staged.mkdir()
    (staged / "model.safetensors").write_text(f"weights of step {step}")
    sealed.replace_best_weights(staged, step=step, metric="loss", value=value)


def test_better_weights_replace_the_best(tmp_path):
    best_of(tmp_path, 10, 2.0)
    best_of(tmp_path, 20, 1.0)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["best-20"]
    best = sealed.find_best_weights(tmp_path, "min")
    assert (best.step, best.metric, best.value) == (20, "loss", 1.0)


def test_best_weights_of_another_run_are_ignored(tmp_path):
    for folder, value in (("run", 2.0), ("other", 1.0)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "run.json").write_text(folder)
        best_of(tmp_path / folder, int(10 * value), value)
    shutil.copytree(tmp_path / "other" / "best-10", tmp_path / "run" / "best-10")
    assert sealed.find_best_weights(tmp_path / "run", "min").value == 2.0


def test_kill_between_two_best_weights_loses_neither(tmp_path):
    """A kill after sealing the new weights and before deleting the old ones leaves both; damaged ones are ignored."""
    best_of(tmp_path, 10, 2.0)
    (tmp_path / "best-10").rename(tmp_path / "older")
    best_of(tmp_path, 20, 1.0)
    (tmp_path / "older").rename(tmp_path / "best-10")
    assert sealed.find_best_weights(tmp_path, "min").step == 20
    assert sealed.find_best_weights(tmp_path, "max").step == 10
    (tmp_path / "best-20" / "model.safetensors").write_text("incomplete")
    assert sealed.find_best_weights(tmp_path, "min").step == 10
    assert sealed.find_best_weights(tmp_path / "nowhere", "min") is None


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("model.safetensors", "the weights"),
        ("optimizer.pt", "the optimizer's state"),
        ("scheduler.pt", "the learning-rate schedule"),
        ("trainer_state.json", "the trainer's state"),
        ("position.json", "the position in the data"),
        ("run.json", "the run's identity"),
        ("rng_state.pth", "the random state"),
    ],
)
def test_incomplete_checkpoint_is_not_resumed(tmp_path, caplog, name, what):
    checkpoint_of(tmp_path, 5)
    incomplete = checkpoint_of(tmp_path, 10, without=[name])
    assert sealed.find_manifest_mismatch(incomplete) is None
    assert sealed.find_checkpoint_defect(incomplete) == f"it lacks {what}"
    assert sealed.find_newest_setting_broken_aside(tmp_path, RUN) == tmp_path / "checkpoint-5"
    assert f"it lacks {what}" in caplog.text


def test_checkpoint_needs_the_random_state_of_every_process(tmp_path):
    assert (
        sealed.find_checkpoint_defect(checkpoint_of(tmp_path, 5, processes=2))
        == "it has the random state of 1 of 2 processes"
    )


def test_checkpoint_of_another_run_is_set_aside(tmp_path, caplog):
    checkpoint_of(tmp_path, 5)
    assert sealed.find_newest_setting_broken_aside(tmp_path, sealed.identity_to_json({"seed": "4"})) is None
    assert "it belongs to another run" in caplog.text
    assert (tmp_path / "broken-checkpoint-5").exists()


IDENTITY = {"seed": "3"}


def choose_logged(tmp_path, caplog, resume="auto", run=IDENTITY, folder="run"):
    caplog.clear()
    with caplog.at_level(logging.INFO):
        found = prepare_resume(tmp_path / folder, run, resume)
    assert len([r for r in caplog.records if r.levelno == logging.INFO]) == 1, "one log line"
    return found, caplog.records[-1].getMessage()


def test_resume_from_the_newest_valid_checkpoint(tmp_path, caplog):
    assert choose_logged(tmp_path, caplog) == (None, "train: run run starts at step 0: it has no checkpoint")
    checkpoint_of(tmp_path / "run", 5)
    found, message = choose_logged(tmp_path, caplog)
    assert found == tmp_path / "run" / "checkpoint-5"
    assert message == f"train: run run resumes at step 5 from {found}, the newest valid checkpoint"


def test_damaged_run_stops_no_start_if_another_one_says_why(tmp_path, caplog):
    checkpoint_of(tmp_path / "other", 5)
    (tmp_path / "other" / "run.json").write_text(json.dumps({"seed": "4"}))
    checkpoint_of(tmp_path / "second", 5)
    (tmp_path / "second" / "run.json").write_text("{")
    assert choose_logged(tmp_path, caplog)[1].endswith("checkpoint-5 is of another run (seed was 4, is 3)")


def test_checkpoint_of_another_run_is_named_with_the_difference(tmp_path, caplog):
    checkpoint_of(tmp_path / "other", 5)
    (tmp_path / "other" / "run.json").write_text(json.dumps({"seed": "4", "code trainer.py": "a", "gone": "1"}))
    _, message = choose_logged(tmp_path, caplog, run=IDENTITY | {"code trainer.py": "b"})
    other = tmp_path / "other" / "checkpoint-5"
    expected = f"{other} is of another run (code trainer.py has changed, gone was 1, is not set, seed was 4, is 3)"
    assert message == f"train: run run starts at step 0: {expected}"


def test_resume_never_deletes_checkpoints_and_starts_at_step_0(tmp_path, caplog):
    checkpoint_of(tmp_path / "run", 5)
    best_of(tmp_path / "run", 5, 1.0)
    found, message = choose_logged(tmp_path, caplog, "never")
    assert found is None
    assert message.endswith("because training.resume is `never`, 1 checkpoint(s) deleted")
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["run.json"]


def test_resume_from_a_named_checkpoint_until_the_run_has_a_later_one(tmp_path, caplog):
    named = checkpoint_of(tmp_path / "elsewhere", 5)
    checkpoint_of(tmp_path / "run", 3)
    found, message = choose_logged(tmp_path, caplog, str(named))
    assert (found, message) == (named, f"train: run run resumes at step 5 from {named}, as training.resume says")
    checkpoint_of(tmp_path / "run", 7)
    assert choose_logged(tmp_path, caplog, str(named))[0] == tmp_path / "run" / "checkpoint-7"


def test_unusable_named_checkpoint_is_an_error(tmp_path):
    named = checkpoint_of(tmp_path / "elsewhere", 5)
    with pytest.raises(CheckpointError, match="there is no such folder"):
        prepare_resume(tmp_path / "run", IDENTITY, str(tmp_path / "nowhere"))
    with pytest.raises(CheckpointError, match="of another run: seed was 3, is 4") as caught:
        prepare_resume(tmp_path / "run", {"seed": "4"}, str(named))
    assert "model.pretrained" in caught.value.fix
    _flip(named)
    with pytest.raises(CheckpointError, match=r"not as it was written: model\.safetensors"):
        prepare_resume(tmp_path / "run", IDENTITY, str(named))


def test_snapshot_copies_values_keeps_sharing_and_reuses_memory():
    weight = torch.arange(4.0)
    snapshot = TensorSnapshotter()
    first = snapshot.take({"a": weight, "tied": weight, "n": 3, "part": weight[:2]})
    weight.add_(10)
    assert first["a"].tolist() == [0, 1, 2, 3]
    assert first["a"] is first["tied"]
    assert first["part"].tolist() == [0, 1]
    assert first["n"] == 3
    memory = first["a"].data_ptr()
    second = snapshot.take({"a": weight, "tied": weight, "n": 3, "part": weight[:2]})
    assert second["a"].data_ptr() == memory
    assert second["a"].tolist() == [10, 11, 12, 13]
    third = snapshot.take({"a": weight.reshape(2, 2).double()})
    assert third["a"].dtype == torch.float64


def test_writer_works_in_order_and_raises_the_first_error_once():
    done = []

    def fail():
        raise StorageError("here", "no room", "make some")

    writer = BackgroundWorker()
    writer.submit(lambda: done.append(1))
    writer.submit(fail)
    writer.submit(lambda: done.append(3))
    with pytest.raises(StorageError, match="no room"):
        writer.wait()
    assert done == [1], "nothing after a failure is written"
    writer.wait()


def test_save_without_space_is_an_error_and_cleans_up(tmp_path, monkeypatch):
    staging = tmp_path / "run" / ".staging"
    staging.mkdir(parents=True)
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(saver.shutil, "disk_usage", lambda _: usage(free=3 * 2**20))
    missing = r"a checkpoint needs 10.0 MiB and 3.0 MiB are free: 7.0 MiB are missing"
    with pytest.raises(StorageError, match=missing), guard_disk_space(staging, 10 * 2**20):
        pass
    assert not staging.exists()
    with pytest.raises(StorageError, match="No space left"), guard_disk_space(staging, 10):
        raise OSError(errno.ENOSPC, "No space left on device")
    shutil.rmtree(staging, ignore_errors=True)
