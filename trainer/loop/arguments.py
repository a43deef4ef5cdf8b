"""transformers.TrainingArguments from a recipe, and the fields that a recipe may not set.

The recipe's own keys are translated. `training.arguments` passes any other field through by its name, except those that the
pipeline sets itself: they are refused, each with the reason.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic

from params import ModelError, Problem
from params.distribution import read_parallelism_strategy
from params.foundation.installation import install_module
from params.problems import suggestion
from params.schema import Launch, Training
from params.sections.base import Direction
from trainer.loop import optimizer_check
from trainer.loop.batch import interval_steps, micro_batch_and_accumulation, total_steps
from trainer.objectives.bases.lazy_imports import torch, transformers
from trainer.reporting import trackers

_OWN_KEYS = {
    "num_train_epochs": "training.epochs",
    "max_steps": "training.max_steps",
    "learning_rate": "training.learning_rate",
    "lr_scheduler_type": "training.lr_scheduler",
    "warmup_steps": "training.warmup_steps",
    "weight_decay": "training.weight_decay",
    "max_grad_norm": "training.max_grad_norm",
    "optim": "training.optimizer",
    "bf16": "training.precision",
    "fp16": "training.precision",
    "gradient_checkpointing": "training.gradient_checkpointing",
    "activation_checkpointing": "training.gradient_checkpointing",
    "gradient_checkpointing_kwargs": "training.arguments.activation_checkpointing_kwargs",
    "train_sampling_strategy": "training.group_by_length",
    "eval_steps": "training.eval_steps",
    "save_steps": "training.save_steps",
    "logging_steps": "training.logging_steps",
    "metric_for_best_model": "training.best_metric",
    "save_total_limit": "training.keep_checkpoints",
    "seed": "seed",
    "data_seed": "seed",
    "dataloader_num_workers": "launch.dataloader_workers",
    "per_device_eval_batch_size": "launch.eval_batch_size",
    "fsdp": "launch.accelerate_config",
    "fsdp_config": "launch.accelerate_config",
    "deepspeed": "launch.accelerate_config",
    # of transformers.Seq2SeqTrainingArguments
    "predict_with_generate": "objective.generate",
    "generation_max_length": "objective.max_new_tokens",
    "generation_num_beams": "objective.num_beams",
    "sortish_sampler": "training.group_by_length",
}
_REFUSED = {
    "output_dir": "a run's folder is named after everything that decides its weights",
    "resume_from_checkpoint": "a run resumes from its newest valid checkpoint by itself",
    "ignore_data_skip": "a resumed run continues with the row after the last one",
    "per_device_train_batch_size": "it follows from training.global_batch_size and launch.micro_batch_size",
    "gradient_accumulation_steps": "it follows from training.global_batch_size, launch.micro_batch_size and processes",
    "auto_find_batch_size": "it would change the global batch; launch.out_of_memory_retries halves the micro-batch only",
    "dataloader_drop_last": "every epoch is cut to whole global batches",
    "greater_is_better": "each metric of an objective knows its direction",
    "load_best_model_at_end": "the best weights are kept apart and published",
    "eval_strategy": "evaluation runs at start, every training.eval_steps and at the end",
    "eval_on_start": "evaluation always runs before the first step",
    "save_strategy": "the best weights are always kept, and checkpoints come every training.save_steps or save_minutes",
    "save_only_model": "a run cannot resume from a checkpoint without optimizer state",
    "enable_jit_checkpoint": "it is not exact, and ranks do not agree on the step",
    "batch_eval_metrics": "metrics are always accumulated per batch, so that memory does not grow with the split",
    "prediction_loss_only": "metrics are computed from logits, weighted by token or row",
    "eval_do_concat_batches": "metrics are always accumulated per batch",
    "eval_use_gather_object": "metrics are gathered as tensors",
    "remove_unused_columns": "an objective's collator takes what it needs",
    "label_names": "an objective's collator names the labels",
    "push_to_hub": "the publish stage pushes, exactly once",
    "accelerator_config": "the pipeline distributes batches and counts accumulation itself",
    "parallelism_config": "it is a Python object; launch.accelerate_config says how processes share a model",
    "average_tokens_across_devices": "equal steps on any number of processes need the token count of all of them",
    "bf16_full_eval": "it only acts outside of training, where the evaluate stage evaluates in full precision",
    "fp16_full_eval": "it only acts outside of training, where the evaluate stage evaluates in full precision",
    "dataloader_in_order": "batches out of order would not be reproducible",
    "dataloader_multiprocessing_context": "loader workers are forked: an objective's collator cannot be pickled",
    "length_column_name": "the tokenize stage counts lengths",
    "restore_callback_states_from_checkpoint": "a resumed run always restores the state of its callbacks",
    "ddp_find_unused_parameters": "without it, a resumed run would add gradients in another order",
    "ddp_static_graph": "with it, a resumed run would add gradients in another order",
    "save_on_each_node": "all machines share the run's folder, and one process writes to it",
    "disable_tqdm": "progress is logged in lines, which flows and files show too",
    "do_train": "the train stage trains",
    "do_eval": "the evaluate stage evaluates",
    "do_predict": "the evaluate stage evaluates",
    "use_cpu": "a GPU is used when there is one",
    "local_rank": "accelerate sets it",
    "logging_nan_inf_filter": "a loss that is not finite must show",
}
_NEEDS_GPU = {"use_liger_kernel": "Liger's kernels need a GPU", "tf32": "TF32 is a number format that needs a GPU"}


def training_argument_types() -> dict[str, Any]:
    hints = typing.get_type_hints(transformers.TrainingArguments)
    return {field.name: hints[field.name] for field in dataclasses.fields(transformers.TrainingArguments) if field.init}


def place_of_argument(name: str) -> str | None:
    """Return what to do about an argument of transformers' Trainer that stands as a key in `training`; None for other names."""
    if name in _OWN_KEYS:
        return f"set `{_OWN_KEYS[name]}` instead"
    if name in _REFUSED:
        return f"remove it: {_REFUSED[name]}"
    return f"write it as `training.arguments.{name}`" if name in training_argument_types() else None


def find_argument_problems(arguments: dict[str, Any]) -> list[Problem]:
    """Return what is wrong with `training.arguments`: unknown fields, refused fields, values of the wrong type."""
    known = training_argument_types() if arguments else {}  # it imports torch
    found = []
    for name, value in arguments.items():
        key = ("training", "arguments", name)
        if name in _OWN_KEYS:
            found.append(Problem(key, "has its own key in a recipe", f"set `{_OWN_KEYS[name]}` instead"))
        elif name in _REFUSED or name.startswith("hub_"):
            reason = _REFUSED.get(name, "the publish stage pushes, exactly once")
            found.append(Problem(key, f"is set by the pipeline: {reason}", "remove it"))
        elif name == "report_to" and (wrong := trackers.find_tracker_problems(value)):
            found += wrong
        elif name not in known:
            close = suggestion(name, list(known)).removeprefix("did you mean ").strip("`?")
            fix = (
                f"did you mean `{_OWN_KEYS.get(close, close)}`?"
                if close in known
                else "see transformers.TrainingArguments"
            )
            found.append(Problem(key, "transformers.TrainingArguments has no such field", fix))
        else:
            try:
                # strict: transformers does not convert values, and would take the text "no" for true
                expected = pydantic.TypeAdapter(known[name], config={"arbitrary_types_allowed": True})
                expected.validate_python(value, strict=True)
            except pydantic.ValidationError as error:
                what = f"{error.errors()[0]['msg']}, found {value!r}"
                found.append(Problem(key, what, f"its type is {getattr(known[name], '__name__', known[name])}"))
    return found


def find_launch_conflicts(training: Training, launch: Launch) -> list[Problem]:
    """Return what in the training section conflicts with this machine or the launch section."""
    return [
        *_find_gpu_problems(training),
        *_find_idle_arguments(training, launch),
        *optimizer_check.find_optimizer_problems(training, launch),
    ]


def _find_gpu_problems(training: Training) -> Iterator[Problem]:
    """Yield what needs a GPU or a library for one that is not here."""
    for name, why in _NEEDS_GPU.items():
        if training.arguments.get(name) and not torch.cuda.is_available():
            fix = "remove it, or train on a GPU"
            yield Problem(("training", "arguments", name), f"{why}, and torch finds none here", fix)
    if training.precision == "fp16" and not torch.cuda.is_available():
        what = "fp16 scales its gradients, which needs a GPU, and torch finds none here"
        yield Problem(("training", "precision"), what, "use bf16, which CPUs can, or train on a GPU")
    if training.arguments.get("use_liger_kernel") and torch.cuda.is_available() and not _is_installed("liger_kernel"):
        key = ("training", "arguments", "use_liger_kernel")
        yield Problem(key, "liger-kernel is not installed", install_module("liger_kernel"))


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _find_idle_arguments(training: Training, launch: Launch) -> Iterator[Problem]:
    """Yield arguments that would do nothing, or not what they are for, beside other keys."""
    given, key = training.arguments, ("training", "arguments")
    if given.get("label_smoothing_factor") and training.loss is not None:
        what = "does nothing: training.loss replaces the loss that it would smooth"
        fix = "remove one of them; trainer.losses:cross_entropy takes `smoothing` as an argument"
        yield Problem((*key, "label_smoothing_factor"), what, fix)
    recomputation, kind = given.get("activation_checkpointing_kwargs") or {}, read_parallelism_strategy(launch)
    if recomputation.get("use_reentrant") and launch.num_processes > 1 and kind == "data parallelism":
        what = "the older form of gradient checkpointing cannot resume exactly on several processes"
        fix = "remove use_reentrant: the default form gives the same gradients"
        yield Problem((*key, "activation_checkpointing_kwargs"), what, fix)
    for name in ("dataloader_persistent_workers", "dataloader_prefetch_factor"):
        if given.get(name) and not launch.dataloader_workers:
            fix = "set launch.dataloader_workers to 1 or more"
            yield Problem((*key, name), "does nothing without loader workers", fix)


def build_training_arguments(
    *, folder: Path, seed: int, training: Training, launch: Launch, direction: Direction, rows: int
) -> Any:
    """Return the TrainingArguments of a run.

    `direction` is that of `training.best_metric`; `rows`, the sequences of the train split, decide the number of steps.

    Raises:
        RecipeError: the processes cannot share the batch evenly.
        ModelError: TrainingArguments refuses a value.
    """
    micro_batch, accumulation = micro_batch_and_accumulation(training.global_batch_size, launch)
    total = total_steps(training, rows)
    own: dict[str, Any] = {
        "output_dir": str(folder),
        "seed": seed,
        "data_seed": seed,
        "num_train_epochs": training.epochs or 1.0,
        "max_steps": total if training.streaming else training.max_steps or -1,
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "per_device_eval_batch_size": launch.eval_batch_size,
        "learning_rate": training.learning_rate,
        "lr_scheduler_type": training.lr_scheduler,
        "warmup_steps": training.warmup_steps,
        "weight_decay": training.weight_decay,
        "max_grad_norm": training.max_grad_norm,
        "optim": training.optimizer,
        "bf16": training.precision == "bf16",
        "fp16": training.precision == "fp16",
        "activation_checkpointing": training.gradient_checkpointing,
        "eval_strategy": "steps",
        "eval_steps": interval_steps(training.eval_steps, total),
        "eval_on_start": True,
        "metric_for_best_model": training.best_metric,
        "greater_is_better": direction == "max",
        "batch_eval_metrics": True,
        "save_strategy": "no",
        "save_steps": interval_steps(training.save_steps, total),
        "logging_steps": training.logging_steps,
        "logging_nan_inf_filter": False,
        "dataloader_num_workers": launch.dataloader_workers,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "remove_unused_columns": False,
        "label_names": ["labels"],
        "log_level_replica": "error",  # the first process logs for all
        "report_to": "none",
        "run_name": folder.name,
        "project": trackers.tracker_folder(folder).parent.name,
        "disable_tqdm": True,
        "use_cpu": not torch.cuda.is_available(),
        "restore_callback_states_from_checkpoint": True,
    }
    try:
        args = transformers.TrainingArguments(**(own | training.arguments))
    except (ValueError, TypeError, ImportError) as error:
        raise ModelError("training", f"refused by transformers: {error}", "fix the training section") from error
    trackers.set_tracker_environment(folder, args.report_to, args.project)
    return args
