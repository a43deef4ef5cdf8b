"""Loader workers: persistence and prefetching."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

import pytest
from torch.utils.data import Dataset

from params.schema import Launch, Training
from tests.support import tiny
from tests.support.in_process import At, job, trainer_of
from trainer.loop.arguments import find_launch_conflicts

WORKERS = {"launch.dataloader_workers": 2, "training.max_steps": ..., "training.epochs": 2}


@pytest.fixture(autouse=True)
def no_workers_left():
    """Persistent workers live as long as their loader, and a later fork would wait for them."""
    yield
    gc.collect()


class RecordedReads(Dataset):
    """A dataset that writes the process id of each read to a file."""

    def __init__(self, rows, path: Path):
        self.rows, self.path = rows, path

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        with self.path.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return self.rows[i]


def recorded_trainer(tmp_path, changes):
    trainer = trainer_of(job(tmp_path, changes))
    path = tmp_path / "readers"
    path.touch()
    trainer.train_dataset = RecordedReads(trainer.train_dataset, path)
    return trainer, path


@pytest.mark.parametrize("persistent", [False, True])
def test_persistent_workers_stay_over_epochs(tmp_path, persistent):
    trainer, path = recorded_trainer(
        tmp_path, WORKERS | {"training.arguments": {"dataloader_persistent_workers": persistent}}
    )
    epochs = []

    def end_epoch(**_):
        epochs.append(set(path.read_text().split()))
        path.write_text("")

    trainer.add_callback(At("on_epoch_end", end_epoch))
    trainer.train()
    if persistent:  # torch waits 5 s for each that is collected as garbage
        for loader in (trainer.callback_handler.train_dataloader, *trainer._eval_dataloaders.values()):
            getattr(loader, "base_dataloader", loader)._iterator._shutdown_workers()
    first, second = epochs
    assert len(first) == len(second) == 2, "two workers"
    assert str(os.getpid()) not in first | second
    assert (first == second) is persistent
    assert persistent or not first & second


@pytest.mark.parametrize(("factor", "batches"), [(1, 3), (3, 5)])
def test_prefetch_factor_limits_how_far_a_worker_reads_ahead(tmp_path, factor, batches):
    """The first step takes two micro-batches; the worker reads `factor` more."""
    changes = {"launch.dataloader_workers": 1, "training.arguments": {"dataloader_prefetch_factor": factor}}
    trainer, path = recorded_trainer(tmp_path, changes | {"training.max_steps": 1})
    ahead = []

    def wait(**_):
        give_up = time.monotonic() + 20
        while len(path.read_text().split()) < 4 * batches and time.monotonic() < give_up:
            time.sleep(0.01)
        time.sleep(0.3)
        ahead.append(len(path.read_text().split()))

    trainer.add_callback(At("on_step_begin", wait))
    trainer.train()
    assert ahead == [4 * batches], "rows of whole micro-batches"


@pytest.mark.parametrize("arguments", [{"dataloader_persistent_workers": True}, {"dataloader_prefetch_factor": 2}])
def test_worker_options_without_workers_are_refused(arguments):
    training = Training.model_validate(tiny.RECIPE["training"] | {"arguments": arguments})
    (found,) = find_launch_conflicts(training, Launch(micro_batch_size=4))
    assert found.key == ("training", "arguments", *arguments)
    assert found.fix == "set launch.dataloader_workers to 1 or more"
    assert find_launch_conflicts(training, Launch(micro_batch_size=4, dataloader_workers=1)) == []
