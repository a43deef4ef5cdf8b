"""The metrics of every objective: as libraries compute them, from summed statistics, over leading dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    confusion_matrix,
    f1_score,
    log_loss,
    precision_recall_curve,
    precision_recall_fscore_support,
)
from torchmetrics.functional.classification import multiclass_calibration_error

from params.schema import ObjectiveChoice
from trainer import objectives
from trainer.objectives.bases.metrics.label_results import precision_recall_f1

LABELS = {"labels": ["a", "b", "c", "d", "e"]}
TAGS = {"labels": ["O", "B-x", "I-x", "B-y", "I-y"]}
NUMBERS = {"numbers": ["label"], "mean": [2.0], "std": [1.5]}
STATES = {
    "sequence_classification": LABELS,
    "multi_label_classification": LABELS,
    "token_classification": TAGS,
    "regression": NUMBERS,
}
NAMES = objectives.objective_names()


def build(name: str) -> Any:
    return objectives.build_objective(ObjectiveChoice(name=name))


def random_scores(objective: Any, rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Plausible scores: integer counts, one of five labels, a confidence between 0 and 1."""
    draw = np.random.default_rng(seed)
    integers = {"label", "prediction"}
    found = {}
    for name in (*objective.score_names(LABELS), *objective.example_counts):
        found[name] = draw.integers(0, 5, rows).astype(float) if name in integers else draw.random(rows) + 0.1
        if name.startswith(("given ", "predicted ")):
            found[name] = (found[name] < 0.4).astype(float)
    for name in ("tokens", "bytes", "actual_spans", "predicted_spans", "generated"):
        if name in found:
            found[name] = draw.integers(1, 9, rows).astype(float)
    if "counted" in found:
        found["counted"] = np.ones(rows)
    if "confidence" in found:
        found["confidence"] = draw.uniform(0.2, 1.0, rows)
    return found


@pytest.mark.parametrize(("seed", "rows", "classes"), [(0, 500, 5), (1, 40, 5), (2, 6, 5), (3, 1, 5), (4, 2000, 5)])
def test_classifier_metrics_match_sklearn_and_torchmetrics(seed: int, rows: int, classes: int) -> None:
    objective = build("sequence_classification")
    draw = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, classes, generator=draw, dtype=torch.float64)
    labels = torch.randint(0, classes - 1, (rows,), generator=draw)  # the last label is only ever predicted
    scores = dict(zip(objective.score_names(LABELS), objective.score_logits(logits, labels).numpy().T, strict=True))
    found = objective.compute_metrics(objective.additive_statistics(scores, LABELS).sum(0), LABELS)
    predicted, truth, shares = logits.argmax(-1).numpy(), labels.numpy(), logits.softmax(-1)
    assert found["accuracy"] == pytest.approx(accuracy_score(truth, predicted), abs=1e-15)
    assert found["macro_f1"] == pytest.approx(f1_score(truth, predicted, average="macro", zero_division=0), abs=1e-12)
    assert found["loss"] == pytest.approx(log_loss(truth, shares.numpy(), labels=range(classes)), rel=1e-6)
    # torchmetrics keeps the confidences as float32
    error = multiclass_calibration_error(shares, labels, num_classes=classes, n_bins=15, norm="l1")
    assert found["calibration_error"] == pytest.approx(float(error), abs=1e-6)


def test_prediction_of_an_unknown_label_only_counts_as_wrong() -> None:
    """A champion with more labels predicts one that the rows do not have."""
    objective = build("sequence_classification")
    truth, predicted = np.array([0.0, 1, 1, 2]), np.array([0.0, 1, 7, 7])
    scores = {"nll": truth, "label": truth, "prediction": predicted, "confidence": truth / 4 + 0.3}
    found = objective.compute_metrics(objective.additive_statistics(scores, LABELS).sum(0), LABELS)
    assert found["accuracy"] == 0.5
    assert found["macro_f1"] == pytest.approx(np.mean([1.0, 2 / 3, 0.0]))


def test_preference_tie_counts_half() -> None:
    objective = build("dpo")
    scores = random_scores(objective, 3) | {
        "chosen_reward": np.array([1.0, 0.5, -1.0]),
        "rejected_reward": np.array([0.0, 0.5, 0.0]),
    }
    assert objective.compute_metrics(objective.additive_statistics(scores, {}).sum(0), {})["reward_accuracy"] == 0.5


@pytest.mark.parametrize("name", NAMES)
def test_summed_statistics_of_parts_give_the_metrics_of_the_whole(name: str) -> None:
    objective, state = build(name), STATES.get(name, {})
    scores = random_scores(objective, 101)
    whole = objective.compute_metrics(objective.additive_statistics(scores, state).sum(0), state)
    draw, merged = np.random.default_rng(1), 0.0
    for part in np.array_split(draw.permutation(101), 7):
        merged = merged + objective.additive_statistics(
            {key: values[part] for key, values in scores.items()}, state
        ).sum(0)
    found = objective.compute_metrics(merged, state)
    assert found.keys() == whole.keys()
    assert found.keys() <= objective.metrics.keys()
    for metric, value in whole.items():
        assert found[metric] == pytest.approx(value, rel=1e-12), metric


@pytest.mark.parametrize("name", NAMES)
def test_metrics_are_computed_over_leading_dimensions(name: str) -> None:
    objective, state = build(name), STATES.get(name, {})
    table = np.array(
        [
            [objective.additive_statistics(random_scores(objective, 20, 3 * i + j), state).sum(0) for j in range(3)]
            for i in range(2)
        ]
    )
    found = objective.compute_metrics(table, state)
    for i in range(2):
        for j in range(3):
            alone = objective.compute_metrics(table[i, j], state)
            assert found.keys() == alone.keys()
            for metric, value in alone.items():
                assert found[metric].shape == (2, 3), metric
                assert found[metric][i, j] == pytest.approx(value, rel=1e-12), metric


@pytest.mark.parametrize("name", NAMES)
def test_weighted_rows_equal_repeated_rows(name: str) -> None:
    """The bootstrap relies on this."""
    objective, state = build(name), STATES.get(name, {})
    scores = random_scores(objective, 30)
    # what a row changes as a document is of the whole split: a row that is repeated in it is another document
    scores |= {key: np.zeros(30) for key in scores if key.endswith("without its documents")}
    times = np.random.default_rng(2).poisson(1.0, 30)
    weighted = objective.compute_metrics(times @ objective.additive_statistics(scores, state), state)
    repeated = {key: np.repeat(values, times) for key, values in scores.items()}
    if group := objective.group_score:  # a group that is drawn again counts again
        repeated[group] = np.arange(len(repeated[group]), dtype=float)
    counted = objective.compute_metrics(objective.additive_statistics(repeated, state).sum(0), state)
    for metric, value in counted.items():
        assert weighted[metric] == pytest.approx(value, rel=1e-12), metric


@pytest.mark.parametrize("name", NAMES)
def test_correct_rows_average_to_their_metric(name: str) -> None:
    objective, state = build(name), STATES.get(name, {})
    scores = random_scores(objective, 50)
    if "exact_match" in scores:
        scores |= {"exact_match": np.arange(50) % 2.0, "generated": np.ones(50), "questions": np.ones(50)}
    if "correct" in scores:
        scores |= {"correct": np.arange(50) % 2.0}
    metrics = objective.compute_metrics(objective.additive_statistics(scores, state).sum(0), state)
    shares = {name: objective.metrics[name].right(scores) for name in metrics if objective.metrics[name].right}
    exact = {key: {"exact_match"} for key in ("seq2seq", "multi_label_classification", "question_answering")}
    right = {key: {"accuracy"} for key in ("sequence_classification", "multiple_choice")}
    assert set(shares) == {**right, **exact}.get(name, set())
    for metric, right in shares.items():
        assert right.mean() == pytest.approx(metrics[metric])
    assert all(objective.metrics[metric].share_of for metric in shares)
    assert all(0 <= value <= 1 for metric, value in metrics.items() if objective.metrics[metric].share_of)


@pytest.mark.parametrize("name", NAMES)
def test_shares_say_how_many_rows_they_are_means_of(name: str) -> None:
    """No row moves a share more than one of the rows that it says to be of: a macro average that names all rows would."""
    objective, state, rows = build(name), STATES.get(name, {}), 101
    scores = random_scores(objective, rows) | {"query": np.arange(float(rows))}
    scores |= {key: np.zeros(rows) for key in scores if key.endswith("without its documents")}
    only_first = np.eye(1, rows)[0]
    for key in scores.keys() & {"label", "prediction"}:  # the last label is that of the first row alone, which is right
        scores[key] = np.where(only_first, 4.0, scores[key] % 4)
    scores |= {key: only_first for key in scores if key in {"given e", "predicted e"}}
    table = objective.additive_statistics(scores, state)
    totals = table.sum(0)
    whole, without = (objective.compute_metrics(one, state) for one in (totals, totals - table))
    for metric, value in whole.items():
        if share_of := objective.metrics[metric].share_of:
            parts = list(share_of(objective.sums(totals, state))) or [rows]
            heaviest = (
                4  # times the mean row: a text of many tokens, with a label that is given and one that is predicted
            )
            assert abs(without[metric] - value).max() <= heaviest / (len(parts) * min(parts)), metric


@pytest.mark.parametrize("name", NAMES)
def test_confidence_does_not_depend_on_the_labels_of_classes(name: str) -> None:
    objective = build(name)
    scores = random_scores(objective, 30)
    found = objective.confidence(scores)
    if name == "multi_label_classification":  # of all labels, which a row may have or not
        assert found is not None
        others = {key: values[::-1] if key.startswith("given") else values for key, values in scores.items()}
        assert objective.confidence(others).tolist() == found.tolist()
        return
    if name not in {"sequence_classification", "multiple_choice", "causal_lm", "masked_lm", "sft", "seq2seq", "reward"}:
        assert found is None
        return
    assert found.shape == (30,)
    assert ((found >= 0) & (found <= 1)).all()
    if name in {"sequence_classification", "multiple_choice"}:
        others = scores | {"label": scores["label"][::-1], "nll": scores["nll"][::-1]}
        assert objective.confidence(others).tolist() == found.tolist() == scores["confidence"].tolist()
    elif name == "reward":
        swapped = {"chosen_reward": scores["rejected_reward"], "rejected_reward": scores["chosen_reward"]}
        assert objective.confidence(swapped).tolist() == found.tolist()
    else:
        given = {"nll": np.array([0.0, 3 * np.log(2)]), "tokens": np.array([4.0, 3.0])}
        assert objective.confidence(given) == pytest.approx([1.0, 0.5])


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_results_of_labels_match_sklearn(first: int) -> None:
    """On 200 random cases: precision, recall and F1 of each label, what is mixed up, and curves."""
    one, several = build("sequence_classification"), build("multi_label_classification")
    for seed in range(first, first + 50):
        draw = np.random.default_rng(seed)
        rows, classes = int(draw.integers(1, 60)), int(draw.integers(2, 7))
        names = {"labels": [f"label {i}" for i in range(classes)]}
        truth, predicted = draw.integers(0, classes, rows), draw.integers(0, classes, rows)
        scores = {
            "nll": truth + 1.0,
            "label": truth * 1.0,
            "prediction": predicted * 1.0,
            "confidence": truth / 9 + 0.1,
        }
        assert (
            one.confusion_matrix(scores, names)[:, :-1].tolist()
            == confusion_matrix(truth, predicted, labels=range(classes)).tolist()
        )
        check_labels(one, scores, names, truth, predicted, labels=range(classes))
        marks, odds = draw.random((rows, classes)) < draw.random(), np.round(draw.random((rows, classes)), 2)
        table = {"given": marks, "probability": odds, "predicted": odds >= 0.5}
        scores = {"nll": truth + 1.0, "agreement": truth / 9}
        scores |= {f"{what} {n}": own[:, i] * 1.0 for what, own in table.items() for i, n in enumerate(names["labels"])}
        check_labels(several, scores, names, marks, odds >= 0.5)
        curves = several.label_curves(scores, names)
        assert list(curves) == [n for i, n in enumerate(names["labels"]) if marks[:, i].any()]
        for label, curve in list(curves.items())[:1]:
            given = marks[:, names["labels"].index(label)], odds[:, names["labels"].index(label)]
            precision, recall, thresholds = precision_recall_curve(*given)
            np.testing.assert_allclose(curve.precision, precision[-2::-1])
            np.testing.assert_allclose(curve.recall, recall[-2::-1])
            np.testing.assert_allclose(curve.thresholds, thresholds[::-1])
            assert curve.average_precision == pytest.approx(average_precision_score(*given))


def check_labels(objective: Any, scores: Any, names: Any, truth: Any, predicted: Any, **labels: Any) -> None:
    """The results of each label are those of scikit-learn, and their totals those of any leading dimensions."""
    totals = objective.additive_statistics(scores, names).sum(0)
    found = precision_recall_f1(objective.label_counts(totals, names))
    expected = precision_recall_fscore_support(truth, predicted, zero_division=0, **labels)
    for metric, values in zip(("precision", "recall", "f1"), expected[:3], strict=True):
        np.testing.assert_allclose(found[metric], values, atol=1e-12)
    assert objective.label_counts(totals, names)[2].tolist() == list(expected[3])
    twice = objective.label_counts(np.stack([totals, 2 * totals]), names)
    np.testing.assert_allclose(precision_recall_f1(twice)["f1"], [found["f1"]] * 2)
