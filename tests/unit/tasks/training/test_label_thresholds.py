"""The thresholds of labels: chosen once, on the validation split, of the model as it is saved; each model is judged with its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load, load_file

from params import ModelError, Recipe
from params.foundation.artifacts import Artifacts
from tasks.digests import weights_digest_by_form
from tasks.inference.tried_model import AnsweringModel, AnswerOptions
from tasks.publishing.release_plan import plan_release
from tests.support import releases, tiny
from tests.support.training import assert_same, run_train, run_train_with_kills
from tests.support.zoo.cells import train_in_process
from trainer import objectives
from trainer.data import tokens
from trainer.loop.metrics import EvaluationMetrics
from trainer.model.network import load_trained_model
from trainer.model.weights_header import write_chosen_settings
from trainer.objectives.bases.labels.thresholds import choose_f1_thresholds

SIZES = {"train": 240, "validation": 40, "test": 40}


def config_of(artifacts: Artifacts) -> Any:
    return json.loads((artifacts.model / "config.json").read_bytes())


def scores_of(artifacts: Artifacts, recipe: Recipe, split: str) -> dict[str, Any]:
    """The scores of the model on a split, one row at a time."""
    objective, state = objectives.build_objective(recipe.objective), tokens.read_objective_state(artifacts.tokens)
    model = load_trained_model(artifacts.model, objective.model_class())
    tokenizer = tokens.read_tokenizer(artifacts.tokens)
    metrics = EvaluationMetrics(objective, state=state, tokenizer=tokenizer, metrics=None)
    parts = [one[0] for _, one in metrics.batches(model, tokens.read_split(artifacts.tokens, split), batch_size=1)]
    return dict(zip(objective.score_names(state), torch.cat(parts).numpy().T, strict=True))


def choose(artifacts: Artifacts, threshold: float) -> None:
    """Give the model another threshold for each label, as if the training had chosen it."""
    labels = config_of(artifacts)["label_thresholds"]
    write_chosen_settings(artifacts.model, {"label_thresholds": dict.fromkeys(labels, threshold)})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifacts, Recipe]:
    artifacts, recipe = releases.tokenized(tmp_path_factory.mktemp("sets"), tiny.recipe(**tiny.LABEL_SETS), SIZES)
    train_in_process(artifacts, recipe)
    return artifacts, recipe


def test_they_have_the_best_f1_of_validation_and_not_of_test(trained: tuple[Artifacts, Recipe]) -> None:
    found = config_of(trained[0])["label_thresholds"]
    assert list(found) == ["again", "cat", "rain"]
    assert set(found.values()) != {0.5}
    for split in ("validation", "test"):
        scores = scores_of(*trained, split)
        given, probability = (
            np.stack([scores[f"{what} {one}"] for one in found], 1) for what in ("given", "probability")
        )
        best = dict(zip(found, choose_f1_thresholds(given > 0, probability), strict=True))
        assert (found == pytest.approx(best, abs=2e-3)) is (split == "validation")


def test_whoever_tries_the_model_is_told_which_labels_reach_them(
    trained: tuple[Artifacts, Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = AnsweringModel.load(trained[0].model, "here")
    found = model.answer("The cat sees the rain, again: number 3.", AnswerOptions())
    thresholds = config_of(trained[0])["label_thresholds"]
    assert found.labels is not None
    expected = [one.name for one in found.labels if one.probability >= thresholds[one.name]]
    assert found.predicted == expected != []
    assert found.note == f"predicted, by the threshold of each label: {', '.join(expected)}"
    assert all(0 < one.probability < 1 for one in found.labels), "sigmoids, which do not add up to one"
    monkeypatch.setattr("tasks.inference.tried_model._MAX_LABELS", 0)
    shown = model.answer("The cat sees the rain, again: number 3.", AnswerOptions()).labels
    assert [one.name for one in shown or ()] == expected


def test_a_model_is_judged_with_them(trained: tuple[Artifacts, Recipe], tmp_path: Path) -> None:
    artifacts, recipe = Artifacts("tiny", shutil.copytree(trained[0].root, tmp_path / "own")), trained[1]
    own = releases.evaluate(artifacts, recipe)
    scores = scores_of(artifacts, recipe, "test")
    given, predicted = (
        torch.tensor([scores[f"{what} {label}"].tolist() for label in ("again", "cat", "rain")])
        for what in ("given", "predicted")
    )
    assert own.model["micro_f1"] == pytest.approx(float(2 * (given * predicted).sum() / (given + predicted).sum()))
    choose(artifacts, 0.999)
    other = releases.evaluate(artifacts, recipe)
    assert other.model["micro_f1"] < own.model["micro_f1"]
    assert other.model["loss"] == own.model["loss"]
    assert other.untrained == own.untrained, "the base model chose none"


def test_equal_weights_with_other_thresholds_are_another_model(
    trained: tuple[Artifacts, Recipe], tmp_path: Path
) -> None:
    artifacts = Artifacts("tiny", shutil.copytree(trained[0].root, tmp_path / "own"))
    path = artifacts.model / "model.safetensors"
    digest, content = weights_digest_by_form(artifacts)["merged"], path.read_bytes()
    choose(artifacts, 0.25)
    other = weights_digest_by_form(artifacts)["merged"]
    assert other != digest
    with safe_open(path, "pt") as file:
        assert file.metadata()["format"] == "pt", "by which transformers loads it"
    for name, weight in load_file(path).items():
        assert torch.equal(weight, load(content)[name])
    assert plan_release(artifacts.model, repo_id="tests/tiny", private=True, made_from={}).weights == other
    choose(artifacts, 0.25)
    assert weights_digest_by_form(artifacts)["merged"] == other, "the same again"
    write_chosen_settings(artifacts.model, {"label_thresholds": config_of(trained[0])["label_thresholds"]})
    assert path.read_bytes() == content


def test_thresholds_that_were_edited_since_are_refused(trained: tuple[Artifacts, Recipe], tmp_path: Path) -> None:
    artifacts = Artifacts("tiny", shutil.copytree(trained[0].root, tmp_path / "own"))
    config = config_of(artifacts)
    config["label_thresholds"]["cat"] = 0.25
    (artifacts.model / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="label_thresholds is not what was chosen for these weights") as error:
        releases.evaluate(artifacts, trained[1])
    assert error.value.where == str(artifacts.model / "config.json")
    assert error.value.fix == "train again, or undo the edit"


@pytest.mark.usefixtures("no_hub_settings")
@pytest.mark.slow
def test_a_champion_is_scored_with_its_thresholds_and_replaced_if_others_are_better(
    trained: tuple[Artifacts, Recipe], tmp_path: Path
) -> None:
    artifacts, recipe = Artifacts("tiny", shutil.copytree(trained[0].root, tmp_path / "own")), trained[1]
    # The first release is a bad one, and would have to be better than the model before training.
    settings = recipe.evaluation.model_copy(update={"compare_untrained": False})
    recipe = recipe.model_copy(update={"evaluation": settings})
    better = config_of(artifacts)["label_thresholds"]
    choose(artifacts, 0.3)
    worse = releases.evaluate(artifacts, recipe).model
    first = releases.publish(artifacts, recipe)
    assert first.status == "published"
    assert releases.evaluate(artifacts, recipe).verdict == "keep", "the same weights and thresholds"
    write_chosen_settings(artifacts.model, {"label_thresholds": better})
    judged = releases.evaluate(artifacts, recipe)
    assert judged.champion == worse
    assert judged.champion["micro_f1"] < judged.model["micro_f1"]
    assert judged.champion["loss"] == judged.model["loss"]
    assert judged.verdict == "publish"
    second = releases.publish(artifacts, recipe)
    assert (second.status, second.commit != first.commit) == ("published", True)
    again = releases.publish(artifacts, recipe)
    assert (again.status, again.commit) == ("published", second.commit), "once"


def test_a_model_that_starts_from_a_release_keeps_its_thresholds_until_it_has_its_own(
    trained: tuple[Artifacts, Recipe], tmp_path: Path
) -> None:
    artifacts = Artifacts("tiny", shutil.copytree(trained[0].root, tmp_path / "next"))
    base = shutil.copytree(artifacts.model, tmp_path / "base")
    config = json.loads((base / "config.json").read_bytes())
    (base / "config.json").write_text(json.dumps(config | {"label_thresholds": {"cat": 0.0}}))
    model = trained[1].model.model_copy(update={"config": None, "pretrained": str(base)})
    recipe = trained[1].model_copy(update={"model": model})
    before = releases.evaluate(artifacts, recipe, split="validation")
    assert before.untrained is not None
    assert before.untrained["loss"] == pytest.approx(before.model["loss"], rel=1e-5), "the same weights"
    assert before.untrained["micro_f1"] < before.model["micro_f1"], "every row is predicted to be about the cat"


@pytest.mark.slow  # two trainings in processes
def test_a_killed_training_ends_with_the_same_weights_and_thresholds(tmp_path: Path) -> None:
    changes = {"training.max_steps": 6, "training.eval_steps": 3}
    golden, recipe = tiny.tokenized(tmp_path / "golden", tiny.recipe(changes, **tiny.LABEL_SETS))
    killed = run_train_with_kills(golden, recipe, "checkpoint.renamed:2")
    assert_same(golden, killed)
    assert config_of(golden)["label_thresholds"] == config_of(killed)["label_thresholds"]


def test_adapters_have_them_too(tmp_path: Path) -> None:
    content = tiny.recipe({"training.max_steps": 4, "training.eval_steps": 2}, **tiny.LABEL_SETS)
    base, recipe = releases.tokenized(tmp_path / "first", content)
    train_in_process(base, recipe)
    changes: dict[str, Any] = {"model": {"pretrained": str(base.model), "lora": {"r": 4}}}
    changes |= {"tokenization.tokenizer": {"kind": "pretrained", "path": str(base.model)}}
    artifacts, recipe = releases.tokenized(tmp_path / "second", tiny.changed(content, changes))
    train_in_process(artifacts, recipe)
    own = json.loads((artifacts.adapter / "config.json").read_bytes())
    assert own["label_thresholds"] == config_of(artifacts)["label_thresholds"]


@pytest.mark.slow  # two more trainings
def test_two_processes_end_like_one(tmp_path: Path) -> None:
    found = {}
    for processes in (1, 2):
        changes = {
            "launch.num_processes": processes,
            "launch.micro_batch_size": 2,
            "model.config.hidden_dropout_prob": 0.0,
        }
        changes |= {"model.config.attention_probs_dropout_prob": 0.0, "objective.positive_weights": 3.0}
        artifacts, recipe = tiny.tokenized(tmp_path / str(processes), tiny.recipe(changes, **tiny.LABEL_SETS))
        run_train(artifacts, recipe)
        found[processes] = load_file(artifacts.model / "model.safetensors"), config_of(artifacts)["label_thresholds"]
    for name, weight in found[1][0].items():
        torch.testing.assert_close(found[2][0][name], weight, rtol=0, atol=1e-5)
    assert found[1][1] == pytest.approx(found[2][1], abs=1e-3)
