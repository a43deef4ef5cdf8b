"""The arguments of an iterative trainer, in addition to transformers' own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from transformers import SchedulerType, TrainingArguments

_WITHOUT_END = {"linear", "constant", "constant_with_warmup", "inverse_sqrt", "reduce_lr_on_plateau", "greedy"}
"""Schedules that work without `max_steps`; linear, the default, is then constant after its warm-up."""
_REFUSED = {
    "auto_find_batch_size": "it would restart the loop, which is your script's; lower per_device_train_batch_size",
    "load_best_model_at_end": "training has no defined end; load the best checkpoint yourself",
    "neftune_noise_alpha": "only Trainer's own loop supports it; leave it out",
    "use_liger_kernel": "only Trainer's own loop supports it; apply the kernels to the model before you pass it",
}


@dataclass
class IterativeSFTConfig(TrainingArguments):
    """TrainingArguments with four more fields; transformers.HfArgumentParser turns all of them into command-line flags.

    Raises:
        ValueError: `truncation_mode`, `max_length` or `model_init_kwargs` is invalid.
    """

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [*TrainingArguments._VALID_DICT_FIELDS, "model_init_kwargs"]  # noqa: SLF001

    logging_steps: float = field(
        default=10,
        metadata={"help": "Optimizer steps between log lines; below 1, a share of `max_steps`."},
    )
    model_init_kwargs: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Arguments of `from_pretrained` for a model given by name, as JSON on a command line. "
            "`dtype` (or its old name `torch_dtype`) may be a string, for example bfloat16."
        },
    )
    max_length: int | None = field(
        default=None,
        metadata={
            "help": "Maximum length of a sequence in tokens; longer ones are truncated. Unset: nothing is truncated."
        },
    )
    truncation_mode: Literal["keep_end", "keep_start"] = field(
        default="keep_end",
        metadata={"help": "Which tokens of a truncated sequence stay: the last ones, or the first."},
    )
    optimize_device_cache: bool = field(
        default=False,
        metadata={"help": "Free the device's unused memory after every call of `step`: slower, but uses less memory."},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.truncation_mode not in ("keep_end", "keep_start"):
            raise ValueError(
                f"IterativeSFTConfig.truncation_mode is {self.truncation_mode!r}; use 'keep_end' or 'keep_start'"
            )
        if self.max_length is not None and self.max_length < 2:
            raise ValueError(
                f"IterativeSFTConfig.max_length is {self.max_length}, which leaves nothing to predict; "
                "use 2 or more, or None to truncate nothing"
            )
        if self.model_init_kwargs is not None and not isinstance(self.model_init_kwargs, dict):
            raise ValueError(
                f"IterativeSFTConfig.model_init_kwargs is {self.model_init_kwargs!r}; "
                """use a dictionary, or on a command line JSON such as '{"dtype": "bfloat16"}'"""
            )


def check_arguments(args: object, *, model_name: str, schedule: object) -> TrainingArguments:
    """Return the caller's arguments, by default an IterativeSFTConfig; ValueError if one of them needs Trainer's loop."""
    if args is None:
        args = IterativeSFTConfig(output_dir=f"{Path(model_name).name or 'model'}-IterativeSFT")
    if not isinstance(args, TrainingArguments):
        fix = "give an IterativeSFTConfig, TrainingArguments, or None"
        raise TypeError(f"IterativeSFTTrainer: args is of type {type(args).__name__}; {fix}")
    for name, reason in _REFUSED.items():
        if getattr(args, name):
            raise ValueError(f"IterativeSFTTrainer: args.{name} is set, but {reason}")
    for name in ("logging_strategy", "eval_strategy", "save_strategy"):
        if getattr(args, name) == "epoch":
            what = f"args.{name} is 'epoch', and there are no epochs"
            raise ValueError(f"IterativeSFTTrainer: {what}; use 'steps' or 'no'")
    if args.max_steps > 0:
        return args
    for name in ("logging_steps", "eval_steps", "save_steps", "warmup_steps"):
        if 0 < (getattr(args, name) or 0) < 1:
            fix = "set max_steps, or give a number of steps"
            raise ValueError(f"IterativeSFTTrainer: args.{name} is a share of max_steps, which is not set; {fix}")
    kind = SchedulerType(args.lr_scheduler_type).value
    if schedule is None and kind not in _WITHOUT_END:
        fix = "set max_steps, or use 'constant_with_warmup'"
        raise ValueError(f"IterativeSFTTrainer: args.lr_scheduler_type {kind!r} needs an end; {fix}")
    return args
