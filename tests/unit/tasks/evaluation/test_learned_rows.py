"""The gate compares with the champion only on held-out rows that it has not learned from."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from params.foundation.artifacts import PROFILE, TIMES
from params.schema import ObjectiveChoice
from tasks.drift.measure import write_profile_and_measure_drift
from tasks.drift.profile import DataProfile
from tasks.drift.rows import ComparedColumns
from tasks.evaluation.learned_rows import HeldOutRows, rows_of_release
from tasks.shards.kept_work import ShardWorkers
from tasks.shards.split_rows import SCHEMA, SplitRows
from tests.support import releases, tiny
from trainer import objectives

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
    artifacts.data_profile.parent.mkdir(exist_ok=True)
    artifacts.data_profile.write_bytes(profile_of(artifacts, recipe, learned))
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
    ids = np.array([row["row_id"] for row in SplitRows(artifacts.rows / "test").rows()])
    monkeypatch.setattr(HeldOutRows, "learned_by", lambda _, models: ids[:-3] if models else ids[:0])
    assert releases.evaluate(artifacts, recipe).verdict == "keep"
    (reason,) = json.loads(artifacts.blessing.read_text())["reasons"]
    assert " on 3 rows, without the 37 that the champion has learned from" in reason
    assert "3 rows cannot show it: a 95% interval needs at least" in reason


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
