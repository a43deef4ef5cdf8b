"""What an iterative trainer is told beside transformers' own arguments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from transformers import SchedulerType, TrainingArguments

_WITHOUT_END = {"linear", "constant", "constant_with_warmup", "inverse_sqrt", "reduce_lr_on_plateau", "greedy"}
"""Schedules for which `max_steps` need not be known; linear, the default, is then constant after its warm-up."""
_REFUSED = {
    "auto_find_batch_size": "it starts the loop anew, and the loop is yours; lower per_device_train_batch_size",
    "load_best_model_at_end": "there is no end at which to load; set save_total_limit and take the best checkpoint",
    "neftune_noise_alpha": "only Trainer's own loop sets it up; leave it out",
    "use_liger_kernel": "only Trainer's own loop sets it up; apply the kernels to the model before you pass it",
}


@dataclass
class IterativeSFTConfig(TrainingArguments):
    """TrainingArguments with four fields more; transformers.HfArgumentParser makes command line flags of all of them.

    Raises:
        ValueError: `truncation_mode`, `max_length` or `model_init_kwargs` is not what it may be.
    """

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [*TrainingArguments._VALID_DICT_FIELDS, "model_init_kwargs"]  # noqa: SLF001

    logging_steps: float = field(
        default=10,
        metadata={"help": "Log after so many optimizer steps; below 1, after that share of `max_steps`."},
    )
    model_init_kwargs: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "What `from_pretrained` is given when the model is named by text, as JSON on a command line. "
            "`dtype` (or its old name `torch_dtype`) may be text, for example bfloat16."
        },
    )
    max_length: int | None = field(
        default=None,
        metadata={"help": "Longest sequence in tokens; what is longer is cut. Unset: nothing is cut."},
    )
    truncation_mode: Literal["keep_end", "keep_start"] = field(
        default="keep_end",
        metadata={"help": "Which end of a sequence that is too long stays: its last tokens, or its first."},
    )
    optimize_device_cache: bool = field(
        default=False,
        metadata={
            "help": "Give unused memory of the device back after every call of `step`: slower, but less is held."
        },
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
                "use 2 or more, or None to cut nothing"
            )
        if self.model_init_kwargs is not None and not isinstance(self.model_init_kwargs, dict):
            raise ValueError(
                f"IterativeSFTConfig.model_init_kwargs is {self.model_init_kwargs!r}; "
                """use a dictionary, or on a command line JSON such as '{"dtype": "bfloat16"}'"""
            )


def check_arguments(args: TrainingArguments, schedule: object) -> None:
    """See that a trainer without a loop of its own can do what it is told.

    Args:
        args: what it is told.
        schedule: the schedule that was passed, if one was.

    Raises:
        ValueError: it cannot.
    """
    for name, reason in _REFUSED.items():
        if getattr(args, name):
            raise ValueError(f"IterativeSFTTrainer: args.{name} is set, but {reason}")
    for name in ("logging_strategy", "eval_strategy", "save_strategy"):
        if getattr(args, name) == "epoch":
            raise ValueError(f"IterativeSFTTrainer: args.{name} is 'epoch', and there are none; use 'steps' or 'no'")
    if args.max_steps > 0:
        return
    for name in ("logging_steps", "eval_steps", "save_steps", "warmup_steps"):
        if 0 < (getattr(args, name) or 0) < 1:
            raise ValueError(
                f"IterativeSFTTrainer: args.{name} is a share of max_steps, which is not set; "
                "set max_steps, or give a number of steps"
            )
    kind = SchedulerType(args.lr_scheduler_type).value
    if schedule is None and kind not in _WITHOUT_END:
        raise ValueError(
            f"IterativeSFTTrainer: args.lr_scheduler_type {kind!r} has to know its end; set max_steps, or use "
            "'constant_with_warmup'"
        )
