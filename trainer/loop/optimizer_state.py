"""Optimizers whose state torch would not save or load correctly: in a checkpoint all of it becomes plain tensors.

Python objects would be saved while the training loop changes them, and torch refuses to load them, or tensor subclasses,
with `weights_only=True`. What an optimizer keeps outside of its state is not saved at all. Each function here corrects one
of these with torch's state_dict hooks.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_PLAIN = ("galore_torch.", "apollo_torch.", "torchao.optim.")
"""Modules whose objects are converted to plain tensors."""
_OF = "class"
_MOMENTS = ("step_num", "exp_avg_sq", "exp_avg_sq_row", "exp_avg_sq_col")
"""Attributes in which AdaLOMO keeps its state; LOMO has none."""


def save_objects_as_tensors(optimizer: torch.optim.Optimizer) -> None:
    """For GaLore and APOLLO, whose projections are Python objects, and for torchao, whose tensors are quantized."""
    optimizer.register_state_dict_post_hook(_to_plain_tensors)
    optimizer.register_load_state_dict_pre_hook(_from_plain_tensors)


def save_state_of_groups(optimizer: torch.optim.Optimizer) -> None:
    """For GrokAdamW, which keeps its state in the parameter groups, where torch does not restore it."""
    optimizer.register_state_dict_post_hook(_state_out_of_groups)
    optimizer.register_load_state_dict_post_hook(_state_into_groups)


def save_attributes(optimizer: torch.optim.Optimizer) -> None:
    """For AdaLOMO, which keeps its moments in attributes of the optimizer."""
    optimizer.register_state_dict_post_hook(_add_moments)
    optimizer.register_load_state_dict_pre_hook(_take_moments)


def _to_plain_tensors(_: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return the state with plain tensors in place of projections and quantized tensors."""
    return state_dict | {"state": {i: {k: _parts(v) for k, v in s.items()} for i, s in state_dict["state"].items()}}


def _from_plain_tensors(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Undo `_to_plain_tensors`. Projections move to the device of their weights; torch moves only tensors."""
    devices = [parameter.device for parameter in _parameters(optimizer)]
    state = {i: {k: _whole(v, devices[i]) for k, v in s.items()} for i, s in state_dict["state"].items()}
    return state_dict | {"state": state}


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the parameters in the order in which a state_dict numbers them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _parts(value: Any) -> Any:
    of = f"{type(value).__module__}.{type(value).__qualname__}"
    if not of.startswith(_PLAIN):
        return value
    if hasattr(value, "__tensor_flatten__"):
        names, context = value.__tensor_flatten__()
        return {_OF: of, "tensors": {name: getattr(value, name) for name in names}, "context": context}
    return {_OF: of, "attributes": {name: _with_strides(attribute) for name, attribute in vars(value).items()}}


def _whole(value: Any, device: torch.device) -> Any:
    if not (isinstance(value, dict) and str(value.get(_OF, "")).startswith(_PLAIN)):
        return value
    module, _, name = value[_OF].rpartition(".")
    cls = getattr(importlib.import_module(module), name)
    if "tensors" in value:
        return cls.__tensor_unflatten__(value["tensors"], value["context"], None, None)
    made = cls.__new__(cls)
    vars(made).update({name: _without_strides(attribute, device) for name, attribute in value["attributes"].items()})
    return made


def _with_strides(value: Any) -> Any:
    """Keep the strides of tensors: with other strides, a matrix product adds up in another order, to other bits."""
    import torch

    if isinstance(value, list):
        return [_with_strides(v) for v in value]
    return {"values": value, "stride": list(value.stride())} if isinstance(value, torch.Tensor) else value


def _without_strides(value: Any, device: torch.device) -> Any:
    import torch

    if isinstance(value, list):
        return [_without_strides(v, device) for v in value]
    if not isinstance(value, dict):
        return value
    tensor: torch.Tensor = value["values"]
    return torch.empty_strided(tensor.shape, value["stride"], dtype=tensor.dtype, device=device).copy_(tensor)


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
