"""The profile of rows: the same for the same rows, without text, and enough to tell new rows from known ones."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import resource

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.known_rows import rows as module
from tasks.known_rows.profile import DataProfile
from tasks.known_rows.rows import MAX_SAMPLED, ComparedColumns, label_hash, without_identifier_columns
from tasks.shards.split_rows import SplitRows
from tests.support import tiny
from tests.support.validation import sampled, scanned

COLUMNS = ComparedColumns(("label",), ("text",), ("price", "number"), {"customer": False})


def write(path, numbers):
    columns = {
        "text": [f"confidential question {n} about cards" for n in numbers],
        "label": [f"intent-{n % 7}" for n in numbers],
        "price": [float(n % 50) for n in numbers],
        "number": list(numbers),
        "customer": [f"customer-{n % 31}" for n in numbers],
    }
    tiny.write_splits(path, {"train": columns})
    return SplitRows(path / "train")


def profile_of(rows):
    found = scanned(rows, COLUMNS)
    chosen = without_identifier_columns(COLUMNS, sampled(rows, COLUMNS, found.smallest.row_ids[:MAX_SAMPLED]))
    assert chosen[0].identifiers == ("number",)
    return DataProfile.of(found, *chosen)


@pytest.fixture
def profile(tmp_path):
    return profile_of(write(tmp_path / "train", range(300)))


def saved(profile, tmp_path):
    profile.save(tmp_path / "profile.parquet")
    return (tmp_path / "profile.parquet").read_bytes()


def test_same_rows_give_the_same_bytes_in_any_order(profile, tmp_path):
    shuffled = np.random.default_rng(0).permutation(300).tolist()
    again = profile_of(write(tmp_path / "shuffled", shuffled))
    assert saved(again, tmp_path) == saved(profile, tmp_path)


def test_profile_is_what_was_saved(profile, tmp_path):
    loaded = DataProfile.load(saved(profile, tmp_path))
    assert (loaded.rows, loaded.content, loaded.is_whole) == (300, ["label", "text"], True)
    np.testing.assert_array_equal(loaded.known, profile.known)
    assert loaded.labels == profile.labels
    assert loaded.labels["label"][label_hash("intent-0")] == 43
    for one, other in zip(loaded.samples, profile.samples, strict=True):
        assert (one.kind, one.column) == (other.kind, other.column)
        np.testing.assert_array_equal(np.array(one.values, object), np.array(other.values, object))
        np.testing.assert_array_equal(one.groups, other.groups)
    assert [(one.kind, one.column) for one in loaded.samples] == [
        ("label", "label"),
        ("length", "text"),
        ("number", "price"),
        ("text", ""),
    ]


def test_profile_holds_no_text_and_no_row(profile, tmp_path):
    path = tmp_path / "plain.parquet"
    saved(profile, tmp_path)
    pq.write_table(pq.read_table(tmp_path / "profile.parquet"), path, compression="none")
    content = path.read_bytes()
    for word in (b"confidential", b"question", b"cards", b"intent", b"customer"):
        assert word not in content
    for one in profile.samples:  # each sorted by itself, so that nothing says which values are of one row
        values = list(one.values)
        assert values == sorted(values)
        assert one.groups is not None
        firsts = np.unique(one.groups, return_index=True)[1]
        assert (np.diff(firsts) > 0).all()  # numbered anew in this order


def test_new_rows_are_told_from_known_ones(profile, tmp_path):
    more = scanned(write(tmp_path / "more", [*range(0, 600, 2)]), COLUMNS).smallest
    is_new, looked_at = profile.is_new(more.hashes)
    assert looked_at == 300
    assert sorted(more.row_ids[is_new].tolist()) == [*range(150, 300)]


def test_of_many_rows_those_with_small_hashes_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_KNOWN", 100)
    profile = profile_of(write(tmp_path / "train", range(1000)))
    assert not profile.is_whole
    more = scanned(write(tmp_path / "more", range(1100)), COLUMNS).smallest
    is_new, looked_at = profile.is_new(more.hashes)
    assert looked_at == 100
    assert 2 <= is_new.sum() <= 20
    assert (more.row_ids[is_new] >= 1000).all()
    assert (more.row_ids[~is_new] < 1000).all()
    fewer = scanned(write(tmp_path / "fewer", range(500)), COLUMNS).smallest
    is_new, looked_at = profile.is_new(fewer.hashes)  # of half of the rows, half of the smallest are too large to know
    assert not is_new.any()
    assert 30 <= looked_at <= 70


def test_column_of_very_many_labels_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_LABELS", 6)
    profile = profile_of(write(tmp_path / "train", range(300)))  # 7 labels
    assert profile.labels == {}
    assert [one.kind for one in profile.samples] == ["length", "number", "text"]


@pytest.mark.parametrize("content", [b"", b"no parquet", None])
def test_damaged_profile_is_an_error(profile, tmp_path, content):
    content = saved(profile, tmp_path)[:-40] if content is None else content
    with pytest.raises(ValueError, match="it is damaged"):
        DataProfile.load(content)


def test_profile_of_another_version_is_an_error(profile, tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.known_rows.profile.SCHEMA", 3)
    content = saved(profile, tmp_path)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="it has schema 3, not 2"):
        DataProfile.load(content)


def test_profile_of_an_earlier_version_does_not_know_the_held_out_rows(profile, tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.known_rows.profile.SCHEMA", 1)
    content = saved(profile, tmp_path)
    monkeypatch.undo()
    assert DataProfile.load(content).held_out is None


def test_ages_of_rows_are_told_only_where_they_are_certain(tmp_path, monkeypatch):
    trained, held = (scanned(write(tmp_path / f"{n}", range(n, n + 300)), COLUMNS).smallest for n in (0, 300))
    profile = dataclasses.replace(profile_of(write(tmp_path / "train", range(300))), held_out=held)
    profile = DataProfile.load(saved(profile, tmp_path))
    unseen = scanned(write(tmp_path / "new", range(600, 900)), COLUMNS).smallest
    for hashes, expected in ((trained.hashes, (1, 0)), (held.hashes, (1, 0)), (unseen.hashes, (0, 1))):
        assert tuple(found.mean() for found in profile.tell_ages(hashes)) == expected

    cut = module.SmallestHashes(held.hashes[:100], is_whole=False)
    profile = DataProfile.load(saved(dataclasses.replace(profile, held_out=cut), tmp_path))
    known, new = profile.tell_ages(np.concatenate([held.hashes, unseen.hashes]))
    assert known.tolist() == [True] * 100 + [False] * 500
    assert not new[:300].any(), "whether these were held out is not known"
    assert new[300:].tolist() == (unseen.hashes <= cut.hashes[-1]).tolist()
    assert 50 < new.sum() < 150


def edited(profile, tmp_path, change):
    """A saved profile whose records a stranger has edited."""
    table = pq.read_table(io.BytesIO(saved(profile, tmp_path)))
    records = change(table.to_pylist())
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(records, schema=table.schema), out, compression="zstd")
    return out.getvalue()


def of(records, kind):
    return next(one for one in records if one["kind"] == kind)


def set_value(kind, /, **changes):
    def change(records):
        of(records, kind).update(changes)
        return records

    return change


ODD = {
    "counts of no column": lambda records: [one for one in records if one["kind"] != "label counts"],
    "counts of another column": set_value("label counts", column="other"),
    "no column": set_value("label", column=None),
    "infinite counts": set_value("label counts", values=[float("inf")] * 7),
    "negative counts": set_value("label counts", values=[-1.0] * 7),
    "fewer counts": set_value("label counts", values=[1.0]),
    "hashes in no order": set_value("known", hashes=[3, 1, 2]),
    "no hashes": set_value("known", hashes=[]),
    "a hash that is none": set_value("known", hashes=[1, None]),
    "no values": set_value("number", values=[]),
    "values that are none": set_value("number", values=[None] * 3, groups=None),
    "infinite values": set_value("number", values=[float("inf")], groups=[1]),
    "fewer groups": set_value("number", groups=[1]),
    "no features": set_value("text", features=None),
    "a row without features": set_value("text", features=[None], groups=[1]),
    "a feature that is none": set_value("text", features=[[None]], groups=[1]),
    "a feature that is too large": set_value("text", features=[[2**31]], groups=[1]),
    "another kind": set_value("text", kind="other"),
    "something twice": lambda records: [*records, of(records, "number")],
    "many records": lambda records: [*records, *[of(records, "known")] * 5000],
}


@pytest.mark.parametrize("change", ODD.values(), ids=ODD)
def test_odd_profile_is_an_error_when_it_is_read(profile, tmp_path, change):
    with pytest.raises(ValueError, match=r"it is damaged|more than a profile may have"):
        DataProfile.load(edited(profile, tmp_path, change))


def repeated(records):
    return records + [{**of(records, "number"), "column": "x" * (2 << 20) + str(n % 2)} for n in range(60)]


LARGE = {
    "values": set_value("number", values=np.zeros(10_000_000), groups=None),
    "one long name": set_value("number", column="x" * (100 << 20)),
    "a long name in many records": repeated,
}


@pytest.mark.parametrize("change", LARGE.values(), ids=LARGE)
def test_few_bytes_that_stand_for_much_are_not_read(profile, tmp_path, monkeypatch, change):
    content = edited(profile, tmp_path, change)
    assert len(content) < 200_000
    monkeypatch.setattr("tasks.known_rows.profile._MAX_MEMORY", 64 << 20)
    pa.default_memory_pool().release_unused()
    with pytest.raises(ValueError, match=r"more than a profile may have|it measures something twice"):
        DataProfile.load(content)
    DataProfile.load(saved(profile, tmp_path))
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY


def test_columns_that_no_profile_has_are_not_read(profile, tmp_path):
    table = pq.read_table(io.BytesIO(saved(profile, tmp_path)))
    out = io.BytesIO()
    pq.write_table(table.append_column("more", pa.array(["x"] * len(table))), out)
    with pytest.raises(ValueError, match="its columns are not those of a profile"):
        DataProfile.load(out.getvalue())


@pytest.mark.parametrize("seed", range(5))
def test_damaged_bytes_are_an_error_or_no_matter(profile, tmp_path, seed):
    content, rng = saved(profile, tmp_path), np.random.default_rng(seed)
    for _ in range(40):
        damaged = bytearray(content)
        for place in rng.integers(0, len(content), 3):
            damaged[place] = rng.integers(256)
        with contextlib.suppress(ValueError):
            DataProfile.load(bytes(damaged))


@pytest.mark.parametrize("header", [b"[]", b"{}", b'{"schema": [1]}', b'{"schema": 1, "rows": "x"}', b"[" * 99999])
def test_odd_header_is_an_error(profile, tmp_path, header):
    table = pq.read_table(io.BytesIO(saved(profile, tmp_path)))
    out = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({b"evergreen.profile": header}), out)
    with pytest.raises(ValueError, match=r"it is damaged|it has schema"):
        DataProfile.load(out.getvalue())
