"""A release that waits for a person: no run waits, merging publishes, closing rejects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from huggingface_hub import HfApi

from tasks.hub_server.server import LocalHub
from tests.support.project import Project

RECIPE = "params/tiny.yaml"
REPO, TOKEN = "tests/tiny", "hf_tests"
RUN = ("python", "-m", "flows.cli", "run", "tiny")


@contextmanager
def hub(project: Project) -> Iterator[HfApi]:
    """The project's Hub, as a person sees it."""
    with LocalHub(project.root / ".hub", tokens={TOKEN: "tests"}) as running:
        yield HfApi(endpoint=running.endpoint, token=TOKEN)


def kept_by_git(project: Project) -> dict[str, bytes]:
    """All files that git has, or would add."""
    names = project.run("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
    return {name: (project.root / name).read_bytes() for name in names if name}


@pytest.mark.slow
def test_a_person_decides_and_the_next_command_records_it(project: Project) -> None:
    project.edit(RECIPE, "endpoint: local", "endpoint: local, approval: pull_request")
    said = project.run(*RUN)
    assert "waits for approval: tests/tiny" in said
    receipt = project.json("runs/tiny/release/receipt.json")
    assert (receipt["status"], receipt["commit"], receipt["pull_request"]) == ("proposed", None, 1)
    assert "publish: unchanged" in project.run(*RUN), "nothing has been decided"
    with hub(project) as api:
        assert api.list_repo_refs(REPO).tags == []
        api.merge_pull_request(REPO, 1)
        merged = api.list_repo_commits(REPO)[0].commit_id

    before = kept_by_git(project)
    for command in ("check", "show", "report", "history", "review", "releases"):
        listed = project.run("python", "-m", "flows.cli", command, "tiny")
        assert kept_by_git(project) == before, f"{command} writes what stops a `git pull`"
    assert "its pull request was merged or closed; the next run records that" in listed
    listed = project.run("python", "-m", "flows.cli", "releases", "tiny", "--record")
    assert receipt["tag"] in listed
    assert "its pull request was merged" not in listed
    receipt = project.json("runs/tiny/release/receipt.json")
    assert (receipt["status"], receipt["commit"]) == ("published", merged)
    said = project.run(*RUN)
    assert "evaluate: unchanged  publish: unchanged" in said
    assert "published: tests/tiny" in said
    assert "up to date" in project.run("dvc", "repro")

    project.edit(RECIPE, "seed: 3", "seed: 4")
    project.edit(RECIPE, "resamples: 200", "resamples: 200, margin: 100")
    assert "waits for approval: tests/tiny" in project.run(*RUN)
    with hub(project) as api:
        api.change_discussion_status(REPO, 2, "closed", comment="not this one")
    assert "rejected: tests/tiny" in project.run(*RUN)
    receipt = project.json("runs/tiny/release/receipt.json")
    assert (receipt["status"], receipt["commit"], receipt["pull_request"]) == ("rejected", None, 2)
    assert "publish: unchanged" in project.run(*RUN), "a rejected model is not proposed again"
    with hub(project) as api:
        assert api.list_repo_commits(REPO)[0].commit_id == merged


@pytest.mark.slow
def test_what_is_decided_while_a_newer_model_is_trained_is_logged(project: Project) -> None:
    def events() -> list[tuple[str, int | None]]:
        lines = (project.root / "runs/tiny/release/log.jsonl").read_text().splitlines()
        told = [json.loads(line) for line in lines]
        return [(one["event"], one["pull_request"]) for one in told if one["event"] != "verdict"]

    def train_anew(seed: int) -> str:
        project.edit(RECIPE, f"seed: {seed - 1}", f"seed: {seed}")
        return project.run(*RUN)

    project.edit(RECIPE, "endpoint: local", "endpoint: local, approval: pull_request")
    project.edit(RECIPE, "resamples: 200", "resamples: 200, margin: 100")
    project.run(*RUN)
    with hub(project) as api:
        api.merge_pull_request(REPO, 1)
    train_anew(4)
    with hub(project) as api:
        api.change_discussion_status(REPO, 2, "closed")
    train_anew(5)
    logged = [("proposed", 1), ("published", 1), ("proposed", 2), ("rejected", 2), ("proposed", 3)]
    assert events() == logged
    assert project.json("runs/tiny/release/receipt.json")["status"] == "proposed"
    listed = project.run("python", "-m", "flows.cli", "history", "tiny")
    assert "rejected" in listed

    project.edit(RECIPE, ", approval: pull_request", "")
    assert "published: tests/tiny" in train_anew(6)
    with hub(project) as api:
        assert api.get_discussion_details(REPO, 3).status == "closed"
        comments = [event.content for event in api.get_discussion_details(REPO, 3).events if event.type == "comment"]
    assert "asks for no approval any more" in comments[-1]
    assert events() == [*logged, ("published", None)]
