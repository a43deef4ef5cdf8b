"""A training starts from the published model: of every objective, with its head, its units and its tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from params import ModelError, Recipe
from params.foundation.artifacts import Artifacts
from tasks.stages import stage_arguments_from_recipe
from tasks.tokenization.stage import tokenize
from tests.support import releases, tiny
from tests.support.starts import pin
from tests.support.tiny_releases import KINDS, OWN_ROWS, SIZES
from trainer import objectives
from trainer.data import tokens
from trainer.job import Job
from trainer.loop.metrics import EvaluationMetrics
from trainer.model import network

MORE = {**SIZES, "train": 90}
"""Rows of the second run."""


def write_rows(artifacts: Artifacts, kind: str, sizes: dict[str, int]) -> None:
    if kind in OWN_ROWS:
        tiny.write_rows(artifacts, **{split: OWN_ROWS[kind](count, split) for split, count in sizes.items()})
    else:
        tiny.write_sentences(artifacts, sizes, label_sets=kind == "multi_label_classification")


def start_from_release(root: Path, kind: str, steps: int | None = None, **changes: Any) -> tuple[Artifacts, Recipe]:
    """A project that has published a model of a kind, and has new rows; its recipe starts from the model."""
    usual, sections = KINDS[kind]
    content = tiny.recipe({"tokenization.max_length": 64}, **sections)
    recipe = tiny.load(tiny.write(root / "params" / "tiny.yaml", content))
    artifacts = Artifacts("tiny", root)
    write_rows(artifacts, kind, SIZES)
    tokenize(artifacts, **stage_arguments_from_recipe("tokenize", recipe))
    releases.learn(artifacts, recipe, usual if steps is None else steps)
    pin(artifacts, artifacts.model)
    write_rows(artifacts, kind, MORE)
    started = tiny.load(
        tiny.write(artifacts.recipe_path, tiny.changed(content, {"model.start": "champion", **changes}))
    )
    return artifacts, started


QUICK = {"sequence_classification", "regression"}


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[] if k in QUICK else pytest.mark.slow) for k in KINDS])
def test_training_starts_with_the_answers_of_the_published_model(tmp_path: Path, kind: str) -> None:
    artifacts, recipe = start_from_release(tmp_path, kind)
    if kind == "regression":  # numbers of another mean and deviation
        splits = {
            split: {"text": tiny.sentences(count), "label": tiny.sentences(count, 1)} for split, count in MORE.items()
        }
        tiny.write_rows(
            artifacts,
            **{
                split: {**rows, "number": [3000.5 + i % 7 * 900 for i in range(len(rows["text"]))]}
                for split, rows in splits.items()
            },
        )
    tokenize(artifacts, **stage_arguments_from_recipe("tokenize", recipe))
    job, objective = Job.of(recipe, artifacts), objectives.build_objective(recipe.objective)
    state, tokenizer = tokens.read_objective_state(artifacts.tokens), tokens.read_tokenizer(artifacts.tokens)
    assert job.start is not None
    parts: dict[str, Any] = {"objective": objective, "state": state, "tokenizer": tokenizer, "seed": 1}
    start = network.build_model_to_train(job.initial_model, **parts).eval()
    published = objective.remap_labels(network.load_trained_model(job.start, objective.model_class()), state)
    objective.set_reference(lambda: network.build_untrained_model(recipe.model, **parts))
    before, now = (metrics_of(one, objective, state, tokenizer, artifacts) for one in (published, start))
    assert now == pytest.approx(before, rel=1e-4, abs=1e-6)
    untrained = network.build_untrained_model(recipe.model, **parts)
    if KINDS[kind][0] and kind != "question_answering":
        assert metrics_of(untrained, objective, state, tokenizer, artifacts) != pytest.approx(before, rel=1e-4)


def metrics_of(model: Any, objective: Any, state: Any, tokenizer: Any, artifacts: Artifacts) -> dict[str, float]:
    metrics = EvaluationMetrics(objective, state=state, tokenizer=tokenizer, metrics=None)
    for _, parts in metrics.batches(model, tokens.read_split(artifacts.tokens, "validation"), batch_size=4):
        metrics.update(parts)
    return dict(metrics.compute())


def test_other_architecture_and_other_tokens_are_refused(tmp_path: Path) -> None:
    artifacts, recipe = start_from_release(tmp_path, "sequence_classification", 1, **{"model.config.hidden_size": 64})
    tokenize(artifacts, **stage_arguments_from_recipe("tokenize", recipe))
    from trainer.model.start_fit import check_start_fits

    with pytest.raises(ModelError, match="hidden_size 32, and the recipe's model 64"):
        check_start_fits(artifacts.start / "model", recipe.model)
