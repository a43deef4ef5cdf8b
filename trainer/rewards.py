r"""Rewards: functions that say how good completions are.

A reward takes n completions as text and their n rows (mappings with `row_id`, `prompt` and the reference columns), and
returns one number per completion. A recipe can add keyword arguments.

    rewards:
      - trainer.rewards:numeric_answer
      - {name: "trainer.rewards:matches", arguments: {pattern: '#### \d+$'}}
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from params import DataError, ModelError
from params.importing import import_with_arguments
from params.schema import Call

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


class WeightedRewardSum:
    """The weighted sum of a recipe's rewards; without weights, all are 1.

    RecipeError if a function does not exist, or cannot be called with completions, rows and its arguments.
    """

    def __init__(self, calls: Sequence[Call], weights: Sequence[float]) -> None:
        self._functions = [(c.name, import_with_arguments(c, f"objective.rewards.{i}", 2)) for i, c in enumerate(calls)]
        self._weights = list(weights) or [1.0] * len(calls)

    def __call__(self, completions: Sequence[str], rows: Sequence[RewardRow]) -> list[float]:
        """Return the weighted sum of all rewards for each of n completions.

        ModelError if a reward does not return one finite number per completion, DataError if it raises an exception.
        """
        total = [0.0] * len(completions)
        for (name, function), weight in zip(self._functions, self._weights, strict=True):
            for i, value in enumerate(_call(name, function, list(completions), list(rows))):
                total[i] += weight * value
        return total


def _call(name: str, function: Callable[..., Any], completions: list[str], rows: list[RewardRow]) -> list[float]:
    where, ids = f"objective.rewards: {name}", sorted({row.get("row_id") for row in rows}, key=str)
    try:
        values = list(function(completions, rows))
    except Exception as error:
        place, cause = f"rows {ids}", error
        for completion, row in zip(completions, rows, strict=True):
            try:
                function([completion], [row])
            except Exception as found:  # noqa: BLE001
                place, cause = f"row {row.get('row_id')}", found
                break
        what = f"raised {type(cause).__name__} at {place}: {cause}"
        raise DataError(where, what, "fix the function, or add a check that sets such rows aside") from error
    if len(values) != len(completions):
        what = f"returned {len(values)} rewards for {len(completions)} completions, of rows {ids}"
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
