"""Reward functions, their weighted sum, and errors that name the row."""

from __future__ import annotations

import math
from typing import Any

import pytest

from params import DataError, EvergreenError, ModelError, RecipeError
from params.sections.base import Call
from trainer.rewards import RewardFunction, WeightedRewardSum, matches, numeric_answer, parse_answer_number

NUMBERS = {
    "48/2 = 24\n#### 24": 24,
    "so it costs $1,250.00.": 1250,
    "#### -1,200": -1200,
    "1 #### 2 #### 3": 3,
    "#### 7 of 9": 7,
    "first 3.5, then .25": 0.25,
    "-3": -3,
    "-$5": -5,
    "$-5.50": -5.5,
    "5-3": 3,
    "12.": 12,
    "1,234,567": 1234567,
    "7, 8,9": 9,
    "#### no idea": None,
    "no number": None,
    "": None,
}


@pytest.mark.parametrize("text", NUMBERS)
def test_parse_number(text: str) -> None:
    assert parse_answer_number(text) == NUMBERS[text]
    assert parse_answer_number(text) is None or math.isclose(float(parse_answer_number(text)), NUMBERS[text])


def test_numeric_answer_compares_with_the_reference() -> None:
    completions = ["it is 18", "18.0 dollars", "#### 18\nor 19", "18 or 19", "", "#### 1,8"]
    rows = [{"answer": "9 * 2 = 18\n#### 18"}] * len(completions)
    assert numeric_answer(completions, rows) == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert numeric_answer(["4"], [{"goal": 4}], column="goal") == [1.0]


def test_matches_a_pattern() -> None:
    assert matches(["#### 4", "4"], [{}, {}], pattern=r"^#### \d+$") == [1.0, 0.0]


ROWS = [{"row_id": 7, "answer": "1"}, {"row_id": 8, "answer": "2"}]


def rewards_of(*calls: Call, weights: tuple[float, ...] = ()) -> list[float]:
    functions = [RewardFunction(call, f"objective.rewards.{i}") for i, call in enumerate(calls)]
    return WeightedRewardSum(functions, weights)(["one 1", "two 1"], ROWS)


def test_rewards_are_weighted_and_summed() -> None:
    form = Call(name="trainer.rewards:matches", arguments={"pattern": "two"})
    number = Call(name="trainer.rewards:numeric_answer")
    assert rewards_of(number) == [1.0, 0.0]
    assert rewards_of(number, form) == [1.0, 1.0]
    assert rewards_of(number, form, weights=(2.0, -0.5)) == [2.0, -0.5]


def too_few(completions: list[str], rows: list[Any]) -> list[float]:
    return [0.0] * (len(completions) - 1)


def not_a_number(completions: list[str], rows: list[Any]) -> list[float]:
    return [math.nan if row["row_id"] == 8 else 1.0 for row in rows]


def nothing(completions: list[str], rows: list[Any]) -> list[float | None]:
    return [None if row["row_id"] == 8 else 1.0 for row in rows]


def raises(completions: list[str], rows: list[Any]) -> list[float]:
    return [1 / (2 - int(row["answer"])) for row in rows]


def only_together(completions: list[str], rows: list[Any]) -> list[float]:
    assert len(rows) == 1
    return [0.0]


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (too_few, ModelError, r"returned 1 rewards for 2 completions, of rows \[7, 8\]"),
        (not_a_number, ModelError, "returned nan at row 8, for the completion 'two 1'"),
        (nothing, ModelError, "returned None at row 8"),
        (raises, DataError, "raised ZeroDivisionError at row 8: division by zero"),
        (only_together, DataError, r"raised AssertionError at rows \[7, 8\]"),
    ],
)
def test_failing_reward_is_named_with_its_row(function: Any, error: type[EvergreenError], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        rewards_of(Call(name=f"tests.unit.trainer.test_rewards:{function.__name__}"))
    assert function.__name__ in caught.value.where


def test_reference_without_a_number_is_an_error() -> None:
    with pytest.raises(DataError, match="row 3: there is no number in its answer, 'many'"):
        RewardFunction(Call(name="trainer.rewards:numeric_answer"), "x")(["1"], [{"row_id": 3, "answer": "many"}])


def test_uncallable_reward_is_refused() -> None:
    with pytest.raises(RecipeError, match="cannot be called with 2 values"):
        WeightedRewardSum([RewardFunction(Call(name="trainer.rewards:matches"), "x")], []).load()
