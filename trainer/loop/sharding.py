"""Weights, gradients or optimizer state sharded over the processes, by FSDP2 or DeepSpeed.

accelerate sets both up from `launch.accelerate_config`. Where it cannot, for example without GPUs, it silently trains with
plain data parallelism; here that is an error. Each process writes its shard of a checkpoint, so a run resumes from it only
under the same kind of sharding.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

from params import CheckpointError, ModelError
from params.distribution import Distribution, read_parallelism_strategy
from params.foundation.installation import install_extra
from params.schema import Launch
from trainer.checkpoints.sealed import ResumePosition
from trainer.objectives.bases.lazy_imports import torch, transformers

_REQUESTED_BY = {"FSDP": "ACCELERATE_USE_FSDP", "DeepSpeed": "ACCELERATE_USE_DEEPSPEED"}
"""Environment variables with which accelerate's launcher passes on what its configuration asks for."""
_FILES_OF = {"FSDP": "pytorch_model_fsdp*", "DeepSpeed": "global_step*"}
"""Files that only a checkpoint of each kind has."""
_PLAIN: Distribution = "data parallelism"


def check_deepspeed_installed(launch: Launch) -> None:
    """Raise ModelError if the launch section asks for DeepSpeed and it is not installed."""
    if read_parallelism_strategy(launch) == "DeepSpeed" and importlib.util.find_spec("deepspeed") is None:
        what = f"{launch.accelerate_config} asks for DeepSpeed, which is not installed"
        fix = f"{install_extra('deepspeed')}, or use params/accelerate/fsdp2.yaml, which needs nothing more"
        raise ModelError("launch.accelerate_config", what, fix)


def check_gpus_to_shard_over(launch: Launch) -> None:
    """Raise ModelError if the launch section asks for FSDP or DeepSpeed, and torch finds no GPU: accelerate would train without."""
    kind = read_parallelism_strategy(launch)
    if kind in _REQUESTED_BY and not torch.cuda.is_available():
        raise ModelError("launch.accelerate_config", *_without_gpus(kind, f"{launch.accelerate_config} "))


def _without_gpus(kind: str, config: str = "") -> tuple[str, str]:
    what = f"{config}asks for {kind}, which needs GPUs, and torch finds none here: accelerate would train with plain {_PLAIN}"
    return what, "train on GPUs, or remove the key"


def is_sharded(trainer: transformers.Trainer) -> bool:
    """Return whether each process holds a part of the weights or of the optimizer's state only."""
    return bool(trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled)


def check_sharding_as_requested(trainer: transformers.Trainer, checkpoint: Path | None) -> None:
    """Check how the model is sharded.

    Raises:
        ModelError: accelerate does not do what its configuration asks for.
        CheckpointError: the checkpoint was written under another kind of sharding.
    """
    found: Distribution = _PLAIN
    if trainer.is_fsdp_enabled:
        found = "FSDP"
    elif trainer.is_deepspeed_enabled:
        found = "DeepSpeed"
    for requested, variable in _REQUESTED_BY.items():
        if os.environ.get(variable, "").lower() == "true" and found != requested:
            what, fix = _without_gpus(requested)
            if torch.cuda.is_available():
                what = f"asks for {requested}, which was ignored: accelerate would train with plain {found}"
            raise ModelError("launch.accelerate_config", what, fix)
    if checkpoint is None:
        return
    written = next((name for name, pattern in _FILES_OF.items() if any(checkpoint.glob(pattern))), _PLAIN)
    processes = ResumePosition.load(checkpoint).processes
    if written != found:
        what = f"was written under {written}, and this start uses {found}"
        fix = "use the earlier launch.accelerate_config, or set training.resume to `never`"
        raise CheckpointError(str(checkpoint), what, fix)
    if found == "DeepSpeed" and processes != trainer.args.world_size:
        what = f"was written by {processes} processes, and DeepSpeed cannot resume with {trainer.args.world_size}"
        fix = f"set launch.num_processes to {processes}, or training.resume to `never`; FSDP can resume with any number"
        raise CheckpointError(str(checkpoint), what, fix)


def check_fsdp2_wrapped(trainer: transformers.Trainer) -> None:
    """Raise ModelError if FSDP is on and FSDP2 does not shard the model that accelerate has prepared."""
    from torch.distributed.fsdp import FSDPModule

    model = trainer.accelerator.unwrap_model(trainer.model_wrapped, keep_torch_compile=False)
    if trainer.is_fsdp_enabled and not isinstance(model, FSDPModule):
        what = f"asks for FSDP, but the model is a {type(model).__name__}, which FSDP2 does not shard"
        fix = "set fsdp_version to 2, as params/accelerate/fsdp2.yaml does"
        raise ModelError("launch.accelerate_config", what, fix)


def gather_whole_weights(trainer: transformers.Trainer) -> dict[str, Any]:
    """Return all weights, gathered in the memory of the first process; the others take part and get none.

    Tied weights are one tensor again, so that safetensors stores one copy.
    """
    weights: dict[str, Any] = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    model = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
    for name, source in (getattr(model, "all_tied_weights_keys", None) or {}).items():
        if name in weights and source in weights:
            weights[name] = weights[source]
    return weights


def make_ddp_resumable(trainer: transformers.Trainer) -> None:
    """Let data parallelism resume exactly, and without needless copies.

    Without the search for unused parameters, torch rearranges the gradients after the first step of each start, and a resumed run
    on more than two processes adds them in another order. Buffers that are not saved follow from the configuration, so all
    processes have the same ones.
    """
    ddp, saved = trainer.accelerator.ddp_handler, trainer.model.state_dict()
    ddp.gradient_as_bucket_view = ddp.find_unused_parameters = True
    if trainer.args.ddp_broadcast_buffers is None:
        ddp.broadcast_buffers = any(name in saved for name, _ in trainer.model.named_buffers())
