"""An objective and a loss that an installed package brings: a recipe names them as those of the project, and their version decides the weights."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project import ROOT, Project, copy_project, item

OBJECTIVE = (ROOT / "tests/support/new_objectives/reversal.py").read_text(encoding="utf-8")
LOSS = """\
from trainer.losses import cross_entropy


def plain(outputs, labels, num_items_in_batch):
    return cross_entropy(outputs, labels, num_items_in_batch)
"""
METADATA = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "mirrored-texts"
version = "{version}"

[project.entry-points."evergreen.objectives"]
mirrored = "mirrored_texts.objective:Reversal"

[project.entry-points."evergreen.functions"]
plain = "mirrored_texts.losses:plain"
"""


def pip_install(source: Path, target: Path, version: str) -> None:
    """Write and install a version of the package into a folder, without an index."""
    package = source / "mirrored_texts"
    package.mkdir(parents=True, exist_ok=True)
    (source / "pyproject.toml").write_text(METADATA.format(version=version))
    (package / "__init__.py").write_text("")
    (package / "objective.py").write_text(OBJECTIVE)
    (package / "losses.py").write_text(LOSS)
    shutil.rmtree(target, ignore_errors=True)
    uv = Path(sys.executable).with_name("uv")
    pip = [str(uv), "pip"] if uv.exists() else [sys.executable, "-m", "pip"]
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(target), str(source)]
    python = ["--python", sys.executable, "--offline"] if uv.exists() else []
    subprocess.run([*pip, "install", *python, *options], check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project that no flow runs in."""
    root = tmp_path / "project"
    copy_project(root)
    return Project(root, tmp_path / "prefect")


@pytest.fixture
def installed(tmp_path: Path, project: Project) -> Path:
    target = tmp_path / "installed"
    project.environment["PYTHONPATH"] = str(target)
    pip_install(tmp_path / "source", target, "1.0")
    return target


def write_recipe(project: Project) -> str:
    recipe = (project.root / "params/tiny.yaml").read_text()
    changes = {
        "model_type: llama": "model_type: bert",
        "    num_key_value_heads: 2\n    tie_word_embeddings: true\n": "",
        "objective: {name: causal_lm, text_column: text}": "objective: {name: mirrored, sentence_column: text}",
        "logging_steps: 5": "logging_steps: 5\n  best_metric: token_accuracy\n  loss: mirrored_texts.losses:plain",
        "tests/tiny": "tests/mirrored",
    }
    for old, new in changes.items():
        assert old in recipe
        recipe = recipe.replace(old, new)
    (project.root / "params/mirrored.yaml").write_text(recipe)
    line = "mirrored: {data: data/sentences.csv, objective: requirements.txt, base: trainer/rewards.py, code: requirements.txt}"
    project.edit("recipes.yaml", item("tiny"), f"{item('tiny')}  {line}\n")
    return "params/mirrored.yaml"


def test_recipe_trains_with_what_a_package_brings_and_anew_with_its_next_version(
    project: Project, installed: Path, tmp_path: Path
) -> None:
    recipe, pins = write_recipe(project), project.root / "requirements.txt"
    check = ("python", "-m", "tasks", "check", recipe)

    pins.write_text("another==3\n")
    said = project.run(*check, ok=False)
    assert said.count("which does not have the line mirrored-texts==1.0 for `mirrored_texts.") == 2
    pins.write_text("mirrored-texts==1.0\n")
    assert f"check: {recipe} is sound" in project.run(*check)

    project.stages(recipe, ("ingest", "validate", "tokenize", "train", "evaluate"))
    trained = json.loads((project.root / "runs/mirrored/history/training.json").read_text())
    assert json.loads((project.root / "runs/mirrored/evaluation/metrics.json").read_text())["model"]["loss"] > 0
    assert trained["versions"]["mirrored-texts"] == "1.0"

    pip_install(tmp_path / "source", installed, "1.1")
    assert "mirrored-texts==1.1" in project.run(*check, ok=False)
    pins.write_text("mirrored-texts==1.1\n")
    said = project.run("python", "-m", "tasks", "evaluate", recipe, ok=False)
    assert f"the model is that of run {trained['run']}, which had another recipe, other code or other data" in said
    project.stages(recipe, ("train",))
    again = json.loads((project.root / "runs/mirrored/history/training.json").read_text())
    assert again["run"] != trained["run"]
    assert again["versions"]["mirrored-texts"] == "1.1"


def test_package_that_is_missing_is_said(project: Project) -> None:
    recipe = write_recipe(project)
    (project.root / "requirements.txt").write_text("mirrored-texts==1.0\n")
    said = project.run("python", "-m", "tasks", "check", recipe, ok=False)
    assert "there is no objective `mirrored`" in said
