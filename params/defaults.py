"""Defaults that depend on other keys: what a specialist would choose for the objective and for the kind of model.

The defaults of all other keys are in params/schema.py. A recipe needs only `data.source`, `objective` and `model`; with a new model
from random weights, also `tokenization.tokenizer`. Nothing here depends on the machine, so a recipe means the same everywhere;
`evergreen show` prints it with all of its values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class _Choice:
    """The defaults of an objective."""

    learning_rate: float
    """For all weights of a pretrained model. The size of the model changes it: `evergreen new` writes one that fits."""
    epochs: float
    global_batch_size: int
    micro_batch_size: int
    best_metric: str = "loss"
    group_by_length: bool = False


_BY_OBJECTIVE: Final = {
    "causal_lm": _Choice(2e-5, epochs=1.0, global_batch_size=32, micro_batch_size=8),
    "dpo": _Choice(1e-6, epochs=1.0, global_batch_size=32, micro_batch_size=4),
    "grpo": _Choice(1e-6, epochs=1.0, global_batch_size=16, micro_batch_size=4, best_metric="reward"),
    "iterative_sft": _Choice(1e-5, epochs=1.0, global_batch_size=16, micro_batch_size=4, best_metric="reward"),
    "seq2seq": _Choice(5e-5, epochs=3.0, global_batch_size=32, micro_batch_size=8, group_by_length=True),
    "sequence_classification": _Choice(5e-5, 4.0, 32, 32, best_metric="accuracy", group_by_length=True),
    "sft": _Choice(2e-5, epochs=3.0, global_batch_size=32, micro_batch_size=8),
    "token_classification": _Choice(5e-5, 4.0, 32, 32, best_metric="f1", group_by_length=True),
}
"""Classifiers: Devlin et al. 2019 (https://arxiv.org/abs/1810.04805, A.3). Others: learning rate and epochs as in TRL, with larger batches,
because a model is compared with its predecessor, and noise hides what is better."""
_OTHER: Final = _Choice(2e-5, epochs=3.0, global_batch_size=32, micro_batch_size=8)
"""For an objective of your own."""
_LORA_FACTOR: Final = 10.0
"""Adapters learn best at about ten times the rate of all weights (Schulman et al. 2025, https://thinkingmachines.ai/blog/lora)."""
_RANDOM_WEIGHTS: Final = (2e-3, 0.4)
"""Learning rate of a new model: at most the first, and the second divided by its width, as in table 2.1 of Brown et al. 2020
(https://arxiv.org/abs/2005.14165)."""
_WIDTHS: Final = ("hidden_size", "d_model", "n_embd", "dim")


def with_defaults(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the content of a recipe file with the defaults that depend on other keys.

    Args:
        content: as in the file. What is not as the schema wants it stays as it is.
        name: of the recipe.
    """
    objective, model, training = (_section(content, key) for key in ("objective", "model", "training"))
    choice = _BY_OBJECTIVE.get(str(objective.get("name")), _OTHER)
    defaults: dict[str, dict[str, Any]] = {
        "tokenization": {},
        "training": {
            "global_batch_size": choice.global_batch_size,
            "learning_rate": _learning_rate(model, choice),
            "group_by_length": choice.group_by_length and not training.get("streaming"),
            "best_metric": choice.best_metric,
        },
        "launch": {"micro_batch_size": choice.micro_batch_size},
        "publish": {"repo_id": f"evergreen/{name}"},
    }
    if training.get("epochs") is None and training.get("max_steps") is None:
        defaults["training"]["epochs"] = choice.epochs
    if isinstance(path := model.get("pretrained"), str):
        defaults["tokenization"]["tokenizer"] = {"kind": "pretrained", "path": path, "revision": model.get("revision")}
    filled = {key: {**values, **_section(content, key)} for key, values in defaults.items()}
    wrong = {key for key in defaults if key in content and not isinstance(content[key], Mapping)}
    return {**content, **{key: values for key, values in filled.items() if key not in wrong}}


def _section(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = content.get(name)
    return found if isinstance(found, Mapping) else {}


def _learning_rate(model: Mapping[str, Any], choice: _Choice) -> float:
    if config := _section(model, "config"):
        highest, factor = _RANDOM_WEIGHTS
        width = next((config[key] for key in _WIDTHS if isinstance(config.get(key), int) and config[key] > 0), 1)
        return float(f"{min(highest, factor / width):.2g}")
    return choice.learning_rate * (_LORA_FACTOR if model.get("lora") is not None else 1.0)
