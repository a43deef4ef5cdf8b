"""Which model a recipe of `evergreen new` trains: the one that the user gives, or a small one from random weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from params import RecipeError
from params.schema import Lora
from tasks.scaffold import choices
from tasks.scaffold.model_facts import ModelFacts
from tasks.scaffold.proposal import ObjectiveProposal
from trainer.objectives.advice.base import AdvisedValue, ModelKind
from trainer.objectives.bases.lazy_imports import transformers
from trainer.objectives.bases.position_limits import find_position_limits

_WIDTHS: Final = {"hidden_size": 192, "intermediate_size": 512}
_NEW_MODELS: Final[Mapping[ModelKind, Mapping[str, Any]]] = {
    "decoder": {"model_type": "llama", **_WIDTHS, "num_hidden_layers": 4, "num_attention_heads": 6}
    | {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "encoder": {"model_type": "bert", **_WIDTHS, "num_hidden_layers": 3, "num_attention_heads": 6},
    "encoder-decoder": {"model_type": "t5", "d_model": 192, "d_kv": 32, "d_ff": 512, "num_layers": 3, "num_heads": 6},
}
Keys = Mapping[str, Any]
"""Keys of a recipe with a `AdvisedValue`, a plain value or further keys each; a key that begins with `#` is a comment."""


def choose_model_keys(proposal: ObjectiveProposal, facts: ModelFacts | None) -> Keys:
    """Return the section `model` of a recipe; of a model from random weights, `facts` are None."""
    if facts is None:
        if proposal.advice.needs_pretrained:
            fix = "give one that can already answer, for example the folder runs/NAME/model of another recipe"
            raise RecipeError("--model", f"{proposal.objective} needs a model to start from", fix)
        why = "# random weights; for better results give a pretrained model (`pretrained`), and its tokenizer"
        return {why: "", "config": _NEW_MODELS[proposal.advice.models[0]]}
    keys: dict[str, Any] = {"pretrained": AdvisedValue(facts.path, f"{facts.model_type}, {facts.size} parameters")}
    if facts.revision:
        keys["revision"] = AdvisedValue(facts.revision, "the commit of today")
    if reason := choices.reason_to_use_lora(facts.parameters, choices.device_memory_bytes()):
        keys[f"# Adapters instead of all weights: {reason}."] = ""
        keys["lora"] = {"r": AdvisedValue(Lora().r, "rank"), "alpha": AdvisedValue(Lora().alpha, "twice the rank")}
    return keys


def find_positions_of_new_model(config: Mapping[str, Any]) -> int | None:
    """Return the most tokens that a model of this configuration reads; None if there is no limit."""
    return find_position_limits(transformers.AutoConfig.for_model(**config)).most
