"""A tiny training in this process, where a test can look into it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers import TrainerCallback

from tests.support import tiny
from tests.support.training import plan_job
from trainer.build import build_trainer
from trainer.job import Job
from trainer.loop.trainer import EvergreenTrainer

FEW = {"train": 64, "validation": 8, "test": 8}
"""Rows; unpacked, they make eight global batches an epoch."""

_UNSEEN: Any = SimpleNamespace(beat=lambda *_: None)
"""A heartbeat that nobody watches."""


def job(root: Path, changes: dict[str, Any] | None = None, *, stop_at_step: int | None = None, **sections: Any) -> Job:
    """The training of the tiny recipe so changed, its tokens made."""
    usual = {"objective.packing": False} if "objective" not in sections else {}
    artifacts, recipe = tiny.tokenized(root, tiny.recipe(usual | (changes or {}), **sections), FEW)
    return plan_job(artifacts, recipe, stop_at_step=stop_at_step)


def trainer_of(job: Job, *callbacks: TrainerCallback) -> EvergreenTrainer:
    """The trainer of a job, as the worker builds it."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)  # it keeps the number format of the trainer before
    GradientState._reset_state()
    job.folder.mkdir(parents=True, exist_ok=True)
    trainer = build_trainer(job, _UNSEEN, lambda: False)
    for callback in callbacks:
        trainer.add_callback(callback)
    return trainer


def trained(job: Job, *callbacks: TrainerCallback) -> EvergreenTrainer:
    """The trainer of a job that has trained, from its checkpoint if it names one."""
    trainer = trainer_of(job, *callbacks)
    trainer.train(resume_from_checkpoint=str(job.checkpoint) if job.checkpoint else None)
    return trainer


def losses(trainer: EvergreenTrainer) -> dict[int, float]:
    """The logged training losses, by step."""
    return {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}


class At(TrainerCallback):
    """Calls a function at an event, with the keyword arguments that Trainer gives to callbacks."""

    def __init__(self, event: str, call: Callable[..., Any]) -> None:
        setattr(self, event, lambda args, state, control, **given: call(state=state, args=args, **given) and None)
