"""Whatever the way by which a model goes back to a release, a rollback of that is found: a table of the ways."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi

from params.foundation.artifacts import Artifacts
from params.schema import ObjectiveChoice
from tasks.digests import PROVENANCE, weight_file_hashes
from tasks.evaluation.champion import fetch_champion
from tasks.evaluation.rolled_back_ancestors import why_ancestor_is_distrusted
from tasks.hub_client.main_history import MainHistory
from tasks.hub_client.repository import HubRepository, PublishedModel
from tasks.hub_server.server import LocalHub
from tasks.lineage import ancestors
from tasks.lineage.ancestors import find_base, list_released_ancestors
from tasks.lineage.learned_rows import record_learned_rows
from tasks.recipes.loading import load
from tasks.release_log.events import ReleaseEvent, append_release_event
from tasks.releases.rollback import commit_rollback
from tests.support import tiny
from tests.support.faulty_hub import quick_client
from tests.support.publications import REPO, TOKEN, patient, plan, publish, write_model
from trainer.objectives import build_objective
from trainer.start import RECORD, ReleaseReference

pytestmark = pytest.mark.usefixtures("no_hub_settings")
OTHER_REPO = "alice/base"


class PublishedPair:
    """A repository with two releases, `good` and `bad`; people have rolled back from the last."""

    def __init__(self, api: HfApi, root: Path, repo_id: str) -> None:
        self.api, self.repo_id = api, repo_id
        self.models: dict[str, tuple[PublishedModel, Path]] = {}
        for name in ("good", "bad"):
            files = write_model(root / repo_id / name)
            (files / "model.safetensors").write_bytes(random.Random(f"{repo_id} {name}").randbytes(5000))
            publish(api, plan(files, repo_id=repo_id, tag=name, made_from={}))
            head = self.main().head()
            assert head is not None
            self.models[name] = head, files
        commit_rollback(patient(api, repo_id=repo_id), "good", by="Ada", why="leaked rows")

    def main(self) -> MainHistory:
        return MainHistory.read(HubRepository(self.api, self.repo_id))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, PublishedPair]]:
    """By repository; the first is that of the recipe."""
    root = tmp_path_factory.mktemp("pairs")
    with quick_client(), LocalHub(root / "hub", tokens={TOKEN: "alice"}) as hub:
        api = HfApi(endpoint=hub.endpoint, token=TOKEN)
        yield {repo_id: PublishedPair(api, root, repo_id) for repo_id in (REPO, OTHER_REPO)}


class Project:
    """The recipe `own`, which publishes to REPO, and a release from which it may go back."""

    def __init__(self, pairs: dict[str, PublishedPair], root: Path, repo_id: str, release: str) -> None:
        self.main, self.root, self.repo_id = pairs[REPO].main(), root, repo_id
        self.endpoint = pairs[REPO].api.endpoint
        self.model, self.files = pairs[repo_id].models[release]
        self.own = self.run("own")

    def why(self) -> str | None:
        return why_ancestor_is_distrusted(self.own, self.main, self.endpoint)

    def run(self, name: str, pretrained: str | None = None) -> Artifacts:
        """A recipe with or without a base."""
        artifacts = Artifacts(name, self.root)
        changes: dict[str, Any] = {}
        if pretrained:
            tokenizer = {"tokenizer": {"kind": "train", "vocab_size": 300}, "max_length": 32}
            changes = {"model": {"pretrained": pretrained}, "tokenization": tokenizer}
        artifacts.recipe_path.parent.mkdir(exist_ok=True)
        tiny.write(artifacts.recipe_path, tiny.recipe(changes))
        return artifacts

    def start_from(self, artifacts: Artifacts, release: PublishedModel | None, **record: object) -> None:
        """Let the training of a recipe have started from a release, by default a sound one of the own repository."""
        found = release or PublishedModel("c" * 40, "sound", "w" * 64)
        start = ReleaseReference(endpoint="local", repo_id=self.repo_id, **vars(found))
        self.record(artifacts.start_record, **record)
        (artifacts.start / RECORD).write_text(start.model_dump_json())
        artifacts.history.mkdir(parents=True)
        artifacts.report("train").write_text(json.dumps({"started_from": start.model_dump()}))

    def record(self, folder: Path, **record: object) -> Path:
        """A folder with what a release says of itself."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PROVENANCE).write_text(json.dumps({"objective": {"name": "causal_lm"}, **record}))
        return folder

    def record_of_release(self, folder: Path) -> Path:
        return self.record(folder, repo_id=self.repo_id, weights=weight_file_hashes(self.files))

    def record_of_child(self, folder: Path) -> Path:
        return self.record(folder, repo_id="alice/child", weights={"model.safetensors": "c" * 64}, **self.goes_back())

    def goes_back(self) -> dict[str, object]:
        return {"goes_back_to": [{"repo_id": self.repo_id, "weights": self.model.weights}]}

    def publish_run(self, name: str, endpoint: str = "") -> str:
        """A recipe whose model is the release, by its log."""
        run = self.run(name)
        run.model.mkdir(parents=True)
        shutil.copy(self.files / "model.safetensors", run.model)
        place = {"repo_id": self.repo_id, "endpoint": endpoint or self.endpoint}
        ids = {"commit": self.model.commit, "tag": self.model.tag, "weights": self.model.weights}
        append_release_event(run, ReleaseEvent(event="published", reasons=(), **place, **ids))
        return f"runs/{name}/model"


def start(project: Project) -> None:
    project.start_from(project.own, project.model)


def start_of_start(project: Project) -> None:
    project.start_from(project.own, None, **project.goes_back())


def start_of_start_of_an_earlier_version(project: Project) -> None:
    earlier = ReleaseReference(endpoint="local", repo_id=project.repo_id, **vars(project.model))
    project.start_from(project.own, None, start=earlier.model_dump())


def base_run(project: Project) -> None:
    project.run("own", project.publish_run("other"))


def base_folder(project: Project) -> None:
    project.run("own", project.record_of_release(project.root / "base").name)


def base_on_hub(project: Project) -> None:
    project.record_of_release(project.root / "cache")
    project.run("own", project.repo_id)


def start_of_base_run(project: Project) -> None:
    project.start_from(project.run("other"), project.model)
    Artifacts("other", project.root).model.mkdir(parents=True)
    project.run("own", "runs/other/model")


def base_of_base_run(project: Project) -> None:
    other = project.run("other", project.publish_run("first"))
    other.model.mkdir(parents=True)
    project.run("own", "runs/other/model")


def base_of_base_folder(project: Project) -> None:
    project.run("own", project.record_of_child(project.root / "base").name)


def base_of_base_on_hub(project: Project) -> None:
    project.record_of_child(project.root / "cache")
    project.run("own", "alice/child")


STARTED = "the training started from "
BASE = "the base model, "
BACK = ", goes back to bad, which"
WAYS: list[tuple[Callable[[Project], None], str]] = [
    (start, f"{STARTED}bad, which"),
    (start_of_start, "@sound, which goes back to bad, which"),
    (start_of_start_of_an_earlier_version, "@sound, which goes back to bad, which"),
    (base_run, f"{BASE}runs/other/model, is bad, which"),
    (base_folder, f"{BASE}base, is bad, which"),
    (base_on_hub, ", is bad, which"),
    (start_of_base_run, f"{BASE}runs/other/model{BACK}"),
    (base_of_base_run, f"{BASE}runs/other/model{BACK}"),
    (base_of_base_folder, f"{BASE}base{BACK}"),
    (base_of_base_on_hub, f"{BASE}alice/child{BACK}"),
]


def train_and_lose_all_that_it_came_from(project: Project) -> None:
    """Let the training record what it goes back to; then the recipe, its start and its base are others."""
    project.own.model.mkdir(parents=True)
    section = load(project.own.recipe_path).model
    if (project.own.start / RECORD).exists():
        section = section.model_copy(update={"start": "champion"})
    record_learned_rows(project.own.model, project.own, section, build_objective(ObjectiveChoice(name="causal_lm")))
    project.run("own")
    for place in (project.own.start, project.own.history, Artifacts("other", project.root).model):
        shutil.rmtree(place, ignore_errors=True)
    for name in ("base", "cache"):
        shutil.rmtree(project.root / name, ignore_errors=True)


@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize("repo_id", [REPO, OTHER_REPO])
@pytest.mark.parametrize(("way", "told"), WAYS)
def test_a_rollback_is_found_by_every_way(
    pairs: dict[str, PublishedPair],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    repo_id: str,
    way: Callable[[Project], None],
    told: str,
    is_recorded: bool,
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_ENDPOINT", pairs[REPO].api.endpoint)
    for release in ("good", "bad"):
        root = tmp_path / release

        def fetch(_: str, file: str, __: object, *, folder: Path = root / "cache") -> Path | None:
            return folder / file if (folder / file).exists() else None

        monkeypatch.setattr(ancestors, "fetch_if_there", fetch)
        root.mkdir()
        monkeypatch.chdir(root)
        project = Project(pairs, Path(), repo_id, release)
        assert project.why() is None
        way(project)
        if is_recorded:
            train_and_lose_all_that_it_came_from(project)
        recorded = {one.weights for one in list_released_ancestors(project.own)}
        assert project.model.weights in recorded, "a release of the own model will say it"
        reason = project.why()
        if release == "good":
            assert reason is None
        else:
            assert reason is not None
            assert f"{told} was rolled back by Ada: leaked rows; " in reason


def test_a_first_release_is_asked_for_its_base_too(
    pairs: dict[str, PublishedPair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.chdir(tmp_path)
    project = Project(pairs, Path(), OTHER_REPO, "bad")
    base_folder(project)
    found = fetch_champion(project.own, repo_id="alice/new", endpoint=project.endpoint, weights=["w" * 64])
    assert found.champion is None
    assert str(found.distrusted_ancestor).startswith("the base model, base, is bad, which was rolled back by Ada")
    assert find_base(project.own) == "base"


def test_a_hub_of_a_base_that_does_not_answer_stops_nothing_and_is_said(
    pairs: dict[str, PublishedPair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tasks.evaluation.rolled_back_ancestors._PATIENCE_S", 0.1)
    project = Project(pairs, tmp_path, OTHER_REPO, "bad")
    project.run("own", project.publish_run("other", "http://127.0.0.1:9"))
    assert project.why() is None
    assert "it is not known whether alice/base, which the model goes back to, was rolled back" in caplog.text
