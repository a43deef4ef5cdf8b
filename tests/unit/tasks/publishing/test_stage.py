"""The publish stage, with the real client and a local Hub."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from huggingface_hub import HfApi, ModelCard
from safetensors.torch import load_file
from transformers import AutoTokenizer

from params.foundation.artifacts import Artifacts
from params.foundation.errors import GateRefusedError, HubRefusedError, TransientError
from tasks.commands import main
from tasks.evaluation.champion import fetch_champion
from tasks.hub_client.lost_releases import refuse_hub_without_releases
from tasks.hub_server.server import LocalHub
from tasks.inference.tried_model import AnsweringModel, AnswerOptions
from tasks.publishing.hub_changes import why_receipt_is_outdated
from tasks.release_log.events import read_release_events
from tasks.releases.rollback import commit_rollback
from tests.support import releases, tiny
from tests.support.forked_code import run_elsewhere
from tests.support.project import ROOT, free_port
from tests.support.publications import patient
from trainer import objectives
from trainer.data import tokens

pytestmark = pytest.mark.usefixtures("no_hub_settings")
RELEASE_FILES = {"README.md", "comparison.png", "evergreen-provenance.json", "evergreen-release.json", "report.html"}
"""The files of a release apart from the model's."""
STEPS = 12
REPO, TOKEN = "tests/tiny", "hf_tests"


def evaluated(root, content=None):
    """A run up to its evaluation, better than its untrained model."""
    artifacts, recipe = releases.tokenized(root, content or tiny.recipe())
    releases.learn(artifacts, recipe, STEPS)
    releases.evaluate(artifacts, recipe)
    return artifacts, recipe


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return evaluated(tmp_path_factory.mktemp("language"))


def run(prepared, **changes):
    return releases.publish(*prepared, **changes)


def copied(prepared, folder):
    """The same run in another project."""
    artifacts, recipe = prepared
    shutil.copytree(artifacts.root, folder / "project")
    return Artifacts(artifacts.recipe, folder / "project"), recipe


def hub(artifacts):
    return LocalHub(artifacts.root / ".hub", tokens={TOKEN: "tests"})


def client(running):
    return HfApi(endpoint=running.endpoint, token=TOKEN)


def test_dry_run_creates_no_repository(whole):
    artifacts, recipe = whole
    receipt = run(whole, dry_run=True)
    assert why_receipt_is_outdated(artifacts, recipe.publish.model_copy(update={"dry_run": True})) is None
    assert "was a dry run" in (why_receipt_is_outdated(artifacts, recipe.publish) or "")
    assert (receipt.status, receipt.commit, receipt.endpoint) == ("dry-run", None, "local")
    assert json.loads(artifacts.receipt.read_text())["status"] == "dry-run"
    with hub(artifacts) as running:
        assert not client(running).repo_exists(REPO)
    assert run(whole, dry_run=True, endpoint="http://127.0.0.1:9").status == "dry-run"  # no Hub, no token


def test_an_empty_hub_gets_no_first_release_of_another_model_than_the_log_names(whole, tmp_path):
    """Neither validate nor evaluate nor publish takes it for a new one."""
    artifacts, recipe = copied(whole, tmp_path)
    run((artifacts, recipe))
    shutil.rmtree(artifacts.root / ".hub")
    assert run((artifacts, recipe)).status == "published", "the model that the log names is brought back"
    shutil.rmtree(artifacts.root / ".hub")
    weights = read_release_events(artifacts)[-1].weights
    for log in (artifacts.release_events, artifacts.unrecorded / artifacts.release_events.name):
        log.write_text(log.read_text().replace(weights, "0" * len(weights)))
    publish = {"repo_id": REPO, "endpoint": "local"}
    for stage in (
        lambda: refuse_hub_without_releases(artifacts, **publish),
        lambda: fetch_champion(artifacts, **publish, weights=[weights]),  # as evaluate does
        lambda: run((artifacts, recipe)),
    ):
        with pytest.raises(HubRefusedError, match="does not have the release release-") as error:
            stage()
        assert "bring back the folder .hub" in error.value.fix
    with hub(artifacts) as running:
        assert not client(running).repo_exists(REPO)


def test_dry_run_closes_no_proposal(whole):
    artifacts, _ = whole
    before = artifacts.blessing.read_text()
    artifacts.blessing.write_text(json.dumps(json.loads(before) | {"verdict": "refuse", "reasons": ["too slow"]}))
    with pytest.raises(GateRefusedError):  # it asks no Hub
        run(whole, dry_run=True, approval="pull_request", endpoint="http://127.0.0.1:9")
    artifacts.blessing.write_text(before)


def test_release_is_one_commit_and_one_tag_even_when_repeated(whole):
    artifacts, recipe = whole
    receipt = run(whole)
    assert (receipt.status, receipt.repo_id, receipt.endpoint) == ("published", REPO, "local")
    assert receipt.tag == f"release-{receipt.publish_id[:12]}"
    assert json.loads(artifacts.receipt.read_text()) == receipt.model_dump(mode="json")
    assert run(whole) == receipt
    assert why_receipt_is_outdated(artifacts, recipe.publish) is None
    assert not (artifacts.scratch / "release").exists()
    with hub(artifacts) as running:
        api = client(running)
        (tag,) = api.list_repo_refs(REPO).tags
        assert (tag.name, tag.target_commit) == (receipt.tag, receipt.commit)
        trailer = f"Publish-Id: {receipt.publish_id}"
        assert len([c for c in api.list_repo_commits(REPO) if trailer in c.message]) == 1
        assert api.model_info(REPO).private
        published = set(api.list_repo_files(REPO, revision=receipt.commit)) - {".gitattributes"}
    expected = {p.relative_to(artifacts.model).as_posix() for p in artifacts.model.rglob("*") if p.is_file()}
    assert published == expected | RELEASE_FILES


def test_every_verdict_and_receipt_is_logged_once_with_metrics(tmp_path, monkeypatch):
    artifacts, recipe = prepared = evaluated(tmp_path)
    receipt = run(prepared)
    artifacts.receipt.unlink()  # as DVC does before it runs the stage
    with monkeypatch.context() as context:
        context.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        with pytest.raises(HubRefusedError, match="there is no token"):
            run(prepared)
    assert run(prepared) == receipt
    blessing = json.loads(artifacts.blessing.read_text())
    artifacts.blessing.write_text(json.dumps(blessing | {"verdict": "refuse", "reasons": ["too slow"]}))
    for _ in range(2):
        with pytest.raises(GateRefusedError, match="the gate refuses the model: too slow"):
            run(prepared)
    releases.evaluate(artifacts, recipe)
    releases.evaluate(artifacts, recipe)
    run(prepared)

    verdict, published, refused, again, kept = read_release_events(artifacts)
    assert (verdict.event, verdict.verdict, verdict.commit) == ("verdict", "publish", None)
    assert (published.event, published.commit, published.tag) == ("published", receipt.commit, receipt.tag)
    assert (refused.event, refused.verdict, refused.reasons) == ("refused", "refuse", ("too slow",))
    assert (again.event, again.verdict, again.commit) == ("verdict", "keep", receipt.commit)
    assert (kept.event, kept.verdict, kept.commit) == ("kept", "keep", receipt.commit)
    metrics = json.loads(artifacts.report("evaluate").read_text())
    for entry in (verdict, published, refused, again, kept):
        assert entry.metrics["model"] == metrics["model"]
        assert (entry.metric, entry.weights, entry.repo_id) == (metrics["metric"], blessing["model"], REPO)
        assert entry.time

    releases.learn(artifacts, recipe, 2 * STEPS)
    releases.evaluate(artifacts, recipe)
    second = run(prepared)
    with hub(artifacts) as running:  # as somebody does in another folder
        repository = patient(client(running), repo_id=REPO)
        back = commit_rollback(repository, receipt.tag, by="Ada", why="wrong labels")
    releases.learn(artifacts, recipe, 3 * STEPS)
    releases.evaluate(artifacts, recipe)
    expected = {one.commit: one for one in read_release_events(artifacts) if one.event == "published"}
    lines = artifacts.release_events.read_text().splitlines(keepends=True)
    artifacts.release_events.write_text("".join(line for line in lines if '"event":"published"' not in line))
    shutil.rmtree(artifacts.unrecorded)
    for _ in range(2):  # as if the workers that published had been lost with their logs
        third = run(prepared)
    found = [entry for entry in read_release_events(artifacts) if entry.event in {"published", "rollback"}]
    assert [entry.commit for entry in found] == [receipt.commit, second.commit, back.commit, third.commit]
    assert (found[2].event, found[2].tag, found[2].by, found[2].reasons) == (
        "rollback",
        receipt.tag,
        "Ada",
        ("wrong labels",),
    )
    same = ("event", "tag", "publish_id", "weights", "repo_id", "endpoint")
    for line in found[:2]:
        own = expected[line.commit]
        assert [getattr(line, name) for name in same] == [getattr(own, name) for name in same]
        assert abs(datetime.fromisoformat(line.time) - datetime.fromisoformat(own.time)).seconds <= 5


@pytest.mark.slow
def test_publish_that_fails_through_dvc_leaves_the_log(tmp_path):
    """DVC deletes the receipt before it runs the stage."""
    artifacts, _ = evaluated(tmp_path)
    outs = [{artifacts.receipt.relative_to(tmp_path).as_posix(): {"cache": False}}]
    stage = {"cmd": f"{sys.executable} -m tasks publish params/tiny.yaml", "outs": outs}
    (tmp_path / "dvc.yaml").write_text(json.dumps({"stages": {"publish": stage}}))

    def dvc(*arguments, **environment):
        environment = os.environ | {"PYTHONPATH": str(ROOT), "DVC_NO_ANALYTICS": "1"} | environment
        command = [sys.executable, "-m", "dvc", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert dvc("init", "--no-scm").returncode == 0
    assert dvc("repro").returncode == 0
    receipt, log = artifacts.receipt.read_bytes(), artifacts.release_events.read_bytes()
    assert [entry.event for entry in read_release_events(artifacts)] == ["verdict", "published"]

    failed = dvc("repro", "--force", HF_ENDPOINT=f"http://127.0.0.1:{free_port()}")
    assert failed.returncode
    assert "there is no token" in failed.stderr
    assert not artifacts.receipt.exists()
    assert artifacts.release_events.read_bytes() == log

    assert dvc("repro").returncode == 0
    assert artifacts.receipt.read_bytes() == receipt
    assert artifacts.release_events.read_bytes() == log, "the same release was logged twice"


def test_a_merged_proposal_is_logged_although_its_model_is_judged_again(tmp_path):
    artifacts, recipe = prepared = evaluated(tmp_path)
    proposed = run(prepared, approval="pull_request")
    with hub(artifacts) as running:
        client(running).merge_pull_request(REPO, proposed.pull_request)
    releases.evaluate(artifacts, recipe)
    assert run(prepared, approval="pull_request").status == "kept", "the published model has the same weights"
    (merged,) = [entry for entry in read_release_events(artifacts) if entry.event == "published"]
    assert (merged.tag, merged.pull_request, merged.verdict) == (proposed.tag, proposed.pull_request, "publish")
    with hub(artifacts) as running:
        assert [tag.name for tag in client(running).list_repo_refs(REPO).tags] == [proposed.tag]


def test_release_removed_from_the_hub_is_published_again(tmp_path):
    prepared = evaluated(tmp_path)
    receipt = run(prepared)
    shutil.rmtree(tmp_path / ".hub")
    assert why_receipt_is_outdated(prepared[0], prepared[1].publish)
    assert run(prepared).publish_id == receipt.publish_id
    assert why_receipt_is_outdated(prepared[0], prepared[1].publish) is None


def from_hub(artifacts, receipt, tmp_path, auto_class):
    """The weights and the token ids of a text that `from_pretrained` gives in a child process."""
    code = (
        f"from transformers import AutoTokenizer, {auto_class}; import sys; "
        f"model = {auto_class}.from_pretrained(sys.argv[1], revision=sys.argv[2], use_safetensors=True); "
        "tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], revision=sys.argv[2]); "
        "model.save_pretrained(sys.argv[3]); print(tokenizer('The cat sees')['input_ids'])"
    )
    with hub(artifacts) as running:
        settings = {"HF_ENDPOINT": running.endpoint, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "home")}
        arguments = (receipt.repo_id, receipt.tag, str(tmp_path / "loaded"))
        said = run_elsewhere(code, *arguments, environment=os.environ | settings)
    return load_file(tmp_path / "loaded" / "model.safetensors"), json.loads(said.splitlines()[-1])


@pytest.mark.parametrize("kind", [pytest.param("causal_lm", marks=pytest.mark.slow), "sequence_classification"])
def test_from_pretrained_loads_the_trained_weights(tmp_path, kind):
    artifacts, recipe = evaluated(tmp_path, tiny.recipe(**(tiny.CLASSES if kind == "sequence_classification" else {})))
    receipt = run((artifacts, recipe))
    with hub(artifacts) as running:
        card = ModelCard.load(client(running).hf_hub_download(REPO, "README.md", local_dir=tmp_path / "card"))
    auto_class = {"causal_lm": "AutoModelForCausalLM", "sequence_classification": "AutoModelForSequenceClassification"}
    assert f'{auto_class[kind]}.from_pretrained("{REPO}"' in card.text
    loaded, ids = from_hub(artifacts, receipt, tmp_path, auto_class[kind])
    trained = load_file(artifacts.model / "model.safetensors")
    assert loaded.keys() == trained.keys()
    assert all(loaded[name].equal(trained[name]) for name in trained)
    assert ids == tokens.read_tokenizer(artifacts.tokens)("The cat sees")["input_ids"]

    metrics = json.loads(artifacts.report("evaluate").read_text())["model"]
    names = {"f1": "macro_f1"}  # the Hub's name for it
    on_card = {names.get(r.metric_type, r.metric_type): r.metric_value for r in card.data.eval_results}
    assert on_card == pytest.approx(metrics, abs=1e-6)
    assert (card.data.license, card.data.library_name) == ("other", "transformers")
    assert card.data.pipeline_tag == objectives.import_objective_class(kind).pipeline_tag
    key = json.loads(artifacts.report("train").read_text())["run"]
    for text in (key, "c0ffee", "0123456789ab", "| rows before the checks | 41 | 8 | 8 |", "train" * 4):
        assert text in card.text
    assert "model_type: " in card.text, "the recipe"


def test_remote_hub_needs_a_token(whole, monkeypatch, capsys):
    artifacts, _ = whole
    before = artifacts.receipt.read_text() if artifacts.receipt.exists() else None
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubRefusedError, match="there is no token"):
        run(whole)
    monkeypatch.chdir(artifacts.root)
    assert main(["publish", "params/tiny.yaml"]) == os.EX_NOPERM == 77
    assert "HubRefusedError: http://127.0.0.1:9: there is no token" in capsys.readouterr().err
    assert (artifacts.receipt.read_text() if artifacts.receipt.exists() else None) == before


def test_unreachable_hub_is_a_transient_error_and_keeps_the_receipt(whole, monkeypatch, capsys):
    artifacts, recipe = whole
    run(whole)
    before = artifacts.receipt.read_text()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("HF_TOKEN", "hf_nobody")
    with pytest.raises(TransientError, match="no clear answer"):
        run(whole, timeout_s=1.0)
    assert "on the Hub local" in (why_receipt_is_outdated(artifacts, recipe.publish) or "")
    monkeypatch.chdir(artifacts.root)
    tiny.write(artifacts.root / "params" / "tiny.yaml", tiny.recipe({"publish.timeout_s": 0.5}))
    assert main(["publish", "params/tiny.yaml"]) == os.EX_TEMPFAIL == 75
    error = capsys.readouterr().err
    assert "TransientError" in error
    assert "hf_nobody" not in error
    assert artifacts.receipt.read_text() == before


def test_release_goes_to_the_recipes_hub(whole, monkeypatch):
    """As a user publishes who has hf-xet and sets nothing: the Hub has no Xet storage."""
    artifacts, _ = whole
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", False)
    with LocalHub(artifacts.root / "named", tokens={"token-of-tests": "tests"}) as running:
        monkeypatch.setenv("HF_TOKEN", "token-of-tests")
        with pytest.raises(HubRefusedError, match=r"the user's token belongs to https://huggingface\.co"):
            run(whole, endpoint=running.endpoint)
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        receipt = run(whole, endpoint=running.endpoint, timeout_s=20.0)
        assert receipt.endpoint == running.endpoint
        assert HfApi(endpoint=running.endpoint, token="token-of-tests").repo_exists(REPO)


def test_several_chat_templates_are_published(tmp_path):
    """From the tokenizer of the base model to the release, which AutoTokenizer loads with all of them."""
    templates = {"default": "{{ messages[0]['content'] }}", "tool_use": "{{ tools }}"}
    tiny.tokenized(tmp_path / "base", tiny.recipe())
    tokenizer = tokens.read_tokenizer(tmp_path / "base/runs/tiny/tokens")
    tokenizer.chat_template = templates
    tokenizer.save_pretrained(tmp_path / "pretrained")
    choice = {"kind": "pretrained", "path": str(tmp_path / "pretrained")}
    prepared = evaluated(tmp_path / "project", tiny.recipe({"tokenization.tokenizer": choice}))
    receipt = run(prepared)
    assert receipt.status == "published"
    with hub(prepared[0]) as running:
        folder = client(running).snapshot_download(REPO, revision=receipt.tag, local_dir=tmp_path / "downloaded")
    assert AutoTokenizer.from_pretrained(folder).chat_template == templates
    assert AnsweringModel.load(Path(folder), REPO).answer("The cat", AnswerOptions(max_new_tokens=2))
