"""The gate compares with the champion only on held-out rows that it has not learned from."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from params import ModelError
from params.foundation.artifacts import KNOWN_ROWS, PROFILE, SPLITS, TIMES
from params.schema import ObjectiveChoice
from tasks.digests import PROVENANCE
from tasks.hub_client.connection import open_repository
from tasks.known_rows.hashes import KnownHashes, shorten_hashes, write_hashes
from tasks.known_rows.profile import DataProfile
from tasks.known_rows.rows import ComparedColumns, hash_rows
from tasks.lineage.learned_rows import HeldOutRows, record_learned_rows, rows_of_release
from tasks.lineage.training_record import SaidOfRows, TrainingRecord
from tasks.measurements.drift.new_rows import write_profile_and_measure_drift
from tasks.publishing.model_card import render_model_card
from tasks.publishing.provenance import collect_provenance
from tasks.report.page import write_run_report_page
from tasks.shards.kept_work import ShardWorkers
from tasks.shards.split_rows import SCHEMA, SplitRows
from tasks.stages import read_report, save_report
from tasks.tokenization.stage import tokenize
from tasks.training.report import TrainingReport
from tests.support import releases, tiny, tiny_releases
from trainer import objectives
from trainer.start import RECORD, ReleaseReference

pytestmark = pytest.mark.usefixtures("no_hub_settings")
REPO = "tests/tiny"


def learned_by(release, rows, objective):
    """The row_ids of the rows that a release has learned from, whose files are in a folder."""
    held_out = HeldOutRows(rows, ComparedColumns.of(rows, objective, ()))
    return held_out.learned_by([rows_of_release(release, "the champion", held_out.columns)])


def profile_of(artifacts, recipe, split):
    """What a release has whose model learned from a split of the rows."""
    folder = artifacts.root / f"learned-{split}"
    for own, rows in {"train": split, "validation": "validation", "test": "validation"}.items():
        shutil.copytree(artifacts.rows / rows, folder / artifacts.rows.name / own)
    with ShardWorkers(artifacts, "validate", recipe.launch) as workers:
        write_profile_and_measure_drift(
            artifacts,
            folder,
            workers,
            drift=recipe.validation.drift,
            objective=objectives.build_objective(recipe.objective),
            seed=1,
            repo_id=REPO,
            endpoint="local",
        )
    return (folder / PROFILE).read_bytes()


def release(artifacts, recipe, learned):
    """Publish a first release whose model says that it learned from a split."""
    releases.learn(artifacts, recipe, 12)
    columns = ComparedColumns.of_objective(objectives.build_objective(recipe.objective))
    rows = KnownHashes.of(SplitRows(artifacts.rows / learned), columns)
    TrainingRecord({"own": rows}, SaidOfRows()).write(columns, artifacts.model)
    releases.evaluate(artifacts, recipe)
    return releases.publish(artifacts, recipe)


@pytest.mark.parametrize(("learned", "left"), [("train", 40), ("test", 0)])
def test_a_champion_that_learned_from_the_held_out_rows_is_not_judged_on_them(tmp_path, learned, left):
    artifacts, recipe = releases.tokenized(tmp_path, tiny.recipe())
    release(artifacts, recipe, learned)
    releases.learn(artifacts, recipe, 40)  # a better model, wherever it is compared
    report = releases.evaluate(artifacts, recipe)
    details = json.loads((artifacts.evaluation / "details.json").read_text())
    compared = [one for one in details["comparisons"] if one["against"] == "champion"]
    assert details["learned_rows"] == 40 - left
    if left:
        assert report.verdict == "publish"
        assert {(one["rows"], one["learned"]) for one in compared} == {(left, 0)}
    else:
        assert (report.verdict, compared) == ("keep", [])
        (reason,) = json.loads(artifacts.blessing.read_text())["reasons"]
        assert reason.startswith("nothing can be compared: the champion has learned from 40 held-out rows")


def test_the_verdict_says_that_few_rows_are_left(tmp_path, monkeypatch):
    artifacts, recipe = releases.tokenized(tmp_path, tiny.recipe())
    release(artifacts, recipe, "train")
    releases.learn(artifacts, recipe, 40)
    ids = np.array(held_out_ids(artifacts))
    monkeypatch.setattr(HeldOutRows, "learned_by", lambda _, models: ids[:-3] if models else ids[:0])
    assert releases.evaluate(artifacts, recipe).verdict == "keep"
    (reason,) = json.loads(artifacts.blessing.read_text())["reasons"]
    assert " on 3 rows, without the 37 that the champion has learned from" in reason
    assert "3 rows cannot show it: a 95% interval needs at least" in reason


def held_out_ids(artifacts):
    return [row["row_id"] for row in SplitRows(artifacts.rows / "test").rows()]


def let_start_have_learned(artifacts, recipe, rows):
    """Let the training have started from the release, which has learned from these rows of the test split, and from two of the validation split."""
    with open_repository(artifacts, repo_id=REPO, endpoint="local") as repository:
        head = repository.head()
    start = ReleaseReference(endpoint="local", repo_id=REPO, **vars(head))
    shutil.rmtree(artifacts.start, ignore_errors=True)
    artifacts.start_record.mkdir(parents=True)
    (artifacts.start / RECORD).write_text(start.model_dump_json())
    (artifacts.start_record / PROVENANCE).write_text(json.dumps({"objective": recipe.objective.model_dump()}))
    test, validation = (SplitRows(artifacts.rows / split) for split in ("test", "validation"))
    columns = ComparedColumns.of(test, objectives.build_objective(recipe.objective), ())
    hashes = [*hash_rows(test, columns)[1][rows], *hash_rows(validation, columns)[1][:2]]
    known = KnownHashes(shorten_hashes(np.array(hashes, np.uint64)))
    write_hashes({"own": known}, columns, artifacts.start_record / KNOWN_ROWS)
    trained = read_report(artifacts, TrainingReport).model_copy(update={"started_from": start})
    save_report(trained, artifacts.report("train"))
    record_training(artifacts, recipe)


def record_training(artifacts, recipe):
    """What the training writes beside its model if it started from the release."""
    model = recipe.model.model_copy(update={"start": "champion"})
    record_learned_rows(artifacts.model, artifacts, model, objectives.build_objective(recipe.objective))


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A release that has learned from none of the 40 held-out rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("HF_ENDPOINT", raising=False)
        artifacts, recipe = releases.tokenized(tmp_path_factory.mktemp("released"), tiny.recipe())
        release(artifacts, recipe, "train")
    return artifacts, recipe


def test_rows_that_the_candidate_knows_through_its_start_count_nowhere(released):
    artifacts, recipe = released
    releases.learn(artifacts, recipe, 40)
    let_start_have_learned(artifacts, recipe, slice(0, 15))
    report = releases.evaluate(artifacts, recipe)
    assert (report.rows, report.sequences, report.learned, report.champion_rows) == (25, 25, 15, 25)
    details = json.loads((artifacts.evaluation / "details.json").read_text())
    assert {(one["against"], one["rows"], one["learned"]) for one in details["comparisons"]} == {
        ("champion", 25, 15),
        ("untrained", 25, 15),
    }
    for name in ("model", "untrained", "champion"):
        scored = pq.read_table(artifacts.evaluation / f"scores/{name}.parquet")["row_id"].to_pylist()
        assert scored == held_out_ids(artifacts)[15:], name
    reasons = json.loads(artifacts.blessing.read_text())["reasons"]
    told = "on 25 rows, without the 15 that the candidate has learned from through what it started from"
    assert told in reasons[0]
    write_run_report_page(artifacts)
    page = " ".join(artifacts.page.read_text().split())
    assert "15 other rows of the split do not count: the candidate has learned from them" in page
    assert report.learned_validation == 2
    assert "The best step was chosen on 2 validation rows that the candidate had learned from" in page
    card = render_model_card(releases.candidate(artifacts), collect_provenance(artifacts), None)
    assert "25 rows in 25 sequences that were not used for training" in card
    assert "15 other rows of the split do not count" in card


def test_two_numbers_of_different_rows_are_told_apart(released, monkeypatch):
    """The champion has learned from rows that the candidate has not: its metrics are of fewer rows, and each table says so."""
    artifacts, recipe = released
    releases.learn(artifacts, recipe, 40)
    let_start_have_learned(artifacts, recipe, slice(0, 15))
    ids, own = np.array(held_out_ids(artifacts)), HeldOutRows.learned_by
    monkeypatch.setattr(
        HeldOutRows, "learned_by", lambda self, models: ids[:20] if len(models) == 2 else own(self, models)
    )
    report = releases.evaluate(artifacts, recipe)
    assert (report.rows, report.champion_rows) == (25, 20)
    details = json.loads((artifacts.evaluation / "details.json").read_text())
    assert {(one["against"], one["rows"]) for one in details["comparisons"]} == {("champion", 20), ("untrained", 25)}
    assert "that one of the two has learned from" in json.loads(artifacts.blessing.read_text())["reasons"][0]
    write_run_report_page(artifacts)
    assert "(20 rows)" in artifacts.page.read_text()
    card = render_model_card(releases.candidate(artifacts), collect_provenance(artifacts), None)
    assert "previous release (20 rows)" in card
    assert "on the same 20 rows" in card


@pytest.mark.parametrize("kind", ["ranking", "question_answering", "embedding"])
def test_rows_that_only_the_champion_knows_are_not_said_of_the_candidate(tmp_path, kind):
    """These objectives look at several rows at once, so both models have the same ones."""
    artifacts, recipe = tiny_releases.evaluated(tmp_path, kind, private=True)
    assert releases.publish(artifacts, recipe).status == "published"
    kept = {split: pa.Table.from_pylist([*SplitRows(artifacts.rows / split).rows()]) for split in SPLITS}
    kept["test"] = pa.concat_tables([kept["train"][:6], kept["test"]])
    tiny.write_rows(artifacts, **{split: rows.drop_columns("row_id").to_pydict() for split, rows in kept.items()})
    tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    releases.learn(artifacts, recipe, 4)
    report = releases.evaluate(artifacts, recipe)
    assert (report.rows, report.learned, report.learned_by_champion_alone, report.champion_rows) == (12, 0, 6, 12)
    reasons = json.loads(artifacts.blessing.read_text())["reasons"]
    assert "on 12 rows, without the 6 that the champion has learned from" in reasons[0]
    card = render_model_card(releases.candidate(artifacts), collect_provenance(artifacts), None)
    assert "6 other rows of the split do not count: the previous release has learned from them" in card
    assert "the model has learned from them" not in card


def test_a_candidate_that_knows_all_rows_cannot_be_judged(released):
    artifacts, recipe = released
    releases.learn(artifacts, recipe, 40)
    let_start_have_learned(artifacts, recipe, slice(0, 40))
    with pytest.raises(ModelError, match="no held-out row is left to judge the model on: the release that its train"):
        releases.evaluate(artifacts, recipe)


def test_a_start_that_does_not_name_its_rows_is_said(released):
    artifacts, recipe = released
    releases.learn(artifacts, recipe, 40)
    let_start_have_learned(artifacts, recipe, slice(0, 15))
    (artifacts.start_record / KNOWN_ROWS).unlink()
    record_training(artifacts, recipe)
    report = releases.evaluate(artifacts, recipe)
    assert (report.rows, report.learned) == (40, 0)
    reason = json.loads(artifacts.blessing.read_text())["reasons"][-1]
    assert reason.startswith(
        "it is not known of all held-out rows whether the model has learned from them: tests/tiny@"
    )
    record = collect_provenance(artifacts)
    assert list(record["data"]["unknown"]) == report.unknown, "a later start hands it on"
    assert "It is not known of all these rows" in render_model_card(releases.candidate(artifacts), record, None)


@pytest.fixture
def timed(tmp_path):
    """Test rows of ten days, and a function that gives what a champion says of itself."""
    days = [f"2026-01-{day:02}" for day in range(1, 11)]
    rows = {"text": [f"row {day}" for day in days], "at": days}
    tiny.write_splits(tmp_path / "rows", {"train": {"text": ["a"], "at": ["2025-12-01"]}, "test": rows})

    def learned(until, champion="time", own="time"):
        path = tmp_path / "rows/test" / SCHEMA
        times = json.dumps({"column": "at", "newest": 0, "split": own})
        pq.write_metadata(pq.read_schema(path).with_metadata({TIMES: times}), path)
        folder = tmp_path / "champion"
        folder.mkdir(exist_ok=True)
        record = {"objective": {"name": "causal_lm"}, "data": {"learned_until": until, "split": champion}}
        (folder / "evergreen-provenance.json").write_text(json.dumps(record))
        objective = objectives.build_objective(ObjectiveChoice(name="causal_lm"))
        return learned_by(folder, SplitRows(tmp_path / "rows/test"), objective).tolist()

    return learned


@pytest.mark.parametrize(
    ("until", "champion", "own", "wanted"),
    [
        ("2026-01-04T00:00:00+00:00", "time", "time", 4),
        ("2026-01-04T00:00:00+01:00", "time", "time", 3),
        ("2026-01-04T00:00:00+00:00", "hash", "time", 4),
        ("2026-01-04T00:00:00+00:00", "time", "hash", 4),
        ("2026-01-04T00:00:00+00:00", "hash", "hash", 0),
        ("", "time", "time", 0),
        ("2025-12-31T23:59:59+00:00", "time", "time", 0),
    ],
)
def test_rows_up_to_the_time_of_the_champions_newest_row_do_not_count(timed, until, champion, own, wanted):
    assert timed(until, champion, own) == list(range(1, 1 + wanted))


def test_a_profile_of_other_columns_says_nothing(tmp_path):
    artifacts, recipe = releases.tokenized(tmp_path, tiny.recipe())
    champion = tmp_path / "champion"
    champion.mkdir()
    (champion / PROFILE).write_bytes(profile_of(artifacts, recipe, "test"))
    rows, objective = SplitRows(artifacts.rows / "test"), objectives.build_objective(recipe.objective)
    assert len(learned_by(champion, rows, objective)) == 40
    other = DataProfile.load((champion / PROFILE).read_bytes())
    other.content.append("another")
    other.save(champion / PROFILE)
    for unknown in ("it learned from other columns: text, another", "it is damaged"):
        assert not len(learned_by(champion, rows, objective))
        (reason,) = rows_of_release(champion, "the champion", ComparedColumns.of(rows, objective, ())).unknown
        assert reason.startswith(f"the champion: {unknown}")
        (champion / PROFILE).write_bytes(b"damaged")
