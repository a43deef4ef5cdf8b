"""Loading a model for `evergreen try`: what its files say that it is for, and its weights."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from params import ModelError, RecipeError
from params.schema import ObjectiveChoice
from trainer import objectives
from trainer.model.adapters import PEFT_TASKS, is_adapter_folder
from trainer.model.network import load_trained_model
from trainer.objectives.bases.lazy_imports import PreTrainedModel, transformers
from trainer.objectives.bases.network.alignment import align_weights
from trainer.objectives.bases.objective import Objective
from trainer.objectives.bases.texts.padding import put_padding_before_text
from trainer.runtime.library_errors import as_remote_code_error, panics_as_errors

NEAREST: Final = "sentence-similarity"


class TriedTask(NamedTuple):
    """How a model for a task is loaded and asked."""

    auto_class: str
    architectures: str
    """transformers' table of the architectures that it knows."""
    method: str
    """The method of `AnsweringModel` that answers."""


TASKS: Final[Mapping[str, TriedTask]] = {
    "text-generation": TriedTask("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "_continue"),
    "text2text-generation": TriedTask(
        "AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "_rewrite"
    ),
    "text-classification": TriedTask(
        "AutoModelForSequenceClassification", "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES", "_classify"
    ),
    "token-classification": TriedTask(
        "AutoModelForTokenClassification", "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES", "_find_spans"
    ),
    "fill-mask": TriedTask("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING_NAMES", "_fill"),
    NEAREST: TriedTask("AutoModel", "", "_find_near"),
}


def find_task(names: Collection[str], where: str, file: str) -> str:
    """Return what a model is for, by the architectures that its configuration names, or by the task that an adapter names."""
    from transformers.models.auto import modeling_auto as auto

    tried = {task: one.architectures for task, one in TASKS.items() if task != NEAREST}
    for task, table in tried.items():
        known = {PEFT_TASKS.get(task)}
        for value in getattr(auto, table).values():
            known.update([value] if isinstance(value, str) else value)
        if known.intersection(names):
            return task
    what = f"its {file} names {', '.join(sorted(names)) or 'no task'}, for which there is no way to try it"
    raise ModelError(where, what, f"try a model for {', '.join(tried)}, or a release whose record names its objective")


def is_cross_encoder(folder: Path) -> bool:
    """Whether sentence-transformers wrote a model that reads pairs of texts; version 6 gives it the files of an embedding, too."""

    def read(name: str) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError, TypeError):
            return dict(json.loads((folder / name).read_bytes()))
        return {}

    config = read("config.json")
    is_earlier = "activation_fn" in (config.get("sentence_transformers") or {})
    is_earlier |= "sbert_ce_default_activation_function" in config
    return is_earlier or read("config_sentence_transformers.json").get("model_type") == "CrossEncoder"


def objective_that_answers(choice: ObjectiveChoice | None) -> Objective[Any] | None:
    """Return the objective that a release records, if it answers rows by itself: transformers has no pipeline for its task, or none is used."""
    with contextlib.suppress(RecipeError):
        found = objectives.build_objective(choice) if choice else None
        if found and found.pipeline_tag not in TASKS and objectives.overrides_method(found, "prediction_lines"):
            return found
    return None


def load_network(folder: Path, of: Objective[Any] | str, where: str) -> PreTrainedModel:
    """Return the model of an objective, or of a task; ModelError if it cannot be loaded, or lacks weights."""
    model_class = getattr(transformers, TASKS[of].auto_class) if isinstance(of, str) else of.model_class()
    network: PreTrainedModel
    transformers.logging.disable_progress_bar()
    with load_errors(where):
        if is_adapter_folder(folder):
            return load_trained_model(folder, model_class)
        network, info = model_class.from_pretrained(
            folder, use_safetensors=True, trust_remote_code=False, dtype="float32", output_loading_info=True
        )
    if missing := sorted(info["missing_keys"]):
        what = f"its weights lack {', '.join(missing[:5])}, so its answers would be random"
        raise ModelError(where, what, "name a revision with a whole model")
    align_weights(network)
    return put_padding_before_text(network)


@contextlib.contextmanager
def load_errors(where: str, part: str = "") -> Iterator[None]:
    """Turn what transformers raises for a folder that it cannot load into a ModelError."""
    try:
        with panics_as_errors():
            yield
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError) as error:
        what = f"{part}cannot be loaded: {type(error).__name__}: {' '.join(str(error).split())[:500]}"
        fix = "name a model that transformers can load without code of its own"
        raise as_remote_code_error(where, error) or ModelError(where, what, fix) from error
