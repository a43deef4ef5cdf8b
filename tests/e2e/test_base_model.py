"""A recipe that starts from the model of another one: both drivers follow it, here and in a clone.

The tests share one project and stand in the order in which they change it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.project import Project, item, stages_of

pytestmark = [pytest.mark.in_order, pytest.mark.slow]
FOLLOWS = ["validate", "tokenize", "train", "evaluate"]


def run(project: Project, *arguments: str) -> list[str]:
    """Bring the recipe `tuned` up to date by the flow; the stages that it ran."""
    return stages_of(project.run("python", "-m", "flows.cli", "run", "tuned", "--no-publish", *arguments))


def retrain_base(project: Project, rate: str) -> None:
    text = project.root / "params/tiny.yaml"
    lines = text.read_text().splitlines()
    changed = [f"  learning_rate: {rate}" if one.strip().startswith("learning_rate:") else one for one in lines]
    text.write_text("\n".join(changed) + "\n")
    assert project.repro("train@tiny") == ["train"]


def started_from(project: Project) -> str:
    """The digest of the weights of the untrained model, as far as its loss tells."""
    return json.dumps(project.json("runs/tuned/evaluation/metrics.json")["untrained"])


@pytest.fixture(scope="module")
def tuned(finished: Project) -> Project:
    text = (finished.root / "params/tiny.yaml").read_text()
    start = text.index("model:\n")
    end = text.index("training:\n")
    text = text[:start] + "model: {pretrained: runs/tiny/model}\n" + text[end:]
    tokenizer = "tokenizer: {kind: train, vocab_size: 300}"
    assert tokenizer in text
    text = text.replace(tokenizer, "tokenizer: {kind: pretrained, path: runs/tiny/model}").replace(
        "tests/tiny", "tests/tuned"
    )
    (finished.root / "params/tuned.yaml").write_text(text)
    finished.edit("recipes.yaml", item("tiny"), item("tiny") + item("tuned", base="runs/tiny/model"))
    assert run(finished) == ["ingest", "validate", "tokenize", "train", "evaluate"]
    assert run(finished) == []
    return finished


def test_the_flow_follows_a_base_that_was_trained_again(tuned: Project) -> None:
    before = started_from(tuned)
    retrain_base(tuned, "5e-3")
    assert run(tuned) == FOLLOWS
    assert started_from(tuned) != before
    assert run(tuned) == []


def test_dvc_repro_trains_the_base_first(tuned: Project) -> None:
    tuned.edit("params/tiny.yaml", "learning_rate: 5e-3", "learning_rate: 6e-3")
    out = tuned.run("dvc", "repro", "evaluate@tuned")
    ran = [part.split("'")[0] for part in out.split("Running stage '")[1:]]
    assert [name for name in ran if not name.startswith("resolve")] == ["train@tiny", *(f"{s}@tuned" for s in FOLLOWS)]
    assert run(tuned) == []


def test_in_a_clone_the_base_comes_from_the_remote(tuned: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("elsewhere")
    tuned.run("dvc", "remote", "add", "-d", "--local", "storage", str(folder / "storage"))
    tuned.run("dvc", "push", "-q", "train@tiny", "evaluate@tuned", "--with-deps")
    tuned.run("git", "add", "-A")
    tuned.run("git", "commit", "-qm", "both")
    tuned.run("git", "clone", "-q", ".", str(folder / "clone"))
    shutil.copy(tuned.root / ".dvc/config.local", folder / "clone/.dvc/config.local")
    clone = Project(folder / "clone", Path(tuned.environment["PREFECT_HOME"]))
    assert run(clone) == []
    assert not (clone.root / "runs/tiny/model").exists(), "nothing needs it yet"
    clone.edit("params/tuned.yaml", "learning_rate: 1e-2", "learning_rate: 9e-3")
    assert run(clone) == ["train", "evaluate"]
    assert (clone.root / "runs/tiny/model/model.safetensors").exists()
    assert not (clone.root / "runs/tiny/tokens").exists(), "only the model is needed"

    retrain_base(tuned, "8e-3")
    tuned.run("dvc", "push", "-q", "train@tiny")
    shutil.copy(tuned.root / "params/tiny.yaml", clone.root / "params/tiny.yaml")
    newer = (tuned.root / "dvc.lock").read_text()
    merged = clone.run("python", "-c", MERGE, newer)
    (clone.root / "dvc.lock").write_text(merged)
    assert run(clone) == FOLLOWS, "another worker has trained the base again"
    assert run(clone) == []


MERGE = """
import sys
from flows.dvc_project.lock_file import parse_recipe_stages, with_recipe_stages
ours = parse_recipe_stages(sys.argv[1], "tiny", where="there")
print(with_recipe_stages(open("dvc.lock").read(), ours, "tiny", where="here"), end="")
"""
