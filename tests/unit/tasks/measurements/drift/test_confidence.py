"""The champion's confidence in the new rows, through validate and evaluate with a real model on a real local Hub."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from params import Recipe
from params.foundation.artifacts import Artifacts
from params.sections.rows import Drift, Validation
from tasks.evaluation.report import EvaluationDetails
from tasks.evaluation.scoring import RowScores
from tasks.history.run_recorder import RunRecorder
from tasks.measurements.drift.confidence import compare_champion_confidence, measure_champion_confidence
from tasks.measurements.drift.measurement import DriftOfModel, DriftOfRows
from tasks.measurements.drift.report import ChampionConfidence, DriftReport
from tasks.publishing.model_card import render_model_card
from tasks.publishing.provenance import collect_provenance
from tasks.recipes.loading import load
from tasks.report.page import render_report_page
from tasks.shards.split_rows import SplitRows
from tasks.stages import read_report
from tasks.tokenization.encoding import RowEncoder
from tasks.tokenization.stage import tokenize
from tasks.validation.report import ValidationReport
from tasks.validation.stage import validate
from tests.support import releases, tiny
from tests.support.html import Outline
from trainer import objectives
from trainer.data import tokens
from trainer.model.network import load_trained_model

pytestmark = pytest.mark.usefixtures("no_hub_settings")
RECIPE = tiny.recipe({"evaluation.compare_untrained": False}, **tiny.CLASSES)
OLD = [(text, text.split()[1]) for text in tiny.sentences(240)]
ALIKE = [(text, text.split()[1]) for text in tiny.sentences(60, 5)]
UNCLEAR = [(f"{label} or cat or dog or friend or king {i}", label) for i, (_, label) in enumerate(ALIKE)]
NOT_MEASURED = "The published model's confidence in the new rows was not measured: "


def prepare(artifacts: Artifacts, new: list[tuple[str, str]], customers: int = 0, **drift: object) -> Recipe:
    """What the stages from validate to tokenize leave, with these new rows, of so many customers if rows belong together."""
    recipe = load(artifacts.recipe_path)
    held_out = {"validation": tiny.sentences(12, 101), "test": tiny.sentences(60, 102)}
    splits = {"train": [*OLD, *new]} | {
        split: [(text, text.split()[1]) for text in texts] for split, texts in held_out.items()
    }
    columns = {
        split: {"text": [text for text, _ in rows], "label": [label for _, label in rows]}
        for split, rows in splits.items()
    }
    if customers:
        for split, rows in splits.items():
            columns[split]["customer"] = [f"{split} {i}" for i in range(len(rows))]
        columns["train"]["customer"][len(OLD) :] = [f"new {i % customers}" for i in range(len(new))]
    tiny.write_splits(artifacts.raw, columns, group_by=["customer"] if customers else [])
    validate(
        artifacts,
        seed=recipe.seed,
        validation=Validation(drift=Drift.model_validate(drift)),
        objective=recipe.objective,
        repo_id=recipe.publish.repo_id,
        endpoint="local",
        launch=recipe.launch,
    )
    shutil.rmtree(artifacts.tokens, ignore_errors=True)
    tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    return recipe


def confidence_of(artifacts: Artifacts) -> ChampionConfidence:
    found = read_report(artifacts, EvaluationDetails).findings(DriftOfModel).champion_confidence
    assert found is not None
    return found


def evaluated(artifacts: Artifacts, recipe: Recipe, steps: int = 3) -> ChampionConfidence:
    """What the evaluate stage finds with another model."""
    releases.learn(artifacts, recipe, steps, seed=5)
    releases.evaluate(artifacts, recipe)
    return confidence_of(artifacts)


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifacts, str]:
    """A project with a release, and its tag."""
    artifacts, _ = releases.tokenized(tmp_path_factory.mktemp("released"), RECIPE)
    recipe = prepare(artifacts, [])
    releases.learn(artifacts, recipe, 18)
    releases.evaluate(artifacts, recipe)
    assert confidence_of(artifacts).sentence == f"{NOT_MEASURED}no model was published yet as tests/tiny."
    receipt = releases.publish(artifacts, recipe)
    assert receipt.tag
    return artifacts, receipt.tag


@pytest.fixture
def project(released: tuple[Artifacts, str], tmp_path: Path) -> tuple[Artifacts, str]:
    artifacts, tag = released
    shutil.copytree(artifacts.root, tmp_path / "project")
    return Artifacts("tiny", tmp_path / "project"), tag


def mean_confidence(folder: Path, recipe: Recipe, texts: list[str]) -> float:
    """The mean confidence of a model, one row at a time."""
    from transformers import AutoTokenizer

    model, tokenizer = (
        load_trained_model(folder, objectives.build_objective(recipe.objective).model_class()).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    with torch.no_grad():
        found = [model(**tokenizer(text, return_tensors="pt")).logits.softmax(-1).max().item() for text in texts]
    return float(np.mean(found))


def test_new_rows_that_the_champion_is_less_sure_of(project: tuple[Artifacts, str], caplog: Any) -> None:
    artifacts, tag = project
    recipe = prepare(artifacts, UNCLEAR)
    with caplog.at_level(logging.INFO):
        found = evaluated(artifacts, recipe)
    (folder,) = artifacts.champion.iterdir()
    new, old = (
        mean_confidence(folder, recipe, [row["text"] for row in SplitRows(artifacts.rows / split).rows()][start:])
        for split, start in (("train", len(OLD)), ("test", 0))
    )
    assert new < old - 0.05
    assert found.sentence == (
        f"{tag} is less sure of the new rows: mean {new:.3f} on 60 new rows, {old:.3f} on 60 test rows."
    )
    change = found.change
    assert change is not None
    assert change.effect == pytest.approx(old - new, abs=1e-4)
    assert (change.floor, change.p_value) == (0.02, 1 / 2000)
    assert f"evaluate: {found.sentence}" in caplog.messages
    assert not any(path.name.startswith(".") for path in artifacts.evaluation.iterdir())

    text = Outline(render_report_page(artifacts, timings={})).text
    assert found.sentence in text
    assert "confidence of the published model" in text
    card = render_model_card(releases.candidate(artifacts), collect_provenance(artifacts), None)
    assert f"is less sure of the new rows: mean {new:.3f} on 60 new rows" in card
    with RunRecorder(artifacts, run_id="run 1") as record:
        for stage in ("validate", "evaluate"):
            with record.stage(stage, done := {}):
                done[stage] = "ran"
    assert record.entry is not None
    assert record.entry.drift is not None
    assert record.entry.drift.split(", ")[-1] == "confidence"
    assert evaluated(artifacts, recipe) == found


def test_new_rows_like_the_others(project: tuple[Artifacts, str]) -> None:
    artifacts, tag = project
    found = evaluated(artifacts, prepare(artifacts, ALIKE))
    assert found.sentence.startswith(f"{tag} was not found to be less sure of the new rows: mean ")
    assert not found.is_less_sure
    assert found.change is not None


def test_fall_below_the_floor_is_no_drift(project: tuple[Artifacts, str]) -> None:
    artifacts, _ = project
    found = evaluated(artifacts, prepare(artifacts, UNCLEAR, min_confidence_fall=0.3))
    assert found.change is not None
    assert (found.change.p_value, found.change.floor, found.is_less_sure) == (1 / 2000, 0.3, False)


def test_champion_reads_with_its_own_tokenizer_and_labels(project: tuple[Artifacts, str]) -> None:
    artifacts, _ = project
    same = evaluated(artifacts, prepare(artifacts, UNCLEAR))
    changed = RECIPE | {"tokenization": {"tokenizer": {"kind": "train", "vocab_size": 400}, "max_length": 24}}
    tiny.write(artifacts.recipe_path, changed)
    other = evaluated(artifacts, prepare(artifacts, UNCLEAR))
    assert json.loads((artifacts.tokens / "statistics.json").read_text())["vocab_size"] > 300
    assert other == same

    found = evaluated(artifacts, prepare(artifacts, [*UNCLEAR, ("The zebra sees a bird.", "zebra")]))
    assert found.is_less_sure
    assert "61 new rows" in found.sentence


def test_groups_of_new_rows_count_as_one(project: tuple[Artifacts, str]) -> None:
    artifacts, _ = project
    found = evaluated(artifacts, prepare(artifacts, UNCLEAR, customers=2))
    assert found.change is not None
    assert found.change.effect > 0.05
    assert found.change.p_value > 0.005, "of two customers nothing is certain"


def test_without_new_rows(project: tuple[Artifacts, str]) -> None:
    artifacts, _ = project
    assert evaluated(artifacts, prepare(artifacts, [])).sentence == f"{NOT_MEASURED}there are no new rows."


def test_without_drift(project: tuple[Artifacts, str]) -> None:
    artifacts, _ = project
    recipe = prepare(artifacts, UNCLEAR, on_drift="off")
    expected = f"{NOT_MEASURED}validate did not look for new rows (validation.drift)."
    assert evaluated(artifacts, recipe).sentence == expected
    assert expected in Outline(render_report_page(artifacts, timings={})).text


def test_champion_is_the_model_of_the_run(project: tuple[Artifacts, str]) -> None:
    artifacts, _ = project
    releases.evaluate(artifacts, load(artifacts.recipe_path))
    assert confidence_of(artifacts).sentence == f"{NOT_MEASURED}the model of this run is the published one."


def test_other_champion_than_validate_saw(project: tuple[Artifacts, str]) -> None:
    artifacts, tag = project
    recipe = prepare(artifacts, UNCLEAR)
    evaluation = recipe.evaluation.model_copy(
        update={"gate": recipe.evaluation.gate.model_copy(update={"margin": 0.9})}
    )
    evaluated(artifacts, recipe)
    releases.evaluate(artifacts, recipe, gate=evaluation.gate)
    receipt = releases.publish(artifacts, recipe.model_copy(update={"evaluation": evaluation}))
    assert receipt.status == "published"
    expected = f"validate did not look at {receipt.tag}, which is published now: it compared with {tag}"
    assert evaluated(artifacts, recipe, steps=2).sentence == f"{NOT_MEASURED}{expected}."


def test_validate_ran_before_the_first_release(project: tuple[Artifacts, str]) -> None:
    artifacts, tag = project
    expected = f"validate did not look at {tag}, which is published now: no model was published yet as tests/tiny"
    recipe = load(artifacts.recipe_path)
    assert evaluated(artifacts, recipe).sentence == f"{NOT_MEASURED}{expected}."
    drift = read_report(artifacts, ValidationReport).findings(DriftOfRows).drift
    assert drift
    assert drift.sentence == "Drift was not measured: no model was published yet as tests/tiny."


def test_reason_of_validate_is_given(project: tuple[Artifacts, str]) -> None:
    artifacts, tag = project
    tiny.write(artifacts.recipe_path, RECIPE | {"objective": {"name": "causal_lm", "text_column": "text"}})
    recipe = load(artifacts.recipe_path)
    validate(
        artifacts,
        seed=recipe.seed,
        validation=recipe.validation,
        objective=recipe.objective,
        repo_id=recipe.publish.repo_id,
        endpoint="local",
        launch=recipe.launch,
    )
    tiny.write(artifacts.recipe_path, RECIPE)
    found = evaluated(artifacts, load(artifacts.recipe_path))
    assert found.sentence == f"{NOT_MEASURED}{tag} learned from other columns: label, text."


def test_scores_that_are_not_finite_are_a_reason(project: tuple[Artifacts, str]) -> None:
    artifacts, _ = project
    recipe = prepare(artifacts, UNCLEAR)
    objective = objectives.build_objective(recipe.objective)
    network = load_trained_model(artifacts.model, objective.model_class())
    torch.nn.init.constant_(network.classifier.bias, torch.nan)
    encoder = RowEncoder(
        objective, tokens.read_tokenizer(artifacts.tokens), 32, tokens.read_objective_state(artifacts.tokens)
    )
    drift = read_report(artifacts, ValidationReport).findings(DriftOfRows).drift
    assert drift is not None
    found = measure_champion_confidence(
        network,
        encoder,
        drift,
        scores(np.ones(3)),
        train=SplitRows(artifacts.rows / "train"),
        batch_size=16,
        split="test",
        seed=1,
    )
    assert found.reason.startswith("champion on new rows: scores of 60 of 60 rows are not finite")


def scores(confidence: Any, groups: Any = None) -> RowScores:
    values = np.array(confidence, float)
    return RowScores(np.arange(len(values)), {"confidence": values}, None if groups is None else np.array(groups))


CLASSIFIER = objectives.build_objective(Recipe.model_validate(RECIPE).objective)
DRIFT = DriftReport(status="compared", repo_id="tests/tiny", revision="release-1", confidence=0.95)


def compared(held_out: RowScores, new: RowScores, drift: DriftReport = DRIFT) -> ChampionConfidence:
    return compare_champion_confidence(CLASSIFIER, drift, held_out, new, split="test", seed=1)


def test_people_are_asked_about_the_new_rows_of_which_it_is_least_sure() -> None:
    confidence = np.linspace(0.9, 0.1, 40)
    found = compared(scores(np.ones(50)), scores(confidence)).unsure
    assert [row_id for row_id, _ in found] == [*range(39, 14, -1)]
    assert [sure for _, sure in found] == [round(float(one), 4) for one in confidence[:14:-1]]


def test_rows_that_belong_together_count_as_one() -> None:
    random = np.random.default_rng(0)
    held_out, new = random.uniform(0.5, 1, 200), random.uniform(0.5, 0.6, 40)
    assert compared(scores(held_out), scores(new)).is_less_sure
    few = compared(scores(held_out), scores(new, np.arange(40) // 20))  # two customers
    assert few.change is not None
    assert few.change.p_value > 0.005
    assert not few.is_less_sure
    one_large_group = [1.0] * 30 + [0.5] * 10  # of eleven customers
    found = compared(scores(held_out), scores(one_large_group, [0] * 30 + [*range(1, 11)]))
    assert f"mean {(1.0 + 10 * 0.5) / 11:.3f} on 40 new rows" in found.sentence


def test_error_is_the_part_that_is_set_aside() -> None:
    """A p-value below the whole error, and above a tenth of it, is no drift."""
    held_out, new = scores([0.9, 0.8] * 10), scores([0.7, 0.85] * 5)
    found = compared(held_out, new).change
    assert found is not None
    assert 0.005 < found.p_value < 0.05
    assert found.effect >= found.floor
    assert not found.moved
    assert compared(held_out, new, DRIFT.model_copy(update={"confidence": 0.51})).is_less_sure


def test_surer_is_no_drift() -> None:
    found = compared(scores(np.linspace(0.5, 0.7, 100)), scores(np.linspace(0.8, 0.9, 100)))
    assert found.change is not None
    assert found.change.p_value > 0.5
    assert not found.is_less_sure


def test_held_out_rows_are_a_sample() -> None:
    found = compared(scores(np.linspace(0.5, 0.9, 12_000)), scores(np.linspace(0.5, 0.9, 100)))
    assert "mean 0.700 on 100 new rows, 0.7" in found.sentence
    assert "on 10,000 test rows" in found.sentence
