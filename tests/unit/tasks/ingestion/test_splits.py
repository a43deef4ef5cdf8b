"""The split of a row depends on its values and the seed only."""

from params.artifacts import SPLITS
from tasks.ingestion.stage import canonical_json, split_of

SHARES = {"test": 0.1, "validation": 0.1}


def test_split_depends_on_the_seed() -> None:
    rows = [{"text": f"text {i}", "label": i % 3} for i in range(300)]
    assert [split_of(row, SHARES, 1) for row in rows] != [split_of(row, SHARES, 2) for row in rows]
    assert {split_of(row, SHARES, 1) for row in rows} == set(SPLITS)


def test_split_of_known_rows_never_changes() -> None:
    # A change here moves rows of existing users between their splits.
    found = [split_of({"text": f"text {i}"}, SHARES, 17) for i in range(40)]
    assert [i for i, split in enumerate(found) if split == "test"] == [5, 19, 21, 23, 34, 38]
    assert [i for i, split in enumerate(found) if split == "validation"] == [11, 12, 13, 22, 27, 31]


def test_canonical_json_ignores_how_values_are_stored() -> None:
    same = canonical_json({"a": 1, "b": {"x": None, "y": [2.0]}, "c": None})
    assert same == canonical_json({"b": {"y": [2]}, "a": 1.0}) == '{"a":1,"b":{"y":[2]}}'
    assert canonical_json({"a": "1"}) != canonical_json({"a": 1})
    assert canonical_json({"a": 1.5}) != canonical_json({"a": 1})
