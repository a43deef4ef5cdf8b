"""The inputs of a stage: what an edit changes, and what dvc.lock says of earlier stages."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from params import InputsChangedError
from params.foundation.artifacts import Artifacts
from tasks.recipes.resolve import write_resolved_recipe
from tasks.stage_inputs import StageInputsSnapshot, check_earlier_stages_unchanged, check_recipe_matches_snapshot
from tests.support.project import ROOT, copy_project


@pytest.fixture
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Artifacts:
    copy_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    return Artifacts("tiny")


def edit(path: str, old: str = "", new: str = "# edited\n") -> None:
    file = Path(path)
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new) if old else text + new, encoding="utf-8")


@pytest.mark.parametrize(
    ("stage", "change", "named"),
    [
        ("train", lambda: edit("params/tiny.yaml", "1e-2", "3e-2"), "training in params/tiny.yaml"),
        (
            "train",
            lambda: edit(
                "params/tiny.yaml", "split: test,", "split: test, metrics: {function: 'a:b', directions: {c: min}},"
            ),
            "evaluation.metrics in",
        ),
        ("train", lambda: edit("trainer/worker.py"), "trainer/worker.py"),
        ("train", lambda: edit("trainer/objectives/causal_lm.py"), "trainer/objectives/causal_lm.py"),
        ("train", lambda: Path("trainer/data/new.py").touch(), "trainer/data/new.py"),
        ("train", lambda: Path("trainer/losses.py").unlink(), "trainer/losses.py"),
        ("train", lambda: Path("params/tiny.yaml").unlink(), "seed in params/tiny.yaml"),
        ("ingest", lambda: edit("data/sentences.csv", new="more,1\n"), "data/sentences.csv"),
        ("publish", lambda: edit("params/tiny.yaml", "tests/tiny", "tests/other"), "publish in params/tiny.yaml"),
        ("publish", lambda: edit("tasks/report/page.html.jinja"), "tasks/report/page.html.jinja"),
    ],
)
def test_edit_of_an_input_is_named(artifacts, stage, change, named):
    inputs = StageInputsSnapshot.read(stage, artifacts)
    change()
    with pytest.raises(InputsChangedError, match=rf"^{stage}@tiny: changed while it ran: {re.escape(named)}"):
        inputs.check()


@pytest.mark.parametrize(
    "change",
    [
        lambda: edit("params/tiny.yaml", "seed: 3", "seed: 3  # a comment"),
        lambda: edit("params/tiny.yaml", "num_processes: 1", "num_processes: 2"),
        lambda: edit("params/tiny.yaml", "tests/tiny", "tests/other"),
        lambda: edit("trainer/runtime/heartbeat.py"),
        lambda: edit("tasks/report/page.html.jinja"),
        lambda: edit("trainer/objectives/dpo.py"),
        lambda: edit("README.md"),
    ],
)
def test_edit_of_what_a_training_does_not_depend_on_changes_nothing(artifacts, change):
    Path("README.md").touch()
    inputs = StageInputsSnapshot.read("train", artifacts)
    shutil.copytree("trainer/data", "trainer/data/__pycache__", dirs_exist_ok=True)
    change()
    inputs.check()


def test_recipe_that_was_edited_after_dvc_looked_at_it_is_named(artifacts, monkeypatch):
    """DVC would record the values of the resolved recipe, and the stage would work with those of the recipe."""
    write_resolved_recipe(artifacts)
    monkeypatch.setenv("DVC_STAGE", "train@tiny")
    edit("params/tiny.yaml", "num_processes: 1", "num_processes: 2")
    check_recipe_matches_snapshot(StageInputsSnapshot.read("train", artifacts))
    edit("params/tiny.yaml", "1e-2", "3e-2")
    inputs = StageInputsSnapshot.read("train", artifacts)
    what = r"^train@tiny: the recipe changed since runs/tiny/recipe.yaml was written: training$"
    with pytest.raises(InputsChangedError, match=f"(?m){what}"):
        check_recipe_matches_snapshot(inputs)
    monkeypatch.delenv("DVC_STAGE")
    check_recipe_matches_snapshot(inputs)


def test_large_file_is_compared_by_size_and_time(artifacts):
    with Path("data/sentences.csv").open("ab") as file:
        file.truncate(2**20)
    inputs = StageInputsSnapshot.read("ingest", artifacts)
    inputs.check()
    edit("data/sentences.csv", new="more,1\n")
    with pytest.raises(InputsChangedError, match="sentences"):
        inputs.check()


def test_recipe_without_an_item_in_dvc_yaml_has_its_keys_and_the_common_code(artifacts):
    shutil.copy("params/tiny.yaml", "params/other.yaml")
    inputs = StageInputsSnapshot.read("train", Artifacts("other"))
    inputs.check()
    assert inputs.params["seed"] == 3
    assert "trainer/worker.py" in inputs.files
    assert not any("$" in path for path in inputs.files)


def test_without_dvc_yaml_there_is_nothing_to_compare(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inputs = StageInputsSnapshot.read("train", Artifacts("tiny"))
    assert (inputs.params, inputs.files) == ({}, {})
    inputs.check()


@pytest.fixture
def recorded(artifacts, monkeypatch):
    """The entries that DVC would write to dvc.lock now."""
    from dvc.repo import Repo

    subprocess.run(["git", "init", "-q"], check=True)
    write_resolved_recipe(artifacts)
    with Repo() as repo:
        stages = {}
        for name in ("ingest", "validate", "tokenize"):
            stage = repo.stage.load_one(name=f"{name}@tiny")
            deps = []
            for dep in stage.deps:
                if str(dep.def_path).startswith("runs/") and not dep.fs_path.endswith("recipe.yaml"):
                    continue
                dep.save()
                if dep.fs_path.endswith("recipe.yaml"):
                    params = {dep.def_path: dict(dep.hash_info.value)}
                else:
                    deps.append({"path": dep.def_path, "md5": dep.hash_info.value})
            stages[f"{name}@tiny"] = {"params": params, "deps": deps}
    with Path("dvc.lock").open("w") as file:
        YAML().dump({"schema": "2.0", "stages": stages}, file)
    monkeypatch.setenv("DVC_STAGE", "train@tiny")
    return artifacts


def test_stages_that_ran_with_what_there_is_now_are_accepted(recorded):
    check_earlier_stages_unchanged("train", recorded)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda: edit("params/tiny.yaml", "max_length: 32", "max_length: 31"), "tokenize@tiny: .*: tokenization$"),
        (
            lambda: edit("params/tiny.yaml", "vocab_size: 300", "vocab_size: 301"),
            "validate@tiny: .*: tokenization.tokenizer$",
        ),
        (
            lambda: edit("params/tiny.yaml", "max_quarantined: 0.05", "max_quarantined: 0.1"),
            "validate@tiny: .*: validation$",
        ),
        (lambda: edit("tasks/ingestion/stage.py"), "ingest@tiny: .*: tasks/ingestion$"),
        (lambda: edit("trainer/rewards.py"), "validate@tiny: .*: trainer/rewards.py$"),
    ],
)
def test_stage_that_ran_with_something_else_is_named(recorded, change, named):
    change()
    with pytest.raises(InputsChangedError) as caught:
        check_earlier_stages_unchanged("train", recorded)
    assert re.search(named, str(caught.value).splitlines()[0])


def test_rows_that_arrive_after_ingest_do_not_matter(recorded):
    edit("data/sentences.csv", new="more,1\n")
    check_earlier_stages_unchanged("train", recorded)


def test_without_dvc_its_lock_file_is_not_asked(recorded, monkeypatch):
    monkeypatch.delenv("DVC_STAGE")
    edit("tasks/ingestion/stage.py")
    check_earlier_stages_unchanged("train", recorded)


def test_pipeline_of_this_project_is_read_whole():
    inputs = StageInputsSnapshot.read("train", Artifacts("default", ROOT))
    assert set(inputs.params) == {"seed", "objective", "model", "training", "evaluation.metrics"}
    assert all(inputs.files[path] for path in inputs.files if not path.startswith("runs/"))
