r"""Rewards: functions that say how good completions are, and the sum of rewards.

A function takes n completions as text and their n rows (mappings with `row_id`, `prompt` and the reference columns), and
returns one number per completion. A recipe can add keyword arguments. Models that give rewards are in objectives/bases/rewards/reward_models.py.

    rewards:
      - trainer.rewards:numeric_answer
      - {name: "trainer.rewards:matches", arguments: {pattern: '#### \d+$'}}
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from typing import Any, Protocol

from params import DataError, ModelError
from params.importing import import_with_arguments
from params.sections.base import Call

RewardRow = Mapping[str, Any]
"""What a reward gets of a row: `{"row_id": 7, "prompt": "What is 3 + 4?", "answer": "7"}`."""
_NUMBER = re.compile(
    r"(?:(?<![\w.)])-)?"  # a minus sign, but no subtraction
    r"\$?(?:(?<=\$)-)?"
    r"(?:(?:\d{1,3}(?:,\d{3})+(?![,\d])|\d+)(?:\.\d+)?|\.\d+)"
)
_ANSWER_MARK = "####"


def numeric_answer(completions: Sequence[str], rows: Sequence[RewardRow], *, column: str = "answer") -> list[float]:
    r"""Return 1 where a completion's number equals that of its row's reference, else 0.

    The number of a text is the first one after its last `####`, or without that mark its last one. Thousands separators, a
    leading `$` and trailing zeros do not matter: `$1,250.00` is 1250. A reference is for example `48/2 = 24\n#### 24`; ValueError
    if it has no number.
    """
    rewards = []
    for completion, row in zip(completions, rows, strict=True):
        reference = parse_answer_number(str(row[column]))
        if reference is None:
            raise ValueError(f"there is no number in its {column}, {row[column]!r}")
        rewards.append(float(parse_answer_number(completion) == reference))
    return rewards


def matches(completions: Sequence[str], rows: Sequence[RewardRow], *, pattern: str) -> list[float]:  # noqa: ARG001
    """Return 1 where the regular expression `pattern` matches anywhere in a completion, else 0."""
    compiled = re.compile(pattern)
    return [float(compiled.search(completion) is not None) for completion in completions]


def parse_answer_number(text: str) -> Decimal | None:
    """Return the number that a text gives as its answer, as in `numeric_answer`, or None."""
    _, mark, tail = text.rpartition(_ANSWER_MARK)
    numbers = _NUMBER.findall(tail if mark else text)
    if not numbers:
        return None
    return Decimal((numbers[0] if mark else numbers[-1]).replace("$", "").replace(",", ""))


class Reward(Protocol):
    """What gives completions a number each."""

    name: str
    """The reward in messages."""

    def check(self) -> None:
        """Raise an EvergreenError if it cannot be used, without reading anything large."""

    def load(self) -> None:
        """Read what it needs, if it has not yet; errors as of `check`."""

    def __call__(self, completions: Sequence[str], rows: Sequence[RewardRow], device: Any = "cpu") -> list[Any]:
        """Return a number for each of n completions; a model computes them on `device`."""


class RewardFunction:
    """A function that a recipe names under `key`, as a reward."""

    def __init__(self, call: Call, key: str) -> None:
        self.name, self._call, self._key = call.name, call, key

    def check(self) -> None:
        """Import the function; RecipeError if it does not exist, or cannot be called with completions, rows and its arguments."""
        self._function  # noqa: B018

    load = check

    @cached_property
    def _function(self) -> Callable[..., Any]:
        return import_with_arguments(self._call, self._key, 2)

    def __call__(self, completions: Sequence[str], rows: Sequence[RewardRow], device: Any = "cpu") -> list[Any]:
        """Return what the function returns; DataError if it raises an exception."""
        try:
            return list(self._function(list(completions), list(rows)))
        except Exception as error:
            place, cause = f"rows {_ids(rows)}", error
            for completion, row in zip(completions, rows, strict=True):
                try:
                    self._function([completion], [row])
                except Exception as found:  # noqa: BLE001
                    place, cause = f"row {row.get('row_id')}", found
                    break
            what = f"raised {type(cause).__name__} at {place}: {cause}"
            fix = "fix the function, or add a check that sets such rows aside"
            raise DataError(f"objective.rewards: {self.name}", what, fix) from error


class WeightedRewardSum:
    """The weighted sum of a recipe's rewards; without weights, all are 1."""

    def __init__(self, rewards: Sequence[Reward], weights: Sequence[float]) -> None:
        self.rewards = list(rewards)
        self._weights = list(weights) or [1.0] * len(rewards)

    def load(self) -> None:
        """Read what the rewards need; EvergreenError if one cannot be used."""
        for reward in self.rewards:
            reward.load()

    def __call__(self, completions: Sequence[str], rows: Sequence[RewardRow], device: Any = "cpu") -> list[float]:
        """Return the weighted sum of all rewards for each of n completions.

        ModelError if a reward does not give one finite number per completion, DataError if it fails with them.
        """
        total = [0.0] * len(completions)
        for reward, weight in zip(self.rewards, self._weights, strict=True):
            values = reward(completions, rows, device)
            for i, value in enumerate(_numbers(reward.name, values, completions, rows)):
                total[i] += weight * value
        return total


def _ids(rows: Sequence[RewardRow]) -> list[Any]:
    return sorted({row.get("row_id") for row in rows}, key=str)


def _numbers(name: str, values: Sequence[Any], completions: Sequence[str], rows: Sequence[RewardRow]) -> list[float]:
    where = f"objective.rewards: {name}"
    if len(values) != len(completions):
        what = f"returned {len(values)} rewards for {len(completions)} completions, of rows {_ids(rows)}"
        raise ModelError(where, what, "return a list with one number per completion")
    rewards = []
    for value, row, completion in zip(values, rows, completions, strict=True):
        try:
            rewards.append(float(value))
        except (TypeError, ValueError):
            rewards.append(math.nan)
        if not math.isfinite(rewards[-1]):
            what = f"returned {value!r} at row {row.get('row_id')}, for the completion {completion[:80]!r}"
            raise ModelError(where, what, "return a finite number, for example 0")
    return rewards
