"""Which rows are looked at, and what is kept of them."""

from __future__ import annotations

import datetime as dt
import json
import math

import numpy as np
import pyarrow as pa
import pytest

from params.schema import ObjectiveChoice
from tasks.known_rows import rows as module
from tasks.known_rows.rows import (
    BUCKETS,
    MAX_FEATURES,
    NO_LABEL,
    ComparedColumns,
    SmallestHashes,
    hash_row_values,
    hashed_ngrams,
    join_texts_in_value,
    label_hash,
    look_like_identifiers,
)
from tasks.shards.split_rows import SplitRows
from tests.support import tiny
from tests.support.validation import sampled, scanned
from trainer import objectives

CLASSES = objectives.build_objective(ObjectiveChoice(name="sequence_classification"))
SPANS = objectives.build_objective(ObjectiveChoice(name="token_classification"))


def write(folder, columns, group_by):
    tiny.write_splits(folder, {"train": columns}, group_by=[group_by])
    return SplitRows(folder / "train")


def test_hash_of_a_row_never_changes():
    """A profile that was published years ago must still tell old rows from new ones."""
    assert hash_row_values(["a", 1, None]) == 0x10C084DBBA9E8B5E


def test_columns_are_those_of_the_objective_and_numbers(tmp_path):
    types = {
        "text": pa.string(),
        "label": pa.string(),
        "price": pa.float64(),
        "count": pa.int32(),
        "when": pa.timestamp("s"),
        "customer": pa.int64(),
        "version": pa.int64(),
        "note": pa.string(),
    }
    rows = write(tmp_path, {name: pa.nulls(1, kind) for name, kind in types.items()}, "customer")
    columns = ComparedColumns.of(rows, CLASSES, ["version"])
    assert columns == ComparedColumns(("label",), ("text",), ("price", "count"), {"customer": False})
    assert columns.content == ["label", "text"]


def test_smallest_hashes_do_not_depend_on_order_or_batches(monkeypatch):
    monkeypatch.setattr(module, "MAX_KNOWN", 50)
    random = np.random.default_rng(0)
    hashes = random.integers(0, 2**63, 1000).astype(np.uint64)
    hashes[900:] = hashes[:100]  # repeated rows count once
    ids = np.arange(1000)
    expected = np.unique(hashes)[:50]
    for order, size in ((np.arange(1000), 1000), (random.permutation(1000), 7)):
        smallest = SmallestHashes()
        for start in range(0, 1000, size):
            chosen = order[start : start + size]
            smallest.add(hashes[chosen], ids[chosen])
        np.testing.assert_array_equal(smallest.hashes, expected)
        np.testing.assert_array_equal(hashes[smallest.row_ids], expected)
        assert not smallest.is_whole


def test_all_hashes_are_known_of_few_rows(monkeypatch):
    monkeypatch.setattr(module, "MAX_KNOWN", 3)
    smallest = SmallestHashes()
    smallest.add(np.array([5, 9], np.uint64), np.array([0, 1]))
    smallest.add(np.array([5, 7, 7], np.uint64), np.array([2, 3, 4]))
    assert smallest.is_whole
    assert smallest.row_ids.tolist() == [0, 3, 1]
    smallest.add(np.array([9], np.uint64), np.array([5]))
    assert smallest.is_whole
    smallest.add(np.array([10], np.uint64), np.array([6]))
    assert not smallest.is_whole


def test_scan_and_sample(tmp_path):
    rows = write(
        tmp_path,
        {
            "text": ["Where is my card?", "Where is my card?", "Lost card"],
            "label": ["arrival", "arrival", "lost"],
            "who": ["a", "b", "a"],
            "price": [1.5, None, 2.5],
        },
        "who",
    )
    columns = ComparedColumns.of(rows, CLASSES, [])
    found = scanned(rows, columns)
    assert found.rows == 3
    assert found.labels == {"label": {hash_row_values(["arrival"]): 2, hash_row_values(["lost"]): 1}}
    assert sorted(found.smallest.row_ids.tolist()) == [0, 2]
    one = sampled(rows, columns, np.array([2, 0]))
    assert one.labels == {"label": [["lost"], ["arrival"]]}
    assert one.lengths["text"].tolist() == [9.0, 17.0]
    assert one.numbers["price"].tolist() == [2.5, 1.5]
    assert one.features == [hashed_ngrams(["Lost card"]), hashed_ngrams(["Where is my card?"])]
    assert one.groups[0] == one.groups[1]
    assert np.isnan(sampled(rows, columns, np.array([1])).numbers["price"]).all()


def test_rows_without_a_group_are_observations_of_their_own(tmp_path):
    rows = write(tmp_path, {"text": list("abcdef"), "label": ["x"] * 6, "who": [None, "k", "", None, "k", " "]}, "who")
    groups = sampled(rows, ComparedColumns.of(rows, CLASSES, []), np.arange(6)).groups
    assert groups[1] == groups[4]
    assert len(np.unique(groups)) == 5


def test_scan_hashes_rows_as_profiles_do(tmp_path, monkeypatch):
    """Whatever the values, and in several shards: profiles that were published have these hashes."""
    monkeypatch.setattr("tests.support.tiny.PART_ROWS", 3)
    columns = {
        "text": ['a "b"\n', "é 我 \x7f", "", None, "a", "a", "last"],
        "label": [1, None, -3, 2**60, 1, 1, 0],
        "spans": [[{"start": 1, "label": None}], [], None, [], [{"start": 0, "label": "é"}], [], []],
        "score": [0.1, math.nan, None, -0.0, 1e300, math.inf, 5.0],
        "day": [dt.date(2026, 1, 1)] * 7,
        "flag": [True, False, None, True, True, True, True],
    }
    rows = write(tmp_path, columns, "flag")
    compared = ComparedColumns(("label", "flag"), ("text", "spans", "score", "day"), (), {})
    expected = {hash_row_values([row[column] for column in compared.content]): row["row_id"] for row in rows.rows()}
    found = scanned(rows, compared).smallest
    assert dict(zip(found.hashes.tolist(), found.row_ids.tolist(), strict=True)) == expected


def test_features_are_words_and_pairs_of_words():
    assert len(hashed_ngrams(["Where is my card?"])) == 7
    assert hashed_ngrams(["where IS my card"]) == hashed_ngrams(["Where is my card?"])
    assert hashed_ngrams(["card", "lost"]) != hashed_ngrams(["lost", "card"])  # other columns
    assert len(hashed_ngrams(["我的卡在哪里"])) == 11  # by character, where words have no spaces between them
    long = hashed_ngrams([" ".join(map(str, range(5000)))])
    assert len(long) == MAX_FEATURES
    assert long == sorted(set(long))
    assert max(long) < BUCKETS
    assert set(long) >= set(hashed_ngrams([" ".join(map(str, range(4000)))])) & set(range(long[-1]))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a b", "a b"),
        ([{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}], "user hello assistant hi"),
        ([{"label": "time", "start": 3, "end": 5}], "time"),
        (None, ""),
        ([], ""),
    ],
)
def test_text_of_a_value(value, text):
    assert join_texts_in_value(value) == text


def test_labels_in_lists_are_those_that_the_objective_finds(tmp_path):
    spans = [["time", "time", "date"], [], ["date"]]
    columns = {
        "text": ["at 8 or 9 on Friday", "hello", "on Monday"],
        "spans": [[{"label": label, "start": i, "end": i + 1} for i, label in enumerate(own)] for own in spans],
    }
    rows = write(tmp_path, columns, "text")
    chosen = ComparedColumns.of(rows, SPANS, [])
    assert (chosen.labels, chosen.listed, chosen.content) == ((), "spans", ["text", "spans"])
    counts = {label_hash("time"): 1, label_hash("date"): 2, label_hash(NO_LABEL): 1}
    assert scanned(rows, chosen).labels == {"spans": counts}
    assert sampled(rows, chosen, np.arange(3)).labels == {"spans": [["time", "time", "date"], [NO_LABEL], ["date"]]}


RANDOM = np.random.default_rng(0)
TWEETS = 570_306_133_677_760_513 + RANDOM.permutation(300) * 10_007_001.0
IDENTIFIERS = {
    "all different": np.arange(100.0),
    "nearly all different": RANDOM.permutation([*range(100), 5]).astype(float),
    "with gaps": np.array([np.nan, *range(100)]),
    "rounded to a double": TWEETS,
    "rounded by a spreadsheet": np.round(TWEETS, -12),
    "the same post in several rows": np.repeat(TWEETS[:60], 5),
    "UUIDs as numbers of 64 bits": RANDOM.integers(2**62, 2**63, 300).astype(float),
    "seconds of a clock": np.sort(RANDOM.integers(1.7e9, 1.7e9 + 500, 300)).astype(float),
    "fractions of seconds": 1.7e9 + np.cumsum(RANDOM.exponential(size=300)),
}
MEASURES = {
    "few values": RANDOM.integers(1, 6, 300).astype(float),
    "sorted by class": np.sort(RANDOM.integers(0, 77, 300)).astype(float),
    "fractions": RANDOM.lognormal(size=300),
    "counts": np.floor(RANDOM.lognormal(4, 1, 300)),
    "large, and no numbers of 64 bits": RANDOM.lognormal(60, 1, 300),
    "few rows": np.arange(5.0),
    "nothing": np.full(300, np.nan),
}


@pytest.mark.parametrize("name", IDENTIFIERS)
def test_identifiers_are_told_from_measures(name):
    assert look_like_identifiers(IDENTIFIERS[name])


@pytest.mark.parametrize("name", MEASURES)
def test_measures_are_no_identifiers(name):
    assert not look_like_identifiers(MEASURES[name])


def test_a_new_label_makes_no_row_a_new_one(tmp_path):
    """A record says something of all labels, so a new one is in all records; and Arrow unites structs over all rows."""
    sets = objectives.build_objective(ObjectiveChoice(name="multi_label_classification", labels_column="cats"))
    cats = [{"cat": 1.0, "rain": 0.0}, {"cat": 0.0, "rain": 1.0}, {"cat": 0.0, "rain": 0.0}]
    found = []
    for name, records in {
        "known": cats,
        "one more label": [*({**own, "snow": 0.0} for own in cats), {"cat": 1.0, "rain": 0.0, "snow": 1.0}],
        "in some rows only": [*cats, {"snow": 1}],
        "JSON": pa.array([*map(json.dumps, cats), '{"cat": 1, "snow": 1}'], pa.string()).cast(pa.json_()),
    }.items():
        rows = write(tmp_path / name, {"text": [*"abcd"[: len(records)]], "cats": records}, "text")
        columns = ComparedColumns.of(rows, sets, [])
        scan = scanned(rows, columns)
        assert {label_hash(label) for label in ("cat", "rain", NO_LABEL)} <= scan.labels["cats"].keys()
        found.append({*scan.smallest.hashes.tolist()})
    assert [len(own) for own in found] == [3, 4, 4, 4]
    assert all(found[0] < own for own in found[1:])
