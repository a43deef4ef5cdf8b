"""The loss that an objective has by default, its model's own, does not depend on the micro-batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from params import RecipeError
from tests.support import in_process, tiny
from trainer import job, objectives

OWN = '''"""Own: a classifier that learns by its model's own loss."""

from params.sections.base import Section
from trainer.objectives.bases.metrics.metric import Metric, named, ratio
from trainer.objectives.bases.objective import EncodedRow, Objective
from trainer.objectives.bases.texts.tokenizing import tokenize_texts_truncated


class Options(Section):
    """No keys."""


class Own(Objective[Options]):
    """The class of a text."""

    options_class = Options
    metrics = named(Metric("accuracy", "max", ratio("correct", "rows")))
    main_metric = "accuracy"
    auto_class = "AutoModelForSequenceClassification"
    example_rows = ({"text": "abc", "label": "x"}, {"text": "the rain", "label": "y"})

    def columns(self):
        return {"text": "string", "label": "label"}

    def text(self, row):
        return row["text"]

    def row_labels(self, row):
        return [row["label"]]

    def state_of(self, labels):
        return {"labels": sorted(labels)}

    def encode(self, rows, tokenizer, max_length, state):
        found = tokenize_texts_truncated([row["text"] for row in rows], tokenizer, max_length)
        labels = [state["labels"].index(row["label"]) for row in rows]
        return [
            EncodedRow([{"row_id": row["row_id"], "input_ids": ids, "labels": label}], cut)
            for row, label, (ids, cut) in zip(rows, labels, found, strict=True)
        ]

    def model_config(self, state):
        return {"num_labels": len(state["labels"])}

    def score_names(self, state):
        return ("correct",)

    def score_batch(self, model, batch, tokenizer):
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        return (logits.argmax(-1) == batch["labels"]).double()[:, None]
'''
FEW = {"training.max_steps": 3, "training.eval_steps": 3, "training.save_steps": 3}
CLASSES = FEW | {
    "model.config.hidden_dropout_prob": 0.0,
    "model.config.attention_probs_dropout_prob": 0.0,
    "training.best_metric": "accuracy",
}
SECTIONS = {"objective": {"name": "own"}, "model": tiny.CLASSES["model"]}


@pytest.fixture
def _own(tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "own.py").write_text(OWN)
    monkeypatch.setattr(objectives, "__path__", [*objectives.__path__, str(tmp_path / "own")])
    monkeypatch.setattr(job, "run_identity", lambda *_: {})


def steps(root: Path, changes: dict[str, Any], **sections: Any) -> list[tuple[float, float]]:
    trainer = in_process.trained(in_process.job(root, changes, **sections))
    return [(entry["loss"], entry["grad_norm"]) for entry in trainer.state.log_history if "grad_norm" in entry]


@pytest.mark.usefixtures("_own")
def test_default_loss_does_not_depend_on_the_micro_batch(tmp_path):
    found = [steps(tmp_path / str(size), CLASSES | {"launch.micro_batch_size": size}, **SECTIONS) for size in (8, 2)]
    for whole, parts in zip(*found, strict=True):
        assert parts == pytest.approx(whole, rel=2e-4)


@pytest.mark.usefixtures("_own")
def test_smoothing_that_would_have_no_effect_is_refused(tmp_path):
    smoothed = CLASSES | {"training.arguments": {"label_smoothing_factor": 0.4}}
    with pytest.raises(RecipeError, match="has no effect on this objective's loss"):
        steps(tmp_path / "smoothed", smoothed, **SECTIONS)
