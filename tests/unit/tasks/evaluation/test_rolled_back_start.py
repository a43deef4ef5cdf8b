"""A model that was trained from a release which people rolled back is not published; the next training starts from what is published."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi

from params import Recipe, StaleBlessingError
from params.foundation.artifacts import Artifacts
from tasks.digests import ReleaseRecord, weights_digest
from tasks.hub_client.connection import fetch_model_once, open_repository
from tasks.hub_client.main_history import MainHistory
from tasks.hub_client.repository import HubRepository
from tasks.hub_server.server import LocalHub
from tasks.publishing.assembly import pull_request_description
from tasks.publishing.hub_changes import why_start_is_outdated
from tasks.release_log.receipt import Receipt
from tasks.releases.rollback import commit_rollback
from tasks.shards.kept_work import ShardWorkers
from tasks.stages import read_report, save_report
from tasks.training.report import TrainingReport
from tasks.validation.start import pin_start
from tests.support import releases, tiny
from tests.support.hub_settings import without_hub_settings
from trainer import objectives
from trainer.start import read_pinned_start

pytestmark = pytest.mark.usefixtures("no_hub_settings")
FROM_CHAMPION = {
    "model.start": "champion",
    "evaluation.gate": {"resamples": 200},
    "evaluation.compare_untrained": False,
}
SIZES = {"train": 40, "validation": 4, "test": 20}


class Nights:
    """The nights of a recipe that starts from the published model: each model is better than the one before."""

    def __init__(self, artifacts: Artifacts, recipe: Recipe, steps: int = 4) -> None:
        self.artifacts, self.recipe, self.steps = artifacts, recipe, steps

    def train(self) -> None:
        """After new rows, which choose the start anew."""
        self.artifacts.start_choice.unlink(missing_ok=True)
        self.train_again()

    def train_again(self) -> None:
        """With the same rows."""
        self.steps += 8
        self.pin()
        releases.learn(self.artifacts, self.recipe, self.steps)
        trained = read_report(self.artifacts, TrainingReport)
        start = read_pinned_start(self.artifacts, "champion")
        save_report(trained.model_copy(update={"started_from": start}), self.artifacts.report("train"))

    def pin(self) -> None:
        """As the validate stage does."""
        recipe, artifacts = self.recipe, self.artifacts
        shutil.rmtree(artifacts.start, ignore_errors=True)
        parts: dict[str, Any] = {"repo_id": recipe.publish.repo_id, "endpoint": recipe.publish.endpoint}
        parts |= {"objective": objectives.build_objective(recipe.objective), "name": recipe.objective.name}
        with ShardWorkers(artifacts, "validate", recipe.launch) as workers:
            pin_start(artifacts, artifacts.validated, workers, start="champion", replay=None, **parts)

    def judge(self) -> tuple[str, list[str]]:
        verdict = releases.evaluate(self.artifacts, self.recipe).verdict
        return verdict, json.loads(self.artifacts.blessing.read_text())["reasons"]

    def publish(self) -> Receipt:
        return releases.publish(self.artifacts, self.recipe)

    def night(self) -> Receipt:
        self.train()
        assert self.judge()[0] == "publish"
        return self.publish()

    def roll_back(self, to: Receipt) -> None:
        assert to.tag
        with LocalHub(self.artifacts.root / ".hub", tokens={"hf_tests": "tests"}) as hub:
            api = HfApi(endpoint=hub.endpoint, token="hf_tests")
            commit_rollback(HubRepository(api, self.recipe.publish.repo_id), to.tag, by="Ada", why="leaked rows")

    def outdated(self) -> str | None:
        return why_start_is_outdated(self.artifacts, self.recipe.publish, self.recipe.model.start)


def pinned_commit(nights: Nights) -> str | None:
    found = read_pinned_start(nights.artifacts, "champion")
    return found.commit if found else None


@dataclass(frozen=True)
class SecondNight:
    """Two nights have published, and a model is trained from the second one's."""

    nights: Nights
    first: Receipt
    second: Receipt

    def copied(self, root: Path) -> SecondNight:
        """The same, for one test to go on with."""
        before = self.nights
        shutil.copytree(before.artifacts.root, root, dirs_exist_ok=True)
        nights = Nights(Artifacts(before.artifacts.recipe, root), before.recipe, before.steps)
        return SecondNight(nights, self.first, self.second)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SecondNight:
    root = tmp_path_factory.mktemp("nights")
    with without_hub_settings(root):
        nights = Nights(*releases.tokenized(root, tiny.recipe(FROM_CHAMPION), SIZES))
        first, second = nights.night(), nights.night()
        nights.train()
        return SecondNight(nights, first, second)


@pytest.fixture
def second_night(made: SecondNight, tmp_path: Path) -> SecondNight:
    return made.copied(tmp_path)


def test_the_child_of_a_rolled_back_model_stays_and_the_next_night_recovers(second_night: SecondNight) -> None:
    nights, first, second = second_night.nights, second_night.first, second_night.second
    assert pinned_commit(nights) == second.commit
    assert nights.judge()[0] == "publish"
    described = pull_request_description(releases.candidate(nights.artifacts), (), None)
    assert f"The training started from the published model, tests/tiny@{second.tag}" in described
    assert nights.outdated() is None
    nights.roll_back(first)  # after the evaluation, before the release
    told = f"the training started from {second.tag}, which was rolled back by Ada: leaked rows"
    with pytest.raises(StaleBlessingError, match=told):
        nights.publish()
    verdict, (reason,) = nights.judge()
    assert verdict == "keep"
    assert reason.startswith(told)
    assert "`dvc repro --single-item --force validate@tiny`" in reason
    assert nights.publish().status == "kept"

    assert nights.outdated() == f"the pinned start is {second.tag}, which was rolled back by Ada: leaked rows"
    nights.train_again()  # validate pins what is published now, for the same rows, too
    assert nights.outdated() is None
    assert nights.judge()[0] == "publish"
    third = nights.publish()
    assert third.status == "published"
    pinned = read_pinned_start(nights.artifacts, "champion")
    assert pinned is not None
    assert second.commit != pinned.commit
    assert ancestors_of(nights, third) == [pinned.weights]


def test_the_grandchild_of_a_rolled_back_model_stays(second_night: SecondNight) -> None:
    nights, first, second = second_night.nights, second_night.first, second_night.second
    nights.roll_back(first)
    with pytest.MonkeyPatch.context() as earlier_version:
        earlier_version.setattr(MainHistory, "find_rolled_back", lambda *_: {})
        assert nights.judge()[0] == "publish"
        child = nights.publish()
    nights.train()
    assert ancestors_of(nights, child) == [weights_of(nights, second), weights_of(nights, first)]
    verdict, (reason,) = nights.judge()
    assert verdict == "keep"
    told = f"the training started from tests/tiny@{child.tag}, which goes back to {second.tag}, which was rolled back by Ada: leaked rows"
    assert reason == f"{told}; roll back to a release that does not, or set model.start: base for one run"
    assert nights.outdated() is None, "validate would pin the same release again"


def record_of(nights: Nights, receipt: Receipt) -> ReleaseRecord:
    assert receipt.commit
    with open_repository(nights.artifacts, repo_id=nights.recipe.publish.repo_id, endpoint="local") as repository:
        record = ReleaseRecord.of(fetch_model_once(nights.artifacts, repository, receipt.commit))
    assert record is not None
    return record


def ancestors_of(nights: Nights, receipt: Receipt) -> list[str]:
    """What a release says of the releases that it goes back to."""
    return [one.weights for one in record_of(nights, receipt).ancestors]


def weights_of(nights: Nights, receipt: Receipt) -> str | None:
    return weights_digest(record_of(nights, receipt).weights)
