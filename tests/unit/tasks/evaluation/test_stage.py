"""The evaluate stage: metrics, scores, details, slices, errors and memory."""

from __future__ import annotations

import json
import math
import sys

import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F

from params import ModelError, RecipeError
from params.foundation.artifacts import GROUP_BY
from params.sections.evaluation import OwnMetrics
from tasks.shards.split_rows import SplitRows
from tasks.training.model_folder import complete_model_folder
from tests.support import releases, tiny
from tests.support.memory import peak_anonymous_mib
from trainer import objectives
from trainer.data import tokens
from trainer.model.network import build_model_to_train, load_trained_model

SIZES = {"train": 60, "validation": 12, "test": 30}


def with_model(root, content, seed=11):
    """Tokens, and a model of random weights that are not those of the untrained one."""
    artifacts, recipe = tiny.tokenized(root, content, SIZES)
    network = build_model_to_train(
        recipe.model,
        objective=objectives.build_objective(recipe.objective),
        state=tokens.read_objective_state(artifacts.tokens),
        tokenizer=tokens.read_tokenizer(artifacts.tokens),
        seed=seed,
    )
    network.save_pretrained(artifacts.model)
    complete_model_folder(artifacts.model, artifacts, recipe.model)
    return artifacts, recipe


@pytest.fixture(scope="module", params=["causal_lm", "sequence_classification"])
def prepared(request, tmp_path_factory):
    content = tiny.recipe() if request.param == "causal_lm" else tiny.recipe(**tiny.CLASSES)
    return with_model(tmp_path_factory.mktemp(request.param), content)


def run(artifacts, recipe, *, batch_size=16, untrained=False, **changes):
    return releases.evaluate(artifacts, recipe, batch_size=batch_size, compare_untrained=untrained, **changes)


def scores_of(artifacts, model="model"):
    return pq.read_table(artifacts.evaluation / "scores" / f"{model}.parquet")


def details_of(artifacts):
    return json.loads((artifacts.evaluation / "details.json").read_text())


def test_rows_that_belong_together_are_one_observation(tmp_path):
    artifacts, recipe = with_model(tmp_path, tiny.recipe(**tiny.CLASSES))
    path = artifacts.rows / "test/_common_metadata"
    pq.write_metadata(pq.read_schema(path).with_metadata({GROUP_BY: '["label"]'}), path)
    run(artifacts, recipe, untrained=True)
    labels = len({row["label"] for row in SplitRows(artifacts.rows / "test").rows()})
    for one in details_of(artifacts)["comparisons"]:
        assert (one["rows"], one["groups"], one["p_value"]) == (30, labels, None)


def test_own_metrics_cannot_turn_around_a_metric_of_the_objective(prepared):
    """Neither what training computes nor what evaluate alone does, such as bits per byte; said before a model is scored."""
    artifacts, recipe = prepared
    objective = objectives.build_objective(recipe.objective)
    for metric in {objective.main_metric, "loss"}:
        own = OwnMetrics.model_validate({"function": "builtins:len", "directions": {metric: "max"}})
        with pytest.raises(RecipeError, match=f"already computes {metric}") as error:
            run(artifacts, recipe, metrics=own)
        assert error.value.key == f"evaluation.metrics.directions.{metric}"


@pytest.mark.parametrize(
    "content", [tiny.recipe(**tiny.CLASSES), tiny.recipe(**tiny.LABEL_SETS)], ids=["one", "several"]
)
def test_a_training_whose_best_step_is_0_is_not_published(content, tmp_path, monkeypatch):
    """Neither as a first release, whatever thresholds it has, nor over a champion that it is better than."""
    artifacts, recipe = releases.tokenized(tmp_path, content)
    releases.learn(artifacts, recipe, 0)
    path = artifacts.report("train")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"best_step": 0}))
    assert run(artifacts, recipe).verdict == "publish", "nobody asks for a comparison with the model before training"
    assert run(artifacts, recipe, untrained=True).verdict == "refuse"
    (reason,) = json.loads(artifacts.blessing.read_text())["reasons"]
    assert "(step 0, by loss of the validation split): the candidate is the model before training" in reason
    assert "lower `training.learning_rate`" in reason
    started = json.loads(path.read_text())
    releases.learn(artifacts, recipe, 25)
    releases.evaluate(artifacts, recipe)
    releases.publish(artifacts, recipe)
    releases.learn(artifacts, recipe, 0)
    path.write_text(json.dumps(started))
    margin = recipe.evaluation.gate.model_copy(update={"margin": 1.0})
    assert run(artifacts, recipe, gate=margin).verdict == "keep"
    (reason,) = json.loads(artifacts.blessing.read_text())["reasons"]
    assert "the candidate is the model before training" in reason


def test_metrics_match_a_plain_loop_over_the_rows(prepared):
    artifacts, recipe = prepared
    report = run(artifacts, recipe)
    objective = objectives.build_objective(recipe.objective)
    model = load_trained_model(artifacts.model, objective.model_class()).eval()
    nll, right, count, rows = 0.0, 0, 0, {}
    for sequence in tokens.read_split(artifacts.tokens, "test"):  # one at a time: no padding, no mask, no batch
        with torch.no_grad():
            logits = model(torch.tensor([sequence["input_ids"]])).logits[0]
        if recipe.objective.name == "causal_lm":
            logits, labels = logits[:-1], torch.tensor(sequence["input_ids"][1:])
        else:
            logits, labels = logits[None], torch.tensor([sequence["labels"]])
        losses = F.cross_entropy(logits.double(), labels, reduction="sum")
        rows.setdefault(sequence["row_id"], []).append(float(losses))
        nll, count = nll + float(losses), count + len(labels)
        right += int((logits.argmax(-1) == labels).sum())
    assert report.model["loss"] == pytest.approx(nll / count, rel=1e-6)
    accuracy = report.model.get("token_accuracy", report.model.get("accuracy"))
    assert accuracy == pytest.approx(right / count, rel=1e-6)
    if "perplexity" in report.model:
        assert report.model["perplexity"] == pytest.approx(math.exp(nll / count), rel=1e-5)
    if "bits_per_byte" in report.model:
        size = sum(s["bytes"] for s in tokens.read_split(artifacts.tokens, "test"))
        assert report.model["bits_per_byte"] == pytest.approx(nll / math.log(2) / size, rel=1e-6)
    found = {row["row_id"]: row["nll"] for row in scores_of(artifacts).to_pylist()}
    assert found == pytest.approx({row_id: sum(values) for row_id, values in rows.items()}, rel=1e-4)


def test_scores_have_one_line_per_row(tmp_path):
    content = tiny.recipe({"tokenization.max_length": 8})  # rows of several windows
    artifacts, recipe = with_model(tmp_path, content)
    sequences = tokens.read_split(artifacts.tokens, "test")
    report = run(artifacts, recipe, batch_size=7)
    table = scores_of(artifacts)
    assert table.column("row_id").to_pylist() == sorted({s["row_id"] for s in sequences})
    assert (report.rows, report.sequences) == (table.num_rows, len(sequences))
    assert report.rows < report.sequences
    objective = objectives.build_objective(recipe.objective)
    assert table.column_names == ["row_id", *objective.score_names({}), *objective.example_counts]
    labels = {}
    for sequence in sequences:  # the first token of each window is not predicted
        labels[sequence["row_id"]] = labels.get(sequence["row_id"], 0) + len(sequence["labels"]) - 1
    assert dict(zip(table.column("row_id").to_pylist(), table.column("tokens").to_pylist(), strict=True)) == labels


def test_untrained_model_is_scored_and_all_files_are_written(prepared):
    artifacts, recipe = prepared
    report = run(artifacts, recipe, untrained=True)
    assert report.untrained is not None
    assert report.untrained.keys() == report.model.keys()
    assert report.untrained["loss"] != report.model["loss"]
    assert json.loads(artifacts.report("evaluate").read_text()) == report.model_dump()
    assert report.untrained["loss"] == pytest.approx(mean_loss(scores_of(artifacts, "untrained"), recipe), rel=1e-6)
    lines = (artifacts.evaluation / "plots" / "comparison.csv").read_text().splitlines()
    assert lines[0] == "model,metric,value"
    assert len(lines) == 1 + 2 * len(report.model)


def mean_loss(table, recipe):
    """The mean loss, computed from the scores of the rows."""
    weight = "tokens" if recipe.objective.name == "causal_lm" else None
    nll = sum(table.column("nll").to_pylist())
    return nll / (sum(table.column(weight).to_pylist()) if weight else table.num_rows)


def test_details_hold_intervals_gains_and_the_worst_rows(prepared):
    artifacts, recipe = prepared
    report = run(artifacts, recipe, untrained=True, worst_rows=5)
    details = details_of(artifacts)
    for name, metrics in (("model", report.model), ("untrained", report.untrained)):
        assert details["intervals"][name].keys() == metrics.keys()
        for metric, interval in details["intervals"][name].items():
            assert interval["low"] <= interval["high"]
            if metric != "calibration_error":  # its resamples are larger: noise adds to a distance
                assert interval["low"] <= metrics[metric] <= interval["high"]
    for comparison in details["comparisons"]:
        assert comparison["against"] == "untrained"
        assert comparison["rows"] == report.rows
        metric = comparison["metric"]
        sign = 1 if details["directions"][metric] == "max" else -1
        assert comparison["gain"] == pytest.approx(sign * (report.model[metric] - report.untrained[metric]), rel=1e-6)
        assert (comparison["p_value"] is not None) is (metric == "accuracy")
    table = {row["row_id"]: row for row in scores_of(artifacts).to_pylist()}
    row_error = {row_id: row["nll"] / row.get("tokens", 1) for row_id, row in table.items()}
    worst = sorted(row_error, key=row_error.get, reverse=True)[:5]
    assert [row["row_id"] for row in details["worst"]] == worst
    texts = {row["row_id"]: row["text"] for row in SplitRows(artifacts.rows / "test").rows()}
    for row in details["worst"]:
        assert row["row_error"] == pytest.approx(row_error[row["row_id"]])
        assert row["text"] == texts[row["row_id"]]
    assert (details["calibration"] is not None) is (recipe.objective.name == "sequence_classification")
    if details["calibration"]:
        assert sum(part["rows"] for part in details["calibration"]) == report.rows


def number_is_even(row):
    """A slice function: whether the row's number is even."""
    return "even" if int(row["text"].rstrip(".").rpartition(" ")[2]) % 2 == 0 else "odd"


def test_slices_by_column_and_by_function(tmp_path):
    slices = ["label", {"name": "number", "function": f"{__name__}:number_is_even"}]
    content = tiny.recipe({"evaluation.slices": slices, "evaluation.gate.min_slice_rows": 12}, **tiny.CLASSES)
    artifacts, recipe = with_model(tmp_path, content)
    run(artifacts, recipe)
    rows = {row["row_id"]: row for row in SplitRows(artifacts.rows / "test").rows()}
    right = {row["row_id"]: row["label"] == row["prediction"] for row in scores_of(artifacts).to_pylist()}
    expected = {}
    for row_id, row in rows.items():
        for place in (("label", row["label"]), ("number", number_is_even(row))):
            expected.setdefault(place, []).append(right[row_id])
    found = details_of(artifacts)["slices"]
    assert {(part["slice_by"], part["slice"]): part["rows"] for part in found} == {
        k: len(v) for k, v in expected.items()
    }
    for part in found:
        shares = expected[part["slice_by"], part["slice"]]
        assert (part["metric"], part["value"]) == ("accuracy", pytest.approx(sum(shares) / len(shares)))
        assert (part["low"] is not None) is (len(shares) >= 12), "small slices are shown but not judged"
        assert part["champion"] is part["gain"] is None
    assert {part["low"] is None for part in found} == {True, False}


@pytest.mark.parametrize("metric", ["macro_f1", "calibration_error"])
def test_slices_have_a_metric_that_means_something_on_them(tmp_path, metric):
    """Macro F1 of the rows of one label is at most 1 / 2 as soon as one other label is predicted there."""
    changes = {"evaluation.slices": ["label"], "evaluation.gate.metric": metric, "evaluation.gate.min_slice_rows": 1}
    artifacts, recipe = with_model(tmp_path, tiny.recipe(changes, **tiny.CLASSES))
    run(artifacts, recipe)
    rows = {row["row_id"]: row["label"] for row in SplitRows(artifacts.rows / "test").rows()}
    scores = scores_of(artifacts).to_pylist()
    for part in details_of(artifacts)["slices"]:
        own = [score for score in scores if rows[score["row_id"]] == part["slice"]]
        recall = sum(score["label"] == score["prediction"] for score in own) / len(own)
        instead, value = (
            ("accuracy", recall) if metric == "macro_f1" else ("loss", sum(s["nll"] for s in own) / len(own))
        )
        assert (part["metric"], part["value"]) == (instead, pytest.approx(value))


def test_floor_that_a_slice_cannot_have_is_an_error(tmp_path):
    floors = {"evaluation.slices": ["label"], "evaluation.gate.slice_floors": {"macro_f1": 0.5}}
    artifacts, recipe = with_model(tmp_path, tiny.recipe(floors, **tiny.CLASSES))
    with pytest.raises(RecipeError, match=r"slice_floors: a slice has no macro_f1(?s:.*)use accuracy"):
        run(artifacts, recipe)


@pytest.mark.parametrize(
    ("slices", "message"),
    [
        (["labl"], r"evaluation\.slices\.0: the rows have no column `labl`"),
        ([{"name": "n", "function": f"{__name__}:fails"}], r"evaluation\.slices\.0\.function: raised KeyError"),
    ],
)
def test_invalid_slice_is_an_error_with_its_key(tmp_path, slices, message):
    artifacts, recipe = with_model(tmp_path, tiny.recipe({"evaluation.slices": slices}))
    with pytest.raises(RecipeError, match=message):
        run(artifacts, recipe)
    assert not artifacts.evaluation.exists()


def fails(row):
    """A slice function that raises."""
    return row["nothing"]


def test_untrained_model_is_the_one_training_starts_from(tmp_path):
    artifacts, recipe = with_model(tmp_path, tiny.recipe(), seed=tiny.RECIPE["seed"])
    report = run(artifacts, recipe, untrained=True)
    assert report.model == report.untrained


def test_recipe_chooses_the_split(prepared):
    artifacts, recipe = prepared
    report = run(artifacts, recipe, split="validation")
    assert (report.split, report.sequences) == ("validation", len(tokens.read_split(artifacts.tokens, "validation")))


@pytest.mark.parametrize("share", ["all", "one"])
@pytest.mark.parametrize("kind", ["causal_lm", "sequence_classification"])
def test_nonfinite_scores_are_an_error_and_the_earlier_report_stays(tmp_path, kind, share):
    artifacts, recipe = with_model(tmp_path, tiny.recipe() if kind == "causal_lm" else tiny.recipe(**tiny.CLASSES))
    before = run(artifacts, recipe)
    network = load_trained_model(artifacts.model, objectives.build_objective(recipe.objective).model_class())
    with torch.no_grad():
        weights = network.get_input_embeddings().weight
        last = tokens.read_split(artifacts.tokens, "test")[0]["input_ids"][-2]
        weights[last if share == "one" else slice(None)] = math.nan  # one token makes the scores of its rows NaN
    network.save_pretrained(artifacts.model)
    with pytest.raises(ModelError, match=r"model: scores of \d+ of \d+ rows are not finite \(row_id \d+"):
        run(artifacts, recipe)
    assert json.loads(artifacts.report("evaluate").read_text()) == before.model_dump()


MEASURE = """
import sys
from pathlib import Path
from tasks.recipes.loading import load
from params.foundation.artifacts import Artifacts
from tasks.evaluation.stage import evaluate
root = Path(sys.argv[1]); recipe = load(root / "params" / "tiny.yaml")
sections = {k: getattr(recipe, k) for k in ("seed", "objective", "model", "evaluation", "launch")}
evaluate(Artifacts("tiny", root), repo_id="tests/tiny", endpoint="local", **sections)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_evaluation_memory_does_not_grow_with_the_rows(tmp_path):
    peaks = []
    for rows in (200, 1000):
        content = tiny.recipe({"evaluation.compare_untrained": False, "tokenization.tokenizer.vocab_size": 300})
        content["model"]["config"]["vocab_size"] = 8000  # logits of 16 x 32 x 8000 floats a batch: 16 MiB
        root = tmp_path / str(rows)
        artifacts, recipe = tiny.tokenized(root, content, SIZES | {"test": rows})
        network = build_model_to_train(
            recipe.model,
            objective=objectives.build_objective(recipe.objective),
            state={},
            tokenizer=tokens.read_tokenizer(artifacts.tokens),
            seed=1,
        )
        network.save_pretrained(artifacts.model)
        peaks.append(peak_anonymous_mib(MEASURE, str(root), MALLOC_MMAP_THRESHOLD_="65536"))
    assert peaks[1] < peaks[0] * 1.05, "keeping the logits would take 800 MiB more"
