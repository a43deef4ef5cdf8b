"""Defaults that depend on other keys: what a specialist would choose for the objective and for the kind of model.

Those of an objective are in its own file, trainer/objectives/<name>.py; those of all other keys are in params/schema.py and
params/sections. A recipe needs only `data.source`, `objective` and `model`; with a new model from random weights, also
`tokenization.tokenizer`. Nothing here depends on the machine, so a recipe means the same everywhere; `evergreen show` prints it with all
of its values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from params.defaults import ObjectiveDefaults

_LORA_FACTOR: Final = 10.0
"""Adapters learn best at about ten times the rate of all weights (Schulman et al. 2025, https://thinkingmachines.ai/blog/lora)."""
_RANDOM_WEIGHTS: Final = (2e-3, 0.4)
"""Learning rate of a new model: at most the first, and the second divided by its width, as in table 2.1 of Brown et al. 2020
(https://arxiv.org/abs/2005.14165)."""
_WIDTHS: Final = ("hidden_size", "d_model", "n_embd", "dim")


def with_dependent_defaults(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the content of the file of the recipe `name` with the defaults that depend on other keys.

    What is not as the schema wants it stays as it is.
    """
    objective, model, training = (_section(content, key) for key in ("objective", "model", "training"))
    choice = _defaults_of(str(objective.get("name")))
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


def _defaults_of(objective: str) -> ObjectiveDefaults:
    """Return `Objective.defaults` of trainer/objectives/<objective>.py; the usual ones where building the objective will fail."""
    from trainer.objectives import find_objective_class

    found = find_objective_class(objective)
    return found.defaults if found else ObjectiveDefaults()


def _section(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = content.get(name)
    return found if isinstance(found, Mapping) else {}


def _learning_rate(model: Mapping[str, Any], choice: ObjectiveDefaults) -> float:
    if config := _section(model, "config"):
        highest, factor = _RANDOM_WEIGHTS
        width = next((config[key] for key in _WIDTHS if isinstance(config.get(key), int) and config[key] > 0), 1)
        return float(f"{min(highest, factor / width):.2g}")
    return choice.learning_rate * (_LORA_FACTOR if model.get("lora") is not None else 1.0)
