"""The validate stage compares new rows with those of a release on a real local Hub."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from params import DataError, HubRefusedError, TransientError
from params.foundation.artifacts import MAX_BYTES, Artifacts
from params.sections.rows import Drift, Validation
from tasks.commands import main
from tasks.hub_client.repository import HubRepository, RetryPolicy
from tasks.hub_server.server import LocalHub
from tasks.measurements.drift.measurement import DriftOfRows
from tasks.publishing.assembly import assemble_release_folder
from tasks.publishing.model_card import render_model_card
from tasks.publishing.provenance import collect_provenance
from tasks.recipes.loading import load
from tasks.report.page import render_report_page
from tasks.shards.split_rows import SplitRows
from tasks.stages import read_report
from tasks.tokenization.stage import tokenize
from tasks.validation.report import ValidationReport
from tasks.validation.stage import validate
from tests.support import releases, tiny
from tests.support.html import Outline
from tests.support.project import free_port

pytestmark = pytest.mark.usefixtures("no_hub_settings")
PROFILE = "evergreen-data-profile.dat"
WAYS = ["when will {} come", "I still wait for {}", "is {} on its way", "tell me about {} please", "what happens to {}"]
THINGS = {
    "card_arrival": ["my card", "the new card", "the card that I ordered", "a second card"],
    "cash_withdrawal": ["my cash", "the money from the machine", "cash at the counter", "coins and notes"],
    "exchange_rate": ["the rate for euros", "today's exchange rate", "the price of dollars", "rates for yen"],
    "passport_scan": ["my passport scan", "the picture of my passport", "the identity check", "the visa page"],
}
KNOWN = ["card_arrival", "cash_withdrawal", "exchange_rate"]
RECIPE = tiny.recipe(
    {"evaluation.compare_untrained": False, "training.best_metric": "loss"},
    **{k: tiny.CLASSES[k] for k in tiny.CLASSES},
)


def questions(count: int, intents: list[str], seed: int) -> list[tuple[str, str]]:
    chance = random.Random(seed)
    found = []
    for i in range(count):
        intent = intents[i % len(intents)]
        found.append(
            (f"{chance.choice(WAYS).format(chance.choice(THINGS[intent]))} {chance.randint(0, 10**6)}", intent)
        )
    return found


def write_raw(artifacts: Artifacts, train: list[tuple[str, str]]) -> None:
    splits = {"train": train, "validation": questions(12, KNOWN, 101), "test": questions(40, KNOWN, 102)}
    columns = {
        split: {
            "text": [text for text, _ in rows],
            "label": [label for _, label in rows],
            "question_id": [*range(len(rows))],
        }
        for split, rows in splits.items()
    }
    tiny.write_splits(artifacts.raw, columns)


def run(artifacts: Artifacts, *, endpoint: str = "local", columns: dict[str, str] | None = None, **drift: object):
    """The validate stage."""
    recipe = load(artifacts.recipe_path)
    objective = recipe.objective.model_copy(update=columns or {})
    return (
        validate(
            artifacts,
            seed=recipe.seed,
            validation=Validation(drift=Drift.model_validate(drift)),
            objective=objective,
            repo_id=recipe.publish.repo_id,
            endpoint=endpoint,
            launch=recipe.launch,
        )
        .findings(DriftOfRows)
        .drift
    )


@pytest.fixture(scope="module")
def released(tmp_path_factory) -> tuple[Artifacts, str]:
    """A project with a release that learned from questions of three intents, and the release's tag."""
    artifacts, recipe = releases.tokenized(tmp_path_factory.mktemp("released"), RECIPE)
    write_raw(artifacts, questions(400, KNOWN, 0))
    first = run(artifacts)
    assert first.status == "no_reference"
    assert first.sentence == "Drift was not measured: no model was published yet as tests/tiny."
    assert not (artifacts.root / ".hub").exists()
    assert first.sentence in (artifacts.validated / "report.html").read_text()
    source = json.loads(artifacts.report("ingest").read_text()) if artifacts.report("ingest").exists() else None
    tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    if source is None:
        pytest.fail("the ingest report is missing")
    releases.learn(artifacts, recipe, 5)
    releases.evaluate(artifacts, recipe)
    receipt = releases.publish(artifacts, recipe)
    assert receipt.status == "published"
    return artifacts, receipt.tag


@pytest.fixture
def project(released, tmp_path) -> tuple[Artifacts, str]:
    artifacts, tag = released
    shutil.copytree(artifacts.root, tmp_path / "project")
    return Artifacts("tiny", tmp_path / "project"), tag


def add(artifacts: Artifacts, rows: list[tuple[str, str]]) -> None:
    write_raw(artifacts, [*questions(400, KNOWN, 0), *rows])


def test_release_carries_the_profile(released):
    artifacts, tag = released
    with LocalHub(artifacts.root / ".hub", tokens={"hf_tests": "tests"}) as hub:
        repository = HubRepository(HfApi(endpoint=hub.endpoint, token="hf_tests"), "tests/tiny")
        assert repository.read(tag, PROFILE, max_bytes=1 << 20) == (artifacts.validated / PROFILE).read_bytes()


@pytest.mark.parametrize(
    ("private", "drift", "carried"), [(True, None, True), (False, None, False), (False, "report", True)]
)
def test_public_release_carries_the_profile_only_if_the_recipe_says_drift(project, private, drift, carried):
    artifacts, _ = project
    checks = {"expectations": []} | ({"drift": drift} if drift else {})
    tiny.write(artifacts.recipe_path, {**RECIPE, "validation": checks})
    candidate = releases.candidate(artifacts, private=private)
    assert (assemble_release_folder(candidate, collect_provenance(artifacts), None) / PROFILE).exists() is carried


def test_same_rows_are_nothing_new(project):
    artifacts, tag = project
    drift = run(artifacts)
    assert (drift.status, drift.revision, drift.looked_at, drift.word) == ("nothing_new", tag, 400, "none")
    assert drift.sentence == f"No new rows: all 400 rows that were looked at are among those of {tag}."


def test_new_rows_of_known_intents_do_not_drift(project):
    artifacts, tag = project
    add(artifacts, questions(60, KNOWN, 1))
    drift = run(artifacts, on_drift="fail")
    assert (drift.status, drift.known_rows, drift.new_rows, drift.moved) == ("compared", 400, 60, [])
    assert {change.what for change in drift.changes} == {
        "new labels (label)",
        "labels (label)",
        "words",
        "length of text",
    }
    assert drift.examples == ()
    assert f"comparing 60 new rows with 400 rows of {tag}, nothing moved" in drift.sentence


def test_new_intent_is_named_with_examples(project):
    artifacts, tag = project
    add(artifacts, [*questions(60, KNOWN, 1), *questions(12, ["passport_scan"], 2)])
    drift = run(artifacts)
    assert (drift.new_rows, drift.moved[0]) == (72, "new labels (label)")
    assert "passport_scan, 16.7% of the new rows" in drift.sentence
    assert len(drift.examples) == 5
    assert {example.values["label"] for example in drift.examples} == {"passport_scan"}
    assert run(artifacts) == drift

    page = Outline((artifacts.validated / "report.html").read_text()).text
    assert "passport_scan, 16.7% of the new rows" in page
    assert drift.examples[0].values["text"] in page
    assert "Not compared, because they look like identifiers or times: question_id." in page
    local, public = (render_report_page(artifacts, timings={}, quote_rows=quote) for quote in (True, False))
    for text in (Outline(local).text, Outline(public).text):
        assert "passport_scan, 16.7% of the new rows" in text
        assert "they look like identifiers or times: question_id." in text
    assert drift.examples[0].values["text"] in Outline(local).text
    assert drift.examples[0].values["text"] not in public
    card = render_model_card(releases.candidate(artifacts), collect_provenance(artifacts), None)
    assert f"The new rows drifted, comparing 72 new rows with 400 rows of {tag}" in card
    assert drift.examples[0].values["text"] not in card


def test_drift_can_end_the_stage(project, monkeypatch, capsys):
    artifacts, _ = project
    before = read_report(artifacts, ValidationReport)
    add(artifacts, questions(12, ["passport_scan"], 2))
    with pytest.raises(DataError) as raised:
        run(artifacts, on_drift="fail")
    assert "passport_scan" in raised.value.what
    assert "validation.drift: report" in raised.value.fix
    assert read_report(artifacts, ValidationReport) == before
    assert len(SplitRows(artifacts.rows / "train")) == 400
    page = Outline((artifacts.failed_validation / "report.html").read_text()).text
    assert "tiny: validation failed" in page
    assert "passport_scan" in page
    content = {**RECIPE, "validation": {"expectations": [], "drift": "fail"}}
    tiny.write(artifacts.recipe_path, content)
    monkeypatch.chdir(artifacts.root)
    assert main(["validate", "params/tiny.yaml"]) == DataError.exit_code
    assert "new labels (label): passport_scan" in capsys.readouterr().err


def test_turned_off_neither_compares_nor_writes_a_profile(project):
    artifacts, _ = project
    assert run(artifacts, on_drift="off") is None
    assert not (artifacts.validated / PROFILE).exists()
    assert "Drift" not in (artifacts.validated / "report.html").read_text()


def test_release_without_a_profile_is_said(project):
    artifacts, tag = project
    run(artifacts, on_drift="off")
    recipe = load(artifacts.recipe_path)
    releases.learn(artifacts, recipe, 40)
    releases.evaluate(artifacts, recipe, gate=recipe.evaluation.gate.model_copy(update={"margin": 0.99}))
    gate = recipe.evaluation.model_copy(update={"gate": recipe.evaluation.gate.model_copy(update={"margin": 0.99})})
    receipt = releases.publish(artifacts, recipe.model_copy(update={"evaluation": gate}))
    assert (receipt.status, receipt.tag == tag) == ("published", False)
    drift = run(artifacts, on_drift="fail")
    assert (drift.status, drift.revision) == ("no_reference", receipt.tag)
    assert (
        drift.sentence
        == f"Drift was not measured: {receipt.tag} has no profile of its rows ({PROFILE}); a public release has one "
        "if the recipe sets validation.drift."
    )


def test_release_of_other_columns_is_said(project):
    artifacts, tag = project
    tiny.write(artifacts.recipe_path, RECIPE | {"objective": {"name": "causal_lm", "text_column": "text"}})
    drift = run(artifacts)
    assert drift.sentence == f"Drift was not measured: {tag} learned from other columns: label, text."


def test_hub_that_does_not_answer_is_said_or_an_error(project, monkeypatch):
    artifacts, _ = project
    monkeypatch.setattr(
        HubRepository.__init__, "__defaults__", (2.0, True, RetryPolicy(attempts=1), lambda _: None, "")
    )
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("HF_TOKEN", "hf_nobody")
    drift = run(artifacts)
    assert drift.status == "no_reference"
    assert drift.word == "unknown"
    assert "the Hub did not say which model is published (http://127.0.0.1:" in drift.sentence
    assert "no clear answer" in (artifacts.validated / "report.html").read_text()
    with pytest.raises(TransientError, match="no clear answer"):
        run(artifacts, on_drift="fail")
    for on_drift in ("fail", "report"):
        with pytest.raises(HubRefusedError, match="holds a user or a password") as refused:
            run(artifacts, on_drift=on_drift, endpoint="https://me:secret@hub.example")
        assert "secret" not in str(refused.value)


def test_damaged_profile_is_said(project, monkeypatch):
    artifacts, tag = project
    monkeypatch.setattr(HubRepository, "read", lambda *_, **__: b"PAR1 torn")
    drift = run(artifacts)
    assert drift.sentence == f"Drift was not measured: {PROFILE} of {tag} cannot be read: it is damaged: ArrowInvalid."


def test_profile_that_is_too_large_is_said_or_an_error(project, monkeypatch):
    artifacts, tag = project
    monkeypatch.setitem(MAX_BYTES, PROFILE, 100)
    assert f"{PROFILE} of {tag} cannot be read" in run(artifacts).sentence
    with pytest.raises(HubRefusedError, match="more than the 100 that it may have"):
        run(artifacts, on_drift="fail")


@pytest.mark.parametrize("text", ["report", "fail", "off"])
def test_recipe_may_give_a_word(tmp_path: Path, text: str):
    path = tiny.write(tmp_path / "params/tiny.yaml", tiny.recipe(validation={"drift": "WORD"}))
    path.write_text(path.read_text().replace("WORD", text))
    assert load(path).validation.drift == Drift(on_drift=text)


def test_effects_below_their_floors_are_no_drift(project):
    artifacts, _ = project
    add(artifacts, [*questions(60, KNOWN, 1), *questions(12, ["passport_scan"], 2)])
    floors = {"min_new_labels": 0.2, "min_label_change": 0.9, "min_auc": 0.99, "min_distance": 50.0}
    drift = run(artifacts, on_drift="fail", **floors)
    assert drift.changes[0].p_value < 0.001
    assert drift.moved == []
