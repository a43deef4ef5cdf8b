"""Columns of lists of numbers, such as vectors: which rows validate sets aside, and what tokens and a resampled metric get of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from params import DataError
from params.schema import ObjectiveChoice
from params.sections.rows import Tokenization, TrainTokenizer
from tasks.shards.split_rows import SplitRows
from tasks.tokenization.stage import tokenize
from tests.support import new_objectives
from tests.support.validation import ONE_PROCESS, run_validation, write_raw
from trainer.data import tokens
from trainer.objectives.bases.rows import why_columns_unusable

VECTORS = ObjectiveChoice(name="vectors")
TOKENS = Tokenization(tokenizer=TrainTokenizer(kind="train", vocab_size=280), max_length=16)


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    with new_objectives.known():
        yield


def columns(vectors: list[Any], split: str = "train") -> dict[str, list[Any]]:
    return {"text": [f"a text {i} of {split}" for i in range(len(vectors))], "vector": vectors}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([0.5, -1, 2], None),
        ([1], None),
        ([], "its vector is an empty list"),
        ([1.0, None], "its vector has None at place 1, which is not a number"),
        (["1.0"], "its vector has '1.0' at place 0, which is not a number"),
        ([True], "its vector has True at place 0, which is not a number"),
        ([[1.0]], "its vector has [1.0] at place 0, which is not a number"),
        ([math.nan], "its vector has nan at place 0, which is not finite"),
        ([1.0, -math.inf], "its vector has -inf at place 1, which is not finite"),
        (1.0, "its vector is no list of numbers"),
        ({"a": 1.0}, "its vector is no list of numbers"),
    ],
)
def test_list_that_holds_something_else_is_named(value: object, reason: str | None) -> None:
    assert why_columns_unusable({"text": "string", "vector": "numbers"}, {"text": "a", "vector": value}) == reason


def test_rows_without_numbers_are_set_aside_and_the_others_keep_theirs(tmp_path: Path) -> None:
    vectors = [[0.25, 1.0], None, [], [0.5, None], [math.nan, 1.0], [2.0, -3.0], [4.0, 4.0]]
    held_out = columns([[1.0, 2.0]], "test")
    artifacts = write_raw(
        tmp_path, train=columns(vectors), validation=columns([[5.0, 6.0]], "validation"), test=held_out
    )
    report = run_validation(artifacts, objective=VECTORS)
    assert report.quarantined == 4
    assert [row["vector"] for row in SplitRows(artifacts.rows / "train").rows()] == [vectors[0], *vectors[5:]]
    tokenize(artifacts, tokenization=TOKENS, objective=VECTORS, launch=ONE_PROCESS)
    assert tokens.read_objective_state(artifacts.tokens) == {"mean": [6.25 / 3, 2.0 / 3]}
    (example,) = tokens.read_split(artifacts.tokens, "test")
    assert list(example["labels"]) == [1.0, 2.0]


@pytest.mark.parametrize("vectors", [["[1.0]", "[2.0]"], [1.0, 2.0], [["a"], ["b"]]])
def test_column_without_lists_of_numbers_is_refused(tmp_path: Path, vectors: list[Any]) -> None:
    artifacts = write_raw(
        tmp_path, train=columns(vectors), validation=columns(vectors, "validation"), test=columns(vectors, "test")
    )
    with pytest.raises(DataError, match="column `vector` must hold lists of numbers, but holds"):
        run_validation(artifacts, objective=VECTORS)
