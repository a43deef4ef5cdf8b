"""Releases of adapters: merged, by themselves, or both; loaded by others, compared as champions, and changed in form."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from safetensors.torch import load_file

from params import HubRefusedError, ModelError, RecipeError, StaleBlessingError
from params.foundation.artifacts import Artifacts
from tasks.hub_client.repository import HubRepository
from tasks.hub_server.server import LocalHub
from tasks.publishing.hub_changes import why_blessing_is_outdated, why_receipt_is_outdated
from tasks.publishing.provenance import FILE
from tasks.recipes.loading import Recipe, load
from tasks.releases.rollback import commit_rollback
from tasks.tokenization.stage import tokenize
from tests.support import base_models, forked, releases, tiny
from tests.support.forked_code import run_elsewhere
from tests.support.project import ROOT
from trainer import objectives
from trainer.data import tokens
from trainer.model.network import load_trained_model

TOKEN = "hf_" + "1" * 40
TEXT = "The king likes the rain"
STEPS, BETTER = 10, 60
FORMS = {
    "merged": {"config.json", "generation_config.json", "model.safetensors"},
    "adapter": {"adapter_config.json", "adapter_model.safetensors"},
}
FORMS["both"] = FORMS["merged"] | {f"adapter/{name}" for name in FORMS["adapter"]}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HfApi]:
    """A Hub with base models, which this process uses."""
    root = tmp_path_factory.mktemp("hub")
    with pytest.MonkeyPatch.context() as patch, LocalHub(root / ".hub", tokens={TOKEN: "tests"}) as hub:
        base_models.use_hub(patch, hub.endpoint, TOKEN, root / "cache")
        found = HfApi(endpoint=hub.endpoint, token=TOKEN)
        for kind in ("llama", "bert"):
            base_models.upload(found, root / kind)
        yield found


@pytest.fixture(scope="module")
def trained(api: HfApi, tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    """A project whose adapters are trained; nothing is evaluated."""
    root = tmp_path_factory.mktemp("trained")
    artifacts, recipe = releases.tokenized(root, base_models.recipe("sft"))
    releases.learn(artifacts, recipe, STEPS)
    return artifacts


@pytest.fixture
def project(trained: Artifacts, tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Artifacts, Recipe]:
    """A copy of it, evaluated, with a repository of its own."""
    shutil.copytree(trained.root, tmp_path / "project")
    artifacts = Artifacts("tiny", tmp_path / "project")
    recipe = named(artifacts, request.node.name)
    releases.evaluate(artifacts, recipe)
    return artifacts, recipe


def named(artifacts: Artifacts, name: str, changes: dict | None = None, *, base: str = "") -> Recipe:
    """The project's recipe with a repository for a test."""
    repo_id = "tests/" + "".join(char if char.isalnum() else "-" for char in name).strip("-").replace("--", "-")[:60]
    content = base_models.recipe("sft", {"publish.repo_id": repo_id, **(changes or {})}, base=base)
    return load(tiny.write(artifacts.recipe_path, content))


def publish(project: tuple[Artifacts, Recipe], form: str, *, again: bool = False, **changes: object):
    """Publish in a form, as after an edit of the recipe, and on request once more: the same receipt."""
    artifacts, recipe = project
    done = releases.publish(artifacts, recipe, adapter=form, **changes)
    if again:
        assert releases.publish(artifacts, recipe, adapter=form, **changes) == done
    assert why_receipt_is_outdated(artifacts, recipe.publish) is None
    assert why_blessing_is_outdated(artifacts, recipe.publish) is None
    return done


def weights_and_configs(api: HfApi, repo_id: str) -> set[str]:
    names = {name for kind in FORMS.values() for name in kind}
    return set(api.list_repo_files(repo_id)) & names


def published(api: HfApi, repo_id: str) -> list[str]:
    """The titles of main's commits, oldest first."""
    return [commit.title for commit in api.list_repo_commits(repo_id)][::-1]


LOADED = {
    "sft": (
        "AutoModelForCausalLM.from_pretrained('tests/sft-merged')",
        "AutoModelForCausalLM.from_pretrained('tests/sft-adapter')",
        "AutoModelForCausalLM.from_pretrained(snapshot_download('tests/sft-adapter'))",
        "AutoPeftModelForCausalLM.from_pretrained('tests/sft-adapter', revision=tag('tests/sft-adapter'))",
        "pipeline('text-generation', model='tests/sft-adapter').model",
        "PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained('tests/llama'), 'tests/sft-adapter')",
        "AutoModelForCausalLM.from_pretrained('tests/sft-both')",
        "PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained('tests/llama'), 'tests/sft-both', subfolder='adapter')",
    ),
    "classes": (
        "AutoModelForSequenceClassification.from_pretrained('tests/classes-merged')",
        "AutoPeftModelForSequenceClassification.from_pretrained('tests/classes-adapter', num_labels=4)",
        "PeftModel.from_pretrained(classifier('tests/classes-adapter'), 'tests/classes-adapter')",
        "PeftModel.from_pretrained(classifier('tests/classes-both', 'adapter'), 'tests/classes-both', subfolder='adapter')",
    ),
}
LOADER = """
import json, sys
from huggingface_hub import HfApi, snapshot_download
from peft import AutoPeftModelForCausalLM, AutoPeftModelForSequenceClassification, PeftConfig, PeftModel
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, pipeline
import torch

def tag(repo_id):
    return HfApi().list_repo_refs(repo_id).tags[0].name

def classifier(repo_id, subfolder=None):
    base = PeftConfig.from_pretrained(repo_id, subfolder=subfolder)
    config = AutoConfig.from_pretrained(repo_id)
    return AutoModelForSequenceClassification.from_pretrained(base.base_model_name_or_path, revision=base.revision, config=config)

for kind, expressions in json.loads(sys.argv[2]).items():
    for expression in expressions:
        inputs = AutoTokenizer.from_pretrained(f"tests/{kind}-adapter")(sys.argv[1], return_tensors="pt")
        with torch.no_grad():
            logits = eval(expression).eval()(**{name: inputs[name] for name in ("input_ids", "attention_mask")}).logits
        print(json.dumps(logits.tolist()))
"""


def test_every_form_loads_elsewhere_as_the_trained_model(api, tmp_path, monkeypatch):
    """By transformers and PEFT alone, in a process of its own; the classifier's base model has another main by then."""
    expected = {}
    for kind in LOADED:
        objective = {"classes": "sequence_classification"}.get(kind, kind)
        artifacts, recipe = releases.tokenized(tmp_path / kind, base_models.recipe(objective))
        releases.learn(artifacts, recipe, STEPS)
        for form, files in FORMS.items():
            changes = {"publish.repo_id": f"tests/{kind}-{form}", "publish.adapter": form}
            recipe = load(tiny.write(artifacts.recipe_path, base_models.recipe(objective, changes)))
            releases.evaluate(artifacts, recipe)
            assert releases.publish(artifacts, recipe).status == "published"
            if kind == "sft":
                assert weights_and_configs(api, f"tests/{kind}-{form}") == files
        model = load_trained_model(artifacts.model, objectives.build_objective(recipe.objective).model_class()).eval()
        inputs = token_ids(artifacts)
        with torch.no_grad():
            expected[kind] = model(**inputs).logits
    base_models.upload(api, tmp_path / "moved" / "bert", "moved")
    api.upload_file(
        path_or_fileobj=tmp_path / "moved" / "bert" / "model.safetensors",
        path_in_repo="model.safetensors",
        repo_id="tests/bert",
    )
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    said = run_elsewhere(LOADER, TEXT, json.dumps(LOADED), environment=os.environ)
    found = iter([line for line in said.splitlines() if line.startswith("[[")])
    for kind, expressions in LOADED.items():
        for expression in expressions:
            logits = torch.tensor(json.loads(next(found)))
            torch.testing.assert_close(logits, expected[kind], rtol=1e-4, atol=1e-5, msg=expression)


def token_ids(artifacts: Artifacts) -> dict[str, torch.Tensor]:
    encoded = tokens.read_tokenizer(artifacts.tokens)(TEXT, return_tensors="pt")
    return {name: encoded[name] for name in ("input_ids", "attention_mask")}


def test_release_says_what_it_is(api, project, tmp_path):
    _, recipe = project
    repo_id, base = recipe.publish.repo_id, api.model_info("tests/llama").sha
    for form in FORMS:
        receipt = publish(project, form, again=True)
        files = api.snapshot_download(repo_id, revision=receipt.tag, local_dir=tmp_path / form)
        card = ModelCard.load(Path(files) / "README.md")
        relation = getattr(card.data, "base_model_relation", None)
        is_adapter = form == "adapter"
        assert (card.data.library_name, relation) == (("peft", "adapter") if is_adapter else ("transformers", None))
        assert (card.data.base_model, card.data.tags) == ("tests/llama", ["evergreen", "sft", "lora"])
        assert ('from_pretrained("tests/llama", revision="' + base in card.text) == (form != "merged")
        assert card.text.count("```python") == {"merged": 2, "adapter": 1, "both": 3}[form]
        config = {"adapter": Path(files), "both": Path(files) / "adapter"}.get(form)
        if config:
            named = json.loads((config / "adapter_config.json").read_text())
            assert (named["base_model_name_or_path"], named["revision"]) == ("tests/llama", base)
        record = json.loads((Path(files) / FILE).read_text())
        assert record["adapter"] == form
        tree = HubRepository(api, repo_id).tree(receipt.commit)
        held = {path: file.lfs.sha256 for path, file in tree.items() if path.endswith(".safetensors")}
        assert record["weights"] == held, "reproduce compares these"


def test_change_of_form_is_published_once_and_back(api, project):
    artifacts, recipe = project
    repo_id, before = recipe.publish.repo_id, (artifacts.model / "model.safetensors").stat().st_mtime_ns
    receipts = [publish(project, form) for form in ("merged", "adapter", "merged", "both")]
    assert len({receipt.commit for receipt in receipts}) == 4
    assert [receipt.status for receipt in receipts] == ["published"] * 4
    assert receipts[1].reasons[-1] == "the model was published in another form; publish.adapter is `adapter`"
    assert published(api, repo_id)[1:] == [f"Publish {receipt.tag}" for receipt in receipts]
    assert weights_and_configs(api, repo_id) == FORMS["both"]
    assert (artifacts.model / "model.safetensors").stat().st_mtime_ns == before
    card = Path(api.hf_hub_download(repo_id, "README.md", revision=receipts[1].commit, local_dir=artifacts.scratch))
    assert f"The same model was published before, as `{receipts[0].tag}`" in card.read_text()

    assert releases.evaluate(artifacts, recipe).verdict == "keep", "it is the champion, whatever its form"
    kept = publish(project, "both", again=True)
    assert (kept.status, kept.commit) == ("kept", receipts[-1].commit)
    assert publish(project, "adapter", again=True).status == "published", (
        "also after an evaluation that compared nothing"
    )
    assert len(published(api, repo_id)) == 6
    assert publish(project, "both").status == "published", "although the blessing is of this form"
    assert len(published(api, repo_id)) == 7


def test_change_of_form_keeps_the_limit_that_was_judged(api, project, tmp_path):
    artifacts, before = project
    publish(project, "merged")
    shutil.rmtree(artifacts.tokens)
    changes = {"tokenization.max_length": 32, "evaluation.gate.margin": 9.0, "publish.repo_id": before.publish.repo_id}
    recipe = load(tiny.write(artifacts.recipe_path, base_models.recipe("sft", changes)))
    tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    releases.learn(artifacts, recipe, BETTER)
    for form, verdict in (("merged", "publish"), ("adapter", "keep"), ("both", "keep")):
        report = releases.evaluate(artifacts, recipe)
        assert (report.verdict, report.max_length) == (verdict, 64)
        receipt = publish((artifacts, recipe), form)
        path = api.hf_hub_download(receipt.repo_id, FILE, revision=receipt.tag, local_dir=tmp_path)
        assert json.loads(Path(path).read_text())["max_length"] == 64


def test_change_of_form_may_need_an_approval(api, project):
    artifacts, recipe = project
    repo_id = recipe.publish.repo_id
    publish(project, "merged")
    releases.evaluate(artifacts, recipe)
    waiting = publish(project, "adapter", again=True, approval="pull_request")
    assert waiting.status == "proposed"
    (proposal,) = api.get_repo_discussions(repo_id)
    assert proposal.status == "open"
    described = api.get_discussion_details(repo_id, proposal.num).events[0].content
    assert described.startswith("The published model of the recipe `tiny` in another form. It replaces release-")
    api.merge_pull_request(repo_id, waiting.pull_request)
    done = publish(project, "adapter", approval="pull_request")
    assert done.status == "published"
    assert weights_and_configs(api, repo_id) == FORMS["adapter"]


def test_rolled_back_form_and_model_stay_back(api, project):
    artifacts, recipe = project
    repo_id = recipe.publish.repo_id
    merged, adapter = (publish(project, form) for form in ("merged", "adapter"))
    repository = HubRepository(api, repo_id)
    commit_rollback(repository, merged.tag, by="Ada", why="our server cannot load adapters")
    with pytest.raises(StaleBlessingError, match="rolled back since its evaluation, by Ada: our server cannot load"):
        releases.publish(artifacts, recipe, adapter="adapter")
    releases.evaluate(artifacts, recipe)
    assert releases.publish(artifacts, recipe, adapter="adapter").status == "kept"
    assert weights_and_configs(api, repo_id) == FORMS["merged"]

    releases.learn(artifacts, recipe, BETTER)
    assert releases.evaluate(artifacts, recipe).verdict == "publish"
    better = publish(project, "merged")
    commit_rollback(repository, merged.tag, by="Ada", why="wrong tone")
    count = len(published(api, repo_id))
    with pytest.raises(StaleBlessingError, match="by Ada: wrong tone"):
        releases.publish(artifacts, recipe, adapter="both")
    assert releases.evaluate(artifacts, recipe).verdict == "keep"
    assert releases.publish(artifacts, recipe, adapter="both").status == "kept"
    assert len(published(api, repo_id)) == count
    assert better.commit != adapter.commit


@pytest.mark.parametrize(
    ("first", "then"),
    [("adapter", "merged"), *(pytest.param(first, "adapter", marks=pytest.mark.slow) for first in ("merged", "both"))],
)
def test_champion_and_candidate_in_any_form(api, project, first, then):
    """The champion has the metrics that it had as a candidate; with another base model, too."""
    artifacts, recipe = project
    publish(project, first)
    as_candidate = json.loads(artifacts.report("evaluate").read_text())["model"]
    if then == "merged":
        if not api.repo_exists("tests/other"):
            base_models.upload(api, artifacts.root / "llama", "other", hidden_size=64)
        recipe = named(artifacts, recipe.publish.repo_id.removeprefix("tests/"), base="tests/other")
    releases.learn(artifacts, recipe, BETTER)
    report = releases.evaluate(artifacts, recipe)
    assert report.verdict == "publish"
    assert report.champion == pytest.approx(as_candidate, rel=1e-5)
    assert report.model["loss"] < report.champion["loss"]
    receipt = publish((artifacts, recipe), then)
    assert receipt.status == "published"
    assert weights_and_configs(api, recipe.publish.repo_id) == FORMS[then]
    made_from = json.loads(
        HubRepository(api, recipe.publish.repo_id).read(receipt.commit, "evergreen-release.json", max_bytes=1 << 20)
    )
    blessing = json.loads(artifacts.blessing.read_text())
    assert made_from["made_from"]["replaces"] == blessing["champion"]["commit"]


def test_champion_with_adapters_is_compared_by_a_recipe_without(api, project):
    """The process of the stage has left out peft, which its recipe does not use."""
    artifacts, recipe = project
    publish(project, "adapter")
    as_candidate = json.loads(artifacts.report("evaluate").read_text())["model"]
    changes = {"publish.repo_id": recipe.publish.repo_id, "model.lora": None}
    whole = load(tiny.write(artifacts.recipe_path, base_models.recipe("sft", changes)))
    releases.learn(artifacts, whole, STEPS)
    code = "import sys; [sys.modules.pop(name) for name in [*sys.modules] if name.partition('.')[0] == 'peft']; "
    code += "from tasks.commands import main; sys.exit(main(['evaluate', 'params/tiny.yaml']))"
    environment = forked.commands({**os.environ, "PYTHONPATH": str(ROOT)})
    done = subprocess.run(
        ["python", "-c", code], cwd=artifacts.root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(artifacts.report("evaluate").read_text())
    assert report["champion"] == pytest.approx(as_candidate, rel=1e-5)


def test_adapters_that_others_cannot_load_are_refused(api, project, tmp_path):
    artifacts, recipe = project
    commit = base_models.upload(api, tmp_path / "secret" / "llama", "secret", private=True)
    for base, revision, private, message in (
        (
            "tests/secret",
            commit,
            False,
            "tests/secret, cannot be read there by everybody, and publish.private is false",
        ),
        ("tests/llama", "0" * 40, True, f"tests/llama, has no revision {'0' * 40} there"),
        ("tests/nothing", None, True, "tests/nothing, cannot be read there with this token"),
    ):
        config = artifacts.adapter / "adapter_config.json"
        changes = {"base_model_name_or_path": base, "revision": revision}
        config.write_text(json.dumps(json.loads(config.read_text()) | changes))
        with pytest.raises(HubRefusedError, match=message):
            releases.publish(artifacts, recipe, adapter="adapter", private=private)
    assert not api.repo_exists(recipe.publish.repo_id)
    shutil.rmtree(artifacts.adapter)
    releases.evaluate(artifacts, recipe)
    with pytest.raises(ModelError, match="the adapters are not there by themselves"):
        releases.publish(artifacts, recipe, adapter="both")
    whole = recipe.model_copy(update={"model": recipe.model.model_copy(update={"lora": None})})
    with pytest.raises(RecipeError, match="there are no adapters to publish"):
        releases.publish(artifacts, whole, adapter="both")


def test_weights_that_the_base_model_lacks_are_in_the_adapters(api, tmp_path):
    """A masked language model has no pooler: random weights would make another classifier of it on each machine."""
    artifacts, recipe = releases.tokenized(tmp_path, base_models.recipe("sequence_classification"))
    releases.learn(artifacts, recipe, STEPS)
    saved = load_file(artifacts.adapter / "adapter_model.safetensors")
    merged = load_file(artifacts.model / "model.safetensors")
    for name in ("bert.pooler.dense.weight", "classifier.weight"):
        np.testing.assert_array_equal(saved[f"base_model.model.{name}"], merged[name])
    assert not [name for name in saved if "pooler" in name and "lora" in name]
