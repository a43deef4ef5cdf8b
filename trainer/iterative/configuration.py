"""What an iterative trainer is told beside transformers' own arguments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from transformers import TrainingArguments


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
