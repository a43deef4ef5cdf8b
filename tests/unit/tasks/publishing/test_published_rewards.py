"""A reward model that was published to a Hub over HTTP, as a reward: pinned, downloaded once, and named where it cannot be used."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from huggingface_hub import HfApi

from params import ModelError, TransientError
from tasks.diagnostics.check import find_recipe_problems
from tasks.hub_server.server import LocalHub
from tasks.recipes.loading import read_yaml_document
from tasks.tokenization.tokenizers import load_tokenizer
from tests.support import base_models, in_process, prompts, releases, reward_models, tiny
from tests.support.faulty_hub import quick_client
from tests.support.settings_check import check_settings_in_this_process
from tests.support.training import plan_job
from trainer.objectives.bases.rewards import reward_models as published_rewards
from trainer.objectives.bases.rewards.reward_models import PROMPT, RewardModel

pytestmark = pytest.mark.usefixtures("no_hub_settings")
TOKEN = "hf_" + "1" * 40
ROWS = [{"row_id": 0, PROMPT: "What comes after 10?"}]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HfApi, Path, str, str]]:
    """The Hub, the folder of a reward model, and the commit and the tag of its release."""
    root = tmp_path_factory.mktemp("published")
    with pytest.MonkeyPatch.context() as patched, LocalHub(root / "hub", tokens={TOKEN: "tests"}) as hub:
        base_models.use_hub(patched, hub.endpoint, TOKEN, root / "cache")
        artifacts, recipe = reward_models.made(root / "project", separator=" ")
        recipe = recipe.model_copy(
            update={"evaluation": recipe.evaluation.model_copy(update={"compare_untrained": False})}
        )
        releases.evaluate(artifacts, recipe)
        receipt = releases.publish(artifacts, recipe, endpoint=hub.endpoint, private=False, timeout_s=60.0)
        assert receipt.status == "published"
        api = HfApi(endpoint=hub.endpoint, token=TOKEN)
        (tag,) = (one.name for one in api.list_repo_refs("tests/tiny").tags)
        yield api, artifacts.model, api.list_repo_commits("tests/tiny")[0].commit_id, tag


def checked(root: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What `check` says of a recipe with this reward model."""
    check_settings_in_this_process(monkeypatch)
    content = prompts.recipe(prompts.GRPO | {"rewards": [{"model": model}]})
    found = find_recipe_problems(read_yaml_document(tiny.write(root / "trial.yaml", content)))
    return "; ".join(f"{p.what}; {p.fix}" for p in found if p.key[:2] == ("objective", "rewards"))


def test_a_release_trains_as_its_folder_does(published: Any, tmp_path: Path) -> None:
    _, folder, commit, _ = published
    name, completions = f"tests/tiny@{commit}", ["It is 11.", "Go away!"]
    assert RewardModel(name)(completions, ROWS * 2) == RewardModel(str(folder))(completions, ROWS * 2)
    found = []
    for model in (name, str(folder)):
        changes = {"training.max_steps": 2, "training.save_steps": 2, "training.eval_steps": 2}
        objective = prompts.GRPO | {"rewards": [{"model": model}]}
        artifacts, recipe = prompts.tokenized(tmp_path / str(len(found)), prompts.recipe(objective, changes))
        trainer = in_process.trained(plan_job(artifacts, recipe))
        found.append([line["reward"] for line in trainer.state.log_history if "reward" in line])
    assert found[0] == found[1] != []


def test_a_release_is_named_by_its_commit(published: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch or a tag is resolved, and the fix is to write the commit."""
    _, _, commit, tag = published
    assert checked(tmp_path, f"tests/tiny@{commit}", monkeypatch) == ""
    for revision in ("main", tag):
        found = checked(tmp_path, f"tests/tiny@{revision}", monkeypatch)
        assert f"{revision} is no commit" in found
        assert f"name its commit: tests/tiny@{commit}" in found
    assert "name its commit: tests/tiny@ and its hash" in checked(tmp_path, "tests/tiny@nothing", monkeypatch)
    assert "give a local folder, or owner/name@commit" in checked(tmp_path, "tests/tiny", monkeypatch)


def test_what_a_hub_does_not_have_is_named_before_training(
    published: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, commit, _ = published
    assert f"tests/nobody@{commit}: cannot be loaded" in checked(tmp_path, f"tests/nobody@{commit}", monkeypatch)
    assert "cannot be loaded" in checked(tmp_path, "tests/tiny@" + "1" * 40, monkeypatch)


def test_a_hub_that_is_away_is_waited_for(
    published: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it, a model that is in the cache is read from there, and `check` says that it has not looked at another."""
    _, _, commit, _ = published
    expected = RewardModel(f"tests/tiny@{commit}")(["It is 11."], ROWS)
    base_models.use_hub(monkeypatch, "http://127.0.0.1:9", TOKEN, Path(huggingface_hub.constants.HF_HUB_CACHE))
    for kept in (published_rewards._load, published_rewards._read_settings):
        kept.cache_clear()
    with quick_client():
        assert RewardModel(f"tests/tiny@{commit}")(["It is 11."], ROWS) == expected
    away = "tests/tiny@" + "2" * 40
    with caplog.at_level(logging.WARNING), quick_client():
        assert checked(tmp_path, away, monkeypatch) == ""
    assert f"objective.rewards.0 was not checked: {away}" in caplog.text
    with pytest.raises(TransientError, match="try again when the Hub is reachable"), quick_client():
        RewardModel(away).load()
    with pytest.raises(TransientError, match="cannot be downloaded"), quick_client():
        load_tokenizer("tests/nobody", None)
    with pytest.raises(ModelError, match="name its commit: tests/tiny@"), quick_client():
        RewardModel("tests/tiny@main").check()
