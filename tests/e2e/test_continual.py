"""New rows meet the published model: the training starts from its weights, which are pinned, and its labels keep their rows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from params import ModelError
from tasks.releases.reproduce import _read_parents, _read_release
from tests.support.project import Project, wait_for

SUBJECTS = {"animal": ["cat", "dog", "cow"], "weather": ["rain", "snow", "fog"], "food": ["bread", "soup", "rice"]}
BERT = {
    "model_type": "bert",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def rows(labels: Sequence[str], count: int, seed: int = 0) -> list[dict[str, str]]:
    """Texts whose label is easily learned."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        label = chance.choice(labels)
        found.append({"text": f"I see the {chance.choice(SUBJECTS[label])}, number {seed}-{number}.", "label": label})
    return found


def use_classes(project: Project, **more: object) -> None:
    """Let the recipe tiny be a classifier that starts from the published model."""
    project.rows("rows", rows(["animal", "weather"], 300))
    changes = {
        "data.source.train": "data/rows.jsonl",
        "objective": {"name": "sequence_classification"},
        "model": {"config": BERT, "start": "champion"},
        "training.best_metric": "loss",
        "training.max_steps": 30,
        "evaluation.gate.margin": 0.2,
        "publish.repo_id": "tests/tiny",
        **more,
    }
    project.recipe("tiny", changes)
    project.edit("recipes.yaml", "data/sentences.csv", "data/rows.jsonl")
    project.edit("recipes.yaml", "causal_lm.py", "sequence_classification.py")


def head(project: Project) -> dict[str, torch.Tensor]:
    """The row of the classifier's head for each label."""
    labels = project.json("runs/tiny/model/config.json")["id2label"]
    weights = load_file(project.root / "runs/tiny/model/model.safetensors")["classifier.weight"]
    return {label: weights[int(number)] for number, label in labels.items()}


def add_rows(project: Project) -> None:
    """New rows, some with a new label."""
    project.rows("rows", rows(["animal", "weather"], 300) + rows(["animal", "weather", "food"], 150, seed=1))


def test_training_goes_on_from_the_published_model(project: Project) -> None:
    """A release makes nothing stale, and new rows move the start."""
    use_classes(project, **{"training.replay": {"known": 0.5}})
    assert project.repro() == ["ingest", "validate", "tokenize", "train", "evaluate", "publish"]
    first = project.json("runs/tiny/release/receipt.json")
    assert first["status"] == "published"
    assert project.json("runs/tiny/validated/start/start.json") is None  # there was no model yet
    before = head(project)

    add_rows(project)
    assert project.repro() == ["ingest", "validate", "tokenize", "train", "evaluate", "publish"]
    pinned = project.json("runs/tiny/validated/start/start.json")
    assert (pinned["commit"], pinned["tag"]) == (first["commit"], first["tag"])
    assert project.json("runs/tiny/release/receipt.json")["status"] == "published"
    assert project.repro() == []
    now = head(project)
    assert set(now) == {"animal", "weather", "food"}
    for label, row in before.items():
        assert torch.cosine_similarity(now[label], row, dim=0) > 0.9
    told = f"The training started from the published model, tests/tiny@{first['tag']}."
    assert told in (project.root / "runs/tiny/report.html").read_text()

    project.rows("rows", rows(["animal", "weather"], 300))  # as at first, so DVC has a start that was pinned then
    assert "validate" in project.repro("validate@tiny")
    second = project.json("runs/tiny/release/receipt.json")
    assert project.json("runs/tiny/validated/start/start.json")["commit"] == second["commit"] != first["commit"]


@pytest.mark.slow
def test_release_is_made_again_from_the_release_that_it_started_from(project: Project) -> None:
    use_classes(project, **{"training.replay": {"known": 0.5}, "training.stay_close": 0.01})
    project.run("git", "add", "-A")
    project.run("git", "commit", "-q", "-m", "start")
    project.repro()
    add_rows(project)
    project.repro()
    first, second = sorted((project.root / ".hub").rglob("refs/tags/release-*"), key=lambda path: path.stat().st_mtime)
    reproduce = ("python", "-m", "tasks", "reproduce", f"tests/tiny@{second.name}")
    out = project.run(*reproduce, "--chain")
    assert out.count("the weights are equal, bit for bit") == 2

    release = _read_release(project.root, f"tests/tiny@{second.name}", "local")
    (parent,) = _read_parents(project.root, release, needs_all=True)
    assert parent.where.endswith(first.read_text().strip())
    start = release.record.start
    assert start
    lost = start.model_copy(update={"commit": "0" * 40})
    record = release.record.model_copy(update={"start": lost})
    with pytest.raises(
        ModelError, match=f"it started from tests/tiny@{first.name}, commit 000000.*, which is not there as it was"
    ):
        _read_parents(project.root, replace(release, record=record), needs_all=False)
    other = release.record.model_copy(update={"start": start.model_copy(update={"weights": "f" * 64})})
    with pytest.raises(ModelError, match="it has other weights now"):
        _read_parents(project.root, replace(release, record=other), needs_all=False)


@pytest.mark.slow
def test_flow_starts_from_both_and_keeps_the_better_one_although_it_is_killed(project: Project) -> None:
    use_classes(project, **{"model.start": "best", "training.best_metric": "accuracy", "training.max_steps": 60})
    project.flow()
    add_rows(project)
    driver = project.start("python", "-m", "flows.cli", "run", "tiny", log="driver.log", fork=True)
    scratch = project.root / ".scratch/tiny/checkpoints"
    wait_for(
        lambda: len(list(scratch.glob("*/started"))) > 1 and list(scratch.glob("*/checkpoint-20")), "a checkpoint", 300
    )
    driver.kill()
    driver.wait()
    wait_for(lambda: not project.processes(), "the end of all processes", 30)
    project.flow()
    report = project.json("runs/tiny/history/training.json")
    assert report["arms"].keys() == {"champion", "base"}
    assert report["best_value"] == max(report["arms"].values())
    assert project.flow() == []
    assert project.repro() == []
