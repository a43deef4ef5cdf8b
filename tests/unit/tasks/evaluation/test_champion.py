"""The champion is scored on the same rows as a candidate and replaced only by a better one."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from huggingface_hub import HfApi, ModelCard

from params import ModelError
from params.foundation.artifacts import SPLITS, Artifacts
from params.foundation.errors import StaleBlessingError
from tasks.commands import main
from tasks.digests import PROVENANCE
from tasks.evaluation.report import Blessing
from tasks.hub_client.repository import HubRepository
from tasks.hub_server.server import LocalHub
from tasks.publishing.hub_changes import why_blessing_is_outdated, why_receipt_is_outdated
from tasks.recipes.loading import load
from tasks.release_log.events import read_release_events
from tasks.releases import rollback
from tasks.report.page import write_run_report_page
from tasks.shards.split_rows import SplitRows
from tasks.stages import read_report
from tasks.tokenization.stage import tokenize
from tests.support import releases, tiny

pytestmark = pytest.mark.usefixtures("no_hub_settings")
REPO, TOKEN = "tests/tiny", "hf_tests"
WORSE, STEPS, BETTER = 4, 12, 40
"""Training steps of a worse model, of the first release and of a better model."""
GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2}


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A project with a first release, and its receipt."""
    artifacts, recipe = releases.tokenized(tmp_path_factory.mktemp("released"), tiny.recipe())
    releases.learn(artifacts, recipe, STEPS)
    releases.evaluate(artifacts, recipe)
    return artifacts, recipe, releases.publish(artifacts, recipe)


@pytest.fixture
def project(released, tmp_path):
    """A copy of `released`."""
    artifacts, recipe, receipt = released
    return copied(artifacts, tmp_path / "project"), recipe, receipt


def copied(artifacts, root):
    shutil.copytree(artifacts.root, root)
    return Artifacts("tiny", root)


def blessing_of(artifacts):
    return json.loads(artifacts.blessing.read_text())


def comparisons_of(artifacts, against="champion"):
    details = json.loads((artifacts.evaluation / "details.json").read_text())
    return {c["metric"]: c for c in details["comparisons"] if c["against"] == against}


def published(artifacts):
    """The head of the repository."""
    with LocalHub(artifacts.root / ".hub", tokens={TOKEN: "tests"}) as hub:
        return HubRepository(HfApi(endpoint=hub.endpoint, token=TOKEN), REPO).head()


def file_of(artifacts, commit, name, tmp_path):
    with LocalHub(artifacts.root / ".hub", tokens={TOKEN: "tests"}) as hub:
        api = HfApi(endpoint=hub.endpoint, token=TOKEN)
        return json.loads(Path(api.hf_hub_download(REPO, name, revision=commit, local_dir=tmp_path)).read_text())


def test_first_release_must_beat_the_untrained_model(released):
    artifacts, recipe, receipt = released
    blessing = blessing_of(artifacts)
    assert (blessing["verdict"], blessing["first_release"], blessing["champion"]) == ("publish", True, None)
    assert blessing["metric"] == "bits_per_byte"
    first, better = blessing["reasons"]
    assert first == "first release: no model is published yet"
    gain = comparisons_of(artifacts, "untrained")["bits_per_byte"]["gain"]
    assert better.startswith(f"bits_per_byte is {gain:.4g} better than before training (95% interval ")
    assert receipt.status == "published"
    assert receipt.reasons == (first, better)
    found = published(artifacts)
    assert (found.commit, found.tag, found.weights) == (receipt.commit, receipt.tag, blessing["model"])
    assert why_blessing_is_outdated(artifacts, recipe.publish) is None


def test_first_release_no_better_than_untrained_is_refused(tmp_path):
    artifacts, recipe = releases.tokenized(tmp_path, tiny.recipe())
    releases.learn(artifacts, recipe, 0, seed=recipe.seed)
    assert releases.evaluate(artifacts, recipe).verdict == "refuse"
    with pytest.raises(
        ModelError, match="a first release must be better than the model before training: bits_per_byte"
    ):
        releases.publish(artifacts, recipe)
    assert not artifacts.receipt.exists()
    assert published(artifacts) is None


def test_same_weights_are_not_published_twice(project):
    artifacts, recipe, first = project
    report = releases.evaluate(artifacts, recipe)
    assert (report.verdict, report.champion) == ("keep", None)
    receipt = releases.publish(artifacts, recipe)
    assert (receipt.status, receipt.commit, receipt.tag) == ("kept", first.commit, first.tag)
    assert receipt.reasons == ("the published model has the same weights: there is nothing to publish",)
    assert published(artifacts).commit == first.commit
    assert why_receipt_is_outdated(artifacts, recipe.publish) is None


def test_worse_model_keeps_the_champion(project):
    artifacts, recipe, first = project
    before = json.loads(artifacts.report("evaluate").read_text())["model"]
    releases.learn(artifacts, recipe, WORSE)
    report = releases.evaluate(artifacts, recipe)
    assert report.verdict == "keep"
    assert report.champion == pytest.approx(before, rel=1e-9), "its metrics are those of its release"
    assert report.model["bits_per_byte"] > report.champion["bits_per_byte"]
    assert report.untrained is not None
    names = {path.stem for path in (artifacts.evaluation / "scores").iterdir()}
    assert names == {"model", "untrained", "champion"}
    gain = comparisons_of(artifacts)["bits_per_byte"]
    assert gain["high"] < 0
    receipt = releases.publish(artifacts, recipe)
    assert (receipt.status, receipt.commit, receipt.publish_id) == ("kept", first.commit, None)
    (reason,) = receipt.reasons
    assert f"bits_per_byte is {-gain['gain']:.4g} worse than the champion's" in reason
    assert published(artifacts).commit == first.commit


def test_better_model_replaces_the_champion(project, tmp_path):
    artifacts, recipe, first = project
    releases.learn(artifacts, recipe, BETTER)
    assert releases.evaluate(artifacts, recipe).verdict == "publish"
    blessing = blessing_of(artifacts)
    assert not blessing["first_release"]
    champion = {"endpoint": "local", "repo_id": REPO, "commit": first.commit, "tag": first.tag}
    assert {name: blessing["champion"][name] for name in champion} == champion
    receipt = releases.publish(artifacts, recipe)
    assert receipt.status == "published"
    assert "better than the champion's" in receipt.reasons[0]
    found = published(artifacts)
    assert (found.commit, found.tag, found.weights) == (receipt.commit, receipt.tag, blessing["model"])
    assert found.commit != first.commit
    inside = file_of(artifacts, found.commit, "evergreen-release.json", tmp_path)
    assert inside["made_from"]["replaces"] == first.commit
    assert why_blessing_is_outdated(artifacts, recipe.publish) is None


def changed_of(artifacts):
    return json.loads((artifacts.evaluation / "details.json").read_text())["changed"]


def errors_of(artifacts, model, per):
    rows = pq.read_table(artifacts.evaluation / "scores" / f"{model}.parquet").to_pylist()
    return {row["row_id"]: row["nll"] / row[per] for row in rows}


def test_rows_on_which_candidate_and_champion_differ_most(project):
    artifacts, recipe, _ = project
    releases.learn(artifacts, recipe, BETTER)
    evaluation = recipe.evaluation.model_copy(update={"worst_rows": 6})
    recipe = recipe.model_copy(update={"evaluation": evaluation})
    releases.evaluate(artifacts, recipe)
    own, champion = errors_of(artifacts, "model", "tokens"), errors_of(artifacts, "champion", "tokens")
    gains = {row: champion[row] - own[row] for row in own}
    found = changed_of(artifacts)
    assert [one["row_id"] for one in found] == sorted(gains, key=lambda row: -abs(gains[row]))[:6]
    texts = {row["row_id"]: row["text"] for row in SplitRows(artifacts.rows / "test").rows()}
    for one in found:
        row = one["row_id"]
        expected = (gains[row], own[row], champion[row])
        assert (one["gain"], one["error"], one["champion_error"]) == pytest.approx(expected)
        assert one["text"] == texts[row]
    releases.publish(artifacts, recipe)
    with LocalHub(artifacts.root / ".hub", tokens={TOKEN: "tests"}) as hub:
        api = HfApi(endpoint=hub.endpoint, token=TOKEN)
        card, page = (
            Path(api.hf_hub_download(REPO, name, local_dir=artifacts.root / "got")).read_text()
            for name in ("README.md", "report.html")
        )
    assert "## Changed rows" in card
    assert found[0]["text"] in card
    assert 'id="changed"' in page
    releases.evaluate(artifacts, recipe)
    assert changed_of(artifacts) == [], "the champion is not compared with itself"


def test_changed_rows_have_both_predictions(tmp_path):
    artifacts, recipe = releases.tokenized(tmp_path, tiny.recipe({"publish.private": False}, **tiny.CLASSES))
    releases.learn(artifacts, recipe, WORSE)
    releases.evaluate(artifacts, recipe)
    releases.publish(artifacts, recipe)
    assert changed_of(artifacts) == [], "a first release has no champion"
    releases.learn(artifacts, recipe, BETTER)
    releases.evaluate(artifacts, recipe)
    (first, *_) = found = changed_of(artifacts)
    assert len(found) == 20
    assert first["gain"] == max(one["gain"] for one in found) > 0
    assert first["notes"]["predicted"] == first["notes"]["expected"] == first["champion_notes"]["expected"]
    scores = pq.read_table(artifacts.evaluation / "scores/champion.parquet").to_pylist()
    said = {row["row_id"]: ["cat", "dog", "friend", "king"][int(row["prediction"])] for row in scores}
    assert [one["champion_notes"]["predicted"] for one in found] == [said[one["row_id"]] for one in found]
    releases.publish(artifacts, recipe)
    with LocalHub(artifacts.root / ".hub", tokens={TOKEN: "tests"}) as hub:
        for name in ("README.md", "report.html"):
            text = Path(
                HfApi(endpoint=hub.endpoint).hf_hub_download(REPO, name, local_dir=tmp_path / "got")
            ).read_text()
            assert not any(one["text"] in text for one in found), "texts of rows must not become public"


def test_rolled_back_weights_are_not_published_again(project):
    artifacts, recipe, first = project
    releases.learn(artifacts, recipe, BETTER)
    releases.evaluate(artifacts, recipe)
    second = releases.publish(artifacts, recipe)

    def roll_back(tag, why):
        with LocalHub(artifacts.root / ".hub", tokens={TOKEN: "tests"}) as hub:
            api = HfApi(endpoint=hub.endpoint, token=TOKEN)
            return rollback.commit_rollback(HubRepository(api, REPO), tag, by="Ada", why=why).commit

    back = roll_back(first.tag, "wrong tone")
    assert releases.evaluate(artifacts, recipe).verdict == "keep"
    receipt = releases.publish(artifacts, recipe)
    assert (receipt.status, receipt.commit) == ("kept", back)
    assert receipt.reasons == ("a release of the same weights was rolled back: by Ada: wrong tone",)
    assert published(artifacts).commit == back
    again = roll_back(second.tag, "it was the right one")
    assert releases.evaluate(artifacts, recipe).verdict == "keep"
    assert blessing_of(artifacts)["reasons"] == [
        "the published model has the same weights: there is nothing to publish"
    ]
    assert published(artifacts).commit == again


def evaluated(artifacts, recipe, steps):
    """The verdict on a candidate, and how often earlier comparisons used the rows."""
    releases.learn(artifacts, recipe, steps)
    verdict = releases.evaluate(artifacts, recipe).verdict
    return verdict, blessing_of(artifacts)["row_use"]["uses"]


def test_comparisons_on_the_same_rows_share_the_error_until_the_rows_are_used_up(project):
    artifacts, usual, first = project
    releases.learn(artifacts, usual, WORSE)
    releases.evaluate(artifacts, usual)
    shorter = comparisons_of(artifacts)["bits_per_byte"]
    content = tiny.recipe({"evaluation.gate.over": "test_rows", "evaluation.gate.comparisons": 3})
    recipe = load(tiny.write(artifacts.root / "params" / "tiny.yaml", content))
    assert evaluated(artifacts, recipe, WORSE) == ("keep", 0.0), "the log has only verdicts with `over: release`"
    entry = read_release_events(artifacts)[-1]
    assert (entry.event, len(entry.row_sketch)) == ("verdict", releases.SIZES["test"])
    assert entry.confidence == blessing_of(artifacts)["confidence"] == pytest.approx(1 - 0.05 / 3)
    details = json.loads(artifacts.report("details").read_text())
    assert details["confidence"] == entry.confidence
    longer = comparisons_of(artifacts)["bits_per_byte"]
    assert (longer["low"] < shorter["low"], longer["high"] > shorter["high"]) == (True, True)
    (reason,) = blessing_of(artifacts)["reasons"]
    assert "(98.33% interval" in reason
    log = artifacts.release_events.read_bytes()
    assert evaluated(artifacts, recipe, WORSE) == ("keep", 0.0), "the same comparison again"
    assert artifacts.release_events.read_bytes() == log

    assert evaluated(artifacts, recipe, WORSE + 1) == ("keep", 1.0)
    assert evaluated(artifacts, recipe, WORSE + 2) == ("keep", 2.0)
    assert "after this comparison, 0.0 of 3 are left" in blessing_of(artifacts)["reasons"][-1]
    for _ in range(2):
        assert evaluated(artifacts, recipe, BETTER) == ("keep", 3.0)
        (reason,) = blessing_of(artifacts)["reasons"]
        assert reason.startswith("the held-out rows are used up")
        assert read_release_events(artifacts)[-1].row_sketch == (), "it could not pass, so it used nothing"
    assert evaluated(artifacts, recipe, WORSE) == ("keep", 2.0)
    assert "worse than the champion's" in blessing_of(artifacts)["reasons"][0], "it has had its comparison"
    assert releases.publish(artifacts, recipe).status == "kept"

    texts = tiny.sentences(releases.SIZES["test"], seed=77)
    table = SplitRows(artifacts.rows / "test").table()
    tiny.write_rows(artifacts, test={"text": texts, "label": table["label"]})
    shutil.rmtree(artifacts.tokens)
    tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    verdict, uses = evaluated(artifacts, recipe, BETTER)
    assert (verdict, uses < 0.5) == ("publish", True)
    receipt = releases.publish(artifacts, recipe)
    assert (receipt.status, receipt.commit != first.commit) == ("published", True)
    said = f"earlier comparisons used the held-out rows {uses:.1f} of 3 times"
    write_run_report_page(artifacts)
    assert said in artifacts.page.read_text()
    with LocalHub(artifacts.root / ".hub", tokens={TOKEN: "tests"}) as hub:
        card = ModelCard.load(HfApi(endpoint=hub.endpoint, token=TOKEN).hf_hub_download(REPO, "README.md"))
    assert f"Its verdict was `publish` ({said}):" in card.content
    assert "(98.33% interval of the gain" in card.content


def test_first_release_over_test_rows_is_a_comparison(tmp_path):
    artifacts, recipe = releases.tokenized(tmp_path, tiny.recipe({"evaluation.gate.over": "test_rows"}))
    assert evaluated(artifacts, recipe, STEPS) == ("publish", 0.0)
    releases.publish(artifacts, recipe)
    assert releases.evaluate(artifacts, recipe).verdict == "keep"
    assert blessing_of(artifacts)["row_use"] is None, "the champion is not compared with itself"
    assert evaluated(artifacts, recipe, WORSE) == ("keep", 1.0)


def test_model_below_floor_is_refused_with_the_reason(project, monkeypatch, capsys):
    artifacts, _, first = project
    content = tiny.recipe({"evaluation.gate.floors": {"bits_per_byte": 0.01}})
    recipe = load(tiny.write(artifacts.root / "params" / "tiny.yaml", content))
    releases.learn(artifacts, recipe, BETTER)
    assert releases.evaluate(artifacts, recipe).verdict == "refuse"
    before = artifacts.receipt.read_text()
    monkeypatch.chdir(artifacts.root)
    assert main(["publish", "params/tiny.yaml"]) == ModelError.exit_code
    error = capsys.readouterr().err
    assert "GateRefusedError: runs/tiny/evaluation/blessing.json: the gate refuses the model: bits_per_byte" in error
    assert "0.01, the recipe's floor" in error
    assert artifacts.receipt.read_text() == before
    assert artifacts.model.exists()
    assert published(artifacts).commit == first.commit


@pytest.mark.parametrize("what", ["model", "data", "recipe", "repository"])
def test_blessing_of_other_inputs_is_refused(project, what):
    artifacts, recipe, first = project
    releases.learn(artifacts, recipe, WORSE)
    releases.evaluate(artifacts, recipe)
    assert releases.publish(artifacts, recipe).status == "kept"
    changes = {}
    if what == "model":
        releases.learn(artifacts, recipe, BETTER)
    elif what == "data":
        tiny.write_sentences(artifacts, releases.SIZES | {"validation": 13})
    elif what == "recipe":
        recipe = recipe.model_copy(update={"seed": recipe.seed + 1})
    else:
        changes = {"repo_id": "tests/another"}
    with pytest.raises(ModelError, match=f"the blessing is for another {what}\n") as caught:
        releases.publish(artifacts, recipe, **changes)
    assert caught.value.fix.startswith("run the evaluate stage again")
    assert published(artifacts).commit == first.commit


def test_release_by_another_project_makes_the_blessing_stale(project, tmp_path, monkeypatch, capsys):
    artifacts, recipe, _ = project
    other = copied(artifacts, tmp_path / "other")
    releases.learn(artifacts, recipe, BETTER)
    releases.evaluate(artifacts, recipe)
    assert why_blessing_is_outdated(artifacts, recipe.publish) is None
    releases.learn(other, recipe, 2 * STEPS, seed=5)
    releases.evaluate(other, recipe)
    other_release = releases.publish(other, recipe)
    assert other_release.status == "published"
    shutil.rmtree(artifacts.root / ".hub")
    shutil.copytree(other.root / ".hub", artifacts.root / ".hub")

    assert why_blessing_is_outdated(artifacts, recipe.publish)
    with pytest.raises(StaleBlessingError):
        releases.publish(artifacts, recipe)
    monkeypatch.chdir(artifacts.root)
    assert main(["publish", "params/tiny.yaml"]) == os.EX_TEMPFAIL
    assert "StaleBlessingError: " in capsys.readouterr().err
    assert published(artifacts).commit == other_release.commit

    report = releases.evaluate(artifacts, recipe)
    assert blessing_of(artifacts)["champion"]["commit"] == other_release.commit
    assert releases.publish(artifacts, recipe).status == {"publish": "published", "keep": "kept"}[report.verdict]


def with_hub_of(released, root, content):
    """A project with another recipe and the Hub of `released`, and the metrics of that release."""
    artifacts, recipe = releases.tokenized(root, content)
    first, *_ = released
    shutil.copytree(first.root / ".hub", root / ".hub")
    return artifacts, recipe, json.loads(first.report("evaluate").read_text())["model"]


def test_champion_with_another_tokenizer_is_compared_in_bits_per_byte_only(released, tmp_path):
    content = tiny.recipe({"tokenization.tokenizer.vocab_size": 270})
    artifacts, recipe, before = with_hub_of(released, tmp_path, content)
    releases.learn(artifacts, recipe, BETTER)
    report = releases.evaluate(artifacts, recipe)
    assert report.champion == pytest.approx(before, rel=1e-6), "the same rows, with its own tokenizer"
    assert comparisons_of(artifacts).keys() == {"bits_per_byte"}
    own, champion = errors_of(artifacts, "model", "bytes"), errors_of(artifacts, "champion", "bytes")
    assert {one["row_id"]: one["gain"] for one in changed_of(artifacts)} == pytest.approx(
        {one["row_id"]: champion[one["row_id"]] - own[one["row_id"]] for one in changed_of(artifacts)}
    )
    assert len(changed_of(artifacts)) == 20
    assert comparisons_of(artifacts, "untrained").keys() == report.model.keys()
    assert report.verdict == "publish"
    assert releases.publish(artifacts, recipe).status == "published"

    content = tiny.recipe({"tokenization.tokenizer.vocab_size": 300, "evaluation.gate.metric": "loss"})
    recipe = load(tiny.write(artifacts.root / "params" / "tiny.yaml", content))
    shutil.rmtree(artifacts.tokens)
    tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    releases.learn(artifacts, recipe, STEPS)
    with pytest.raises(
        ModelError, match="another tokenizer or other settings of it, and loss cannot be compared between tokenizers"
    ):
        releases.evaluate(artifacts, recipe)


def test_champion_of_another_architecture_is_compared(released, tmp_path):
    artifacts, recipe, before = with_hub_of(released, tmp_path, tiny.recipe({"model.config": GPT2}))
    releases.learn(artifacts, recipe, BETTER)
    report = releases.evaluate(artifacts, recipe)
    assert report.champion == pytest.approx(before, rel=1e-9)
    assert comparisons_of(artifacts).keys() == report.model.keys()
    assert report.verdict == "publish"


@pytest.mark.parametrize(
    ("sections", "compared", "judged", "limit"),
    [({}, 32, 32, 2048), (tiny.CLASSES, None, 512, 512)],
    ids=["causal_lm", "classes"],
)
def test_a_release_reads_as_much_of_a_text_as_its_model(sections, compared, judged, limit, tmp_path):
    """The limit of training is not that of the model: its tokenizer keeps the model's, and its record says how far it was judged."""
    artifacts, recipe = releases.tokenized(tmp_path, tiny.recipe(**sections))
    releases.learn(artifacts, recipe, WORSE)
    releases.evaluate(artifacts, recipe)
    releases.publish(artifacts, recipe)
    content = tiny.recipe({"tokenization.max_length": 9}, **sections)
    recipe = load(tiny.write(artifacts.root / "params" / "tiny.yaml", content))
    shutil.rmtree(artifacts.tokens)
    tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    releases.learn(artifacts, recipe, BETTER)
    report = releases.evaluate(artifacts, recipe)
    assert (report.verdict, report.max_length) == ("publish", compared)
    receipt = releases.publish(artifacts, recipe)
    config = file_of(artifacts, receipt.commit, "tokenizer_config.json", tmp_path / "got")
    assert config["model_max_length"] == limit
    assert file_of(artifacts, receipt.commit, PROVENANCE, tmp_path / "got")["max_length"] == judged


def test_champion_for_another_task_is_an_error(released, tmp_path):
    artifacts, recipe, _ = with_hub_of(released, tmp_path, tiny.recipe(**tiny.CLASSES))
    releases.learn(artifacts, recipe, STEPS)
    with pytest.raises(ModelError, match="cannot be scored") as caught:
        releases.evaluate(artifacts, recipe)
    assert "publish to another repository (publish.repo_id)" in caught.value.fix
    assert not artifacts.evaluation.exists()


def test_champion_that_lacks_a_label_scores_a_blind_guess_for_it(tmp_path):
    artifacts, recipe = releases.tokenized(tmp_path / "few", tiny.recipe(**tiny.CLASSES))
    every = artifacts.rows.rename(artifacts.validated / "every")
    for split in SPLITS:
        rows = SplitRows(every / split)
        tiny.write_some(rows, artifacts.rows / split, [row["label"] != "friend" for row in rows.rows()])
    shutil.rmtree(artifacts.tokens)
    tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    releases.learn(artifacts, recipe, STEPS)
    before = releases.evaluate(artifacts, recipe)
    releases.publish(artifacts, recipe)

    shutil.rmtree(artifacts.rows)
    every.rename(artifacts.rows)
    tokenizer = artifacts.root / "tokenizer"
    shutil.copytree(artifacts.tokenizer, tokenizer)
    shutil.rmtree(artifacts.tokens)
    tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    releases.learn(artifacts, recipe, BETTER)
    report = releases.evaluate(artifacts, recipe)
    assert report.rows > before.rows
    rows = pq.read_table(artifacts.evaluation / "scores" / "champion.parquet").to_pylist()
    labels = ["cat", "dog", "friend", "king"]
    unknown = [row for row in rows if labels[int(row["label"])] == "friend"]
    assert len(unknown) == report.rows - before.rows
    assert all(row["nll"] == pytest.approx(math.log(4), rel=1e-5) for row in unknown)
    right = sum(row["label"] == row["prediction"] for row in rows)
    assert right == pytest.approx(before.model["accuracy"] * before.rows), "other labels are scored as before"
    assert report.verdict == "publish"
    assert comparisons_of(artifacts)["accuracy"]["p_value"] < 0.05


def test_publish_needs_a_valid_blessing(project):
    artifacts, recipe, _ = project
    artifacts.blessing.unlink()
    with pytest.raises(ModelError, match=r"blessing\.json: is missing"):
        releases.publish(artifacts, recipe)
    artifacts.blessing.write_text('{"verdict": "publish"}')
    with pytest.raises(
        ModelError, match=r"blessing\.json: was written by another version of Evergreen: reasons: Field required"
    ):
        read_report(artifacts, Blessing)
