"""The recipe of a release, as its clone gets it."""

from pathlib import Path

import pytest

from params import load
from params.schema import HubDataset
from tasks.releases.clone import Clone, ProvenanceRecord, ReproducibleRelease, write_recipe
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
    clone = Clone(tmp_path, tmp_path / "clone", tmp_path / "project")
    write_recipe(clone, path, ReproducibleRelease("alice/model", COMMIT, record, {}))
    found = load(path).data.source
    assert isinstance(found, HubDataset)
    assert found.revision == used
