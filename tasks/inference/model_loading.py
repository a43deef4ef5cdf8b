"""Loading a model for `evergreen try`: what its files say that it is for, and its weights."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from params import ModelError, RecipeError
from params.schema import ObjectiveChoice
from trainer import objectives
from trainer.model.adapters import TASKS, is_adapter_folder
from trainer.model.network import load_trained_model
from trainer.objectives.bases.objective import Objective
from trainer.runtime.library_errors import as_remote_code_error

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Task = Literal[
    "text-generation",
    "text2text-generation",
    "text-classification",
    "token-classification",
    "sentence-similarity",
    "fill-mask",
    "question-answering",
    "multiple-choice",
]
_AUTO_CLASSES: Final[dict[Task, tuple[str, str]]] = {
    "text-generation": ("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
    "text2text-generation": ("AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"),
    "text-classification": ("AutoModelForSequenceClassification", "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES"),
    "token-classification": ("AutoModelForTokenClassification", "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES"),
    "fill-mask": ("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING_NAMES"),
    "question-answering": ("AutoModelForQuestionAnswering", "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES"),
    "multiple-choice": ("AutoModelForMultipleChoice", "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES"),
}
"""The class that loads a model for a task, and transformers' table of the architectures that it knows."""


def find_task(names: Collection[str], where: str, file: str) -> Task:
    """Return what a model is for, by the architectures that its configuration names, or by the task that an adapter names."""
    from transformers.models.auto import modeling_auto as auto

    for task, (_, table) in _AUTO_CLASSES.items():
        known = {TASKS.get(task)}
        for value in getattr(auto, table).values():
            known.update([value] if isinstance(value, str) else value)
        if known.intersection(names):
            return task
    what = f"its {file} names {', '.join(sorted(names)) or 'no task'}, for which there is no way to try it"
    raise ModelError(where, what, f"try a model for {', '.join(_AUTO_CLASSES)}")


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


def recorded_objective(section: Any, task: Task, where: str) -> Objective[Any]:
    """Return the objective that a release records; ModelError if it records none for its task."""
    try:
        found = objectives.build_objective(ObjectiveChoice.model_validate(section))
    except (ValueError, RecipeError):
        found = None
    if found is None or found.pipeline_tag != task:
        fix = "load it as its model card says"
        raise ModelError(where, f"does not say which columns it reads, as a model for {task}", fix)
    return found


def load_network(folder: Path, task: Task, where: str) -> PreTrainedModel:
    """Return the model in a folder; ModelError if it cannot be loaded, or lacks weights."""
    import transformers

    auto_class = getattr(transformers, _AUTO_CLASSES[task][0] if task in _AUTO_CLASSES else "AutoModel")
    network: PreTrainedModel
    with load_errors(where):
        if is_adapter_folder(folder):
            return load_trained_model(folder, auto_class)
        network, info = auto_class.from_pretrained(
            folder, use_safetensors=True, trust_remote_code=False, dtype="float32", output_loading_info=True
        )
    if missing := sorted(info["missing_keys"]):
        what = f"its weights lack {', '.join(missing[:5])}, so its answers would be random"
        raise ModelError(where, what, "name a revision with a whole model")
    return network


@contextlib.contextmanager
def load_errors(where: str, part: str = "") -> Iterator[None]:
    """Turn what transformers raises for a folder that it cannot load into a ModelError."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError) as error:
        what = f"{part}cannot be loaded: {type(error).__name__}: {' '.join(str(error).split())[:500]}"
        fix = "name a model that transformers can load without code of its own"
        raise as_remote_code_error(where, error) or ModelError(where, what, fix) from error
