"""Optimizers that transformers knows by name: which of them a run can use here, and what each needs to go on exactly.

A name is judged by the function of transformers that builds it (its family), so no list of names is kept here.

    refused   a package that is missing, a device that is not here, settings that would be left out without a word (`problems`)
    built     as transformers does, with what it hands over wrongly put right (`class_and_arguments`)
    state     all of it, as plain tensors, is in a checkpoint (`prepare`, trainer.loop.optimizer_state)
    backward  LOMO and the layer-wise ones change each weight as soon as its gradient is there, so that all gradients are never
              in memory together. `StepsInBackward` measures them on the way, so the guard still ends a run whose gradient is not
              finite, before that step is saved. Nothing can add gradients up, average them, or scale them by their common norm.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
from collections.abc import Collection, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from params import EvergreenError, ModelError, Problem
from params.distribution import distribution
from params.loading import suggestion
from params.schema import Launch, Training
from trainer.loop import optimizer_state

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, TrainingArguments

_PACKAGES = {
    "apollo": ("apollo_torch", "apollo"),
    "bitsandbytes": ("bitsandbytes", "quantization"),
    "galore": ("galore_torch", "galore"),
    "grokadamw": ("grokadamw", "grokadamw"),
    "lomo": ("lomo_optim", "lomo"),
    "schedule_free": ("schedulefree", "schedule-free"),
    "stable_adamw": ("optimi", "stable-adamw"),
    "torchao": ("torchao", "torchao"),
}
"""Module of each family that is a package of its own, and our extra that installs it."""
_ELSEWHERE = {
    "adamw_anyprecision": ("torchdistx", "which is no longer released"),
    "adamw_torch_npu_fused": ("torch_npu", "for Ascend NPUs"),
    "adamw_torch_xla": ("torch_xla", "for TPUs"),
}
"""Module of each family that this project cannot install, and what it is."""
_LOW_RANK = ("apollo", "galore")
_WITHOUT_BETAS = ("adafactor", "adagrad", "galore", "grokadamw", "lomo", "rmsprop", "sgd")
"""Families to which transformers does not hand `adam_beta1`, `adam_beta2` and `adam_epsilon`."""
_LAYERWISE = "_layerwise"


def problems(training: Training, launch: Launch) -> Iterator[Problem]:
    """What is wrong with the recipe's choice of an optimizer; a name that transformers does not know is not looked at."""
    name = training.optimizer
    if name not in known():
        return
    unavailable = _unavailable(name)
    if unavailable is not None:
        yield Problem(("training", "optimizer"), *unavailable)
        return
    if _in_backward(name):
        yield from _backward_problems(training, launch)
    if _family(name) == "schedule_free":
        yield from _schedule_problems(training)
    if _family(name) in (*_LOW_RANK, "lomo", "grokadamw") and distribution(launch) in ("FSDP", "DeepSpeed"):
        what = f"shares the optimizer's state out, which {name} does not keep in a form that can be"
        yield Problem(("launch", "accelerate_config"), what, "remove the key, or use adamw_torch")
    yield from _target_problems(name, training.arguments.get("optim_target_modules"))
    if _family(name) in _WITHOUT_BETAS or name.startswith("rmsprop") or name == "schedule_free_sgd":
        for argument in ("adam_beta1", "adam_beta2", "adam_epsilon"):
            if argument in training.arguments:
                yield Problem(
                    ("training", "arguments", argument), f"transformers does not hand it to {name}", "remove it"
                )
    given = training.arguments.get("optim_args")
    if isinstance(given, str) and given:
        yield from _argument_problems(name, given)


def known() -> list[str]:
    """The names that transformers knows."""
    from transformers.training_args import OptimizerNames

    return [str(member.value) for member in OptimizerNames]


def class_and_arguments(args: TrainingArguments, model: PreTrainedModel | None) -> tuple[Any, dict[str, Any]]:
    """The optimizer's class and what it is made with, as `Trainer.get_optimizer_cls_and_kwargs` says them.

    A layer-wise optimizer is the ordinary one of its kind, which `StepsInBackward` has make its steps.

    Raises:
        ModelError: `optim_target_modules` names a layer that the model does not have.
    """
    import torch
    from transformers import Trainer
    from transformers.training_args import OptimizerNames

    family = _family(args.optim)
    plain: Any = copy.copy(args)
    plain.optim = OptimizerNames(str(args.optim.value).removesuffix(_LAYERWISE))
    if family in _LOW_RANK and model is not None:
        _check_targets(args.optim_target_modules, model)
    if family == "stable_adamw" and args.optim_args:  # to whom any text, "False" too, means true
        pairs = args.optim_args.split(",")
        plain.optim_args = ",".join(pair for pair in pairs if _value(pair.partition("=")[2].strip()) is not False)
    cls, kwargs = Trainer.get_optimizer_cls_and_kwargs(plain, model)
    kwargs = {key: _value(value) if isinstance(value, str) else value for key, value in kwargs.items()}
    accepted = inspect.signature(cls).parameters
    if "no_deprecation_warning" in accepted:
        kwargs["no_deprecation_warning"] = True
    if "triton" in accepted and not torch.cuda.is_available():
        kwargs["triton"] = False  # it would use its kernels wherever triton can be imported
    return cls, kwargs


def prepare(
    optimizer: torch.optim.Optimizer, args: TrainingArguments, model: torch.nn.Module, decayed: Collection[str]
) -> StepsInBackward | None:
    """Make a new optimizer one whose checkpoints a run goes on from exactly.

    Args:
        optimizer: as Trainer made it.
        args: of the training.
        model: whose weights it changes.
        decayed: names of the parameters that weight decay applies to.

    Returns:
        What makes the steps, if they are made within the backward pass.
    """
    family = _family(args.optim)
    if family in _LOW_RANK:  # transformers puts their weights into groups that know of no decay
        names = {parameter: name for name, parameter in model.named_parameters()}
        _decay(optimizer, args.weight_decay, {p for p, name in names.items() if name in decayed})
    if family in (*_LOW_RANK, "torchao"):
        optimizer_state.keep_objects(optimizer)
    elif family == "grokadamw":
        optimizer_state.keep_groups(optimizer)
    elif family == "lomo":
        optimizer_state.keep_attributes(optimizer)
    return StepsInBackward(optimizer, layerwise=_LAYERWISE in args.optim) if _in_backward(args.optim) else None


class StepsInBackward:
    """Measures each gradient as soon as it is there; layer-wise, also makes the step of that weight and frees the gradient.

    Args:
        optimizer: whose weights these are.
        layerwise: whether to make the steps; LOMO makes its own.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, *, layerwise: bool) -> None:
        self._optimizer = optimizer
        self._scale = getattr(optimizer, "loss_scale", 1.0)  # AdaLOMO multiplies the loss by it
        self._squares: list[torch.Tensor] = []
        self._group = {p: i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
        for parameter in self._group:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._measure)
                if layerwise:
                    parameter.register_post_accumulate_grad_hook(self._step)

    def gradient_norm(self) -> torch.Tensor:
        """Norm of all gradients since the last call."""
        import torch

        squares, self._squares = self._squares, []
        return torch.stack(squares).sum().sqrt() / self._scale

    def _measure(self, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        self._squares.append(parameter.grad.detach().float().square().sum())

    def _step(self, parameter: torch.Tensor) -> None:
        groups = self._optimizer.param_groups
        self._optimizer.param_groups = [{**groups[self._group[parameter]], "params": [parameter]}]
        try:
            self._optimizer.step()
        finally:
            self._optimizer.param_groups = groups
        parameter.grad = None


def _family(name: str) -> str:
    from transformers.trainer_optimizer import _OPTIMIZER_HANDLERS
    from transformers.training_args import OptimizerNames

    return _OPTIMIZER_HANDLERS[OptimizerNames(name)].__name__.removeprefix("_get_").removesuffix("_optimizer")  # type: ignore[no-any-return]


def _in_backward(name: str) -> bool:
    return name.endswith(_LAYERWISE) or _family(name) == "lomo"


def _unavailable(name: str) -> tuple[str, str] | None:
    """Why an optimizer cannot be used here, and what to do."""
    import torch

    family = _family(name)
    if family in _ELSEWHERE and not _is_installed(_ELSEWHERE[family][0]):
        module, what = _ELSEWHERE[family]
        return f"{name} needs {module}, {what}, which is not installed", "use adamw_torch"
    if family == "galore" and "8bit" in name:
        what = f"{name} needs a GPU, and bitsandbytes loads its state past what puts the projections back: no run could go on"
        return what, f"use {name.replace('_8bit', '')}"
    if family in _PACKAGES and not _is_installed(_PACKAGES[family][0]):
        module, extra = _PACKAGES[family]
        return f"{name} needs {module}, which is not installed", f"install it with `pip install 'evergreen[{extra}]'`"
    if name == "adalomo" and not torch.cuda.is_available():
        return "adalomo needs a CUDA GPU, and torch finds none here", "use lomo, or train on a GPU"
    return None


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # sys.modules says that there is none
        return False


def _backward_problems(training: Training, launch: Launch) -> Iterator[Problem]:
    """What an optimizer cannot do that changes weights within the backward pass."""
    from trainer.loop.batch import split_batch

    name, steps = training.optimizer, "changes each weight within the backward pass"
    if launch.num_processes > 1:
        what = f"{name} {steps}, before the processes have averaged its gradient: their weights would differ"
        yield Problem(("launch", "num_processes"), what, "use 1 process, or another optimizer")
    try:
        accumulation = split_batch(training.global_batch_size, launch)[1]
    except EvergreenError:
        accumulation = 1  # told by itself
    if accumulation > 1 and launch.num_processes == 1:
        what = f"{name} {steps}: {accumulation} micro-batches would be as many small steps, and not one"
        fix = f"set it to {training.global_batch_size}, the global batch, or make training.global_batch_size smaller"
        yield Problem(("launch", "micro_batch_size"), what, fix)
    if training.max_grad_norm:
        what = f"{name} {steps}, before the norm of all gradients is known: they would not be scaled down"
        yield Problem(("training", "max_grad_norm"), what, "set it to 0.0")
    if training.precision == "fp16":
        what = f"{name} {steps}, where gradients are still multiplied by the scale of fp16"
        yield Problem(("training", "precision"), what, "use bf16 or fp32")
    if _family(name) == "lomo" and training.weight_decay:
        what = f"transformers does not hand it to {name}: no weight would decay"
        yield Problem(("training", "weight_decay"), what, "set it to 0.0, or use another optimizer")


def _schedule_problems(training: Training) -> Iterator[Problem]:
    """Schedule-Free averages weights instead of lowering the learning rate, and warms up by itself."""
    name = training.optimizer
    if training.lr_scheduler != "constant":
        what = f"{name} takes the place of a schedule: with {training.lr_scheduler} the rate would be lowered, or warmed up twice"
        yield Problem(("training", "lr_scheduler"), what, "set it to constant")
    if name == "schedule_free_radam" and training.warmup_steps:
        what = f"{name} warms up by itself, and would not look at it"
        yield Problem(("training", "warmup_steps"), what, "set it to 0")
    elif 0 < training.warmup_steps < 1:
        what = f"{name} counts it in steps: the first step would have {1 / training.warmup_steps:.0f} times the learning rate"
        yield Problem(("training", "warmup_steps"), what, "give the number of steps, not a share")


def _target_problems(name: str, targets: object) -> Iterator[Problem]:
    key = ("training", "arguments", "optim_target_modules")
    if _family(name) in _LOW_RANK and not targets:
        what = f"{name} projects the gradients of the linear layers that this names, and it names none"
        yield Problem(key, what, "for example [q_proj, v_proj], or all-linear")
    elif _family(name) not in _LOW_RANK and isinstance(targets, str | list) and targets:
        yield Problem(key, f"{name} does not look at it", "remove it, or use galore_adamw or apollo_adamw")


def _argument_problems(name: str, given: str) -> Iterator[Problem]:
    """What is wrong with `optim_args`, of which transformers takes what it knows and leaves out the rest."""
    key = ("training", "arguments", "optim_args")
    pairs = [pair.strip().split("=") for pair in given.split(",")]
    if any(len(pair) != 2 or not all(pair) for pair in pairs):
        yield Problem(key, f"{given!r} is not of the form `name=value,name=value`", "for example `rank=8,scale=0.25`")
        return
    try:
        taken = _arguments_taken(name, {key.strip(): value.strip() for key, value in pairs})
    except ValueError as error:
        yield Problem(key, f"a value is of the wrong type: {error}", f"see {name} in transformers")
        return
    odd = [argument for argument, _ in pairs if argument.strip() not in taken]
    if odd:
        fix = suggestion(odd[0], sorted(taken), "arguments") if taken else "remove it"
        yield Problem(key, f"{name} takes no {', '.join(odd)}", fix)


def _arguments_taken(name: str, given: dict[str, str]) -> set[str]:
    """The names in `optim_args` that an optimizer looks at, found by asking transformers to build it.

    Raises:
        ValueError: a value is not of the right type.
    """
    from transformers.trainer_optimizer import _OPTIMIZER_HANDLERS, OptimizerContext
    from transformers.training_args import OptimizerNames

    seen = _Seen(given)
    settings = {"adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8, "weight_decay": 0.0, "warmup_steps": 0}
    plain = OptimizerNames(name.removesuffix(_LAYERWISE))
    args = SimpleNamespace(optim=plain, optim_target_modules=None, parallel_mode=None, **settings)
    context = OptimizerContext(args=args, model=None, optimizer_kwargs={}, adam_kwargs={}, optim_args=seen)
    try:
        cls, kwargs = _OPTIMIZER_HANDLERS[plain](context)
    except ValueError as error:
        if "model" in str(error) or "optim_target_modules" in str(
            error
        ):  # all that it takes has been looked at by then
            return seen.names
        raise
    return seen.names | (set(kwargs) & set(given) & set(inspect.signature(cls).parameters))


class _Seen(dict[str, str]):
    """A mapping that remembers which keys it was asked for."""

    def __init__(self, content: dict[str, str]) -> None:
        super().__init__(content)
        self.names: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.names.add(key)
        return super().get(key, default)

    def pop(self, key: str, default: Any = None) -> Any:
        self.names.add(key)
        return super().pop(key, default)

    def __contains__(self, key: object) -> bool:
        self.names.add(str(key))
        return super().__contains__(key)


def _value(text: str) -> Any:
    """A value of `optim_args`, where transformers hands it on as text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _check_targets(targets: str | list[str], model: PreTrainedModel) -> None:
    """Every name must stand for a linear layer; transformers is content when one of them does.

    Raises:
        ModelError: one stands for none.
    """
    from torch import nn
    from transformers.trainer_utils import check_target_module_exists

    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if isinstance(targets, str) and targets.replace("_", "-") == "all-linear":
        return
    for target in [targets] if isinstance(targets, str) else targets:
        asked = target if isinstance(targets, str) else [target]
        if not any(check_target_module_exists(asked, name) for name in linear):
            what = f"no linear layer of the model is named {target!r}"
            last = sorted({name.rpartition(".")[2] for name in linear})
            raise ModelError("training.arguments.optim_target_modules", what, suggestion(target, last, "linear layers"))


def _decay(optimizer: torch.optim.Optimizer, weight_decay: float, decayed: Collection[torch.Tensor]) -> None:
    """Give weight decay to the weights of every group that it applies to; a group of both kinds becomes two."""
    for group in list(optimizer.param_groups):
        rest = [p for p in group["params"] if p not in decayed]
        kept = [p for p in group["params"] if p in decayed]
        group["params"], group["weight_decay"] = kept or rest, weight_decay if kept else 0.0
        if kept and rest:
            optimizer.add_param_group({**group, "params": rest, "weight_decay": 0.0})
