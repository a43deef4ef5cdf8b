"""Sequence classification on literal tensors: labels, batches, metrics."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from params import DataError
from params.schema import ObjectiveChoice
from tasks.tokenization.encoding import RowEncoder
from trainer import objectives
from trainer.loop.metrics import MetricAccumulator


@pytest.fixture(scope="module")
def words():
    """A readable tokenizer: 1 begins, 2 ends, 14 is `word`; 0 pads."""
    tokenizer = Tokenizer(models.WordLevel({"<pad>": 0, "<begin>": 1, "<end>": 2, "word": 14}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        "<begin> $A <end>", special_tokens=[("<begin>", 1), ("<end>", 2)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>")


@pytest.fixture
def objective():
    return objectives.build_objective(ObjectiveChoice(name="sequence_classification", label_column="kind"))


def rows(*labels):
    return [{"row_id": i, "text": "word " * (i + 1), "kind": label} for i, label in enumerate(labels)]


def test_labels_are_sorted_and_numbered(objective, words):
    state = objective.collect_state(rows("b", "c", "a", "b"))
    assert state == {"labels": ["a", "b", "c"]}
    encoded = objective.encode(rows("b", "c", "a"), words, 9, state)
    assert [example["labels"] for (example,), _ in encoded] == [1, 2, 0]
    assert objective.model_config(state) == {
        "num_labels": 3,
        "id2label": {0: "a", 1: "b", 2: "c"},
        "label2id": {"a": 0, "b": 1, "c": 2},
        "problem_type": "single_label_classification",
    }


def test_integer_labels(objective, words):
    state = objective.collect_state(rows(10, 9, 9))
    assert state == {"labels": ["10", "9"]}
    assert objective.encode(rows(9), words, 9, state)[0].examples[0]["labels"] == 1


def test_unknown_label_is_an_error_with_the_row(objective, words):
    encoder = RowEncoder(objective, words, 9, {"labels": ["a"]})
    with pytest.raises(DataError, match="row_id 1: cannot be encoded") as caught:
        encoder.encode(rows("a", "zebra", "a"))
    assert caught.value.what == "cannot be encoded: no training row has the label 'zebra'"
    with pytest.raises(DataError, match="row_id 0: cannot be encoded: 'kind'"):
        encoder.encode([{"row_id": 0, "text": "word"}, *rows("a")])


def test_white_space_around_a_label_is_not_part_of_it(objective, words):
    state = objective.collect_state(rows("b", " a", "b ", "B"))
    assert state == {"labels": ["B", "a", "b"]}
    encoded = objective.encode(rows("a", "b ", "b"), words, 9, state)
    assert [example["labels"] for (example,), _ in encoded] == [1, 2, 2]
    assert objective.unseen_label({"kind": " a "}, state) is None
    assert objective.unseen_label({"kind": " c "}, state) == "no training row has the label 'c'"


@pytest.mark.parametrize("texts", [{"text"}, {"text", "kind"}])
def test_a_label_of_text_is_not_blank(objective, texts):
    found = [check.type for check in objective.expectations(texts) if check.arguments["column"] == "kind"]
    assert found == ["expect_column_values_to_not_be_null", "expect_column_values_to_match_regex"][: len(texts)]


def test_one_label_is_nothing_to_learn(objective):
    with pytest.raises(DataError, match="every row of the train split has the label 'a'"):
        objective.model_config({"labels": ["a"]})


def test_long_text_is_truncated(objective, words):
    encoder = RowEncoder(objective, words, 4, {"labels": ["a"]})
    encoded = encoder.encode(rows(*["a"] * 9))
    ids = [[1, 14, 2], *[[1, 14, 14, 2]] * 8]
    assert [e.examples for e in encoded] == [[{"row_id": i, "input_ids": x, "labels": 0}] for i, x in enumerate(ids)]
    assert [e.is_truncated for e in encoded] == [False, False, *[True] * 7]


def test_batch_is_padded_and_has_one_label_per_row(objective, words):
    state = {"labels": ["a", "b"]}
    examples = [e for found, _ in objective.encode(rows("b", "a"), words, 9, state) for e in found]
    batch = objective.collate(examples, words)
    assert batch["input_ids"].tolist() == [[1, 14, 2, 0], [1, 14, 14, 2]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert batch["labels"].tolist() == [1, 0]


def test_losses_and_scores_by_hand(objective):
    logits = torch.log(torch.tensor([[0.7, 0.2, 0.1], [0.25, 0.25, 0.5]]))
    labels = torch.tensor([0, 1])
    assert objective.losses(logits, labels).tolist() == pytest.approx([-math.log(0.7), -math.log(0.25)])
    assert objective.score_logits(logits, labels).tolist() == [
        pytest.approx([-math.log(0.7), 0, 0, 0.7]),
        pytest.approx([-math.log(0.25), 1, 2, 0.5]),
    ]


def test_metrics_do_not_depend_on_sub_batches(objective):
    # nll, label, prediction, its probability: 3 of 5 right
    scores = [[1, 0, 0, 0.9], [2, 0, 1, 0.5], [3, 1, 1, 1.0], [4, 2, 1, 0.52], [5, 2, 2, 0.7]]
    scores = torch.tensor(scores, dtype=torch.float64)
    # F1 by hand: a: 2*1/(2*1+0+1) = 2/3; b: 2*1/(2*1+2+0) = 1/2; c: 2*1/(2*1+0+1) = 2/3
    expected = {"loss": 3.0, "accuracy": 0.6, "macro_f1": (2 / 3 + 1 / 2 + 2 / 3) / 3}
    # 0.5 and 0.52 share one of the 15 bins, both wrong; 0.7, 0.9 and 1.0 have one each, all right
    expected["calibration_error"] = (1.02 + 0.3 + 0.1 + 0.0) / 5
    for size in (1, 2, 3, 5):
        accumulator = MetricAccumulator(objective, {"labels": ["a", "b", "c"]})
        for part in scores.split(size):
            accumulator.update(part)
        assert accumulator.compute() == pytest.approx(expected, rel=1e-6)


def test_macro_f1_ignores_labels_without_rows(objective):
    accumulator = MetricAccumulator(objective, {"labels": ["a", "b", "never"]})
    accumulator.update(torch.tensor([[1, 0, 0, 0.5], [1, 1, 1, 0.5]], dtype=torch.float64))
    assert accumulator.compute()["macro_f1"] == 1.0


def test_metrics_of_slices_by_label_add_up_to_those_of_all_rows(objective):
    """Each label's recall is 0.75 or more. A metric that slices may have is there what it is on all rows, on average."""
    state, chance = {"labels": ["a", "b", "c", "d"]}, np.random.default_rng(0)
    label = chance.integers(0, 4, 4000).astype(float)
    prediction = np.where(chance.random(4000) < 0.8, label, chance.integers(0, 4, 4000))
    columns = {"nll": chance.random(4000), "label": label, "prediction": prediction, "confidence": np.full(4000, 0.85)}
    totals = objective.additive_statistics(columns, state)
    whole = objective.compute_metrics(totals.sum(0), state)
    slices = [objective.compute_metrics(totals[label == one].sum(0), state) for one in range(4)]
    shares = [np.mean(label == one) for one in range(4)]
    for metric in objective.metrics:
        mean = sum(share * found[metric] for share, found in zip(shares, slices, strict=True))
        assert (mean == pytest.approx(whole[metric])) == (not objective.metrics[metric].on_slices)
    assert max(found["macro_f1"] for found in slices) < 0.3 < min(found["accuracy"] for found in slices)
