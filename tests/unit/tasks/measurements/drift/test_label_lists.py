"""Labels in lists, such as those of spans: new ones and other shares are found, and a quiet night stays quiet."""

from __future__ import annotations

import numpy as np
import pytest

from params.schema import ObjectiveChoice
from params.sections.rows import Drift
from tasks.known_rows.profile import DataProfile
from tasks.known_rows.rows import MAX_SAMPLED, ComparedColumns, without_identifier_columns
from tasks.measurements.drift.new_rows import compare_with_profile
from tasks.shards.split_rows import SplitRows
from tests.support import tiny
from tests.support.validation import sampled, scanned
from trainer import objectives

SPANS = objectives.build_objective(ObjectiveChoice(name="token_classification"))
KNOWN = {"people": 0.4, "date": 0.5, "time": 0.3, "name": 0.1}


def rows_of(count, seed, shares=KNOWN, group_size=1):
    """Rows whose words say nothing about their spans."""
    random = np.random.default_rng(seed)
    texts = tiny.sentences(count, seed)
    spans = [
        [
            {"label": label, "start": i, "end": i + 1}
            for i, (label, p) in enumerate(shares.items())
            if random.random() < p
        ]
        for _ in texts
    ]
    tweets = (570_306_133_677_760_513 + 10**9 * random.integers(0, 10**6, count) + 10**16 * seed).astype(float)
    customers = [f"{seed}-{i // group_size}" for i in range(count)]
    return {"text": texts, "spans": spans, "tweet_id": [*tweets], "customer": customers}


def compared(folder, known, new, seed=0, group_by=(), **drift):
    """What moved, and the columns that were left out."""
    tiny.write_splits(folder / "known", {"train": known}, group_by=group_by)
    together = {column: [*known[column], *new[column]] for column in known}
    tiny.write_splits(folder / "new", {"train": together}, group_by=group_by)
    rows = SplitRows(folder / "known/train")
    columns, found = ComparedColumns.of(rows, SPANS, []), scanned(rows, ComparedColumns.of(rows, SPANS, []))
    chosen = without_identifier_columns(columns, sampled(rows, columns, found.smallest.row_ids[:MAX_SAMPLED]))
    DataProfile.of(found, *chosen).save(folder / "profile")
    profile = DataProfile.load((folder / "profile").read_bytes())

    rows = SplitRows(folder / "new/train")
    smallest = scanned(rows, columns).smallest
    is_new, _ = profile.is_new(smallest.hashes)
    own = sampled(rows, chosen[0], smallest.row_ids[is_new])
    findings = compare_with_profile(profile, own, Drift.model_validate(drift), seed)
    return findings, own, chosen[0].identifiers


@pytest.mark.parametrize("group_by", [(), ("customer",)])
def test_new_labels_of_spans_are_named(tmp_path, group_by):
    groups = {"group_size": 3} if group_by else {}
    new = rows_of(200, 2, {**KNOWN, "cuisine": 0.08, "budget": 0.05}, **groups)
    findings, own, identifiers = compared(tmp_path, rows_of(600, 1, **groups), new, group_by=group_by)
    moved = {one.change.what: one.change.detail for one in findings if one.change.moved}
    assert next(iter(moved)) == "new labels (spans)"
    assert "cuisine" in moved["new labels (spans)"]
    assert "budget" in moved["new labels (spans)"]
    assert not {"tweet_id", "length of text"} & set(moved)
    assert identifiers == ("tweet_id",)
    shows = {i for i, labels in enumerate(own.labels["spans"]) if {"cuisine", "budget"} & {*labels}}
    assert {*np.flatnonzero(findings[0].row_scores > 0)} == shows
    if not group_by:
        assert findings[0].change.effect == pytest.approx(len(shows) / len(own.row_ids), abs=1e-4), "a share of rows"


def test_spans_that_become_rare_are_other_labels(tmp_path):
    """Rows without any span count, too."""
    findings, _, _ = compared(tmp_path, rows_of(600, 1), rows_of(200, 2, dict.fromkeys(KNOWN, 0.1)))
    (change,) = (one.change for one in findings if one.change.what == "labels (spans)")
    assert change.moved
    assert "(no label) from " in change.detail


@pytest.mark.parametrize("group_by", [pytest.param((), marks=pytest.mark.slow), ("customer",)])
def test_quiet_nights_stay_quiet(tmp_path, group_by):
    """At a confidence of 0.9, without floors: 9 of 100 nights may alarm, and with 30 nights hardly ever more than 7."""
    floors = dict.fromkeys(("min_new_labels", "min_label_change", "min_distance"), 0.0) | {"min_auc": 0.5}
    alarms = 0
    for night in range(30):
        known, new = (rows_of(count, 2 * night + i, group_size=3) for i, count in enumerate((200, 60)))
        findings, _, _ = compared(tmp_path, known, new, night, group_by, confidence=0.9, **floors)
        alarms += any(one.change.moved for one in findings)
    assert alarms <= 7


def test_white_space_around_a_label_is_no_new_label(tmp_path):
    """A label is learned without it."""
    texts = tiny.sentences(4)
    for name, ends in (("plain", ""), ("spaced", " ")):
        spans = [[{"label": f"{ends}people", "start": 0, "end": 1}]] * 4
        columns = {"text": texts, "label": [f"a{ends}", f"{ends}b"] * 2, "spans": spans}
        tiny.write_splits(tmp_path / name, {"train": columns})
    classes = objectives.build_objective(ObjectiveChoice(name="sequence_classification"))
    for objective in (classes, SPANS):
        plain, spaced = (SplitRows(tmp_path / name / "train") for name in ("plain", "spaced"))
        own = ComparedColumns.of(plain, objective, [])
        assert scanned(plain, own).labels == scanned(spaced, own).labels
        ids = np.arange(4)
        assert sampled(plain, own, ids).labels == sampled(spaced, own, ids).labels
