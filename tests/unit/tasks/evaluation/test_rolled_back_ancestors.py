"""Whatever the way by which a model goes back to a release, a rollback of that is found: a table of the ways."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi

from params.foundation.artifacts import Artifacts
from tasks.digests import PROVENANCE, weight_file_hashes
from tasks.evaluation.ancestors import list_released_ancestors
from tasks.evaluation.release_events import ReleaseEvent, append_release_event
from tasks.evaluation.rolled_back_ancestors import why_ancestor_is_distrusted
from tasks.hub_client.release_log import MainHistory
from tasks.hub_client.repository import HubRepository, PublishedModel
from tasks.releases.rollback import commit_rollback
from tests.support import tiny
from tests.support.publications import REPO, TOKEN, patient, plan, publish, write_model
from trainer.start import RECORD, ReleaseReference

pytestmark = pytest.mark.usefixtures("no_hub_settings")
OTHER_REPO = "alice/base"


class Project:
    """The recipe `own`, which publishes to REPO, and releases `good` and `bad` of some repository, of which people distrust the last."""

    def __init__(self, api: HfApi, root: Path, repo_id: str) -> None:
        self.api, self.root, self.repo_id = api, root, repo_id
        self.own = self.run("own")
        publish(api, plan(write_model(root / "good"), repo_id=repo_id, tag="good", made_from={}))
        self.bad_files = write_model(root / "bad")
        self.fill(self.bad_files)
        publish(api, plan(self.bad_files, repo_id=repo_id, tag="bad", made_from={}))
        self.bad = self.main(repo_id).head()
        assert self.bad is not None

    @staticmethod
    def fill(model: Path) -> None:
        model.mkdir(parents=True, exist_ok=True)
        (model / "model.safetensors").write_bytes(random.Random(1).randbytes(5000))

    def main(self, repo_id: str = REPO) -> MainHistory:
        return MainHistory.read(HubRepository(self.api, repo_id))

    def roll_back(self) -> None:
        commit_rollback(patient(self.api, repo_id=self.repo_id), "good", by="Ada", why="leaked rows")

    def why(self) -> str | None:
        return why_ancestor_is_distrusted(self.own, self.main(), self.api.endpoint)

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

    def record_of_bad(self, folder: Path) -> Path:
        return self.record(folder, repo_id=self.repo_id, weights=weight_file_hashes(self.bad_files))

    def record_of_child(self, folder: Path) -> Path:
        return self.record(folder, repo_id="alice/child", weights={"model.safetensors": "c" * 64}, **self.goes_back())

    def goes_back(self) -> dict[str, object]:
        return {"goes_back_to": [{"repo_id": self.repo_id, "weights": self.bad.weights if self.bad else ""}]}

    def publish_run(self, name: str) -> str:
        """A recipe whose model is the bad release, by its log."""
        run = self.run(name)
        self.fill(run.model)
        place = {"repo_id": self.repo_id, "endpoint": self.api.endpoint, "commit": "a" * 40, "tag": "bad"}
        weights = self.bad.weights if self.bad else None
        append_release_event(run, ReleaseEvent(event="published", reasons=(), weights=weights, **place))
        return f"{run.run.relative_to(self.root)}/model"


def start(project: Project) -> None:
    project.start_from(project.own, project.bad)


def start_of_start(project: Project) -> None:
    project.start_from(project.own, None, **project.goes_back())


def start_of_start_of_an_earlier_version(project: Project) -> None:
    assert project.bad
    earlier = ReleaseReference(endpoint="local", repo_id=project.repo_id, **vars(project.bad))
    project.start_from(project.own, None, start=earlier.model_dump())


def base_run(project: Project) -> None:
    project.run("own", project.publish_run("other"))


def base_folder(project: Project) -> None:
    project.run("own", project.record_of_bad(project.root / "base").name)


def base_on_hub(project: Project) -> None:
    project.record_of_bad(project.root / "cache")
    project.run("own", project.repo_id)


def start_of_base_run(project: Project) -> None:
    project.start_from(project.run("other"), project.bad)
    Artifacts("other", project.root).model.mkdir()
    project.run("own", "runs/other/model")


def base_of_base_run(project: Project) -> None:
    other = project.run("other", project.publish_run("first"))
    other.model.mkdir()
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


@pytest.mark.parametrize("repo_id", [REPO, OTHER_REPO])
@pytest.mark.parametrize(("way", "told"), WAYS)
def test_a_rollback_is_found_by_every_way(
    api: HfApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repo_id: str, way: Callable[[Project], None], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_ENDPOINT", api.endpoint)

    def cached_file(_: str, file: str, **__: object) -> str | None:
        path = tmp_path / "cache" / file
        return str(path) if path.exists() else None

    monkeypatch.setattr("transformers.utils.hub.cached_file", cached_file)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", api.endpoint)
    project = Project(api, Path(), repo_id)
    assert project.why() is None
    way(project)
    assert project.why() is None
    recorded = list_released_ancestors(project.own)
    assert project.bad is not None
    assert project.bad.weights in {one.weights for one in recorded}, "the release of this model will say it"
    project.roll_back()
    reason = project.why()
    assert reason is not None
    assert f"{told} was rolled back by Ada: leaked rows; " in reason


def test_a_hub_of_a_base_that_does_not_answer_stops_nothing_and_is_said(
    api: HfApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tasks.evaluation.rolled_back_ancestors._PATIENCE_S", 0.1)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    project = Project(api, tmp_path, OTHER_REPO)
    away = {"repo_id": OTHER_REPO, "endpoint": "http://127.0.0.1:9", "commit": "a" * 40, "tag": "bad"}
    base_run(project)
    other = Artifacts("other", tmp_path)
    other.release_events.unlink()
    weights = project.bad.weights if project.bad else None
    append_release_event(other, ReleaseEvent(event="published", reasons=(), weights=weights, **away))
    assert project.why() is None
    assert "it is not known whether alice/base, which the model goes back to, was rolled back" in caplog.text
