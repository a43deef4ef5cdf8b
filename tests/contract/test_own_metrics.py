"""Own metrics (`evaluation.metrics`) of every objective: they get outputs and labels, from which the built-in metrics follow, or `check` refuses them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit, logsumexp
from scipy.stats import spearmanr
from sklearn.metrics import f1_score, roc_auc_score
from transformers import EvalPrediction

from params import RecipeError
from params.sections.evaluation import OwnMetrics
from tests.contract.test_objectives import ObjectiveCase
from tests.support import new_objectives
from tests.support.project import ROOT
from trainer import objectives
from trainer.loop.metrics import EvaluationMetrics

HERE = __name__
CASES: dict[str, tuple[str, dict[str, Any], list[dict[str, Any]]]] = {
    "embedding of scored pairs": (
        "embedding",
        {"positive_column": "positive", "label_column": "score"},
        [{"anchor": f"a text {i}", "positive": f"another {i * i % 5}" * (1 + i % 3), "score": i / 7} for i in range(7)],
    ),
    "seq2seq without text": ("seq2seq", {"generate": False}, []),
    "regression of two": (
        "regression",
        {"label_column": ["price", "age"]},
        [{"text": f"a text {i}" * (1 + i % 3), "price": 100.0 * i, "age": i % 4} for i in range(7)],
    ),
}
"""By name, an objective with options that change what its outputs are, and rows."""
NAMES = [*objectives.objective_names(), *new_objectives.NAMES, *CASES]


@dataclass(frozen=True)
class Own:
    """A built-in metric, computed from what own metrics get."""

    metric: str
    compute: Callable[[EvalPrediction], Any]
    from_logits: bool = False
    """Whether from logits as they are, by `preprocess_logits`, and not from what the objective predicts."""


def mean_error(p):
    return np.abs(p.predictions - p.label_ids).mean()


def squared_error(p):
    return ((p.predictions - p.label_ids) ** 2).mean()


def accuracy(p):
    is_label = p.label_ids != -100
    return (p.predictions == p.label_ids)[is_label].mean()


def next_token_accuracy(p):
    is_label = p.label_ids[:, 1:] != -100
    return (p.predictions[:, :-1] == p.label_ids[:, 1:])[is_label].mean()


def cross_entropy(logits, labels):
    is_label = labels != -100
    logits, labels = logits[is_label].astype(float), labels[is_label]
    return (logsumexp(logits, axis=-1) - logits[np.arange(len(labels)), labels]).mean()


def loss(p):
    return cross_entropy(p.predictions, p.label_ids)


def next_token_loss(p):
    return cross_entropy(p.predictions[:, :-1], p.label_ids[:, 1:])


def label_loss(p):
    chance = expit(p.predictions.astype(float))
    return -np.log(np.where(p.label_ids > 0, chance, 1 - chance)).mean()


def label_loss_of_rows(p):
    return label_loss(p) * p.label_ids.shape[1]


def micro_f1(p):
    return f1_score(p.label_ids, p.predictions, average="micro")


def micro_f1_of_logits(p):
    return f1_score(p.label_ids, p.predictions > 0, average="micro")


def places_loss(p):
    starts, ends = (cross_entropy(p.predictions[:, :, i], p.label_ids[:, i]) for i in (0, 1))
    return (starts + ends) / 2


def first_is_better(p):
    return (p.predictions[:, 0] > p.predictions[:, 1]).mean()


def reward_margin(p):
    assert not p.label_ids.any()
    return (p.predictions[:, 0] - p.predictions[:, 1]).mean()


def roc_auc(p):
    return roc_auc_score(p.label_ids, p.predictions)


def reciprocal_rank(p):
    found = []
    for query in np.unique(p.label_ids[:, 1]):
        own = p.label_ids[:, 1] == query
        ordered = p.label_ids[own, 0][np.argsort(-p.predictions[own], kind="stable")]
        found += [1 / (1 + np.argmax(ordered > 0))] if ordered.any() else []
    return np.mean(found)


def nearest_document(p):
    """Of each query, whether the nearest of all documents is its own."""
    vectors, numbers = p.predictions, p.label_ids
    nearest = (vectors[:, 0] @ vectors[:, 1].T).argmax(1)
    return (numbers[nearest, 1] == numbers[:, 1]).mean()


def correlation_of_ranks(p):
    return spearmanr(p.predictions, p.label_ids).statistic


OWN: dict[str, list[Own]] = {
    "causal_lm": [Own("token_accuracy", next_token_accuracy), Own("loss", next_token_loss, from_logits=True)],
    "sft": [Own("token_accuracy", next_token_accuracy), Own("loss", next_token_loss, from_logits=True)],
    "masked_lm": [Own("token_accuracy", accuracy), Own("loss", loss, from_logits=True)],
    "seq2seq": [Own("loss", loss, from_logits=True)],
    "sequence_classification": [Own("accuracy", accuracy), Own("loss", loss, from_logits=True)],
    "token_classification": [Own("token_accuracy", accuracy), Own("loss", loss, from_logits=True)],
    "multi_label_classification": [Own("micro_f1", micro_f1), Own("loss", label_loss, from_logits=True)],
    "regression": [Own("mae", mean_error), Own("mae", mean_error, from_logits=True)],
    "multiple_choice": [Own("accuracy", accuracy), Own("loss", loss, from_logits=True)],
    "question_answering": [Own("loss", places_loss, from_logits=True)],
    "ranking": [Own("mrr_at_10", reciprocal_rank)],
    "embedding": [Own("recall_at_1", nearest_document)],
    "reward": [Own("reward_accuracy", first_is_better), Own("reward_margin", reward_margin)],
    "dpo": [Own("reward_margin", reward_margin)],
    "kto": [Own("roc_auc", roc_auc)],
    "similarity": [Own("loss", squared_error), Own("loss", squared_error, from_logits=True)],
    "reversal": [Own("token_accuracy", accuracy), Own("loss", loss, from_logits=True)],
    "topics": [Own("micro_f1", micro_f1_of_logits), Own("loss", label_loss_of_rows)],
    "vectors": [Own("loss", squared_error), Own("loss", squared_error, from_logits=True)],
    "embedding of scored pairs": [Own("spearman", correlation_of_ranks)],
    "seq2seq without text": [Own("token_accuracy", accuracy)],
    "regression of two": [Own("mae", mean_error)],
}
"""By objective; those that are not here are refused."""


def as_they_are(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return logits


def own(prediction: EvalPrediction, objective: str, number: int) -> dict[str, float]:
    return {"own": OWN[objective][number].compute(prediction)}


def case_of(name: str) -> ObjectiveCase:
    with new_objectives.known():
        return ObjectiveCase(*CASES.get(name, (name,)))


def metrics_of(case: ObjectiveCase, name: str, number: int, *, from_logits: bool) -> EvaluationMetrics:
    call = {"name": f"{HERE}:own", "arguments": {"objective": name, "number": number}}
    given = {"function": call, "directions": {"own": "max"}}
    given |= {"preprocess_logits": f"{HERE}:as_they_are"} if from_logits else {}
    return EvaluationMetrics(
        case.objective, state=case.state, tokenizer=case.tokenizer, metrics=OwnMetrics.model_validate(given)
    )


@pytest.mark.parametrize("name", NAMES)
def test_metric_of_outputs_and_labels_is_the_built_in_one_or_is_refused(name: str) -> None:
    """In batches of different lengths. A training evaluates by `measure` and `update`, the evaluate stage by `batches`, which calls both."""
    case = case_of(name)
    if name not in OWN:
        assert case.objective.why_no_own_metrics()
        with pytest.raises(RecipeError, match=re.escape(str(case.objective.why_no_own_metrics()))):
            metrics_of(case, name, 0, from_logits=False)
        return
    assert case.objective.why_no_own_metrics() is None
    model, examples = case.model(), [*case.examples, *case.examples[:1]]
    for number, wanted in enumerate(OWN[name]):
        metrics = metrics_of(case, name, number, from_logits=wanted.from_logits)
        for _, measured in metrics.batches(model, examples, batch_size=1):
            metrics.update(measured)
        found = metrics.compute()
        assert found["own"] == pytest.approx(found[wanted.metric], rel=1e-5), wanted


def test_page_says_what_every_objective_gives() -> None:
    page = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    section = page.partition("## What own metrics get")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    named = {name: row[1] for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert named.keys() == {*objectives.objective_names()}
    assert {name for name, logits in named.items() if logits.startswith("none")} == named.keys() - OWN.keys()
