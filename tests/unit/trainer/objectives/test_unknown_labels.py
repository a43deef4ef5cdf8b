"""A label that one model does not know changes nothing on rows without it, for every objective with labels."""

from __future__ import annotations

import math
import types
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedConfig

from params.schema import ObjectiveChoice
from tasks.evaluation.scoring import RowScores
from tasks.evaluation.statistics import Resampler
from trainer import objectives
from trainer.objectives.bases.likelihood import ClassifierObjective

NEW = "zz"
"""The label that one of two models does not know; the last one, so that the others keep their numbers."""
LABELS = {
    "sequence_classification": ["a", "b", "c"],
    "multi_label_classification": ["a", "b", "c"],
    "token_classification": ["O", "B-a", "I-a", "B-b", "I-b"],
}
ROWS, TOKENS = 40, 6


def with_new(name: str) -> list[str]:
    return [*LABELS[name], *([f"B-{NEW}", f"I-{NEW}"] if name == "token_classification" else [NEW])]


class RandomClassifier(torch.nn.Module):
    """Gives each row, or token, and label a logit that depends on these alone."""

    def __init__(self, name: str, labels: list[str], seed: int) -> None:
        super().__init__()
        several = name == "multi_label_classification"
        kind = name if several else "single_label_classification"
        self.config = PreTrainedConfig(id2label=dict(enumerate(labels)), problem_type=kind)
        shape = (ROWS, TOKENS) if name == "token_classification" else (ROWS,)
        drawn = {one: np.random.default_rng([seed, *map(ord, one)]).normal(0, 2, shape) for one in labels}
        self.logits = torch.tensor(np.stack([drawn[one] for one in labels], -1), dtype=torch.float32)

    def forward(self, **_: Any) -> Any:
        return types.SimpleNamespace(logits=self.logits.clone())


def labels_of_rows(name: str, seed: int, run: list[str]) -> torch.Tensor:
    """Rows that have only labels of `LABELS`, as a run with the labels `run` encodes them."""
    draw, known = np.random.default_rng(seed), len(LABELS[name])
    if name == "multi_label_classification":
        given = np.zeros((ROWS, len(run)), np.float32)
        given[:, :known] = draw.random((ROWS, known)) < 0.3
        return torch.tensor(given)
    shape = (ROWS, TOKENS) if name == "token_classification" else (ROWS,)
    return torch.tensor(draw.integers(0, known, shape))


def scores_of(name: str, model_labels: list[str], run: list[str], labels: torch.Tensor, seed: int = 0) -> Any:
    """The columns of scores of a model that knows `model_labels`, in a run with the labels `run`."""
    objective = objectives.build_objective(ObjectiveChoice(name=name))
    state = {"labels": run}
    model: Any = objective.remap_labels(RandomClassifier(name, model_labels, seed), state)  # type: ignore[arg-type]
    batch = {"input_ids": torch.zeros(ROWS, 1), "labels": labels}
    table = objective.score_batch(model, batch, None).double().numpy()  # type: ignore[arg-type]
    columns = dict(zip(objective.score_names(state), table.T, strict=True))
    return objective, state, columns


def test_every_objective_with_labels_is_here() -> None:
    classes = {name: objectives.import_objective_class(name) for name in objectives.objective_names()}
    assert LABELS.keys() == {name for name, one in classes.items() if issubclass(one, ClassifierObjective)}


def assert_same(name: str, one: Any, other: Any, *, but: tuple[str, ...] = ()) -> None:
    for column in one.keys() - set(but):
        ends = [
            np.minimum(of[column], len(LABELS[name])) if column == "prediction" else of[column] for of in (one, other)
        ]
        assert np.array_equal(*ends), column


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", LABELS)
def test_a_new_label_changes_nothing_for_a_model_that_lacks_it(name: str, seed: int) -> None:
    """Scores, metrics and confidence of the champion are those of a run without the label: so the gain is, too, but for the new model's."""
    old = LABELS[name]
    found = [scores_of(name, old, run, labels_of_rows(name, seed, run), seed) for run in (old, with_new(name))]
    assert_same(name, found[0][2], found[1][2])
    totals = [objective.additive_statistics(columns, state).sum(0) for objective, state, columns in found]
    before, after = (one.compute_metrics(total, state) for (one, state, _), total in zip(found, totals, strict=True))
    if name == "multi_label_classification":  # a mean over labels
        before, after = (
            {**one, "loss": one["loss"] * len(run)} for one, run in ((before, old), (after, with_new(name)))
        )
    for metric, value in before.items():
        assert float(after[metric]) == pytest.approx(float(value), rel=1e-12), metric
    sure = [objective.confidence(columns) for objective, _, columns in found]
    assert (sure[0] is None and sure[1] is None) or np.array_equal(sure[0], sure[1])


@pytest.mark.parametrize("name", LABELS)
def test_a_label_that_only_the_champion_knows_changes_nothing_for_it(name: str) -> None:
    """Whether or not it is among the labels of the run: of several labels it does not count; of one, what it predicts stays what it is."""
    old, more = LABELS[name], with_new(name)
    without = scores_of(name, more, old, labels_of_rows(name, 0, old))[2]
    if name == "multi_label_classification":
        assert_same(name, without, scores_of(name, old, old, labels_of_rows(name, 0, old))[2])
    else:
        assert_same(name, without, scores_of(name, more, more, labels_of_rows(name, 0, more))[2])


@pytest.mark.parametrize("name", LABELS)
def test_an_unknown_label_costs_a_guess_on_its_rows_whatever_others_are_unknown(name: str) -> None:
    old, more = LABELS[name], with_new(name)
    for run in (more, [*more, *(["B-zzz", "I-zzz"] if name == "token_classification" else ["zzz"])]):
        labels = labels_of_rows(name, 0, run)
        plain = scores_of(name, old, run, labels)[2]["nll"]
        place = len(old)
        if name == "multi_label_classification":
            labels[0, place] = 1.0
            expected = plain[0] + math.log(len(old) + 1)
        elif name == "token_classification":
            labels[0] = place
            expected = TOKENS * math.log(len(old) + 1)
        else:
            labels[0] = place
            expected = math.log(len(old) + 1)
        found = scores_of(name, old, run, labels)[2]["nll"]
        assert found[0] == pytest.approx(expected)
        assert np.array_equal(found[1:], plain[1:])


def test_a_model_that_is_worse_on_all_old_labels_does_not_win_by_a_rare_new_one() -> None:
    """Several labels, by their loss: a champion was charged log 2 for the new label on each row without it."""
    name, run = "multi_label_classification", with_new("multi_label_classification")
    labels = labels_of_rows(name, 0, run)
    labels[0, -1] = 1.0
    objective: Any = objectives.build_objective(ObjectiveChoice(name=name))
    state, champion = {"labels": run}, RandomClassifier(name, LABELS[name], 0)
    champion.logits = 1.2 * (labels[:, :-1] - 0.5)  # is right, if not sure of it
    candidate = torch.full((ROWS, len(run)), -0.9)  # says no to all, but finds the new label
    candidate[:, -1] = 8.0 * (labels[:, -1] - 0.5)
    own = objective.score_logits(candidate, labels)
    other = objective.score_batch(objective.remap_labels(champion, state), {"labels": labels}, None)
    scores = [
        RowScores(np.arange(ROWS), dict(zip(objective.score_names(state), table.numpy().T, strict=True)))
        for table in (own, other)
    ]
    resampler = Resampler(objective, state, resamples=200, confidence=0.95, seed=0)
    assert resampler.gains(*scores, objective.metrics)["loss"].high < 0
