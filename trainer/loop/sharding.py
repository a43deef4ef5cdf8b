"""Training whose weights, gradients or optimizer state are shared out over the processes: FSDP2 and DeepSpeed.

accelerate sets both up, from `launch.accelerate_config`. Where it cannot, on a machine without GPUs for instance, it trains
with plain data parallelism instead and says nothing; here that is an error. A checkpoint is written by the processes as
they share it out, so a run goes on from it in the same way only.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from params import CheckpointError, ModelError
from params.distribution import Distribution, distribution
from params.schema import Launch
from trainer.checkpoints.position import Position

if TYPE_CHECKING:
    from transformers import Trainer

_ASKED = {"FSDP": "ACCELERATE_USE_FSDP", "DeepSpeed": "ACCELERATE_USE_DEEPSPEED"}
"""Environment variables by which accelerate's launcher tells the processes what its configuration asks for."""
_TRACES = {"FSDP": "pytorch_model_fsdp*", "DeepSpeed": "global_step*"}
"""What only a checkpoint of each has in it."""
_PLAIN: Distribution = "data parallelism"


def check_installed(launch: Launch) -> None:
    """Check that DeepSpeed is installed if the launch section asks for it.

    Raises:
        ModelError: it is not installed.
    """
    if distribution(launch) == "DeepSpeed" and importlib.util.find_spec("deepspeed") is None:
        what = f"{launch.accelerate_config} asks for DeepSpeed, which is not installed"
        fix = "pip install 'evergreen[deepspeed]', or use params/accelerate/fsdp2.yaml, which needs nothing more"
        raise ModelError("launch.accelerate_config", what, fix)


def is_sharded(trainer: Trainer) -> bool:
    """Return whether each process holds a part of the weights or of the optimizer's state only."""
    return bool(trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled)


def kind(trainer: Trainer) -> Distribution:
    """How `trainer` shares its model out."""
    return "FSDP" if trainer.is_fsdp_enabled else "DeepSpeed" if trainer.is_deepspeed_enabled else _PLAIN


def check(trainer: Trainer, checkpoint: Path | None) -> None:
    """See that `trainer` shares its model out as the launcher was told, and as `checkpoint` was.

    Raises:
        ModelError: accelerate does not do what its configuration asks for.
        CheckpointError: the checkpoint was written in another way.
    """
    import torch

    found = kind(trainer)
    for asked, variable in _ASKED.items():
        if os.environ.get(variable, "").lower() == "true" and found != asked:
            gpus = "needs GPUs, of which torch finds none here" if not torch.cuda.is_available() else "was left out"
            what = f"asks for {asked}, which {gpus}: accelerate would train with plain {found}"
            raise ModelError("launch.accelerate_config", what, "train on GPUs, or remove the key")
    if checkpoint is None:
        return
    traces = (name for name, trace in _TRACES.items() if any(checkpoint.glob(trace)))
    written = next(traces, _PLAIN)
    processes = Position.load(checkpoint).processes
    if written != found:
        what = f"was written under {written}, and this start uses {found}"
        fix = "go on with the launch.accelerate_config of before, or set training.resume to `never`"
        raise CheckpointError(str(checkpoint), what, fix)
    if found == "DeepSpeed" and processes != trainer.args.world_size:
        what = f"was written by {processes} processes, and DeepSpeed cannot go on with {trainer.args.world_size}"
        fix = f"set launch.num_processes to {processes}, or training.resume to `never`; FSDP can go on with any number"
        raise CheckpointError(str(checkpoint), what, fix)


def check_wrapped(trainer: Trainer) -> None:
    """See, once accelerate has prepared the model, that FSDP2 really shares it out.

    Raises:
        ModelError: it does not.
    """
    from torch.distributed.fsdp import FSDPModule

    model = trainer.accelerator.unwrap_model(trainer.model_wrapped, keep_torch_compile=False)
    if trainer.is_fsdp_enabled and not isinstance(model, FSDPModule):
        what = f"asks for FSDP, but the model is a {type(model).__name__} that FSDP2 does not share out"
        raise ModelError(
            "launch.accelerate_config", what, "set fsdp_version to 2, as params/accelerate/fsdp2.yaml does"
        )


def whole_weights(trainer: Trainer) -> dict[str, Any]:
    """All weights, gathered from the processes into the memory of the first; the others take part and get none.

    Names whose weights the model ties get one tensor again, of which safetensors then stores one copy.
    """
    weights: dict[str, Any] = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    model = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
    for name, source in (getattr(model, "all_tied_weights_keys", None) or {}).items():
        if name in weights and source in weights:
            weights[name] = weights[source]
    return weights
