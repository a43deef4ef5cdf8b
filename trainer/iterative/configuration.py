"""The arguments of an iterative trainer, in addition to transformers' own, and the model and tokenizer that they name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel
from transformers.trainer_utils import SchedulerType
from transformers.training_args import TrainingArguments

from trainer.objectives.bases.network.alignment import align_weights
from trainer.runtime.model_files import check_safe_to_load

_WITHOUT_END = {"linear", "constant", "constant_with_warmup", "inverse_sqrt", "reduce_lr_on_plateau", "greedy"}
"""Schedules that work without `max_steps`; linear, the default, is then constant after its warm-up."""
_REFUSED = {
    "auto_find_batch_size": "it would restart the loop, which is your script's; lower per_device_train_batch_size",
    "load_best_model_at_end": "training has no defined end; load the best checkpoint yourself",
    "neftune_noise_alpha": "only Trainer's own loop supports it; leave it out",
    "use_liger_kernel": "only Trainer's own loop supports it; apply the kernels to the model before you pass it",
}
_HUB_ARGUMENTS = {"revision", "code_revision", "token", "cache_dir", "local_files_only", "subfolder"}


@dataclass
class IterativeSFTConfig(TrainingArguments):
    """TrainingArguments with four more fields, ValueError if invalid; transformers.HfArgumentParser makes flags of all."""

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [*TrainingArguments._VALID_DICT_FIELDS, "model_init_kwargs"]  # noqa: SLF001

    logging_steps: float = field(
        default=10, metadata={"help": "Optimizer steps between log lines; below 1, a share of `max_steps`."}
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
        default="keep_end", metadata={"help": "Which tokens of a truncated sequence stay: the last ones, or the first."}
    )
    optimize_device_cache: bool = field(
        default=False,
        metadata={"help": "Free the device's unused memory after every call of `step`: slower, but uses less memory."},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, is_valid, fix in (
            ("truncation_mode", self.truncation_mode in {"keep_end", "keep_start"}, "use 'keep_end' or 'keep_start'"),
            (
                "max_length",
                self.max_length is None or self.max_length >= 2,
                "a single token leaves nothing to predict: use 2 or more, or None to truncate nothing",
            ),
            (
                "model_init_kwargs",
                isinstance(self.model_init_kwargs, dict | None),
                """use a dictionary, or on a command line JSON such as '{"dtype": "bfloat16"}'""",
            ),
        ):
            if not is_valid:
                raise ValueError(f"IterativeSFTConfig.{name} is {getattr(self, name)!r}; {fix}")


def checked_or_default_arguments(args: object, *, model_name: str, schedule: object) -> TrainingArguments:
    """Return the caller's arguments, by default an IterativeSFTConfig; ValueError if one of them needs Trainer's loop."""
    if args is None:
        args = IterativeSFTConfig(output_dir=f"{Path(model_name).name or 'model'}-IterativeSFT")
    if not isinstance(args, TrainingArguments):
        fix = "give an IterativeSFTConfig, TrainingArguments, or None"
        raise TypeError(f"IterativeSFTTrainer: args is of type {type(args).__name__}; {fix}")
    for problem in _arguments_of_a_loop(args, schedule):
        raise ValueError(f"IterativeSFTTrainer: args.{problem}")
    return args


def _arguments_of_a_loop(args: TrainingArguments, schedule: object) -> Iterator[str]:
    """Yield which arguments need Trainer's loop, its epochs or its last step, and what to do."""
    for name, reason in _REFUSED.items():
        if getattr(args, name):
            yield f"{name} is set, but {reason}"
    for name in ("logging_strategy", "eval_strategy", "save_strategy"):
        if getattr(args, name) == "epoch":
            yield f"{name} is 'epoch', and there are no epochs; use 'steps' or 'no'"
    if args.max_steps > 0:
        return
    for name in ("logging_steps", "eval_steps", "save_steps", "warmup_steps"):
        if 0 < (getattr(args, name) or 0) < 1:
            yield f"{name} is a share of max_steps; set max_steps, or give a number of steps"
    kind = SchedulerType(args.lr_scheduler_type).value
    if schedule is None and kind not in _WITHOUT_END:
        yield f"lr_scheduler_type {kind!r} needs an end; set max_steps, or use 'constant_with_warmup'"


def model_name_or_path(model: object) -> str:
    """Return the name or folder of a model, empty for one that was not loaded from anywhere; TypeError if it is no model."""
    if isinstance(model, str):
        return model
    if not hasattr(model, "config"):
        fix = "give a transformers or peft model, or a name"
        raise TypeError(f"IterativeSFTTrainer: model is of type {type(model).__name__}; {fix}")
    return str(getattr(model.config, "_name_or_path", "") or "")


def load_model_unless_loaded(model: PreTrainedModel | str, init_kwargs: Any) -> PreTrainedModel:
    """Load a model by name, with the head that its configuration needs; return a model object as it is.

    ValueError if it is one and `init_kwargs` are given, ModelError if the model's files name files that are not its own.
    """
    arguments = dict(init_kwargs or {})
    if not isinstance(model, str):
        if arguments:
            what = "args.model_init_kwargs is for a model given by name, and model is a model object"
            raise ValueError(f"IterativeSFTTrainer: {what}; leave it out, or give the model's name")
        return model
    if "torch_dtype" in arguments:  # its old name
        arguments["dtype"] = arguments.pop("torch_dtype")
    trusted = arguments.pop("trust_remote_code", False)
    of_hub = {name: value for name, value in arguments.items() if name in _HUB_ARGUMENTS}
    if revision := check_safe_to_load(model, **of_hub):
        of_hub["revision"] = arguments["revision"] = revision
    config = AutoConfig.from_pretrained(model, trust_remote_code=trusted, **of_hub)
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    network = auto.from_pretrained(model, trust_remote_code=trusted, **arguments)
    align_weights(network)
    return network


def load_tokenizer(name: str) -> Any:
    """Load the tokenizer of a model by the model's name; ValueError without one, ModelError as of `load_model_unless_loaded`."""
    if not name:
        what = "the model was not loaded by name"
        raise ValueError(f"IterativeSFTTrainer: {what}; give its tokenizer as processing_class")
    revision = check_safe_to_load(name, weights=False) or "main"
    return AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=False)
