"""Hubs that do not know what the log says was published there: a table of how that comes about, and of those that know it."""

from __future__ import annotations

import json
import random
import shutil
from datetime import datetime
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from params.foundation.artifacts import Artifacts
from params.foundation.errors import HubRefusedError, TransientError
from tasks.hub_client.lost_releases import find_lost_releases, refuse_hub_without_releases, refuse_lost_releases
from tasks.hub_client.main_history import MainHistory
from tasks.hub_client.repository import HubRepository
from tasks.hub_server.server import LocalHub
from tasks.publishing.release_plan import ReleaseOutcome
from tasks.release_log.events import ReleaseEvent, append_release_event
from tasks.releases.recipe_releases import forget_lost_releases
from tasks.releases.rollback import commit_rollback
from tests.support import tiny
from tests.support.faulty_hub import FaultyHub
from tests.support.publications import REPO, TOKEN, patient, plan, publish, write_model

USER = "alice"
OTHER = "hf_tokenofastranger0000"


class Project:
    """A recipe whose log says what was published on a Hub, and that Hub."""

    def __init__(self, api: HfApi, hub: FaultyHub, root: Path) -> None:
        self.api, self.hub, self.root = api, hub, root
        self.artifacts = Artifacts("x", root)
        self.times = iter(f"2026-01-{day:02}T00:00:00+00:00" for day in range(1, 29))

    def release(self, number: int) -> ReleaseOutcome:
        folder = write_model(self.root / f"model-{number}")
        (folder / "model.safetensors").write_bytes(random.Random(number).randbytes(5000))
        outcome = publish(self.api, plan(folder, tag=f"release-{number}", made_from={}))
        self.log("published", outcome.commit, f"release-{number}")
        return outcome

    def roll_back(self, tag: str) -> None:
        self.log("rollback", commit_rollback(patient(self.api), tag, by="ann", why="wrong").commit, tag)

    def log(self, event: str, commit: str | None, tag: str | None, *, recipe: str | None = None, **other: str) -> None:
        place = {"repo_id": REPO, "endpoint": self.hub.endpoint, "commit": commit, "tag": tag, **other}
        entry = ReleaseEvent(event=event, reasons=("x",), **place)  # type: ignore[arg-type]
        artifacts = Artifacts(recipe, self.root) if recipe else self.artifacts
        append_release_event(artifacts, entry, datetime.fromisoformat(next(self.times)))

    def lost(self, api: HfApi | None = None) -> list[str]:
        repository = HubRepository(api or self.api, REPO)
        return [
            one.name
            for one in find_lost_releases(self.artifacts, MainHistory.read(repository), repository.api.endpoint)
        ]

    def lost_on_copy(self, folder: Path) -> list[str]:
        """On another Hub, with another address."""
        with LocalHub(folder, tokens={TOKEN: USER}) as other:
            return self.lost(HfApi(endpoint=other.endpoint, token=TOKEN))

    def backup(self, name: str) -> Path:
        return Path(shutil.copytree(self.hub.root, self.root / name))


@pytest.fixture
def project(api: HfApi, hub: FaultyHub, tmp_path: Path) -> Project:
    made = Project(api, hub, tmp_path)
    made.release(1)
    return made


def test_a_hub_that_has_all_is_believed_at_any_address(project: Project) -> None:
    project.release(2)
    project.roll_back("release-1")
    assert project.lost() == []
    assert project.lost_on_copy(project.backup("moved")) == []


def test_an_empty_hub_has_lost_everything(project: Project, tmp_path: Path) -> None:
    assert project.lost_on_copy(tmp_path / "empty") == ["the release release-1"]


def test_a_hub_from_an_older_backup_has_lost_what_came_later(project: Project) -> None:
    old = project.backup("old")
    project.release(2)
    assert project.lost_on_copy(old) == ["the release release-2"]


def test_a_rollback_that_a_backup_lacks_would_come_out_again(project: Project) -> None:
    project.release(2)
    old = project.backup("old")
    project.roll_back("release-1")
    (lost,) = project.lost_on_copy(old)
    assert lost.startswith("the rollback to release-1 (")


@pytest.mark.parametrize("change", ["deleted", "made anew", "renamed"])
def test_a_repository_that_is_gone_is_lost(project: Project, change: str) -> None:
    if change == "renamed":
        project.api.move_repo(REPO, f"{REPO}-old")
    else:
        project.api.delete_repo(REPO)
    if change == "made anew":
        project.api.create_repo(REPO)
    assert project.lost() == ["the release release-1"]


def test_a_private_repository_looks_absent_to_a_stranger_and_is_not_taken_for_new(project: Project) -> None:
    project.api.update_repo_settings(REPO, private=True)
    with LocalHub(project.hub.root, tokens={OTHER: "stranger"}) as same:
        assert project.lost(HfApi(endpoint=same.endpoint, token=OTHER)) == ["the release release-1"]


def test_a_tag_says_that_a_release_is_known_where_main_was_moved_back(project: Project) -> None:
    project.log("published", "0" * 40, "release-1")
    assert project.lost() == []


def test_a_hub_that_went_on_without_some_releases_is_believed(project: Project) -> None:
    """As after a loss before the log was compared: the next run after an upgrade does not stop."""
    lost = ReleaseEvent(
        event="published", reasons=(), repo_id=REPO, endpoint="https://old", commit="0" * 40, tag="release-lost"
    )
    text = project.artifacts.release_events.read_text()
    line = lost.model_copy(update={"time": "2025-01-01T00:00:00+00:00"}).model_dump_json()
    project.artifacts.release_events.write_text(f"{line}\n{text}")
    assert project.lost() == []
    assert project.artifacts.release_events.write_text(f"{text}{line}\n")
    assert project.lost() == ["the release release-lost"], "nothing that the Hub knows follows it"


def test_an_earlier_release_does_not_go_on_although_its_line_follows(project: Project) -> None:
    """As where the logs of two clones were merged."""
    lost = ReleaseEvent(
        event="published", reasons=(), repo_id=REPO, endpoint="https://old", commit="0" * 40, tag="release-lost"
    )
    line = lost.model_copy(update={"time": "2027-01-01T00:00:00+00:00"}).model_dump_json()
    log = project.artifacts.release_events
    log.write_text(f"{line}\n{log.read_text()}")
    assert project.lost() == ["the release release-lost"]


def test_another_repository_is_another_log(project: Project, tmp_path: Path) -> None:
    with LocalHub(tmp_path / "empty", tokens={TOKEN: USER}) as other:
        moved = HubRepository(HfApi(endpoint=other.endpoint, token=TOKEN), f"{USER}/elsewhere")
        assert find_lost_releases(project.artifacts, MainHistory.read(moved), other.endpoint) == []


def test_to_publish_the_last_release_again_brings_it_back(project: Project, tmp_path: Path) -> None:
    project.log("published", "1" * 40, "release-2", weights="same")
    with LocalHub(tmp_path / "empty", tokens={TOKEN: USER}) as other:
        main = MainHistory.read(HubRepository(HfApi(endpoint=other.endpoint, token=TOKEN), REPO))
        refuse_lost_releases(project.artifacts, main, other.endpoint, weights={"same"})
        for weights in ((), {"another"}):
            with pytest.raises(HubRefusedError, match="does not have the release release-2, which ") as error:
                refuse_lost_releases(project.artifacts, main, other.endpoint, weights=weights)
        assert f"use the Hub at {project.hub.endpoint} (HF_ENDPOINT, publish.endpoint)" in error.value.fix
        assert "`evergreen forget x --why ...`" in error.value.fix


def test_a_hub_that_does_not_answer_is_not_taken_for_empty(project: Project) -> None:
    away = HubRepository(HfApi(endpoint="http://127.0.0.1:9", token=TOKEN), REPO, timeout_s=0.1)
    with pytest.raises(TransientError):
        find_lost_releases(project.artifacts, MainHistory.read(away), "http://127.0.0.1:9")


def test_forgetting_holds_for_one_hub_and_until_its_next_release(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "params/x.yaml"
    recipe.parent.mkdir()

    def publishes_to(endpoint: str) -> None:
        recipe.write_text(json.dumps(tiny.recipe() | {"publish": {"repo_id": REPO, "endpoint": endpoint}}))

    publishes_to(project.hub.endpoint)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    before = project.artifacts.release_events.read_text()
    forget_lost_releases(recipe, by="ann", why="no reason")
    assert "nothing is to be forgotten" in capsys.readouterr().out
    assert project.artifacts.release_events.read_text() == before
    with LocalHub(tmp_path / "new", tokens={TOKEN: USER}) as other:
        api = HfApi(endpoint=other.endpoint, token=TOKEN)
        publishes_to(other.endpoint)
        assert project.lost(api) == ["the release release-1"]
        forget_lost_releases(recipe, by="ann", why="the disk died")
        assert "forgotten: the release release-1" in capsys.readouterr().out
        assert project.lost(api) == []
        log, kept = (
            folder / "log.jsonl" for folder in (project.artifacts.run / "release", project.artifacts.unrecorded)
        )
        said = log.read_text()
        log.write_text(before)
        assert project.lost(api) == ["the release release-1"], "as git checkout takes it back"
        log.write_text("")
        forget_lost_releases(recipe, by="ann", why="the release is in no commit yet")
        assert project.lost(api) == []
        log.write_text(before)
        kept.write_text(said)
        assert project.lost(api) == ["the release release-1"], "a copy that git does not have says nothing"
        log.write_text(said)
        assert project.lost(api) == []
    assert project.lost_on_copy(tmp_path / "third") == ["the release release-1"], "another address is another Hub"


def test_what_another_recipe_has_published_there_counts(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As when a recipe gets another name: what its model replaces is in the log of the old one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    project.artifacts = Artifacts("renamed", tmp_path)
    assert project.lost() == []
    with LocalHub(tmp_path / "empty", tokens={TOKEN: USER}) as other:
        repository = HubRepository(HfApi(endpoint=other.endpoint, token=TOKEN), REPO)
        with pytest.raises(HubRefusedError, match=r"release-1, which .*runs/x/release/log\.jsonl names") as error:
            refuse_hub_without_releases(project.artifacts, repo_id=REPO, endpoint=other.endpoint)
        assert "`evergreen forget renamed --why ...`" in error.value.fix
        refuse_hub_without_releases(project.artifacts, repo_id=f"{USER}/elsewhere", endpoint=other.endpoint)
        recipe = tmp_path / "params/renamed.yaml"
        recipe.parent.mkdir()
        recipe.write_text(json.dumps(tiny.recipe() | {"publish": {"repo_id": REPO, "endpoint": other.endpoint}}))
        forget_lost_releases(recipe, by="ann", why="the disk died")
        assert f"commit {Artifacts('x').release_events}: then" in capsys.readouterr().out
        assert find_lost_releases(project.artifacts, MainHistory.read(repository), other.endpoint) == []
    assert project.lost_on_copy(tmp_path / "third") == ["the release release-1"]


def test_a_hub_that_went_on_with_another_recipe_is_believed(project: Project) -> None:
    project.log("published", "0" * 40, "release-lost", recipe="old")
    assert project.lost() == ["the release release-lost"]
    project.release(2)
    assert project.lost() == []


def test_a_recipe_that_publishes_to_another_hub_by_that_name_is_another_log(project: Project, tmp_path: Path) -> None:
    """As with a recipe for trials, whose Hub has none of the releases."""
    project.artifacts = Artifacts("trial", tmp_path)
    recipe = Artifacts("x", tmp_path).recipe_path
    recipe.parent.mkdir()
    with LocalHub(tmp_path / "trials", tokens={TOKEN: USER}) as trials:
        api = HfApi(endpoint=trials.endpoint, token=TOKEN)
        by_name = trials.endpoint.replace("127.0.0.1", "localhost") + "/"
        known = ["the release release-1"]
        for endpoint, lost in ((project.hub.endpoint, []), (trials.endpoint, known), (by_name, known)):
            recipe.write_text(json.dumps(tiny.recipe() | {"publish": {"repo_id": REPO, "endpoint": endpoint}}))
            assert project.lost(api) == lost
