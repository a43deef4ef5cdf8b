"""Whether a model that learns next tokens reads backwards only. One that sees the token that it is to tell learns to copy it.

Encoders such as BERT have a class for next tokens, but read in both directions unless their configuration says `is_decoder`. A training
sets it (`decoder_settings`). Whatever the configuration says, `find_what_reads_ahead` tries the model itself.
"""

from __future__ import annotations

from typing import Any, Final

from params import ModelError
from trainer.objectives.bases.lazy_imports import PreTrainedModel, torch
from trainer.objectives.bases.objective import Objective

CLASS_FOR_NEXT_TOKENS: Final = "AutoModelForCausalLM"
_DECODERS_ANYWAY: Final = frozenset({"gpt_neox", "gpt_neox_japanese"})
"""Types of models that read backwards whatever their `is_decoder` is."""
READ_AHEAD: Final = frozenset({"cpmant", "xlm", "xlnet"})
"""Types of models whose class for next tokens reads in both directions whatever their configuration says."""
_SAME, _OTHER = 6, 6
"""Tokens that two texts begin with, and by how many others each goes on."""
_TOLERANCE: Final = 1e-4
"""Largest difference of logits by rounding, relative to the largest one: seen are 2e-7, and 0.0015 where a new encoder reads ahead."""
_COARSE_TOLERANCE: Final = 0.05
"""The same of a model whose weights are quantized, or in 16 bits."""


def decoder_settings(model_type: str, objective: Objective[Any]) -> dict[str, bool]:
    """Return what the configuration of a model of this type has to say so that it reads backwards only; empty if nothing."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if (
        objective.auto_class != CLASS_FOR_NEXT_TOKENS
        or model_type in _DECODERS_ANYWAY
        or model_type not in CONFIG_MAPPING
    ):
        return {}
    cls = CONFIG_MAPPING[model_type]
    is_known = any("is_decoder" in getattr(base, "__annotations__", {}) for base in cls.__mro__)
    is_part_of_two = bool(getattr(cls, "is_encoder_decoder", False))  # whose decoder says it itself
    return {"is_decoder": True} if is_known and not is_part_of_two else {}


def check_reads_backwards(model: PreTrainedModel) -> None:
    """Raise a ModelError if a later token moves the logits of an earlier one; by one forward pass of two short texts."""
    if found := find_what_reads_ahead(model):
        kind = model.config.model_type
        fix = "use a decoder, such as a llama or a gpt2, or an encoder whose config.json says `is_decoder: true`"
        raise ModelError("model", f"this {kind} model cannot learn next tokens: {found}", fix)


def find_what_reads_ahead(model: PreTrainedModel) -> str:
    """Return how a later token moves the logits of an earlier one; empty if none does."""
    ids = _two_texts(model)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            logits = model(input_ids=ids).logits.float()  # (2, T, V)
    finally:
        model.train(was_training)
    one, other = logits[:, :_SAME]
    if not (one.isfinite().all() and other.isfinite().all()):
        return ""  # the training says it
    moved = float((one - other).abs().max() / one.abs().max().clamp(min=1e-30))
    is_exact = next(model.parameters()).dtype == torch.float32 and not getattr(model, "is_quantized", False)
    if moved <= (_TOLERANCE if is_exact else _COARSE_TOLERANCE):
        return ""
    return f"other tokens behind a token move its logits by {moved:.1g} of the largest, so it sees the token that it is to tell"


def _two_texts(model: PreTrainedModel) -> torch.Tensor:
    """Return tokens of two texts that begin alike, (2, T), none of which is a special one."""
    config = model.config.get_text_config()
    named = (getattr(config, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "sep", "cls", "mask"))
    special = {one for many in named for one in (many if isinstance(many, list) else [many])}
    known = min(model.get_input_embeddings().weight.shape[0], 100)
    usual = [token for token in range(known) if token not in special]
    drawn = [usual[place * 7 % len(usual)] for place in range(_SAME + 2 * _OTHER)]
    begin, own, other = drawn[:_SAME], drawn[_SAME : _SAME + _OTHER], drawn[_SAME + _OTHER :]
    return torch.tensor([begin + own, begin + other], device=model.device)
