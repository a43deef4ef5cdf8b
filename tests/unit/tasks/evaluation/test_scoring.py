"""Scores of rows: independent of batches, windows, order and processes; byte counts and labels for comparing models."""

from __future__ import annotations

import math
import types
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset

from params import ModelError
from params.foundation.artifacts import Artifacts
from params.schema import ObjectiveChoice
from params.sections.rows import TrainTokenizer
from tasks.evaluation.scoring import RowScores, score_rows
from tasks.tokenization.tokenizers import train_tokenizer
from tests.support import preferences, releases, tiny
from tests.support.training import curve, run_train
from trainer import objectives
from trainer.data import tokens
from trainer.loop.metrics import EvaluationMetrics
from trainer.model import network
from trainer.objectives.bases.metrics.metric import directions_in_training

SIZES = {"train": 60, "validation": 12, "test": 22}
SHORT = {"tokenization.max_length": 12}
KINDS: dict[str, dict[str, Any]] = {
    "causal_lm": tiny.recipe(SHORT),
    "sequence_classification": tiny.recipe(**tiny.CLASSES),
    "token_classification": tiny.recipe(SHORT, **tiny.TAGS),
    "seq2seq": tiny.recipe(**tiny.TARGETS),
    "sft": tiny.recipe(objective={"name": "sft"}),
}
WINDOWS = {"causal_lm", "token_classification"}


class Bench:
    """A model of random weights in double precision, and the sequences of a split."""

    def __init__(self, artifacts: Artifacts, recipe: Any) -> None:
        self.objective = objectives.build_objective(recipe.objective)
        self.state = tokens.read_objective_state(artifacts.tokens)
        self.tokenizer = tokens.read_tokenizer(artifacts.tokens)
        self.sequences = tokens.read_split(artifacts.tokens, "test")
        self.model = self.network(recipe, 11)
        self.objective.set_reference(lambda: self.network(recipe, 12))

    def network(self, recipe: Any, seed: int) -> Any:
        made = network.build_model_to_train(
            recipe.model, objective=self.objective, state=self.state, tokenizer=self.tokenizer, seed=seed
        )
        return made.double()

    def metrics(self) -> EvaluationMetrics:
        return EvaluationMetrics(self.objective, state=self.state, tokenizer=self.tokenizer, metrics=None)

    def score(self, batch_size: int, sequences: Dataset | None = None) -> RowScores:
        return score_rows(
            self.model,
            self.sequences if sequences is None else sequences,
            metrics=self.metrics(),
            batch_size=batch_size,
            name="model",
        )


@pytest.fixture(scope="module", params=[*KINDS, "dpo"])
def bench(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    root = tmp_path_factory.mktemp(request.param)
    if request.param == "dpo":
        return Bench(*preferences.tokenized(root))
    if request.param != "sft":
        return Bench(*tiny.tokenized(root, KINDS[request.param], SIZES))
    from tasks.recipes.loading import load
    from tasks.tokenization.stage import tokenize

    recipe, artifacts = load(tiny.write(root / "params" / "tiny.yaml", KINDS["sft"])), Artifacts("tiny", root)
    pairs = {split: preferences.pairs(count, i) for i, (split, count) in enumerate(SIZES.items())}
    rows = {split: {"prompt": both["prompt"], "completion": both["chosen"]} for split, both in pairs.items()}
    tiny.write_rows(artifacts, **rows)
    tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    return Bench(artifacts, recipe)


def assert_equal(one: RowScores, other: RowScores) -> None:
    assert one.row_ids.tolist() == other.row_ids.tolist()
    assert one.columns.keys() == other.columns.keys()
    for name, column in one.columns.items():
        assert np.allclose(column, other.columns[name], rtol=1e-9, atol=1e-9), name


def test_row_scores_are_sums_over_its_sequences(bench: Bench) -> None:
    found = bench.score(4)
    expected: dict[int, np.ndarray] = {}
    sequences = [bench.sequences[i] for i in range(len(bench.sequences))]
    for sequence in sequences:  # one at a time: no padding, no batch
        ((_, measured),) = bench.metrics().batches(bench.model, Dataset.from_list([sequence]), batch_size=1)
        known = [sequence[name] for name in bench.objective.example_counts]
        values = np.concatenate([measured[0][0].numpy(), known])
        expected[sequence["row_id"]] = expected.get(sequence["row_id"], 0.0) + values
    assert found.row_ids.tolist() == sorted(expected)
    assert (len(sequences) > len(found)) is (bench.objective.__module__.split(".")[-1] in WINDOWS)
    for place, row_id in enumerate(found.row_ids):
        assert list(found.row(place).values()) == pytest.approx(expected[row_id], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("batch_size", [1, 2, 7])
def test_scores_do_not_depend_on_the_batch_size(bench: Bench, batch_size: int) -> None:
    assert_equal(bench.score(batch_size), bench.score(1000))


def test_scores_do_not_depend_on_sequence_order(bench: Bench) -> None:
    order = np.random.default_rng(0).permutation(len(bench.sequences))
    shuffled = Dataset.from_list([bench.sequences[int(i)] for i in order])
    assert_equal(bench.score(3, shuffled), bench.score(3))


def test_nonfinite_score_names_its_rows(bench: Bench) -> None:
    bench.score(8)
    row_id = bench.sequences[0]["row_id"]
    score_batch = bench.objective.score_batch

    def score_with_nan(model: Any, batch: Any, tokenizer: Any) -> torch.Tensor:
        measured = score_batch(model, batch, tokenizer)
        measured[0, 0] = math.nan
        return measured

    bench.objective.score_batch = score_with_nan  # as with NaN weights
    try:
        with pytest.raises(ModelError) as caught:
            bench.score(1000)
        assert caught.value.where == "model"
        assert caught.value.what.startswith("scores of 1 of ")
        assert caught.value.what.endswith(f"rows are not finite (row_id {row_id})")
        with pytest.raises(ModelError, match=r"\(row_id \d+, \d+, \d+, \d+, \d+, \.\.\.\)"):
            bench.score(1)
    finally:
        del bench.objective.score_batch


def test_scores_are_written_and_taken_by_row(bench: Bench, tmp_path: Path) -> None:
    scores = bench.score(16)
    scores.write(tmp_path / "scores.parquet")
    table = pq.read_table(tmp_path / "scores.parquet")
    assert table.column_names == ["row_id", *bench.objective.score_names(bench.state), *bench.objective.example_counts]
    assert table.column("row_id").to_pylist() == scores.row_ids.tolist()
    some = scores.take(scores.row_ids % 2 == 0)
    assert len(some) == int((scores.row_ids % 2 == 0).sum())
    assert some.row(1) == scores.row(scores.row_ids.tolist().index(some.row_ids[1]))


TEXTS = ["plain letters", "naïve café, 12 €", "日本語の文章", "a 😀 and 👩‍👩‍👧 more", "x"]
PER_BYTE = 2.0**-9
"""The flat model's probability per byte: 9 bits."""
END = 2.0**-12


def letters(size: int) -> Any:
    return train_tokenizer(TEXTS * 20, TrainTokenizer(kind="train", vocab_size=size))


class Flat(torch.nn.Module):
    """Gives a token the probability PER_BYTE ** bytes, the end of a text END, and padding the rest."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        shares = torch.zeros(len(tokenizer) + 1, dtype=torch.float64)
        for token, i in tokenizer.get_vocab().items():
            shares[i] = PER_BYTE ** len(token)  # a character stands for a byte
        for special in tokenizer.all_special_ids:
            shares[special] = 0.0
        shares[tokenizer.eos_token_id] = END
        shares[-1] = 1 - shares.sum()
        self.register_buffer("logits", shares.log())

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        return types.SimpleNamespace(logits=self.logits.expand(*input_ids.shape, -1))


def flat_scores(objective: Any, tokenizer: Any, rows: list[dict[str, Any]], max_length: int) -> RowScores:
    encoded = objective.encode([{"row_id": i, **row} for i, row in enumerate(rows)], tokenizer, max_length, {})
    sequences = [example for examples, _ in encoded for example in examples]
    accumulator = EvaluationMetrics(objective, state={}, tokenizer=tokenizer, metrics=None)
    flat: Any = Flat(tokenizer)
    return score_rows(flat, Dataset.from_list(sequences), metrics=accumulator, batch_size=2, name="model")


def test_bits_per_byte_does_not_depend_on_the_tokenizer() -> None:
    """9 bits per byte and 12 for the end of each text, however many tokens it has."""
    objective = objectives.build_objective(ObjectiveChoice(name="sft"))
    rows = [{"prompt": "say ", "completion": text} for text in TEXTS]
    size = sum(len(text.encode()) for text in TEXTS)
    found = {}
    for vocabulary in (260, 340):
        tokenizer = letters(vocabulary)
        objective.prepare_tokenizer(tokenizer)
        scores = flat_scores(objective, tokenizer, rows, 200)
        assert scores.columns["bytes"].tolist() == [len(text.encode()) for text in TEXTS]
        found[vocabulary] = objective.compute_metrics(objective.additive_statistics(scores.columns, {}).sum(0), {})
    assert found[260]["bits_per_byte"] == pytest.approx((9 * size + 12 * len(TEXTS)) / size, rel=1e-6)
    assert found[340]["bits_per_byte"] == pytest.approx(found[260]["bits_per_byte"], rel=1e-6)
    assert found[340]["loss"] > 1.2 * found[260]["loss"], "loss per token depends on it"


@pytest.mark.parametrize("max_length", [200, 16, 5, 2])
@pytest.mark.parametrize("vocabulary", [260, 340])
def test_byte_counts_are_those_of_the_predicted_tokens(vocabulary: int, max_length: int) -> None:
    """The first token of a window is not predicted. A character split by a border counts in the window where it begins."""
    objective, tokenizer = objectives.build_objective(ObjectiveChoice(name="causal_lm")), letters(vocabulary)
    by_id = {i: len(token) for token, i in tokenizer.get_vocab().items()}
    rows = [{"text": text} for text in TEXTS]
    for row in rows:
        ((windows, _),) = objective.encode([{"row_id": 0, **row}], tokenizer, max_length, {})
        predicted = [i for window in windows for i in window["input_ids"][1:] if i != tokenizer.eos_token_id]
        counted = sum(window["bytes"] for window in windows)
        assert abs(counted - sum(by_id[i] for i in predicted)) <= 3 * len(windows), row
        if row["text"].isascii():
            assert counted == sum(by_id[i] for i in predicted)
    scores = flat_scores(objective, tokenizer, rows[:1], max_length)
    assert scores.columns["nll"][0] == pytest.approx((9 * scores.columns["bytes"][0] + 12) * math.log(2), rel=1e-6), (
        "9 bits per predicted byte, 12 for the end"
    )


class FixedClassifier(torch.nn.Module):
    """A classifier that always gives the same logits."""

    def __init__(self, **logits: float) -> None:
        super().__init__()
        self.config = types.SimpleNamespace(num_labels=len(logits), id2label=dict(enumerate(logits)))
        self.values = torch.tensor([list(logits.values())])

    def forward(self) -> Any:
        return types.SimpleNamespace(logits=self.values.clone())


def remap(model: FixedClassifier, *labels: str) -> Any:
    objective = objectives.build_objective(ObjectiveChoice(name="sequence_classification"))
    return objective.remap_labels(model, {"labels": list(labels)})  # type: ignore[arg-type]


def shares(model: FixedClassifier, *labels: str) -> list[float]:
    return remap(model, *labels)().logits.softmax(-1)[0].tolist()


def test_remapped_classifier_uses_the_labels_of_the_run() -> None:
    logs = {name: math.log(share) for name, share in {"a": 0.5, "b": 0.3, "c": 0.2}.items()}
    assert shares(FixedClassifier(**logs), "a", "b", "c") == pytest.approx([0.5, 0.3, 0.2])
    assert shares(FixedClassifier(**logs), "c", "a", "b") == pytest.approx([0.2, 0.5, 0.3]), "another order"
    assert shares(FixedClassifier(**logs), "c", "a") == pytest.approx([0.2, 0.5, 0.3]), "its own label comes last"
    assert shares(FixedClassifier(**logs), "new", "c", "b", "a") == pytest.approx([0, 0.2, 0.3, 0.5]), (
        "it stays the same"
    )
    model = FixedClassifier(**logs)
    remap(model, "a", "b", "c")
    assert not model._forward_hooks, "nothing to do"


def test_only_rows_of_an_unknown_label_cost_more() -> None:
    """As much as a blind guess among the five labels that there are: `x` is the champion's own."""
    objective = objectives.build_objective(ObjectiveChoice(name="sequence_classification"))
    shares = {"a": 0.5, "b": 0.2, "c": 0.2, "x": 0.1}
    model = FixedClassifier(**{name: math.log(share) for name, share in shares.items()})
    objective.remap_labels(model, {"labels": ["a", "b", "c", "new"]})  # type: ignore[arg-type]
    scores = objective.score_logits(model().logits.expand(4, -1), torch.tensor([0, 1, 2, 3]))
    assert scores[:, 0].tolist() == pytest.approx([-math.log(0.5), *[-math.log(0.2)] * 2, math.log(5)])
    assert scores[:, 2].tolist() == [0] * 4
    assert scores[:, 3].tolist() == pytest.approx([0.5] * 4)


def test_label_unknown_to_the_run_counts_as_wrong() -> None:
    """The champion predicts `x`, which the rows no longer have."""
    objective = objectives.build_objective(ObjectiveChoice(name="sequence_classification"))
    champion = remap(FixedClassifier(x=5.0, b=1.0, a=0.0), "a", "b")
    logits = champion().logits.expand(2, -1)
    columns = objective.score_logits(logits, torch.tensor([0, 1])).numpy().T
    state = {"labels": ["a", "b"]}
    scores = dict(zip(objective.score_names(state), columns, strict=True))
    found = objective.compute_metrics(objective.additive_statistics(scores, state).sum(0), state)
    assert found["accuracy"] == found["macro_f1"] == 0
    assert (
        objective.describe_scores({"label": 0.0, "prediction": 2.0, "confidence": 0.9}, state)["predicted"]
        == "a label of another run"
    )


@pytest.mark.parametrize(
    "kind",
    [
        "sequence_classification",
        *(pytest.param(k, marks=pytest.mark.slow) for k in ("causal_lm", "token_classification", "seq2seq")),
    ],
)
def test_two_process_training_and_the_evaluate_stage_agree_on_metrics(tmp_path: Path, kind: str) -> None:
    """37 sequences do not fill two processes' batches of 4: some are scored twice and must count once."""
    content = {**KINDS[kind], "training": {**KINDS[kind]["training"], "max_steps": 4}}
    content["launch"] = {"num_processes": 2, "micro_batch_size": 2, "eval_batch_size": 4}
    content = tiny.changed(content, {"tokenization.max_length": 64})  # evaluate reads as far as the release does
    artifacts, recipe = tiny.tokenized(tmp_path, content, {"train": 60, "validation": 37, "test": 12})
    assert recipe.launch.num_processes == 2
    run_train(artifacts, recipe)
    objective = objectives.build_objective(recipe.objective)
    best = recipe.training.best_metric
    sign = 1 if objective.metrics[best].best == "max" else -1
    reached = max(curve(artifacts, "validation"), key=lambda line: sign * line[best])
    report = releases.evaluate(artifacts, recipe, split="validation", compare_untrained=False)
    compared = report.model.keys() & reached.keys()
    assert compared >= directions_in_training(objective.metrics).keys() - {"exact_match", "rouge1", "rouge2", "rougeL"}
    for metric in compared:
        assert report.model[metric] == pytest.approx(reached[metric], rel=1e-6, abs=1e-6), metric
