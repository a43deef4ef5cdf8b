"""Optimizers that transformers knows by name, built so that a run can resume exactly.

No list of names is kept here: the function of transformers that builds an optimizer tells its family.

    building    as transformers does, with the arguments that it passes wrongly corrected (`optimizer_class_and_arguments`)
    state       all of it is in a checkpoint, as plain tensors (`fix_resuming`): torch refuses to load Python objects and tensor subclasses
                with `weights_only=True`, and what an optimizer keeps outside of its state is not saved at all
    backward    LOMO and the layer-wise optimizers change each weight as soon as its gradient is there, so that all gradients
                are never in memory together. `BackwardGradientHooks` computes the gradient norm meanwhile, for the guard. Such
                gradients cannot be accumulated, averaged over processes or clipped by their common norm.

trainer.loop.optimizer_check reports what a recipe's optimizer cannot do.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Collection
from typing import Any

from params import ModelError
from params.problems import suggestion
from trainer.objectives.bases.lazy_imports import PreTrainedModel, torch, transformers

LOW_RANK = ("apollo", "galore")
"""Families that project gradients of linear layers to few dimensions."""
LAYERWISE = "_layerwise"
"""End of the names of layer-wise optimizers."""
_OBJECTS = ("galore_torch.", "apollo_torch.", "torchao.optim.")
"""Modules of what is saved as plain tensors: projections, which are Python objects, and quantized tensors."""
_MOMENTS = ("step_num", "exp_avg_sq", "exp_avg_sq_row", "exp_avg_sq_col")
"""Attributes in which AdaLOMO keeps its state; LOMO has none."""


def known_optimizers() -> list[str]:
    """Return the names that transformers knows."""
    from transformers.training_args import OptimizerNames

    return [str(member.value) for member in OptimizerNames]


def optimizer_family(name: str) -> str:
    """Return the family of an optimizer: the name of the function of transformers that builds it."""
    from transformers.trainer_optimizer import _OPTIMIZER_HANDLERS
    from transformers.training_args import OptimizerNames

    return _OPTIMIZER_HANDLERS[OptimizerNames(name)].__name__.removeprefix("_get_").removesuffix("_optimizer")  # type: ignore[no-any-return]


def steps_in_backward(name: str) -> bool:
    """Return whether an optimizer changes weights during the backward pass."""
    return name.endswith(LAYERWISE) or optimizer_family(name) == "lomo"


def optimizer_class_and_arguments(
    args: transformers.TrainingArguments, model: PreTrainedModel | None
) -> tuple[Any, dict[str, Any]]:
    """Return the optimizer's class and keyword arguments, as `Trainer.get_optimizer_cls_and_kwargs` does.

    For a layer-wise optimizer these are those of the plain one; `BackwardGradientHooks` runs its steps.

    Raises:
        ModelError: `optim_target_modules` names a layer that the model does not have.
    """
    from transformers.training_args import OptimizerNames

    kind = optimizer_family(args.optim)
    plain: Any = copy.copy(args)
    plain.optim = OptimizerNames(str(args.optim.value).removesuffix(LAYERWISE))
    if kind in LOW_RANK and model is not None:
        _check_targets(args.optim_target_modules, model)
    if kind == "stable_adamw" and args.optim_args:  # it takes any text for true, "False" too
        pairs = args.optim_args.split(",")
        plain.optim_args = ",".join(pair for pair in pairs if _value(pair.partition("=")[2].strip()) is not False)
    cls, kwargs = transformers.Trainer.get_optimizer_cls_and_kwargs(plain, model)
    kwargs = {key: _value(value) if isinstance(value, str) else value for key, value in kwargs.items()}
    accepted = inspect.signature(cls).parameters
    if "no_deprecation_warning" in accepted:
        kwargs["no_deprecation_warning"] = True
    if "triton" in accepted and not torch.cuda.is_available():
        kwargs["triton"] = False  # otherwise it uses triton wherever it can be imported
    return cls, kwargs


def fix_resuming(
    optimizer: torch.optim.Optimizer,
    args: transformers.TrainingArguments,
    model: torch.nn.Module,
    decayed: Collection[str],
) -> BackwardGradientHooks | None:
    """Make a new optimizer save its whole state, and apply weight decay to the parameters named in `decayed`.

    Return what runs the steps of an optimizer that changes weights during the backward pass, otherwise None.
    """
    kind = optimizer_family(args.optim)
    if kind in LOW_RANK:  # transformers puts their weights into groups without decay
        names = {parameter: name for name, parameter in model.named_parameters()}
        _decay(optimizer, args.weight_decay, {p for p, name in names.items() if name in decayed})
    if kind in (*LOW_RANK, "torchao"):
        optimizer.register_state_dict_post_hook(_objects_to_tensors)
        optimizer.register_load_state_dict_pre_hook(_tensors_to_objects)
    elif kind == "grokadamw":  # its state is in the parameter groups, where torch does not restore it
        optimizer.register_state_dict_post_hook(_state_out_of_groups)
        optimizer.register_load_state_dict_post_hook(_state_into_groups)
    elif kind == "lomo":
        optimizer.register_state_dict_post_hook(_add_moments)
        optimizer.register_load_state_dict_pre_hook(_take_moments)
    return (
        BackwardGradientHooks(optimizer, layerwise=LAYERWISE in args.optim) if steps_in_backward(args.optim) else None
    )


class BackwardGradientHooks:
    """Adds up the norm of gradients as they come.

    For a layer-wise optimizer it also updates the weight and frees the gradient at once; LOMO does so itself.
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
        """Return the norm of all gradients since the last call."""
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


def _value(text: str) -> Any:
    """Return a value of `optim_args`, which transformers may pass on as text, with its type."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _check_targets(targets: str | list[str], model: PreTrainedModel) -> None:
    """Raise ModelError if a target matches no linear layer; transformers only checks that one of them does."""
    from torch import nn
    from transformers.trainer_utils import check_target_module_exists

    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if isinstance(targets, str) and targets.replace("_", "-") == "all-linear":
        return
    for target in [targets] if isinstance(targets, str) else targets:
        pattern = target if isinstance(targets, str) else [target]
        if not any(check_target_module_exists(pattern, name) for name in linear):
            what = f"no linear layer of the model is named {target!r}"
            last = sorted({name.rpartition(".")[2] for name in linear})
            raise ModelError("training.arguments.optim_target_modules", what, suggestion(target, last, "linear layers"))


def _decay(optimizer: torch.optim.Optimizer, weight_decay: float, decayed: Collection[torch.Tensor]) -> None:
    """Set weight decay for the weights it applies to; a group with both kinds of weights becomes two."""
    for group in list(optimizer.param_groups):
        rest = [p for p in group["params"] if p not in decayed]
        kept = [p for p in group["params"] if p in decayed]
        group["params"], group["weight_decay"] = kept or rest, weight_decay if kept else 0.0
        if kept and rest:
            optimizer.add_param_group({**group, "params": rest, "weight_decay": 0.0})


def _objects_to_tensors(_: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    state = {i: {name: _parts(value) for name, value in own.items()} for i, own in state_dict["state"].items()}
    return state_dict | {"state": state}


def _tensors_to_objects(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Projections move to the device of their weights; torch moves only tensors."""
    devices = [parameter.device for parameter in _parameters(optimizer)]
    state = {i: {k: _whole(v, devices[i]) for k, v in own.items()} for i, own in state_dict["state"].items()}
    return state_dict | {"state": state}


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the parameters in the order in which a state_dict numbers them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _parts(value: Any) -> Any:
    of = f"{type(value).__module__}.{type(value).__qualname__}"
    if not of.startswith(_OBJECTS):
        return value
    if hasattr(value, "__tensor_flatten__"):
        names, context = value.__tensor_flatten__()
        return {"class": of, "tensors": {name: getattr(value, name) for name in names}, "context": context}
    return {"class": of, "attributes": dict(vars(value))}


def _whole(value: Any, device: torch.device) -> Any:
    from torch.utils._pytree import tree_map_only

    if not (isinstance(value, dict) and str(value.get("class", "")).startswith(_OBJECTS)):
        return value
    module, _, name = value["class"].rpartition(".")
    cls = getattr(importlib.import_module(module), name)
    if "tensors" in value:
        return cls.__tensor_unflatten__(value["tensors"], value["context"], None, None)
    made = cls.__new__(cls)
    vars(made).update(tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), value["attributes"]))
    return made


def _state_out_of_groups(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    index = {parameter: i for i, parameter in enumerate(_parameters(optimizer))}
    state = {index[p]: s for group in state_dict["param_groups"] for p, s in group.pop("state", {}).items()}
    return state_dict | {"state": state}


def _state_into_groups(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["state"] = {p: optimizer.state.pop(p) for p in group["params"] if p in optimizer.state}


def _add_moments(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    return state_dict | {"moments": {name: getattr(optimizer, name) for name in _MOMENTS if hasattr(optimizer, name)}}


def _take_moments(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    for name, value in state_dict["moments"].items():
        if isinstance(value, dict):
            own: dict[str, torch.Tensor] = getattr(optimizer, name)
            for parameter, tensor in value.items():
                own[parameter].copy_(tensor)
        else:
            setattr(optimizer, name, value)
    return {key: value for key, value in state_dict.items() if key != "moments"}
