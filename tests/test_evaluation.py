"""The evaluate stage: the figures are those of the rows, whatever the batch size, in memory that does not grow."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F

from params import ModelError
from tasks.evaluation import evaluate
from tests import tiny
from trainer import modeling, objectives, tokens

ROOT = Path(__file__).parents[1]
SIZES = {"train": 60, "validation": 12, "test": 30}


def with_model(root, content, seed=11):
    """Tokens, and a model of other random weights than the untrained one."""
    artifacts, recipe = tiny.tokenized(root, content, SIZES)
    network = modeling.initial_model(
        recipe.model,
        objective=objectives.build(recipe.objective),
        state=tokens.read_state(artifacts.tokens),
        tokenizer=tokens.read_tokenizer(artifacts.tokens),
        seed=seed,
    )
    network.save_pretrained(artifacts.model)
    return artifacts, recipe


@pytest.fixture(scope="module", params=["causal_lm", "sequence_classification"])
def prepared(request, tmp_path_factory):
    content = tiny.recipe() if request.param == "causal_lm" else tiny.recipe(**tiny.CLASSES)
    return with_model(tmp_path_factory.mktemp(request.param), content)


def run(artifacts, recipe, *, batch_size=16, untrained=False, split="test"):
    return evaluate(
        artifacts,
        seed=recipe.seed,
        objective=recipe.objective,
        model=recipe.model,
        evaluation=recipe.evaluation.model_copy(update={"compare_untrained": untrained, "split": split}),
        launch=recipe.launch.model_copy(update={"eval_batch_size": batch_size}),
    )


def test_figures_are_those_of_a_plain_loop_over_the_rows(prepared):
    artifacts, recipe = prepared
    report = run(artifacts, recipe)
    objective = objectives.build(recipe.objective)
    model = modeling.trained_model(artifacts.model, objective).eval()
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
    found = {}
    for row in pq.read_table(artifacts.evaluation / "scores.parquet").to_pylist():
        found.setdefault(row["row_id"], []).append(row["nll"])
    assert found.keys() == rows.keys()
    for row_id, values in rows.items():
        assert sorted(found[row_id]) == pytest.approx(sorted(values), rel=1e-4)


def test_figures_do_not_depend_on_the_batch_size(prepared):
    artifacts, recipe = prepared
    reports = [run(artifacts, recipe, batch_size=size).model for size in (1, 2, 7, 1000)]
    for report in reports[1:]:
        assert report == pytest.approx(reports[0], rel=1e-6)


def test_the_scores_of_every_sequence_are_kept(prepared, monkeypatch):
    artifacts, recipe = prepared
    sequences = tokens.read_split(artifacts.tokens, "test")
    monkeypatch.setattr("tasks.evaluation._ScoreWriter._ROWS", len(sequences) // 2 + 1)  # one row group, and a rest
    report = run(artifacts, recipe, batch_size=1)
    table = pq.read_table(artifacts.evaluation / "scores.parquet")
    assert report.sequences == table.num_rows == len(sequences)
    assert table.column("row_id").to_pylist() == [s["row_id"] for s in sequences]
    assert table.column_names == ["row_id", *objectives.build(recipe.objective).score_names]
    assert pq.ParquetFile(artifacts.evaluation / "scores.parquet").num_row_groups == 2


def test_the_untrained_model_is_scored_beside_and_everything_is_written(prepared):
    artifacts, recipe = prepared
    report = run(artifacts, recipe, untrained=True)
    assert report.untrained is not None
    assert report.untrained.keys() == report.model.keys()
    assert report.untrained["loss"] != report.model["loss"]
    assert json.loads(artifacts.report("evaluate").read_text()) == report.model_dump()
    lines = (artifacts.evaluation / "plots" / "comparison.csv").read_text().splitlines()
    assert lines[0] == "model,metric,value"
    assert len(lines) == 1 + 2 * len(report.model)


def test_the_untrained_model_is_the_one_that_training_starts_from(tmp_path):
    artifacts, recipe = with_model(tmp_path, tiny.recipe(), seed=tiny.RECIPE["seed"])
    report = run(artifacts, recipe, untrained=True)
    assert report.model == report.untrained


def test_the_split_is_the_recipes(prepared):
    artifacts, recipe = prepared
    report = run(artifacts, recipe, split="validation")
    assert (report.split, report.sequences) == ("validation", len(tokens.read_split(artifacts.tokens, "validation")))


@pytest.mark.parametrize("share", ["all", "one"])
@pytest.mark.parametrize("kind", ["causal_lm", "sequence_classification"])
def test_a_figure_that_is_not_finite_is_an_error_and_the_earlier_evaluation_stays(tmp_path, kind, share):
    artifacts, recipe = with_model(tmp_path, tiny.recipe() if kind == "causal_lm" else tiny.recipe(**tiny.CLASSES))
    before = run(artifacts, recipe)
    network = modeling.trained_model(artifacts.model, objectives.build(recipe.objective))
    with torch.no_grad():
        weights = network.get_input_embeddings().weight
        last = tokens.read_split(artifacts.tokens, "test")[0]["input_ids"][-2]
        weights[last if share == "one" else slice(None)] = math.nan  # a single token spoils the rows that have it
    network.save_pretrained(artifacts.model)
    with pytest.raises(ModelError, match=r"model on test: loss.* not finite"):
        run(artifacts, recipe)
    assert json.loads(artifacts.report("evaluate").read_text()) == before.model_dump()


MEASURE = """
import sys
from pathlib import Path
from params import load
from params.artifacts import Artifacts
from tasks.evaluation import evaluate
root = Path(sys.argv[1]); recipe = load(root / "params" / "tiny.yaml")
evaluate(Artifacts("tiny", root), **{k: getattr(recipe, k) for k in ("seed", "objective", "model", "evaluation", "launch")})
"""


def peak_anonymous_mib(root):
    """Largest anonymous memory of an evaluation in a process of its own; mapped files do not count."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", MEASURE, str(root)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    peak = 0
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            break
        peak = max([peak, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))])
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.005)
    assert process.wait() == 0, process.stdout.read().decode()
    process.stdout.close()
    return peak / 1024


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_memory_does_not_grow_with_the_rows(tmp_path):
    peaks = []
    for rows in (200, 2000):
        content = tiny.recipe({"evaluation.compare_untrained": False, "tokenization.tokenizer.vocab_size": 300})
        content["model"]["config"]["vocab_size"] = 8000  # logits of 16 x 32 x 8000 floats a batch: 16 MiB
        root = tmp_path / str(rows)
        artifacts, recipe = tiny.tokenized(root, content, SIZES | {"test": rows})
        network = modeling.initial_model(
            recipe.model,
            objective=objectives.build(recipe.objective),
            state={},
            tokenizer=tokens.read_tokenizer(artifacts.tokens),
            seed=1,
        )
        network.save_pretrained(artifacts.model)
        peaks.append(peak_anonymous_mib(root))
    assert peaks[1] < peaks[0] * 1.05, "keeping the logits would take 1 GiB more"
