"""Adapters through the flow and DVC: another form of the release trains nothing, compares nothing and lands once.

The tests share one project and stand in the order in which they change it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from huggingface_hub import HfApi

from tasks.hub_server.server import LocalHub
from tests.support import base_models
from tests.support.project import STAGES, Project, copy_project

# tests/unit/tasks/publishing/test_adapter_releases.py shows it in short.
pytestmark = [pytest.mark.in_order, pytest.mark.slow]
TOKEN = "hf_" + "1" * 40
WHOLE = "repo_id: tests/tiny"
MODEL = """\
model:
  pretrained: tests/llama
  lora: {r: 4}
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, prefect_home) -> Iterator[tuple[Project, HfApi]]:
    """A project with a recipe for adapters, and the Hub that has their base model."""
    root = tmp_path_factory.mktemp("adapters")
    copy_project(root)
    project = Project(root, prefect_home)
    with LocalHub(root / "hub", tokens={TOKEN: "tests"}) as hub:
        api = HfApi(endpoint=hub.endpoint, token=TOKEN)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
            base_models.upload(api, root / "llama")
        project.environment |= {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": TOKEN}
        recipe = root / "params/tiny.yaml"
        before, rest = recipe.read_text().split("model:\n")
        recipe.write_text(before + MODEL + rest[rest.index("training:") :])
        project.edit("params/tiny.yaml", "{kind: train, vocab_size: 300}", "{kind: pretrained, path: tests/llama}")
        project.edit("params/tiny.yaml", "compare_untrained: true", "compare_untrained: false")
        try:
            project.run("git", "init", "-q", "-b", "main")
            yield project, api
        finally:
            project.end()


def releases(api: HfApi) -> list[str]:
    return [commit.title for commit in api.list_repo_commits("tests/tiny") if commit.title.startswith("Publish")]


def test_another_form_is_published_and_nothing_else_runs(served) -> None:
    project, api = served
    assert project.repro() == [*STAGES]
    assert len(releases(api)) == 1
    model = (project.root / "runs/tiny/model/model.safetensors").read_bytes()
    project.edit("params/tiny.yaml", WHOLE, f"{WHOLE}, adapter: adapter")
    assert project.flow() == ["publish"]
    assert project.repro() == []
    assert project.flow() == []
    assert len(releases(api)) == 2
    assert {"adapter_model.safetensors", "adapter_config.json"} <= set(api.list_repo_files("tests/tiny"))
    assert "model.safetensors" not in api.list_repo_files("tests/tiny")
    assert (project.root / "runs/tiny/model/model.safetensors").read_bytes() == model
    receipt = project.json("runs/tiny/release/receipt.json")
    assert receipt["status"] == "published"


def test_dvc_changes_it_back(served) -> None:
    project, api = served
    project.edit("params/tiny.yaml", ", adapter: adapter", ", adapter: both")
    assert project.repro() == ["publish"]
    assert project.flow() == []
    assert len(releases(api)) == 3
    assert {"model.safetensors", "adapter/adapter_model.safetensors"} <= set(api.list_repo_files("tests/tiny"))
