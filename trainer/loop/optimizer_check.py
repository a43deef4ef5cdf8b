"""What is wrong with a recipe's choice of an optimizer: a missing package or device, settings that would be ignored."""

from __future__ import annotations

import importlib.util
import inspect
from collections import UserDict
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from params import Problem
from params.distribution import read_parallelism_strategy
from params.foundation.installation import install_extra
from params.problems import suggestion
from params.schema import Launch, Training
from trainer.loop.batch import micro_batch_and_accumulation
from trainer.loop.optimizers import LAYERWISE, LOW_RANK, known_optimizers, optimizer_family, steps_in_backward
from trainer.objectives.bases.lazy_imports import torch

PACKAGES = {
    "apollo": ("apollo_torch", "apollo"),
    "bitsandbytes": ("bitsandbytes", "quantization"),
    "galore": ("galore_torch", "galore"),
    "grokadamw": ("grokadamw", "grokadamw"),
    "lomo": ("lomo_optim", "lomo"),
    "schedule_free": ("schedulefree", "schedule-free"),
    "stable_adamw": ("optimi", "stable-adamw"),
    "torchao": ("torchao", "torchao"),
}
"""By family: the module of its package, and the extra of ours that installs it."""
_NOT_INSTALLABLE = {
    "adamw_anyprecision": ("torchdistx", "which is no longer released"),
    "adamw_torch_npu_fused": ("torch_npu", "for Ascend NPUs"),
    "adamw_torch_xla": ("torch_xla", "for TPUs"),
}
"""By family: the module of a package for which there is no extra, and the reason."""
_PLAIN = ("adamw_torch", "adamw_torch_fused")
"""What needs no package and works with every setting but these two; to look for more would import torch."""
_NOT_FOR_PLAIN = ("optim_args", "optim_target_modules")
_WITHOUT_BETAS = ("adafactor", "adagrad", "galore", "grokadamw", "lomo", "rmsprop", "sgd")
"""Families to which transformers does not pass `adam_beta1`, `adam_beta2` and `adam_epsilon`."""


def find_optimizer_problems(training: Training, launch: Launch) -> Iterator[Problem]:
    """Yield what is wrong with the optimizer and its settings; a name that transformers does not know is skipped."""
    name, given = training.optimizer, training.arguments
    if name in _PLAIN and not any(given.get(argument) for argument in _NOT_FOR_PLAIN):
        return
    if name not in known_optimizers():
        return
    if reason := why_optimizer_unavailable(name):
        yield Problem(("training", "optimizer"), *reason)
        return
    kind = optimizer_family(name)
    if steps_in_backward(name):
        yield from _backward_problems(training, launch)
    if kind == "schedule_free":
        yield from _schedule_problems(training)
    if kind in (*LOW_RANK, "lomo", "grokadamw") and read_parallelism_strategy(launch) in ("FSDP", "DeepSpeed"):
        what = f"shards the optimizer's state, which {name} keeps in a form that cannot be sharded"
        yield Problem(("launch", "accelerate_config"), what, "remove the key, or use adamw_torch")
    yield from _unread_argument_problems(name, given)
    arguments = given.get("optim_args")
    if isinstance(arguments, str) and arguments:
        yield from _argument_problems(name, arguments)


def _unread_argument_problems(name: str, given: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield which of `training.arguments` an optimizer does not read, or does not work without."""
    kind, targets = optimizer_family(name), given.get("optim_target_modules")
    key = ("training", "arguments", "optim_target_modules")
    if kind in LOW_RANK and not targets:
        what = f"{name} projects the gradients of the linear layers named here, and it names none"
        yield Problem(key, what, "for example [q_proj, v_proj], or all-linear")
    elif kind not in LOW_RANK and targets:
        yield Problem(key, f"{name} ignores it", "remove it, or use galore_adamw or apollo_adamw")
    if kind in _WITHOUT_BETAS or name.startswith("rmsprop") or name == "schedule_free_sgd":
        for argument in sorted({"adam_beta1", "adam_beta2", "adam_epsilon"} & given.keys()):
            yield Problem(("training", "arguments", argument), f"transformers does not pass it to {name}", "remove it")


def why_optimizer_unavailable(name: str) -> tuple[str, str] | None:
    """Return why an optimizer cannot be used on this machine, and what to do; None if it can."""
    kind = optimizer_family(name)
    if kind in _NOT_INSTALLABLE and not _is_installed(_NOT_INSTALLABLE[kind][0]):
        module, reason = _NOT_INSTALLABLE[kind]
        return f"{name} needs {module}, {reason}, which is not installed", "use adamw_torch"
    if kind == "galore" and "8bit" in name:
        what = f"{name} needs a GPU, and bitsandbytes loses its projections in a checkpoint: no run could resume"
        return what, f"use {name.replace('_8bit', '')}"
    if kind in PACKAGES and not _is_installed(PACKAGES[kind][0]):
        module, extra = PACKAGES[kind]
        return f"{name} needs {module}, which is not installed", f"install it with `{install_extra(extra)}`"
    if name == "adalomo" and not torch.cuda.is_available():
        return "adalomo needs a CUDA GPU, and torch finds none here", "use lomo, or train on a GPU"
    return None


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # sys.modules says that there is none
        return False


def _backward_problems(training: Training, launch: Launch) -> Iterator[Problem]:
    name, steps = training.optimizer, "changes each weight within the backward pass"
    if launch.num_processes > 1:
        what = f"{name} {steps}, before its gradient is averaged over processes: their weights would differ"
        yield Problem(("launch", "num_processes"), what, "use 1 process, or another optimizer")
    elif (accumulation := micro_batch_and_accumulation(training.global_batch_size, launch)[1]) > 1:
        what = f"{name} {steps}: {accumulation} micro-batches would be as many small steps instead of one"
        fix = f"set it to {training.global_batch_size}, the global batch, or make training.global_batch_size smaller"
        yield Problem(("launch", "micro_batch_size"), what, fix)
    if training.max_grad_norm:
        what = f"{name} {steps}, before the norm of all gradients is known: they would not be clipped"
        yield Problem(("training", "max_grad_norm"), what, "set it to 0.0")
    if training.precision == "fp16":
        what = f"{name} {steps}, while gradients are still multiplied by the loss scale of fp16"
        yield Problem(("training", "precision"), what, "use bf16 or fp32")
    if optimizer_family(name) == "lomo" and training.weight_decay:
        what = f"transformers does not pass it to {name}: no weight would decay"
        yield Problem(("training", "weight_decay"), what, "set it to 0.0, or use another optimizer")


def _schedule_problems(training: Training) -> Iterator[Problem]:
    """Yield what conflicts with Schedule-Free, which averages weights instead of lowering the rate, and warms up itself."""
    name = training.optimizer
    if training.lr_scheduler != "constant":
        what = f"{name} replaces the schedule: with {training.lr_scheduler} the rate would decay, or warm up twice"
        yield Problem(("training", "lr_scheduler"), what, "set it to constant")
    if name == "schedule_free_radam" and training.warmup_steps:
        yield Problem(("training", "warmup_steps"), f"{name} warms up by itself and ignores it", "set it to 0")
    elif 0 < training.warmup_steps < 1:
        what = f"{name} counts it in steps: the first step would have {1 / training.warmup_steps:.0f} times the learning rate"
        yield Problem(("training", "warmup_steps"), what, "give the number of steps, not a fraction")


def _argument_problems(name: str, given: str) -> Iterator[Problem]:
    # transformers silently ignores names that it does not know
    key = ("training", "arguments", "optim_args")
    pairs = [pair.strip().split("=") for pair in given.split(",")]
    if any(len(pair) != 2 or not all(pair) for pair in pairs):
        yield Problem(key, f"{given!r} is not of the form `name=value,name=value`", "for example `rank=8,scale=0.25`")
        return
    try:
        accepted = _accepted_arguments(name, {key.strip(): value.strip() for key, value in pairs})
    except ValueError as error:
        yield Problem(key, f"a value is of the wrong type: {error}", f"see {name} in transformers")
        return
    if unknown := [argument for argument, _ in pairs if argument.strip() not in accepted]:
        fix = suggestion(unknown[0], sorted(accepted), "arguments") if accepted else "remove it"
        yield Problem(key, f"{name} takes no {', '.join(unknown)}", fix)


def _accepted_arguments(name: str, given: dict[str, str]) -> set[str]:
    """Return the names in `optim_args` that an optimizer reads, found by letting transformers build its arguments."""
    from transformers.trainer_optimizer import _OPTIMIZER_HANDLERS, OptimizerContext
    from transformers.training_args import OptimizerNames

    seen = _ReadKeys(given)
    settings = {"adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8, "weight_decay": 0.0, "warmup_steps": 0}
    plain = OptimizerNames(name.removesuffix(LAYERWISE))
    args = SimpleNamespace(optim=plain, optim_target_modules=None, parallel_mode=None, **settings)
    context = OptimizerContext(args=args, model=None, optimizer_kwargs={}, adam_kwargs={}, optim_args=seen)
    try:
        cls, kwargs = _OPTIMIZER_HANDLERS[plain](context)
    except ValueError as error:
        if "model" in str(error) or "optim_target_modules" in str(error):  # by then it has read all its arguments
            return seen.names
        raise
    return seen.names - set(kwargs).difference(inspect.signature(cls).parameters)


class _ReadKeys(UserDict[str, str]):
    def __init__(self, content: dict[str, str]) -> None:
        super().__init__(content)
        self.names: set[str] = set()

    def __getitem__(self, key: str) -> str:
        self.names.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.names.add(str(key))
        return super().__contains__(key)
