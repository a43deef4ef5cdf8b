"""Experiments by DVC: they change the recipe, show up in DVC's tables, and publish nothing.

The tests share one project and stand in the order in which they change it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.project import Project, item, stages_of

pytestmark = pytest.mark.in_order
RATE = "params/tiny.yaml:training.learning_rate"
ADDED = "params/tiny.yaml:+training.weight_decay=0.1"
"""A key that the file does not have."""
RESOLVED, METRICS = "runs/tiny/recipe.yaml", "runs/tiny/evaluation/metrics.json"


@pytest.fixture(scope="module")
def committed(finished: Project) -> Project:
    finished.run("git", "add", "-A")
    finished.run("git", "commit", "-q", "-m", "Publish")
    return finished


def hub_refs(project: Project) -> dict[str, str]:
    """Branches and tags of the published repository."""
    refs = (project.root / ".hub").rglob("refs/**/*")
    return {str(path): path.read_text() for path in refs if path.is_file()}


def events(project: Project) -> list[str]:
    """What the log of releases has."""
    lines = (project.root / "runs/tiny/release/log.jsonl").read_text().splitlines()
    return [json.loads(line)["event"] for line in lines]


NEVER_RAN = ("second", "third")


def add_recipes_that_never_ran(project: Project) -> None:
    for name in NEVER_RAN:
        shutil.copy(project.root / "params/tiny.yaml", project.root / f"params/{name}.yaml")
    project.edit("recipes.yaml", item("tiny"), item("tiny") + "".join(map(item, NEVER_RAN)))


def shown(project: Project) -> list[dict[str, Any]]:
    """The experiments of `dvc exp show`, the newest first, each with its values and metrics."""
    (_, head) = json.loads(project.run("dvc", "exp", "show", "--json"))
    return [one["revs"][0]["data"] for one in head["experiments"] or ()]


def test_an_edit_is_shown_before_anything_runs(committed: Project) -> None:
    committed.edit("params/tiny.yaml", "learning_rate: 1e-2", "learning_rate: 2e-2")
    changed = json.loads(committed.run("dvc", "params", "diff", "--json"))
    assert list(changed) == ["params/tiny.yaml"]
    assert changed["params/tiny.yaml"]["training.learning_rate"]["new"] == 0.02
    assert "resolve@tiny" in committed.run("dvc", "status", "--with-deps", "train@tiny")
    committed.edit("params/tiny.yaml", "learning_rate: 2e-2", "learning_rate: 1e-2  # as before")
    assert "up to date" in committed.run("dvc", "status", "--with-deps", "publish@tiny")
    assert committed.run("dvc", "params", "diff", "--json").strip() == "{}"
    committed.run("git", "checkout", "-q", "params")


def test_an_experiment_trains_with_other_values_and_publishes_nothing(committed: Project) -> None:
    refs, log = hub_refs(committed), events(committed)
    assert refs
    changes = ("-S", f"{RATE}=5e-3", "-S", ADDED)
    out = committed.run("dvc", "exp", "run", "publish@tiny", "--name", "slower", *changes)
    assert stages_of(out) == ["train", "evaluate", "publish"]
    assert "publish: slower is an experiment, so nothing is published" in out
    assert hub_refs(committed) == refs
    assert events(committed) == [*log, "verdict"], "it has used the test rows"
    receipt = committed.json("runs/tiny/release/receipt.json")
    assert (receipt["status"], receipt["commit"]) == ("dry-run", None)
    assert "`dvc exp apply slower` and `evergreen run tiny` publish it" in receipt["reasons"][-1]


def test_it_is_compared_with_others(committed: Project) -> None:
    (experiment,) = shown(committed)
    assert experiment["params"][RESOLVED]["data"]["training"]["learning_rate"] == 0.005
    assert experiment["params"][RESOLVED]["data"]["training"]["weight_decay"] == 0.1, "the key was added"
    assert experiment["params"][RESOLVED]["data"]["training"]["lr_scheduler"] == "linear", "defaults are there, too"
    metrics = experiment["metrics"][METRICS]["data"]
    assert metrics["model"] == committed.json(METRICS)["model"]
    changed = json.loads(committed.run("dvc", "params", "diff", "--json"))[RESOLVED]
    assert {name: one["new"] for name, one in changed.items()} == {
        "training.learning_rate": 0.005,
        "training.weight_decay": 0.1,
    }
    page = committed.run("dvc", "plots", "diff", "HEAD", "slower")
    assert "dvc_plots/index.html" in page


def test_after_the_flow_the_applied_experiment_has_met_the_gate(committed: Project) -> None:
    committed.run("dvc", "exp", "apply", "slower")
    outcomes = stages_of(committed.run("python", "-m", "flows.cli", "run", "tiny"))
    assert outcomes == ["publish"], "DVC restores what the experiment has made"
    assert committed.json("runs/tiny/release/receipt.json")["status"] in {"published", "kept"}


@pytest.mark.slow
def test_queued_experiments_run_elsewhere_and_compare_with_the_published_model(committed: Project) -> None:
    committed.run("git", "add", "-A")
    committed.run("git", "commit", "-q", "-m", "Apply")
    refs = hub_refs(committed)
    committed.run("dvc", "exp", "run", "publish@tiny", "--queue", "--name", "queued", "-S", f"{RATE}=2e-3")
    out = committed.run("dvc", "exp", "run", "--run-all")
    assert "queued" in out
    assert hub_refs(committed) == refs
    (experiment,) = shown(committed)
    assert experiment["params"][RESOLVED]["data"]["training"]["learning_rate"] == 0.002
    assert experiment["metrics"][METRICS]["data"]["champion"], "it was compared with the published model"


def test_what_never_ran_is_left_out_on_request(project: Project) -> None:
    """DVC has no setting for it, and takes each output that was never made for a missing one."""
    add_recipes_that_never_ran(project)
    project.run("dvc", "checkout", ok=False)
    project.run("dvc", "checkout", "--allow-missing")


@pytest.mark.slow
def test_documented_commands_work_beside_recipes_that_never_ran(
    committed: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Those of README.md and docs/experiments.md, in a clone of a project of three recipes of which one has run."""
    folder = tmp_path_factory.mktemp("elsewhere")
    committed.run("git", "checkout", "-qf", "HEAD")
    committed.run("dvc", "checkout", "--force")
    add_recipes_that_never_ran(committed)
    committed.run("git", "add", "-A")
    committed.run("git", "commit", "-qm", "More recipes")
    committed.run("dvc", "remote", "add", "-d", "--local", "storage", str(folder / "storage"))
    committed.run("dvc", "push")
    committed.run("git", "clone", "-q", ".", str(folder / "clone"))
    shutil.copy(committed.root / ".dvc/config.local", folder / "clone/.dvc/config.local")
    shutil.copytree(committed.root / ".hub", folder / "clone/.hub")  # with the release that the log names
    clone = Project(folder / "clone", Path(committed.environment["PREFECT_HOME"]))

    clone.run("dvc", "pull", "--allow-missing")
    assert (clone.root / "runs/tiny/model/model.safetensors").exists()
    assert clone.repro("train@tiny") == []
    clone.run("dvc", "checkout", "--allow-missing")
    for command in (
        "status",
        "push",
        "fetch",
        "metrics show",
        "plots show",
        "params diff",
        "metrics diff",
        "data status",
    ):
        clone.run("dvc", *command.split())
    changes = {"slower": ["-S", f"{RATE}=3e-3"], "longer": ["-S", "params/tiny.yaml:+training.warmup_steps=2"]}
    for name, options in changes.items():
        out = clone.run("dvc", "exp", "run", "publish@tiny", "--name", name, *options)
        assert "train" in stages_of(out)
        clone.run("git", "checkout", "-qf", "HEAD")
    for command in ("exp show --only-changed", "plots diff slower longer", "exp diff slower longer"):
        clone.run("dvc", *command.split())
    clone.run("dvc", "exp", "save", "--name", "saved", "publish@tiny")
    out = clone.run(
        "dvc", "exp", "run", "resolve@tiny", "--name", "resolved", "-S", "params/tiny.yaml:+training.max_grad_norm=2.0"
    )
    assert stages_of(out) == [], "the recipe was resolved, and nothing else was asked for"
    clone.run("git", "checkout", "-qf", "HEAD")

    def applied() -> bool:
        said = clone.run(
            "dvc", "params", "diff", "--json"
        ).splitlines()  # before, that other recipes have no values yet
        return json.loads(said[-1])[RESOLVED]["training.learning_rate"]["new"] == 0.003

    out = clone.run("dvc", "exp", "apply", "slower", ok=False)
    assert "runs/second/" in out
    assert "runs/tiny/" not in out
    assert applied(), "whatever DVC says"
    clone.run("git", "checkout", "-qf", "HEAD")
    clone.run("dvc", "exp", "branch", "slower", "use-slower")
    clone.run("git", "restore", "--source", "use-slower", "params", "dvc.lock", "runs")
    assert applied()
    assert stages_of(clone.run("python", "-m", "flows.cli", "run", "tiny")) == ["publish"]

    clone.run("git", "checkout", "-qf", "HEAD")
    for name in NEVER_RAN:
        clone.run("python", "-m", "flows.cli", "remove", name, "--yes")
    clone.run("git", "commit", "-qam", "Remove what does not run")
    clone.run("dvc", "pull", "--force")
    clone.run("dvc", "exp", "run", "publish@tiny", "--name", "again", "-S", f"{RATE}=3e-3")
    clone.run("git", "checkout", "-qf", "HEAD")
    clone.run("dvc", "exp", "apply", "again")
    assert applied()
