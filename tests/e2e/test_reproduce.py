"""reproduce: a release is made again from its provenance, and what keeps it from being made again is said."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from huggingface_hub import HfApi
from safetensors.numpy import load_file, save_file

from params import DataError, HubRefusedError, ModelError, RecipeError
from params.foundation.artifacts import Artifacts
from tasks.hub_server.server import LocalHub
from tasks.publishing.provenance import FILE
from tasks.releases import reproduce
from tasks.releases.clone import (
    clone_project_in_block,
    restore_or_ingest_rows,
    restore_or_link_models,
    write_recipe_and_link_files,
)
from tests.support.project import STAGES, Project, copy_project, wait_for, write_sentences

REPO, TOKEN = "tests/tiny", "hf_tests"
OUTSIDE = "../shared/rows.csv"
"""Where the rows are: beside the project, as a disk that several projects share would be."""


@pytest.fixture(scope="module")
def released(tmp_path_factory, prefect_home):
    """A project that has published, its rows in DVC's cache; the tests bring back what they change around it."""
    base = tmp_path_factory.mktemp("reproduce")
    root = base / "home" / "project"
    root.mkdir(parents=True)
    (base / "home" / "shared").mkdir()
    (base / "tmp").mkdir()
    copy_project(root)
    made = Project(root, prefect_home)
    made.environment["TMPDIR"] = str(base / "tmp")
    shutil.move(root / "data" / "sentences.csv", root / OUTSIDE)
    made.edit("params/tiny.yaml", "data/sentences.csv", OUTSIDE)
    made.edit("params/tiny.yaml", "max_steps: 20", "max_steps: 8")
    made.edit("recipes.yaml", "data/sentences.csv", OUTSIDE)
    made.run("git", "init", "-q", "-b", "main")
    made.run("dvc", "remote", "add", "-q", "--default", "there", "../../remote")
    made.run("git", "add", "-A")
    made.run("git", "commit", "-q", "-m", "start")
    made.stages("params/tiny.yaml", ("resolve", *STAGES[:-1]))
    made.run("dvc", "commit", "-q", "--force", *(f"{stage}@tiny" for stage in ("resolve", *STAGES[:4])))
    made.stages("params/tiny.yaml", STAGES[-1:])
    made.run("dvc", "push", "-q", "ingest@tiny")
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def api(released, monkeypatch):
    """A client of the project's Hub, while it runs."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    with LocalHub(released.root / ".hub", tokens={TOKEN: "tests"}) as running:
        yield HfApi(endpoint=running.endpoint, token=TOKEN)


@pytest.fixture
def here(released, monkeypatch):
    """Calls in this process see the project's temporary folder and no other Hub."""
    for name in ("HF_ENDPOINT", "HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("tempfile.tempdir", released.environment["TMPDIR"])
    for name in ("GIT_CONFIG_GLOBAL", "PATH"):
        monkeypatch.setenv(name, released.environment[name])
    return released


def clones(project):
    return list(Path(project.environment["TMPDIR"]).glob("evergreen-reproduce-*"))


def state(project):
    """What git sees, the files of the run and DVC's lock: nothing of it may change."""
    files = {path: path.stat().st_mtime_ns for path in (project.root / "runs").rglob("*") if path.is_file()}
    return project.run("git", "status", "--porcelain"), files, (project.root / "dvc.lock").read_bytes()


def test_a_release_is_made_again_bit_for_bit_although_its_source_has_changed(released):
    rows = released.root / OUTSIDE
    kept = rows.read_bytes()
    write_sentences(rows, seed=9)
    before = state(released)
    try:
        tag = released.json("runs/tiny/release/receipt.json")["tag"]
        out = released.run("python", "-m", "tasks", "reproduce", f"{REPO}@{tag}", timeout_s=400)
    finally:
        rows.write_bytes(kept)
    assert "reproduce: the rows are in DVC's cache" in out
    assert re.search(r"model\.safetensors is equal, SHA-256 [0-9a-f]{64}", out)
    assert "the weights are equal, bit for bit" in out
    assert state(released) == before
    assert clones(released) == []


def altered(api, revision, changes):
    """A branch of the Hub whose release is main's with other files."""
    from huggingface_hub import CommitOperationAdd

    api.create_branch(REPO, branch=revision)
    operations = [CommitOperationAdd(path, content) for path, content in changes.items()]
    api.create_commit(REPO, operations, commit_message="alter", revision=revision)


def test_weights_that_were_altered_on_the_hub_are_found_out(released, api, tmp_path):
    weights = load_file(released.root / "runs/tiny/model/model.safetensors")
    name = min(weights)
    save_file(weights | {name: weights[name] + 1e-3}, tmp_path / "other.safetensors")
    altered(api, "altered", {"model.safetensors": (tmp_path / "other.safetensors").read_bytes()})
    command = ("python", "-m", "tasks", "reproduce", f"{REPO}@altered", "--keep")
    out = released.run(*command, ok=False, timeout_s=400)
    assert re.search(r"model\.safetensors DIFFERS: released [0-9a-f]{64}, rebuilt [0-9a-f]{64}", out)
    assert "the Hub does not hold the weights that were published (the rebuilt weights are the published ones)" in out
    assert "ModelError: tests/tiny@" in out
    (kept,) = clones(released)
    model = next(kept.rglob("runs/tiny/model/model.safetensors"))
    assert model.read_bytes() == (released.root / "runs/tiny/model/model.safetensors").read_bytes()
    shutil.rmtree(kept)


def rows_of(project):
    """The rows of main, as a clone of its commit gets them."""
    release = reproduce._read_release(project.root, f"{REPO}@main", "local")
    with clone_project_in_block(project.root, release.record.git_commit, release, keep=False) as clone:
        write_recipe_and_link_files(clone, clone.project / "params" / "tiny.yaml", release)
        made = Artifacts("tiny", clone.project)
        restore_or_ingest_rows(clone, made, release)
        return (made.raw / "train/00000.parquet").read_bytes()


@pytest.mark.slow
def test_rows_come_from_the_cache_else_from_the_remote_else_from_the_same_source(here):
    rows, cache, remote = here.root / OUTSIDE, here.root / ".dvc" / "cache", here.root / ".." / ".." / "remote"
    kept, expected = rows.read_bytes(), (here.root / "runs/tiny/raw/train/00000.parquet").read_bytes()
    write_sentences(rows, seed=9)
    try:
        assert rows_of(here) == expected
        cache.rename(cache.with_name("cache-away"))
        assert rows_of(here) == expected, "from the remote, whose address is relative to .dvc"
        shutil.rmtree(cache)
        remote.rename(remote.with_name("remote-away"))
        with pytest.raises(DataError, match=r"train was [0-9a-f]{12} and is [0-9a-f]{12}") as caught:
            reproduce.reproduce(here.root, f"{REPO}@main", endpoint="local")
        assert "test was" in str(caught.value)
        rows.write_bytes(kept)
        assert rows_of(here) == expected, "the file is beside the project, and the clone is elsewhere"
    finally:
        rows.write_bytes(kept)
        shutil.rmtree(cache, ignore_errors=True)
        cache.with_name("cache-away").rename(cache)
        remote.with_name("remote-away").rename(remote)
    assert clones(here) == []


@pytest.mark.slow
def test_a_base_model_comes_from_the_cache_else_from_this_project_else_it_is_named(here):
    found = reproduce._read_release(here.root, f"{REPO}@main", "local")
    model, cache = here.root / "runs/tiny/model", here.root / ".dvc" / "cache"
    (out,) = (one for one in found.record.dvc_lock["stages"]["train@tiny"]["outs"] if one["path"] == "runs/tiny/model")
    item = found.record.recipe.dvc_item | {"base": "runs/tiny/model"}
    recipe = found.record.recipe.model_copy(update={"name": "tuned", "dvc_item": item})
    lock = {"stages": {"train@tuned": {"deps": [out]}}}
    release = replace(found, record=found.record.model_copy(update={"recipe": recipe, "dvc_lock": lock}))
    expected, config = (model / "model.safetensors").read_bytes(), (model / "config.json").read_text()

    def base():
        with clone_project_in_block(here.root, release.record.git_commit, release, keep=False) as clone:
            (clone.project / "runs/tiny").mkdir(parents=True, exist_ok=True)
            (clone.project / "runs/tiny/model").symlink_to(model)  # as `write_recipe_and_link_files` does
            restore_or_link_models(clone, release)
            return (clone.project / "runs/tiny/model/config.json").read_text()

    away = model.rename(model.with_name("model-away"))
    try:
        assert base() == config, "from the cache"
        shutil.copytree(away, model)
        (model / "config.json").write_text("{}")
        assert base() == config, "not the one that was trained since"
        cache.rename(cache.with_name("cache-away"))
        assert base() == "{}", "it may be another one"
        shutil.rmtree(model)
        with pytest.raises(ModelError, match=r"reads runs/tiny/model, .*\n.*dvc pull train@tiny"):
            base()
    finally:
        shutil.rmtree(model, ignore_errors=True)
        away.rename(model)
        if cache.with_name("cache-away").exists():
            shutil.rmtree(cache, ignore_errors=True)
            cache.with_name("cache-away").rename(cache)
    assert (model / "model.safetensors").read_bytes() == expected
    assert clones(here) == []


def test_what_cannot_be_made_again_is_refused_with_the_reason(here, api):
    text = Path(api.hf_hub_download(REPO, FILE, local_dir=here.environment["TMPDIR"] + "/record")).read_text()
    shutil.rmtree(here.environment["TMPDIR"] + "/record")
    record = json.loads(text)
    commit, recipe = record["git_commit"], record["recipe"]
    foreign = recipe | {"text": recipe["text"].replace("seed: 3", "seed: 4")}
    cases = {
        "changed-code": ({"git_commit": commit + "+"}, ModelError, "with uncommitted changes"),
        "no-git": ({"git_commit": None}, ModelError, "not in a git repository"),
        "option": ({"git_commit": "--upload-pack=touch"}, ModelError, "cannot be made again"),
        "unknown-commit": ({"git_commit": "0" * 40}, ModelError, "git fetch --all"),
        "foreign-recipe": ({"recipe": foreign}, RecipeError, "nor this project has its recipe"),
        "path": ({"recipe": recipe | {"name": "../../x"}}, ModelError, "cannot be read"),
        "schema": ({"schema": 2}, ModelError, "cannot be read"),
    }
    for name, (change, kind, what) in cases.items():
        altered(api, name, {FILE: json.dumps(record | change).encode()})
        with pytest.raises(kind, match=what):
            reproduce.reproduce(here.root, f"{REPO}@{name}", endpoint="local")
    with pytest.raises(RecipeError, match="names no release"):
        reproduce.reproduce(here.root, REPO, endpoint="local")
    with pytest.raises(HubRefusedError, match="404"):
        reproduce.reproduce(here.root, f"{REPO}@nowhere", endpoint="local")
    api.create_repo("tests/plain")
    with pytest.raises(ModelError, match=r"has no evergreen-provenance\.json"):
        reproduce.reproduce(here.root, "tests/plain@main", endpoint="local")
    assert clones(here) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_reproduction_leaves_nothing_behind(released, number):
    process = released.start("python", "-m", "tasks", "reproduce", f"{REPO}@main", log="reproduce.log")
    log = released.root / "reproduce.log"
    wait_for(lambda: "train: params/tiny.yaml" in log.read_text() or process.poll() is not None, "the train stage", 200)
    process.send_signal(number)
    assert process.wait(60) == 128 + number, log.read_text()
    log.unlink()
    assert clones(released) == []
    within = released.environment["TMPDIR"]
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            found += [one.cmdline()] if one.cwd().startswith(within) and one.status() != psutil.STATUS_ZOMBIE else []
    assert found == []
