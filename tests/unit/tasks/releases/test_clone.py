"""The recipe of a release, as its clone gets it."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from params.sections.data import RowsFromHubDataset
from tasks.recipes.loading import load
from tasks.releases.clone import (
    ProjectClone,
    ProvenanceRecord,
    RecordedRecipe,
    ReproducibleRelease,
    _add_item,
    write_recipe_and_link_files,
)
from tests.support.project import TINY

COMMIT = "c" * 40


@pytest.mark.parametrize(("recorded", "used"), [(COMMIT, COMMIT), ("someone/else", "main")])
def test_a_branch_of_a_dataset_is_replaced_by_the_recorded_commit(tmp_path: Path, recorded: str, used: str) -> None:
    source = "{kind: hub, repo_id: alice/notes, revision: main, train: train.jsonl}"
    text = TINY.replace("{kind: files, train: data/sentences.csv}", source)
    path = tmp_path / "clone" / "params" / "tiny.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    record = ProvenanceRecord.model_validate(
        {
            "schema": 1,
            "recipe": {"name": "tiny", "text": text, "dvc_item": None},
            "run": "run",
            "git_commit": COMMIT,
            "versions": {},
            "data": {"revision": recorded, "sha256": {}},
            "dvc_lock": None,
            "weights": {},
        }
    )
    clone = ProjectClone(tmp_path, tmp_path / "clone", tmp_path / "project")
    write_recipe_and_link_files(clone, path, ReproducibleRelease(f"alice/model@{COMMIT}", record, {}))
    found = load(path).data.source
    assert isinstance(found, RowsFromHubDataset)
    assert found.revision == used


@pytest.mark.parametrize("is_old", [False, True])
def test_recipe_is_listed_where_its_commit_lists_recipes(tmp_path: Path, is_old: bool) -> None:
    (tmp_path / "dvc.yaml").write_text(
        "vars:\n  - recipes:\n      other: {data: a}\n" if is_old else "vars: [recipes.yaml]\n"
    )
    if not is_old:
        (tmp_path / "recipes.yaml").write_text("recipes:\n  other: {data: a}\n")
    _add_item(tmp_path, RecordedRecipe(name="tiny", text="", dvc_item={"data": "b"}))
    found = YAML(typ="safe").load(tmp_path / ("dvc.yaml" if is_old else "recipes.yaml"))
    recipes = found["vars"][0]["recipes"] if is_old else found["recipes"]
    assert recipes == {"other": {"data": "a"}, "tiny": {"data": "b"}}
