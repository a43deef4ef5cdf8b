"""Rankings: their loss, their metrics, and which rows are learned together."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import average_precision_score, ndcg_score

from params import DataError
from params.foundation.artifacts import Artifacts
from params.schema import ObjectiveChoice
from tasks.evaluation.scoring import RowScores, resampling_units
from tasks.evaluation.statistics import Resampler
from tasks.recipes.loading import load
from tasks.tokenization.stage import tokenize
from tests.support import in_process, tiny
from tests.support.metrics import undefined_metrics
from tests.support.training import plan_job, run_train
from trainer import objectives
from trainer.checkpoints.sealed import list_checkpoints
from trainer.data.order import EpochOrder
from trainer.loop.global_batch_trainer import GlobalBatchTrainer
from trainer.objectives.bases.likelihood import compute_logits
from trainer.objectives.ranking import lambda_loss, measure_ranking

NO_DROPOUT = {"model.config.hidden_dropout_prob": 0.0, "model.config.attention_probs_dropout_prob": 0.0}


def build(**options: Any) -> Any:
    return objectives.build_objective(ObjectiveChoice(name="ranking", **options))


class _Scores(torch.nn.Module):
    """Stands for a cross-encoder that has already read its pairs: their scores, in their order."""

    num_labels, device = 1, torch.device("cpu")

    def __init__(self, scores: torch.Tensor) -> None:
        super().__init__()
        self.scores, self.read = scores, 0

    def preprocess(self, pairs: list[Any], **_: Any) -> dict[str, torch.Tensor]:
        self.read += len(pairs)
        return {"scores": self.scores[self.read - len(pairs) : self.read]}

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return inputs


@pytest.mark.parametrize("seed", range(20))
def test_lambda_loss_and_its_gradient_are_those_of_sentence_transformers(seed: int) -> None:
    from sentence_transformers.cross_encoder.losses import LambdaLoss

    draw = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 9, (5,), generator=draw).tolist()
    queries = torch.cat([torch.full((size,), i) for i, size in enumerate(sizes)])
    scores = 3 * torch.randn(len(queries), generator=draw)
    grades = torch.randint(0, 4 if seed % 2 else 2, (len(queries),), generator=draw).float()
    if grades.max() == 0:
        grades[0] = 1
    theirs = scores.clone().requires_grad_()
    documents = [[f"{i}" for i in range(size)] for size in sizes]
    reference = LambdaLoss(_Scores(theirs), mini_batch_size=-1)
    expected = reference([[f"query {i}" for i in range(5)], documents], list(grades.split(sizes)))
    order = torch.randperm(len(queries), generator=draw)  # the rows of a query may stand anywhere
    ours = scores[order].requires_grad_()
    found = lambda_loss(ours, grades[order], queries[order])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    gradients = torch.autograd.grad(expected, theirs)[0][order], torch.autograd.grad(found, ours)[0]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-5, atol=1e-6)


def test_queries_without_a_pair_to_compare_have_no_loss() -> None:
    scores = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    loss = lambda_loss(scores, torch.tensor([1.0, 1.0, 0.0]), torch.tensor([0, 0, 1]))
    assert loss == 0
    assert torch.autograd.grad(loss, scores)[0].eq(0).all()


def test_metrics_are_those_of_sklearn_on_200_queries() -> None:
    for seed in range(200):
        compare_with_sklearn(seed)


def compare_with_sklearn(seed: int) -> None:
    draw = np.random.default_rng(seed)
    size = draw.integers(2, 40)
    relevance = draw.integers(0, 2 if seed % 2 else 4, size).astype(float)
    relevance[draw.integers(size)] = 1.0
    scores = draw.permutation(size).astype(float)
    found = measure_ranking(scores, relevance)
    assert found[0] == 1.0
    assert found[1] == pytest.approx(ndcg_score([relevance], [scores], k=10), abs=1e-12)
    assert found[2] == pytest.approx(average_precision_score(relevance > 0, scores), abs=1e-12)
    ranks = 1 + np.flatnonzero(relevance[np.argsort(-scores)] > 0)
    assert found[3] == pytest.approx(1 / ranks[0] if ranks[0] <= 10 else 0.0)


def test_a_model_that_gives_all_documents_the_same_score_has_found_nothing() -> None:
    relevance = np.array([0.0, 2, 1, 0])
    _, ndcg, precision, reciprocal = measure_ranking(np.ones(4), relevance)
    assert reciprocal == pytest.approx(1 / 3)
    assert precision == pytest.approx((1 / 3 + 2 / 4) / 2)
    assert ndcg < ndcg_score([relevance], [np.ones(4)])


def test_metrics_are_means_over_queries_with_a_relevant_document() -> None:
    objective = build()
    columns = {
        "nll": np.array([0.5, 1, 2, 3, 0.5]),
        "score": np.array([3.0, 1, 2, 9, 8]),
        "relevance": np.array([1.0, 0, 1, 0, 0]),
        "query": np.array([7.0, 7, 9, 9, 5]),  # that of number 5 has no relevant document
    }
    totals = objective.additive_statistics(columns, {}).sum(0)
    found = objective.compute_metrics(totals, {})
    assert found["mrr_at_10"] == pytest.approx((1 + 1 / 2) / 2)
    assert found["loss"] == pytest.approx(7 / 5)
    alone = objective.additive_statistics({name: column[4:] for name, column in columns.items()}, {}).sum(0)
    assert undefined_metrics(objective, totals, {}) == frozenset()
    assert undefined_metrics(objective, alone, {}) == {"ndcg_at_10", "map", "mrr_at_10"}


@pytest.mark.parametrize(
    ("words", "named"), [(0, "1 to 2"), (2, "1 to 2"), (3, "3 to 4"), (4, "3 to 4"), (5, "5 to 8"), (17, "17 to 32")]
)
def test_results_are_shown_by_the_length_of_queries(words: int, named: str) -> None:
    assert build().own_slices()["query length"]({"query": "who " * words}) == f"{named} words"


def test_queries_without_a_relevant_document_are_no_evidence_for_an_interval() -> None:
    """All twenty queries with one are ranked rightly: that says as much as twenty, however many there are beside them."""
    queries = 40
    columns = {
        "nll": np.zeros(2 * queries),
        "probability": np.zeros(2 * queries),
        "score": np.tile([1.0, 0.0], queries),
        "relevance": np.where(np.arange(2 * queries) < 40, np.tile([1.0, 0.0], queries), 0.0),
        "query": np.repeat(np.arange(queries), 2).astype(float),
    }
    scores = RowScores(np.arange(2 * queries), columns, resampling_units(None, columns["query"]))
    resampler = Resampler(build(), {"highest": 1.0}, resamples=200, confidence=0.95, seed=1)
    low, high = resampler.intervals(scores)["ndcg_at_10"]
    assert high == 1.0
    assert low == pytest.approx(0.025 ** (1 / 20), abs=1e-6)


def test_grades_are_divided_by_the_highest_and_rows_below_zero_set_aside() -> None:
    objective = build()
    rows = [{"query": "rain", "document": "wet", "relevance": grade} for grade in (0, 1, 4, -1)]
    assert [objective.reject_reason(row) is None for row in rows] == [True, True, True, False]
    state = objective.state_of_summaries([objective.summarize(rows[:2]), objective.summarize(rows[2:3])])
    assert state == {"highest": 4.0}
    with pytest.raises(DataError, match="is 0 in every row"):
        objective.state_of_summaries([objective.summarize(rows[:1])])
    with pytest.raises(DataError, match="is up to 31, and LambdaLoss"):
        build(loss="lambda").state_of_summaries([31.0])


def test_rows_of_a_query_follow_each_other_in_another_order_each_epoch() -> None:
    groups = np.random.default_rng(3).integers(0, 12, 60)
    order = EpochOrder(60, seed=5, global_batch_size=7, groups=groups)
    epochs = [order.rows(epoch)[:].tolist() for epoch in range(3)]
    for rows in epochs:
        assert len(set(rows)) == len(rows) == 56
        seen = [groups[row] for row in rows]
        changes = sum(one != other for one, other in itertools.pairwise(seen))
        assert changes == len(set(seen)) - 1
    assert epochs[0] != epochs[1]
    assert order.rows(1)[5:21].tolist() == epochs[1][5:21]


def ranked(queries: int, seed: int) -> dict[str, list[Any]]:
    """Four documents to each query, in any order, of which one or two are about it."""
    draw = np.random.default_rng(seed)
    words = np.array(["bread", "soup", "tea", "train", "road", "rain", "snow", "wind"])
    rows = []
    for i in range(queries):
        about, *others = draw.permutation(words)[:4]
        rows += [(f"{about} {i}?", f"all about {about}", 1 + i % 2)]
        rows += [(f"{about} {i}?", f"all about {other}", 0) for other in others]
    mixed = [rows[i] for i in draw.permutation(len(rows))]
    return {name: [row[i] for row in mixed] for i, name in enumerate(("query", "document", "relevance"))}


def job(root: Path, loss: str, changes: dict[str, Any]) -> Any:
    few = {"training.max_steps": 4, "training.eval_steps": 2, "training.save_steps": 2}
    sections = {"objective": {"name": "ranking", "loss": loss}, "model": tiny.CLASSES["model"]}
    content = tiny.recipe(few | {"training.best_metric": "ndcg_at_10"} | changes, **sections)
    recipe, artifacts = load(tiny.write(root / "params/tiny.yaml", content)), Artifacts("tiny", root)
    tiny.write_rows(artifacts, train=ranked(16, 0), validation=ranked(4, 1), test=ranked(4, 2))
    tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    return plan_job(artifacts, recipe)


@pytest.mark.parametrize("loss", ["bce", "lambda"])
def test_steps_do_not_depend_on_the_micro_batch(tmp_path: Path, loss: str) -> None:
    found = []
    for size in (8, 2):
        trainer = in_process.trained(job(tmp_path / str(size), loss, {**NO_DROPOUT, "launch.micro_batch_size": size}))
        found.append([(e["loss"], e["grad_norm"]) for e in trainer.state.log_history if "grad_norm" in e])
        if loss == "lambda":
            rows = trainer.training_data.order.rows(0)[:8].tolist()
            queries = Counter(trainer.train_dataset[row]["query"] for row in rows)
            assert list(queries.values()) == [4, 4], "a global batch has whole queries"
    assert len(found[0]) == 4
    assert all(loss > 0 for loss, _ in found[0])
    for whole, parts in zip(*found, strict=True):
        assert parts == pytest.approx(whole, rel=2e-4)


def test_stopped_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    changes = {"training.max_steps": 6, "launch.micro_batch_size": 2}  # with dropout
    golden = Path(in_process.trained(job(tmp_path / "golden", "lambda", changes)).args.output_dir)
    stopped = job(tmp_path / "stopped", "lambda", changes).model_copy(update={"stop_at_step": 3})
    in_process.trained(stopped)
    (newest, *_) = list_checkpoints(stopped.folder)
    in_process.trained(stopped.model_copy(update={"checkpoint": newest, "stop_at_step": None}))
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt"):
        one, other = ((folder / "checkpoint-6" / name).read_bytes() for folder in (golden, stopped.folder))
        assert one == other, name


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["bce", "lambda"])
def test_two_processes_end_with_the_weights_of_one(tmp_path: Path, loss: str) -> None:
    weights = []
    for processes, size in ((1, 8), (2, 2)):
        launch = {"launch.num_processes": processes, "launch.micro_batch_size": size, "training.optimizer": "sgd"}
        root = tmp_path / str(processes)
        job(root, loss, {**NO_DROPOUT, **launch})
        artifacts = Artifacts("tiny", root)
        run_train(artifacts, load(root / "params/tiny.yaml"))
        weights.append(load_file(artifacts.model / "model.safetensors"))
    for name, value in weights[0].items():
        np.testing.assert_allclose(weights[1][name], value, rtol=0, atol=1e-6)


def test_a_release_loads_as_a_cross_encoder(tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    trainer = in_process.trained(job(tmp_path, "bce", {}))
    folder = tmp_path / "release"
    trainer.model.save_pretrained(folder)
    trainer.processing_class.save_pretrained(folder)
    rows = [
        {"row_id": i, "query": "rain 1?", "document": f"all about {w}", "relevance": 0}
        for i, w in enumerate(("tea", "rain"))
    ]
    encoded = trainer.objective.encode(rows, trainer.processing_class, 32, {"highest": 1.0})
    batch = trainer.objective.collate([one.examples[0] for one in encoded], trainer.processing_class)
    own = {name: value for name, value in batch.items() if name != "ranked"}
    with torch.inference_mode():
        expected = compute_logits(trainer.model.eval(), own)[:, 0].sigmoid().numpy()
    found = CrossEncoder(str(folder)).predict([(row["query"], row["document"]) for row in rows])
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_deepspeed_in_16_bits_does_not_round_grades_and_numbers_of_queries() -> None:
    trainer: Any = GlobalBatchTrainer.__new__(GlobalBatchTrainer)
    format_of = SimpleNamespace(hf_ds_config=SimpleNamespace(dtype=lambda: torch.bfloat16))
    trainer.accelerator = SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=format_of))
    trainer.args, trainer.is_deepspeed_enabled = SimpleNamespace(device=torch.device("cpu")), True
    given = {"ranked": torch.tensor([[0.3, 2.0**47 + 1]], dtype=torch.float64), "labels": torch.tensor([1990.3])}
    found = trainer._prepare_input(given)
    for name, value in given.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)


@pytest.mark.parametrize("name", ["ranking", "reward"])
def test_a_champion_that_gives_a_text_several_numbers_is_refused(name: str) -> None:
    objective = objectives.build_objective(ObjectiveChoice(name=name))
    one, several = (SimpleNamespace(config=SimpleNamespace(num_labels=count)) for count in (1, 3))
    assert objective.remap_labels(one, {}) is one
    with pytest.raises(ValueError, match="it gives 3 numbers for a text"):
        objective.remap_labels(several, {})
