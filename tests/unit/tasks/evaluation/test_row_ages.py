"""Held-out rows that the champion's release had, and those that came since, are judged apart."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from params.sections.rows import Drift
from tasks.measurements.drift.new_rows import write_profile_and_measure_drift
from tasks.recipes.loading import load
from tasks.shards.split_rows import SplitRows
from tasks.tokenization.stage import tokenize
from tests.support import releases, tiny
from tests.support.validation import workers
from trainer import objectives

pytestmark = pytest.mark.usefixtures("no_hub_settings")
SIZES = {"train": 60, "validation": 12, "test": 40}
NEW = 35
STEPS, BETTER = 12, 40


def write_profile(artifacts, recipe):
    with workers(artifacts.validated) as own:
        objective = objectives.build_objective(recipe.objective)
        settings = {"drift": Drift(), "objective": objective, "seed": recipe.seed}
        place = {"repo_id": recipe.publish.repo_id, "endpoint": recipe.publish.endpoint}
        write_profile_and_measure_drift(artifacts, artifacts.validated, own, **settings, **place)


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """A project with a release, whose test split has new rows since, and another model."""
    artifacts, recipe = releases.tokenized(tmp_path_factory.mktemp("grown"), tiny.recipe(), SIZES)
    write_profile(artifacts, recipe)
    releases.learn(artifacts, recipe, STEPS)
    releases.evaluate(artifacts, recipe)
    assert details_of(artifacts)["ages"] == [], "without a champion, no row is old or new"
    releases.publish(artifacts, recipe)
    rows = {split: SplitRows(artifacts.rows / split).table().to_pydict() for split in SIZES}
    rows["test"]["text"] += tiny.sentences(NEW, seed=77)
    tiny.write_rows(artifacts, **{split: {"text": own["text"]} for split, own in rows.items()})
    tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    write_profile(artifacts, recipe)
    releases.learn(artifacts, recipe, BETTER)
    releases.evaluate(artifacts, recipe)  # which downloads the champion
    return artifacts, recipe


def details_of(artifacts):
    return json.loads(artifacts.report("details").read_text())


def test_known_and_new_rows_are_judged_apart(grown):
    artifacts, _ = grown
    recipe = load(tiny.write(artifacts.recipe_path, tiny.recipe({"evaluation.gate.known_margin": 0.1})))
    assert releases.evaluate(artifacts, recipe).verdict == "publish"
    details = details_of(artifacts)
    assert details["ages_unknown"] == ""
    assert [(one["slice"], one["rows"]) for one in details["ages"]] == [
        ("known rows", SIZES["test"]),
        ("new rows", NEW),
    ]
    assert [one["margin_p_value"] is None for one in details["ages"]] == [False, True]
    assert all(one["gain"] > 0 for one in details["ages"])


@pytest.mark.parametrize(("damage", "reason"), [(None, "has no profile of its rows"), (b"PAR1", "cannot be read")])
def test_unknown_ages_are_said(grown, damage, reason):
    artifacts, recipe = grown
    (path,) = artifacts.champion.glob(f"*/{artifacts.data_profile.name}")
    content = path.read_bytes()
    path.write_bytes(damage) if damage else path.unlink()
    try:
        releases.evaluate(artifacts, recipe)
        details = details_of(artifacts)
    finally:
        path.write_bytes(content)
    assert (details["ages"], reason in details["ages_unknown"]) == ([], True)


def test_a_release_of_an_earlier_version_does_not_tell(grown):
    artifacts, recipe = grown
    (path,) = artifacts.champion.glob(f"*/{artifacts.data_profile.name}")
    content = path.read_bytes()
    table = pq.read_table(pa.BufferReader(content))
    pq.write_table(table.filter(pa.compute.field("kind") != "held out"), path)
    try:
        releases.evaluate(artifacts, recipe)
    finally:
        path.write_bytes(content)
    assert "does not say which rows were held out" in details_of(artifacts)["ages_unknown"]
