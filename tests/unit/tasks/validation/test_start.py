"""The validate stage pins the published model that a training starts from, and the rows that it has learned from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from huggingface_hub import CommitOperationAdd, HfApi

from params import HubRefusedError, ModelError, Recipe
from params.foundation.artifacts import KNOWN_ROWS, Artifacts
from params.schema import ObjectiveChoice, Replay
from tasks.digests import PROVENANCE
from tasks.hub_client.connection import open_repository
from tasks.hub_server.server import LocalHub
from tasks.known_rows.hashes import KnownHashes, read_hashes, shorten_hashes, write_hashes
from tasks.known_rows.rows import ComparedColumns
from tasks.lineage.learned_rows import HeldOutRows, record_learned_rows, rows_of_release
from tasks.lineage.training_record import record_train_rows
from tasks.publishing.provenance import collect_provenance
from tasks.releases.rollback import commit_rollback
from tasks.shards.kept_work import ShardWorkers
from tasks.shards.split_rows import SplitRows
from tasks.stages import read_report, save_report
from tasks.training.report import TrainingReport
from tasks.validation.start import pin_start
from tests.support import releases, tiny, tiny_releases
from trainer import objectives
from trainer.start import ReleaseReference, read_known_row_ids, read_pinned_start

SIZES = {"train": 8, "validation": 2, "test": 2}
CONTENT = ComparedColumns(("label",), ("text",), (), {})


def pin(artifacts: Artifacts, recipe: Recipe, **changes: Any) -> None:
    """What the validate stage does."""
    shutil.rmtree(artifacts.start, ignore_errors=True)
    usual: dict[str, Any] = {
        "start": "champion",
        "replay": None,
        "objective": objectives.build_objective(recipe.objective),
        "name": recipe.objective.name,
        "repo_id": recipe.publish.repo_id,
        "endpoint": recipe.publish.endpoint,
    }
    with ShardWorkers(artifacts, "validate", recipe.launch) as workers:
        pin_start(artifacts, artifacts.validated, workers, **(usual | changes))


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifacts, Recipe]:
    """A classifier whose release says which rows it has learned from."""
    root = tmp_path_factory.mktemp("released")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("HF_ENDPOINT", raising=False)
        artifacts, recipe = tiny_releases.evaluated(root, "sequence_classification", private=True)
        pin(artifacts, recipe)
        assert (artifacts.start / "start.json").read_text() == "null\n"  # as without `model.start`, so nothing is stale
        assert read_pinned_start(artifacts, "champion") is None
        assert releases.publish(artifacts, recipe).status == "published"
    return artifacts, recipe


def test_the_release_and_the_rows_that_it_knows_are_pinned(released: tuple[Artifacts, Recipe]) -> None:
    artifacts, recipe = released
    old = tiny.sentences(60)
    new = [f"{text} It is new." for text in tiny.sentences(30, 9)]
    texts = [*new[:10], *old, *new[10:], old[0]]  # of equal rows, each is known
    relabelled = [*texts, old[5]]
    labels = [text.split()[1] for text in texts] + ["bird"]  # another label makes another row
    tiny.write_rows(artifacts, train={"text": relabelled, "label": labels})
    pin(artifacts, recipe, replay=Replay())
    found = read_pinned_start(artifacts, "champion")
    assert isinstance(found, ReleaseReference)
    receipt = json.loads(artifacts.receipt.read_text())
    assert (found.commit, found.tag, found.repo_id) == (receipt["commit"], receipt["tag"], recipe.publish.repo_id)
    ids = read_known_row_ids(artifacts.start / "model")
    assert ids is not None
    assert ids.tolist() == [*range(10, 70), 90]
    own, released_weights = (folder / "model.safetensors" for folder in (artifacts.start / "model", artifacts.model))
    assert own.read_bytes() == released_weights.read_bytes()
    before = {path: path.read_bytes() for path in artifacts.start.rglob("*") if path.is_file()}
    pin(artifacts, recipe, replay=Replay())
    assert before == {path: path.read_bytes() for path in artifacts.start.rglob("*") if path.is_file()}


def test_a_start_that_does_not_fit_is_refused(released: tuple[Artifacts, Recipe]) -> None:
    artifacts, recipe = released
    with pytest.raises(ModelError, match="trained for sequence_classification, not regression"):
        pin(artifacts, recipe, name="regression")


def test_a_release_knows_what_the_one_before_it_has_learned(released: tuple[Artifacts, Recipe]) -> None:
    """Rows that leave the train split are held out by another seed, for example: their answers are in the weights."""
    artifacts, recipe = released
    old, new = tiny.sentences(60), [f"{text} It is new." for text in tiny.sentences(30, 9)]
    labels = [text.split()[1] for text in [*old, *new]]
    tiny.write_rows(artifacts, train={"text": new, "label": labels[60:]}, test={"text": [*old, *new], "label": labels})
    pin(artifacts, recipe)
    release = artifacts.root / "release"
    release.mkdir()
    started = recipe.model.model_copy(update={"start": "champion"})
    objective = objectives.build_objective(recipe.objective)
    with ShardWorkers(artifacts, "tokenize", recipe.launch) as workers:
        record_train_rows(artifacts.tokens, {"train": SplitRows(artifacts.rows / "train")}, objective, workers)
    record_learned_rows(release, artifacts, started, objective)
    rows = SplitRows(artifacts.rows / "test")
    held_out = HeldOutRows(rows, ComparedColumns.of(rows, objective, ()))
    assert len(held_out.learned_by([rows_of_release(release, "the release", held_out.columns)])) == 90


def test_a_release_says_until_when_the_one_before_it_has_learned(released: tuple[Artifacts, Recipe]) -> None:
    """With a longer span of held-out rows, the newest row of a run is older than that of the run before."""
    artifacts, recipe = released
    pin(artifacts, recipe)
    (path,) = artifacts.champion.glob(f"*/{PROVENANCE}")
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"data": record["data"] | {"learned_until": "2026-01-31T00:00:00+00:00"}}))
    pin(artifacts, recipe)
    path.write_text(json.dumps(record))
    found = read_pinned_start(artifacts, "champion")
    trained = read_report(artifacts, TrainingReport)
    save_report(trained.model_copy(update={"started_from": found}), artifacts.report("train"))
    for own, said in (("2026-01-01T00:00:00+00:00", "2026-01-31"), ("2026-02-01T00:00:00+00:00", "2026-02-01")):
        save_report(releases.SOURCE.model_copy(update={"learned_until": own}), artifacts.report("ingest"))
        assert collect_provenance(artifacts)["data"]["learned_until"].startswith(said)
    save_report(trained, artifacts.report("train"))


def test_a_private_repository_that_cannot_be_seen_is_no_absent_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts, recipe = tiny.tokenized(tmp_path / "project", tiny.recipe(), SIZES)
    token = "hf_" + "1" * 40
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))
    with LocalHub(tmp_path / "hub", tokens={token: "tests"}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        HfApi(endpoint=hub.endpoint, token=token).create_repo(recipe.publish.repo_id, private=True)
        with pytest.raises(HubRefusedError, match="there is no token for"):
            pin(artifacts, recipe)
        monkeypatch.setenv("HF_TOKEN", token)
        pin(artifacts, recipe)
    assert (artifacts.start / "start.json").read_text() == "null\n"


def test_rows_that_the_release_does_not_name_are_not_guessed(tmp_path: Path) -> None:
    hashes, release = np.array([5, 1 << 40, 1 << 63], np.uint64), tmp_path
    with pytest.raises(ValueError, match="does not say which rows"):
        read_hashes(release, CONTENT, needs_all=True)
    write_hashes({"own": KnownHashes(shorten_hashes(hashes))}, CONTENT, release / KNOWN_ROWS)
    asked = shorten_hashes(np.array([1 << 40, 1 << 41, 1 << 63], np.uint64))
    assert np.isin(asked, read_hashes(release, CONTENT, needs_all=True).hashes).tolist() == [True, False, True]
    with pytest.raises(ValueError, match="learned from other columns: label, text"):
        read_hashes(release, ComparedColumns(("topic",), ("text",), (), {}), needs_all=False)
    for is_written in (False, True):
        write_hashes({"own": KnownHashes(asked, is_written)}, CONTENT, release / KNOWN_ROWS)
        assert read_hashes(release, CONTENT, needs_all=True).is_written == is_written
    content = {b"evergreen.content": json.dumps(CONTENT.content).encode()}
    pq.write_table(pq.read_table(release / KNOWN_ROWS).replace_schema_metadata(content), release / KNOWN_ROWS)
    assert read_hashes(release, CONTENT, needs_all=True).is_written, "a file of an earlier version may have both forms"
    (release / KNOWN_ROWS).write_bytes(b"PAR1 and so on")
    with pytest.raises(ValueError, match="damaged"):
        read_hashes(release, CONTENT, needs_all=True)


def test_list_of_many_rows_is_small(tmp_path: Path) -> None:
    hashes, others = (
        shorten_hashes(np.random.default_rng(seed).integers(0, 2**64 - 1, 200_000, np.uint64)) for seed in range(2)
    )
    write_hashes({"own": KnownHashes(hashes)}, CONTENT, tmp_path / KNOWN_ROWS)
    assert (tmp_path / KNOWN_ROWS).stat().st_size < 3.3 * len(hashes)
    found = read_hashes(tmp_path, CONTENT, needs_all=True).hashes
    assert np.isin(hashes, found).all()
    assert np.isin(others, found).sum() <= 3


def test_a_training_starts_from_the_same_release_until_something_decides_anew(
    released: tuple[Artifacts, Recipe], caplog: pytest.LogCaptureFixture
) -> None:
    """validate runs again for another suite, check or drift setting, and on another worker, which has what git has."""
    artifacts, recipe = released
    texts = tiny.sentences(40, 3)
    tiny.write_rows(artifacts, train={"text": texts, "label": [text.split()[1] for text in texts]})
    first = pinned(artifacts, recipe)
    assert first is not None
    with open_repository(artifacts, repo_id=recipe.publish.repo_id, endpoint=recipe.publish.endpoint) as repository:
        weights = bytearray((artifacts.model / "model.safetensors").read_bytes())
        weights[-1] ^= 1
        change = CommitOperationAdd("model.safetensors", bytes(weights))
        parent = repository.refs().branches["main"]
        second = repository.commit([change], parent=parent, title="Another model", trailers={})
    shutil.rmtree(artifacts.validated / "start")
    shutil.rmtree(artifacts.scratch, ignore_errors=True)
    assert pinned(artifacts, recipe) == first
    assert pinned(artifacts, recipe, start="base") is None
    assert artifacts.start_choice.read_text() == "null\n", "another start has been asked for"
    found = pinned(artifacts, recipe)
    assert found is not None
    assert found.commit == second
    tiny.write_rows(artifacts, test={"text": texts[:9], "label": [text.split()[1] for text in texts[:9]]})
    with open_repository(artifacts, repo_id=recipe.publish.repo_id, endpoint=recipe.publish.endpoint) as repository:
        tag = json.loads(artifacts.receipt.read_text())["tag"]
        back = commit_rollback(repository, tag, by="tests", why="leaked rows")
    artifacts.start_choice.write_text(choice_of_now(artifacts, recipe, found))
    caplog.clear()
    again = pinned(artifacts, recipe)
    assert again is not None
    assert (again.commit, again.weights) == (back.commit, first.weights)
    assert "was rolled back by tests: leaked rows" in caplog.text
    artifacts.start_choice.write_text(choice_of_now(artifacts, recipe, again.model_copy(update={"commit": "0" * 40})))
    assert pinned(artifacts, recipe) == again, "the Hub has lost the commit"
    artifacts.start_choice.write_text("{")
    assert pinned(artifacts, recipe) == again


def pinned(artifacts: Artifacts, recipe: Recipe, **changes: Any) -> ReleaseReference | None:
    pin(artifacts, recipe, **changes)
    return read_pinned_start(artifacts, changes.get("start", "champion"))


def choice_of_now(artifacts: Artifacts, recipe: Recipe, release: ReleaseReference) -> str:
    """The file of a run that has chosen a release for what decides now."""
    pin(artifacts, recipe)
    found = json.loads(artifacts.start_choice.read_text())
    return json.dumps(found | {"release": release.model_dump(mode="json")})


@pytest.mark.parametrize("decides", ["objective", "repo_id", "train", "validation", "test"])
def test_what_decides_a_start_anew(released: tuple[Artifacts, Recipe], decides: str) -> None:
    artifacts, recipe = released
    split = {"text": tiny.sentences(12, 5), "label": ["cat", "bird"] * 6}
    tiny.write_rows(artifacts, train=split, validation=split, test=split)
    pin(artifacts, recipe)
    before = json.loads(artifacts.start_choice.read_text())["decided_by"]
    pin(artifacts, recipe, replay=Replay())
    assert json.loads(artifacts.start_choice.read_text())["decided_by"] == before
    changes: dict[str, Any] = {}
    if decides == "objective":
        choice = ObjectiveChoice(name="sequence_classification", text_pair_column="label")
        changes["objective"] = objectives.build_objective(choice)
    elif decides == "repo_id":
        changes["repo_id"] = "tests/other"
    else:
        tiny.write_rows(artifacts, **{decides: {"text": split["text"][1:], "label": split["label"][1:]}})
    pin(artifacts, recipe, **changes)
    assert json.loads(artifacts.start_choice.read_text())["decided_by"] != before
