"""Multi-label classification: its rows in all forms, its loss and metrics beside torch and scikit-learn, its thresholds."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, log_loss, precision_recall_curve
from tokenizers import Tokenizer, models
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
)

from params import DataError, RecipeError
from params.schema import ObjectiveChoice
from tests.support.metrics import undefined_metrics
from trainer import objectives
from trainer.objectives.bases.labels.thresholds import choose_f1_thresholds
from trainer.objectives.bases.loss import MicroBatchShare
from trainer.objectives.bases.network.output_layer import find_output_layer

SMALL = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
STATE = {"labels": ["anger", "joy", "love"]}
EACH = "{anger} {joy} {love}"
WORDS = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0}, "<pad>")), pad_token="<pad>")


def build(**options):
    return objectives.build_objective(ObjectiveChoice(name="multi_label_classification", **options))


def network(labels=STATE["labels"], **config):
    torch.manual_seed(0)
    kind = "multi_label_classification"
    known = {"num_labels": len(labels), "id2label": dict(enumerate(labels)), "problem_type": kind}
    return BertForSequenceClassification(BertConfig(**SMALL, **known, **config)).eval()


def batch(count=6, labels=3, seed=0):
    draw = torch.Generator().manual_seed(seed)
    marks = torch.randint(0, 2, (count, labels), generator=draw).float()
    ids = torch.randint(1, 50, (count, 5), generator=draw)
    return {"input_ids": ids, "attention_mask": torch.ones(count, 5, dtype=torch.int64), "labels": marks}


FORMS = {
    "lists": ({}, {"labels": [" joy", "love ", "joy"]}, {"labels": []}),
    "cats": ({"labels_column": "cats"}, {"cats": {"joy": 1.0, "love": True, "anger": 0.0}}, {"cats": {"joy": None}}),
    "a column each": ({"labels_column": EACH}, {"joy": 1, "love": "Yes", "anger": "0"}, {"joy": 0, "love": "no", "anger": False}),
    "shares of people": ({"labels_column": "cats"}, {"cats": {"joy": 0.5, "love": "0.9", "anger": 0.49}}, {"cats": {"joy": 0.1}}),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_labels_are_read_in_the_forms_that_people_have(form):
    options, *rows = FORMS[form]
    objective = build(**options)
    rows = [{"row_id": i, "text": "a text", **row} for i, row in enumerate(rows)]
    assert [objective.reject_reason(row) for row in rows] == [None, None]
    assert objective.collect_state(rows)["labels"] == ["joy", "love"]
    encoded = objective.encode(rows, WORDS, 9, STATE)
    assert [example["labels"] for (example,), _ in encoded] == [[0.0, 1.0, 1.0], [0.0, 0.0, 0.0]]
    assert objective.unseen_label(rows[0], {"labels": ["joy"]}) == "no training row has the label 'love'"


@pytest.mark.parametrize(
    ("options", "row", "reason"),
    [
        ({}, {"labels": ["joy", None]}, "one of its labels is null"),
        ({}, {"labels": ["joy", " "]}, "one of its labels is blank"),
        ({}, {"labels": "joy"}, "of its labels, 'joy' is neither a list of labels nor a record of them"),
        ({"labels_column": "cats"}, {"cats": {"joy": 3}}, "of its cats, 3 says neither yes nor no"),
        ({"labels_column": EACH}, {"joy": 1, "love": "maybe", "anger": 0}, "of its love, 'maybe' says neither yes nor"),
    ],
)
def test_what_cannot_be_read_has_a_reason(options, row, reason):
    assert objectives.why_row_unusable(build(**options), {"text": "a text", **row}).startswith(reason)


def test_labels_that_training_lacks_are_errors():
    row = {"row_id": 1, "text": "a text", "labels": ["zebra"]}
    with pytest.raises(ValueError, match="no training row has the label 'zebra'"):
        build().encode([row], WORDS, 9, STATE)
    with pytest.raises(DataError, match="no row of the train split has a label"):
        build().model_config({"labels": []})
    with pytest.raises(RecipeError, match=r"'jou'.*\n.*did you mean `joy`") as caught:
        build(positive_weights={"jou": 2.0}).model_config(STATE)
    assert caught.value.where == "objective.positive_weights"
    assert build().model_config(STATE)["problem_type"] == "multi_label_classification"


@pytest.mark.parametrize(
    ("weights", "of_labels"),
    [(1.0, [1.0, 1.0, 1.0]), (4.0, [4.0, 4.0, 4.0]), ({"love": 3.0, "anger": 0.5}, [0.5, 1.0, 3.0])],
)
def test_loss_and_gradients_are_those_of_the_reference(weights, of_labels):
    """transformers' own loss for this problem type, and torch's with positive weights; in three micro-batches of two processes."""
    objective, whole = build(positive_weights=weights), batch(12)
    model, reference = network(), network()
    for i in range(0, 12, 2):
        part = {name: value[i : i + 2] for name, value in whole.items()}
        share = MicroBatchShare(items=torch.tensor(12.0), micro_batches=3, processes=2)
        (objective.batch_loss(model, part, share).loss / 2).backward()
    logits = reference(**{name: whole[name] for name in ("input_ids", "attention_mask")}).logits
    loss = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(of_labels))(logits, whole["labels"])
    if weights == 1.0:
        torch.testing.assert_close(reference(**whole).loss, loss, rtol=0, atol=1e-7)
    loss.backward()
    share = MicroBatchShare(items=12.0, micro_batches=1, processes=1)
    torch.testing.assert_close(objective.batch_loss(model, whole, share).loss, loss, rtol=0, atol=1e-6)
    for own, other in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=0, atol=1e-6)


def scores_of(objective, logits, given, thresholds, state):
    table = objective._scores(logits, given, torch.tensor(thresholds, dtype=torch.float64))
    return dict(zip(objective.score_names(state), table.numpy().T, strict=True))


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_metrics_match_sklearn(first):
    objective = build()
    for seed in range(first, first + 50):
        draw = np.random.default_rng(seed)
        rows, labels = int(draw.integers(1, 60)), int(draw.integers(2, 7))
        state = {"labels": [f"label {i}" for i in range(labels)]}
        given = torch.tensor(draw.random((rows, labels)) < draw.random(labels)).float()  # some labels of no row
        logits = torch.tensor(3 * draw.standard_normal((rows, labels)))
        thresholds = draw.uniform(0.1, 1.05, labels)  # some labels are never predicted
        scores = scores_of(objective, logits, given, thresholds, state)
        totals = objective.additive_statistics(scores, state).sum(0)
        found, truth = objective.compute_metrics(totals, state), given.numpy().astype(int)
        predicted = (logits.sigmoid().numpy() >= thresholds).astype(int)
        if not undefined_metrics(objective, totals, state):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # labels without rows and predictions
                for average in ("micro", "macro"):
                    expected = f1_score(truth, predicted, average=average, zero_division=np.nan)
                    assert found[f"{average}_f1"] == pytest.approx(expected, abs=1e-12)
        assert found["exact_match"] == pytest.approx(accuracy_score(truth, predicted), abs=1e-12)
        assert objective.metrics["exact_match"].right(scores).mean() == pytest.approx(found["exact_match"])
        probability = logits.sigmoid().numpy()
        shares = np.stack([1 - probability, probability], -1).reshape(-1, 2)
        assert found["loss"] == pytest.approx(log_loss(truth.ravel(), shares, labels=[0, 1]), rel=1e-5)


def joined_f1(given, probability, label, threshold):
    """F1 of a label and of ten rows of the mean label, counted as the page of `choose_f1_thresholds` says."""
    reached, share = probability >= threshold, 10 / given.sum()
    right = (reached & given)[:, label].sum() + share * (reached & given).sum()
    predicted = reached[:, label].sum() + share * reached.sum()
    return 2 * right / (predicted + given[:, label].sum() + 10)


def test_thresholds_have_the_best_f1_on_200_random_cases():
    for seed in range(200):
        draw = np.random.default_rng(seed)
        rows, labels = int(draw.integers(1, 15)), int(draw.integers(1, 4))
        given = draw.random((rows, labels)) < draw.random()
        probability = np.round(draw.uniform(0.06, 1, (rows, labels)), int(draw.integers(1, 4)))  # equal ones, too
        found = choose_f1_thresholds(given, probability)
        if not given.any():
            assert found == [0.5] * labels
            continue
        for label, threshold in enumerate(found):
            own = np.unique([0, 1, *probability[:, label]])
            best = max(joined_f1(given, probability, label, one) for one in (own[1:] + own[:-1]) / 2)
            place = np.searchsorted(own, threshold)
            middle = (own[place - 1] + own[place]) / 2
            assert joined_f1(given, probability, label, middle) == pytest.approx(best)


def test_of_many_rows_a_threshold_has_the_best_f1_of_its_label():
    for seed in range(10):
        draw = np.random.default_rng(seed)
        given = draw.random((3000, 3)) < [0.05, 0.2, 0.5]
        probability = 1 / (1 + np.exp(-draw.standard_normal((3000, 3)) - 2 * given + [4, 2, 1]))
        for label, threshold in enumerate(choose_f1_thresholds(given, probability)):
            precision, recall, _ = precision_recall_curve(given[:, label], probability[:, label])
            best = (2 * precision * recall / np.maximum(precision + recall, 1e-9)).max()
            found = f1_score(given[:, label], probability[:, label] >= threshold)
            assert best - 0.01 < found <= best + 1e-12
            assert found > f1_score(given[:, label], probability[:, label] >= 0.5) - 0.01


def test_a_rare_label_that_the_model_does_not_know_is_not_predicted_for_every_row():
    """By its own F1 alone it would be: 2 p / (1 + p) for all rows is more than none."""
    draw = np.random.default_rng(0)
    given = draw.random((800, 3)) < [0.004, 0.2, 0.3]
    probability = 1 / (1 + np.exp(-draw.standard_normal((800, 3)) - 3 * given * [0, 1, 1] + [5, 2, 1]))
    rare = choose_f1_thresholds(given, probability)[0]
    assert (probability[:, 0] >= rare).mean() < 0.02
    assert 0.1 < rare < 0.9, "about as for the other labels"


@pytest.mark.parametrize(
    ("probability", "expected"),
    [([0.9, 0.31, 0.30, 0.1], 0.2), ([0.9, 0.3343, 0.3338, 0.3337], 0.33375), ([0.9, 0.8, 0.7, 0.4], 0.5)],
)
def test_a_threshold_has_few_decimals(probability, expected):
    given = np.array([[True], [True], [True], [False]])
    assert choose_f1_thresholds(given, np.array(probability)[:, None]) == [expected]


def test_a_model_is_scored_with_its_own_thresholds():
    objective, inputs = build(), batch()
    model = network()
    usual = objective.score_batch(model, inputs, None)
    places = {name: i for i, name in enumerate(objective.score_names(STATE))}
    joy = sorted(usual[:, places["probability joy"]].tolist())
    model.config.label_thresholds = {"joy": joy[2], "love": 0.0}  # of a base that did not know anger
    own = objective.score_batch(model, inputs, None)
    assert int(own[:, places["predicted joy"]].sum()) == 4
    assert own[:, places["predicted love"]].all()
    assert torch.equal(own[:, places["predicted anger"]], usual[:, places["predicted anger"]])
    assert torch.equal(own[:, : places["predicted anger"]], usual[:, : places["predicted anger"]])


def test_thresholds_follow_from_the_scores_of_validation():
    objective, draw = build(), np.random.default_rng(0)
    given = torch.tensor(draw.random((300, 3)) < [0.3, 0.1, 0.0]).float()
    logits = torch.tensor(draw.standard_normal((300, 3))) + 2 * given - 2
    scores = scores_of(objective, logits, given, [0.5] * 3, STATE)
    chosen = objective.config_from_validation(scores, STATE)["label_thresholds"]
    assert list(chosen) == STATE["labels"]
    assert list(chosen.values()) == choose_f1_thresholds(given.numpy() > 0, logits.sigmoid().numpy())
    assert 0.5 not in chosen.values()


@pytest.mark.parametrize(
    "known", [["Joy ", "anger"], ["zebra", "joy", "love", "anger"]], ids=["lacks one", "has one more"]
)
def test_a_champion_of_other_labels_keeps_its_thresholds(known):
    objective, inputs = build(), batch()
    own = {label: 0.1 + 0.1 * i for i, label in enumerate(known)}
    model = network(known, label_thresholds=own)
    with torch.no_grad():
        before = model(inputs["input_ids"]).logits
        scores = objective.score_batch(objective.remap_labels(model, STATE), inputs, None)
    found = dict(zip(objective.score_names(STATE), scores.T, strict=True))
    stripped = [label.strip().lower() for label in known]
    for label in STATE["labels"]:
        probability = found[f"probability {label}"]
        if label not in stripped:
            assert (probability == 0).all()
            assert not found[f"predicted {label}"].any(), "it cannot know the label"
            continue
        place = stripped.index(label)
        torch.testing.assert_close(probability, before[:, place].double().sigmoid())
        assert torch.equal(found[f"predicted {label}"] > 0, probability >= own[known[place]])


def test_a_champion_that_gives_each_text_one_label_is_refused():
    model = network()
    model.config.problem_type = "single_label_classification"
    with pytest.raises(ValueError, match="is single_label_classification, not multi_label"):
        build().remap_labels(model, STATE)


def test_a_new_label_begins_as_rare_and_one_that_the_base_knows_as_it_was():
    model = network(["anger", "joy", "love", "fear"])
    with torch.no_grad():
        model.classifier.bias[1] = 0.7
    model.rows_of_base = [1]
    build().prepare_model(model, WORDS, {}, ["classifier.weight", "classifier.bias"])
    expected = [-1.0986, 0.7, -1.0986, -1.0986]  # log(1 / 3): a probability of 1 / 4
    assert model.classifier.bias.tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "qwen2", "gpt2", "t5", "modernbert"])
def test_no_layer_but_the_head_is_changed(model_type):
    """Many layers have as many outputs as there are labels; the head of a decoder has no bias."""
    width = 16
    sizes = {"hidden_size": width, "intermediate_size": width, "num_hidden_layers": 1, "num_attention_heads": 1}
    sizes |= {
        "n_embd": width,
        "n_layer": 1,
        "n_head": 1,
        "d_model": width,
        "d_kv": width,
        "d_ff": width,
        "num_heads": 1,
    }
    sizes |= {"num_key_value_heads": 1, "num_layers": 1, "head_dim": width, "pad_token_id": 0, "vocab_size": 32}
    config = AutoConfig.for_model(model_type, **sizes, num_labels=width, decoder_start_token_id=0)
    model = AutoModelForSequenceClassification.from_config(config)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    build().prepare_model(model, WORDS, {}, list(before))
    changed = [name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])]
    expected = {"bert": ["classifier.bias"], "roberta": ["classifier.out_proj.bias"]}
    expected |= {"t5": ["classification_head.out_proj.bias"], "modernbert": ["classifier.bias"]}
    assert changed == expected.get(model_type, [])


def test_what_people_see_of_a_row():
    objective = build()
    scores = scores_of(objective, torch.tensor([[2.0, -2.0, 0.1]]), torch.tensor([[0.0, 1.0, 1.0]]), [0.5] * 3, STATE)
    row = {name: float(value[0]) for name, value in scores.items()}
    expected = {"expected": "joy, love", "predicted": "anger (0.881), love (0.525)"}
    assert objective.describe_scores(row, STATE) == expected
    assert objective.describe_scores(dict.fromkeys(row, 0.0), STATE) == {"expected": "none", "predicted": "none"}


def test_what_the_card_answers_is_what_was_judged():
    objective, model, inputs = build(), network(), batch(1)
    scores = dict(
        zip(objective.score_names(STATE), objective.score_batch(model, inputs, None)[0].tolist(), strict=True)
    )
    row = {"text": "x", "labels": [label for label in STATE["labels"] if scores[f"given {label}"]]}
    said = model(inputs["input_ids"]).logits[0].sigmoid().tolist()
    answer = [{"label": label, "score": score} for label, score in zip(STATE["labels"], said, strict=True)]
    found = objective.answer_scores(lambda text: answer, row, {}, SimpleNamespace())
    assert found == pytest.approx({name: scores[name] for name in found}, abs=1e-6)
    assert set(found) == {"agreement", *(f"probability {label}" for label in STATE["labels"])}


@pytest.mark.parametrize("head", [torch.nn.Identity(), torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Tanh())])
def test_no_layer_of_the_body_is_taken_for_the_output_layer(head):
    """A value projection may have as many outputs as there are labels."""
    sizes = SMALL | {"num_key_value_heads": 1, "head_dim": 8, "num_labels": 8, "pad_token_id": 0}
    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model("qwen2", **sizes))
    assert find_output_layer(model, []).name == "score"
    model.score = head
    assert find_output_layer(model, []) is None
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    objective = objectives.build_objective(ObjectiveChoice(name="multi_label_classification"))
    objective.prepare_model(model, WORDS, {"labels": [str(i) for i in range(8)]}, [])
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
