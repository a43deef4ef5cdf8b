"""The loss and gradient of a global batch do not depend on its micro-batches, for every kind of labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import in_process, tiny

NO_DROPOUT = {"model.config.hidden_dropout_prob": 0.0, "model.config.attention_probs_dropout_prob": 0.0}
OBJECTIVES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "classes": (tiny.CLASSES, NO_DROPOUT),
    "tags": (tiny.TAGS, NO_DROPOUT),
    "numbers of pairs": (tiny.NUMBERS, NO_DROPOUT),
    "targets": (tiny.TARGETS, {"model.config.dropout_rate": 0.0}),
    "targets, adapters": (tiny.TARGETS, {"model.config.dropout_rate": 0.0, "model.lora": {"r": 4}}),
    "tags, adapters": (tiny.TAGS, NO_DROPOUT | {"model.lora": {"r": 4}}),
    "next tokens": ({}, {"model.config.attention_dropout": 0.0}),
}
SMOOTHED = {"training.arguments": {"label_smoothing_factor": 0.2}}


def steps(root: Path, sections: dict[str, Any], changes: dict[str, Any]) -> list[tuple[float, float]]:
    """Loss and gradient norm of each step."""
    few = {"training.max_steps": 3, "training.eval_steps": 3, "training.save_steps": 3}
    trainer = in_process.trained(in_process.job(root, few | changes, **sections))
    return [(entry["loss"], entry["grad_norm"]) for entry in trainer.state.log_history if "grad_norm" in entry]


@pytest.mark.parametrize(
    ("sections", "changes", "smoothing"),
    [
        *(pytest.param(*own, {}, id=f"{name}-plain") for name, own in OBJECTIVES.items()),
        *(
            pytest.param(*own, SMOOTHED, id=f"{name}-smoothed", marks=pytest.mark.slow if "adapters" in name else ())
            for name, own in OBJECTIVES.items()
        ),
    ],
)
def test_loss_and_gradient_do_not_depend_on_the_micro_batch(tmp_path, sections, changes, smoothing):
    if smoothing and sections is tiny.NUMBERS:
        pytest.skip("numbers are no labels that could be smoothed")
    found = [
        steps(tmp_path / str(size), sections, {**changes, **smoothing, "launch.micro_batch_size": size})
        for size in (8, 2)
    ]
    assert len(found[0]) == 3
    for whole, parts in zip(*found, strict=True):
        assert parts == pytest.approx(whole, rel=2e-4)
