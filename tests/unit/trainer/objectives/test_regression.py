"""Regression against references: scipy's and scikit-learn's metrics, transformers' own loss, and what a plain load of a release answers."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import mean_absolute_error
from transformers import AutoConfig, AutoModelForSequenceClassification

from params import DataError, ModelError, RecipeError
from params.schema import Launch, Model, ObjectiveChoice, Training
from tests.support import tiny
from tests.support.metrics import undefined_metrics
from trainer import objectives
from trainer.loop.metrics import MetricAccumulator
from trainer.objectives.bases.loss import MicroBatchShare
from trainer.objectives.bases.network.standardization import measure_moments, restore_units, standardization_of

TINY = {"vocab_size": 60, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
STATE = {"numbers": ["price", "stars"], "mean": [200000.0, 3.5], "std": [50000.0, 0.8]}
ONE = {"numbers": ["price"], "mean": [200000.0], "std": [50000.0]}


def regression(*columns: str, **options: object):
    named = columns[0] if len(columns) == 1 else list(columns)
    return objectives.build_objective(ObjectiveChoice(name="regression", label_column=named, **options))


def built(objective, state, model_type: str = "bert", *, seed: int = 0, new=None, **config: object):
    """A model as a training starts with it; `new` are the weights that it has from no base, by default all."""
    torch.manual_seed(seed)
    full = AutoConfig.for_model(model_type, **{**TINY, "pad_token_id": 0, **config, **objective.model_config(state)})
    model = AutoModelForSequenceClassification.from_config(full).eval()
    objective.prepare_model(model, None, state, list(model.state_dict()) if new is None else new)
    return model


def batch(state, rows: int = 6):
    chance = np.random.default_rng(1)
    given = chance.normal(state["mean"], state["std"], (rows, len(state["mean"])))
    ids = torch.from_numpy(chance.integers(3, 60, (rows, 7)))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor(given).float()}


def case(seed: int):
    """Predicted and given numbers of some rows, with ties."""
    chance = np.random.default_rng(seed)
    columns, rows = 1 + seed % 3, int(chance.integers(2, 60))
    state = {
        "numbers": [f"n{i}" for i in range(columns)],
        "mean": chance.normal(0, 10.0 ** chance.integers(-2, 6), columns).tolist(),
        "std": (10 ** chance.uniform(-3, 5, columns)).tolist(),
    }
    z = chance.normal(0, 1, (2, rows, columns))
    if seed % 2:
        z = np.round(z)
        z[:, 0], z[:, 1] = -3, 3  # not all the same
    return state, z * state["std"] + state["mean"]


def test_metrics_are_those_of_scipy_and_scikit_learn():
    for seed in range(200):
        state, (predicted, given) = case(seed)
        objective = regression(*state["numbers"])
        accumulator = MetricAccumulator(objective, state)
        for part in torch.tensor(np.concatenate([predicted, given], 1)).split(7):
            accumulator.update(part)
        pairs = list(zip(predicted.T, given.T, strict=True))
        expected = {
            "loss": np.mean(((predicted - given) / state["std"]) ** 2),
            "mae": np.mean([mean_absolute_error(g, p) for p, g in pairs]),
            "pearson": np.mean([pearsonr(p, g).statistic for p, g in pairs]),
            "spearman": np.mean([spearmanr(p, g).statistic for p, g in pairs]),
        }
        assert accumulator.compute() == pytest.approx(expected, rel=1e-8, abs=1e-8), seed


def test_correlations_where_all_numbers_are_the_same():
    objective, (predicted, given) = regression("price"), np.array([[1.0, 2.0, 3.0], [2e5, 2e5, 2e5]])
    for p, g, undefined in ((predicted, given, {"pearson", "spearman"}), (given, predicted * 1e5, set())):
        scores = {"predicted price": p, "given price": g}
        totals = objective.additive_statistics(scores, ONE).sum(0)
        metrics = objective.compute_metrics(totals, ONE) | objective.whole_metrics(scores)
        assert metrics["pearson"] == metrics["spearman"] == 0
        assert undefined_metrics(objective, totals, ONE) == undefined


@pytest.mark.parametrize("state", [ONE, STATE], ids=["one", "two"])
def test_loss_and_gradient_are_those_of_transformers(state):
    """Its own loss of a problem of regression, on standardized numbers."""
    objective, own = regression(*state["numbers"]), batch(state)
    model, reference = built(objective, state), built(objective, state)
    reference._forward_hooks.clear()
    share = MicroBatchShare(objective.loss_items(own), 1, 1)
    loss = objective.batch_loss(model, own, share).loss
    standardized = (own["labels"].double() - torch.tensor(state["mean"])) / torch.tensor(state["std"])
    expected = reference(**{**own, "labels": standardized.float()}).loss
    loss.backward()
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for (name, weight), other in zip(model.named_parameters(), reference.parameters(), strict=True):
        if other.grad is not None:
            torch.testing.assert_close(weight.grad, other.grad, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("delta", [0.3, 2.0])
def test_huber_loss_is_that_of_torch(delta):
    objective, own = regression("price", "stars", loss="huber", huber_delta=delta), batch(STATE)
    model = built(objective, STATE)
    loss = objective.batch_loss(model, own, MicroBatchShare(objective.loss_items(own), 1, 1)).loss
    with torch.no_grad():
        logits = model(input_ids=own["input_ids"], attention_mask=own["attention_mask"]).logits
    z = [(one - torch.tensor(STATE["mean"])) / torch.tensor(STATE["std"]) for one in (logits, own["labels"])]
    assert loss.item() == pytest.approx(torch.nn.HuberLoss(delta=delta)(*z).item(), rel=1e-6)


HEADS = {
    "bert": {},
    "roberta": {},
    "distilbert": {"dim": 16, "hidden_dim": 16, "n_layers": 1, "n_heads": 2},
    "deberta-v2": {},
    "modernbert": {},
    "llama": {},
    "gpt2": {"n_embd": 16, "n_layer": 1, "n_head": 2, "eos_token_id": 2},
    "bart": {
        **dict.fromkeys(("encoder_layers", "decoder_layers"), 1),
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "d_model"), 16),
        "eos_token_id": 2,
    },
    "t5": {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "eos_token_id": 2}
    | {"decoder_start_token_id": 0},
}


@pytest.mark.parametrize("model_type", HEADS)
@pytest.mark.parametrize("state", [ONE, STATE], ids=["one", "two"])
def test_a_plain_load_of_a_release_answers_in_units(model_type, state, tmp_path: Path):
    objective = regression(*state["numbers"])
    model = built(objective, state, model_type, **HEADS[model_type])
    inputs = {name: value for name, value in batch(state).items() if name != "labels"}
    inputs["input_ids"][:, -1] = 2  # where the encoder-decoders look
    model.save_pretrained(tmp_path)
    restore_units(tmp_path)
    again = (tmp_path / "config.json").read_bytes()
    restore_units(tmp_path)
    assert (tmp_path / "config.json").read_bytes() == again, "what is in units stays"
    assert b"target_" not in again
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert loaded.config.problem_type == "regression"
    with torch.no_grad():
        expected, found = model(**inputs).logits.float(), loaded(**inputs).logits
    spread = torch.tensor(state["std"])
    torch.testing.assert_close(found / spread, expected / spread, rtol=1e-5, atol=2e-6)
    if model_type not in ("llama", "gpt2"):
        assert ((expected - torch.tensor(state["mean"])) / spread).abs().max() < 3, "a new head begins near the mean"


@pytest.mark.parametrize("model_type", ["bert", "llama"])
def test_a_base_that_answers_in_units_goes_on_from_there(model_type):
    """Whatever mean and deviation the rows of today have."""
    objective, other = regression("price"), {**ONE, "mean": [150000.0], "std": [70000.0]}
    torch.manual_seed(0)
    full = AutoConfig.for_model(model_type, **TINY, pad_token_id=0, **objective.model_config(ONE))
    base = AutoModelForSequenceClassification.from_config(full).eval()
    inputs = {name: value for name, value in batch(ONE).items() if name != "labels"}
    with torch.no_grad():
        before = base(**inputs).logits
    objective.prepare_model(base, None, other, new=[])
    with torch.no_grad():
        torch.testing.assert_close(base(**inputs).logits.float(), before, rtol=1e-5, atol=0.05)


def test_a_head_without_a_bias_cannot_learn_numbers_far_from_zero():
    years = {"numbers": ["year"], "mean": [1990.0], "std": [12.0]}
    with pytest.raises(RecipeError, match="has no bias, and the numbers are far from 0") as error:
        built(regression("year"), years, "llama")
    assert "subtract about that" in error.value.fix
    built(regression("year"), years, "bert")


def test_weights_without_their_head_are_refused(tmp_path: Path):
    built(regression("price"), ONE).bert.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    config.target_mean, config.target_std = [1.0], [2.0]
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="lacks the weights of classifier"):
        restore_units(tmp_path)


def rows(*values: object):
    return [{"row_id": i, "text": "a", "price": value, "stars": 3 + i} for i, value in enumerate(values)]


@pytest.mark.parametrize("seed", range(20))
def test_mean_and_deviation_are_those_of_all_rows_however_they_are_cut(seed):
    chance = random.Random(seed)
    size, near = 10 ** chance.uniform(-4, 6), chance.uniform(-1e6, 1e6)
    values = [chance.gauss(near, size) for _ in range(chance.randint(2, 300))]
    objective, found = regression("price"), []
    for parts in (1, 2, 7):
        cuts = sorted(chance.sample(range(len(values) + 1), min(parts - 1, len(values))))
        bounds = zip([0, *cuts], [*cuts, len(values)], strict=True)
        summaries = [objective.summarize(rows(*values[a:b])) for a, b in bounds]
        found.append(standardization_of(summaries))
    assert found[0] == found[1] == found[2]
    mean, std = statistics.fmean(values), statistics.pstdev(values)
    assert found[0] == ([pytest.approx(mean, abs=6e-3 * std)], [pytest.approx(std, rel=6e-3)])
    assert len(f"{found[0][1][0]:.12g}".replace(".", "").strip("0")) <= 3, "few rows more do not change it"


def test_state_of_several_numbers():
    objective = regression("price", "stars")
    state = objective.collect_state(rows(10, 20, 30))
    assert state == {"numbers": ["price", "stars"], "mean": [20.0, 4.0], "std": [8.16, 0.816]}
    assert objective.columns() == {"text": "string", "price": "number", "stars": "number"}
    assert objective.model_config(state)["id2label"] == {0: "price", 1: "stars"}


@pytest.mark.parametrize("number", [7, 0.1, 0.3, 1_700_000_000.1])
def test_the_same_number_in_every_row_is_nothing_to_learn(number):
    objective = regression("stars", "price")
    for parts in ([rows(*[number] * 7)], [rows(*[number] * 3), rows(*[number] * 4)]):
        with pytest.raises(
            DataError, match=f"every row of the train split has the number {number:g}".replace("+", r"\+")
        ) as error:
            objective.state_of_summaries(map(objective.summarize, parts))
        assert error.value.where == "price"
    empty = measure_moments(np.zeros((0, 2)))
    assert standardization_of([empty, measure_moments(np.array([[1.0, 2.0], [3.0, 6.0]])), empty])[1] == [1.0, 2.0]


@pytest.mark.parametrize(
    "values", [(1.7e9, 1.7e9 + 60), (1e308, -1e308)], ids=["seconds since 1970", "infinite spread"]
)
def test_numbers_that_single_precision_cannot_tell_apart_are_refused(values):
    with pytest.raises(DataError, match="cannot be told apart in single precision") as error:
        regression("price").collect_state(rows(*values))
    assert "subtract about their mean" in error.value.fix
    regression("price").collect_state(rows(1990, 2020))


def known(*names: str, **config: object):
    made = AutoConfig.for_model("bert", **TINY, id2label=dict(enumerate(names)), **config)
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_config(made).eval()


@pytest.mark.parametrize(
    ("names", "places"),
    [
        (("price", "stars"), [0, 1]),
        (("stars", "price"), [1, 0]),
        (("stars", "size", "price"), [2, 0]),
        (("LABEL_0", "LABEL_1"), [0, 1]),
    ],
)
def test_numbers_of_a_champion_are_found_by_their_names(names, places):
    objective, own = regression("price", "stars"), batch(STATE)
    model, plain = known(*names), known(*names)
    with torch.no_grad():
        scores = objective.score_batch(objective.remap_labels(model, STATE), own, None)
        logits = plain(input_ids=own["input_ids"], attention_mask=own["attention_mask"]).logits
    torch.testing.assert_close(scores[:, :2].float(), logits[:, places])
    torch.testing.assert_close(scores[:, 2:].float(), own["labels"])


def test_a_champion_that_does_not_predict_a_number_is_refused():
    objective = regression("price", "stars")
    with pytest.raises(ValueError, match="it does not predict 'stars'"):
        objective.remap_labels(known("price", "size"), STATE)
    with pytest.raises(ValueError, match=r"problem_type in its config\.json is single_label_classification"):
        objective.remap_labels(known("price", "stars", problem_type="single_label_classification"), STATE)
    regression("price").remap_labels(known("cost"), ONE)  # its only number


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"label_column": []}, "label_column"),
        ({"label_column": ["price", "price"]}, "label_column"),
        ({"huber_delta": 2.0}, "huber_delta"),
        ({"text_pair_column": "text"}, "text_pair_column"),
        ({}, None),
        ({"loss": "huber", "huber_delta": 2.0}, None),
    ],
)
def test_options_that_do_not_fit(options, key):
    sections = {
        name: kind.model_validate(tiny.CLASSES.get(name, tiny.RECIPE[name]))
        for name, kind in {"model": Model, "training": Training, "launch": Launch}.items()
    }
    found = list(objectives.build_objective(ObjectiveChoice(name="regression", **options)).conflicts(**sections))
    assert [problem.key[-1] for problem in found] == ([key] if key else [])


def test_what_a_reader_sees():
    objective = regression("price", "stars")
    scores = {"predicted price": 101234.5, "predicted stars": 3.25, "given price": 99000.0, "given stars": 3.0}
    assert objective.describe_scores(scores, STATE) == {"expected": "99000, 3", "predicted": "101234, 3.25"}
    assert objective.call_arguments == {"truncation": True, "function_to_apply": "none", "top_k": None}
    assert regression("price").call_arguments == {"truncation": True, "function_to_apply": "none"}
    assert objective.served_scores == ("predicted price", "predicted stars")
