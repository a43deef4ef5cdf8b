r"""How good completions are: rewards that a recipe can name, and what asks them.

A reward is a function of completions (n texts) and their rows (n mappings: the prompt and the reference columns) that
gives one number for each completion; what a recipe gives it beside those are keyword arguments.

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
from params.importing import bind
from params.schema import Call

Row = Mapping[str, Any]
"""What a reward sees of a row: `row_id`, `prompt` as the model saw it, and the reference columns."""
_NUMBER = re.compile(
    r"(?:(?<![\w.)])-)?"  # a minus, not after what it may be subtracted from
    r"\$?(?:(?<=\$)-)?"
    r"(?:(?:\d{1,3}(?:,\d{3})+(?![,\d])|\d+)(?:\.\d+)?|\.\d+)"
)
_MARK = "####"


def numeric_answer(completions: Sequence[str], rows: Sequence[Row], *, column: str = "answer") -> list[float]:
    r"""1 where a completion ends in the number of its row's reference, else 0.

    The number of a text is the first one after its last `####`; in a text without that mark, its last one. Commas
    between thousands, a `$` before it and zeros behind the point do not matter: `$1,250.00` is 1250.

    Args:
        completions: n texts.
        rows: of the same n completions.
        column: the reference column, for example `48/2 = 24\n#### 24`.

    Raises:
        ValueError: a reference has no number.
    """
    found = []
    for completion, row in zip(completions, rows, strict=True):
        wanted = number_in(str(row[column]))
        if wanted is None:
            raise ValueError(f"there is no number in its {column}, {row[column]!r}")
        found.append(float(number_in(completion) == wanted))
    return found


def matches(completions: Sequence[str], rows: Sequence[Row], *, pattern: str) -> list[float]:  # noqa: ARG001
    """1 where the regular expression `pattern` is found in a completion, else 0: for the form of an answer."""
    sought = re.compile(pattern)
    return [float(sought.search(completion) is not None) for completion in completions]


def number_in(text: str) -> Decimal | None:
    """The number that a text gives as its answer, or None: see `numeric_answer`."""
    _, mark, tail = text.rpartition(_MARK)
    written = _NUMBER.findall(tail if mark else text)
    if not written:
        return None
    return Decimal((written[0] if mark else written[-1]).replace("$", "").replace(",", ""))


class Rewards:
    """The rewards of a recipe, asked together.

    Args:
        calls: the functions, as the recipe names them.
        weights: what each is multiplied by before they are added up; none means 1.

    Raises:
        RecipeError: there is no such function, or it cannot be called with completions, rows and its arguments.
    """

    def __init__(self, calls: Sequence[Call], weights: Sequence[float]) -> None:
        self._functions = [(c.name, bind(c, f"objective.rewards.{i}", 2)) for i, c in enumerate(calls)]
        self._weights = list(weights) or [1.0] * len(calls)

    def __call__(self, completions: Sequence[str], rows: Sequence[Row]) -> list[float]:
        """The weighted sum of all rewards for each of n completions.

        Raises:
            ModelError: a reward gives too few or too many figures, or something that is no finite number.
            DataError: a reward raises at a row.
        """
        total = [0.0] * len(completions)
        for (name, function), weight in zip(self._functions, self._weights, strict=True):
            for i, value in enumerate(_asked(name, function, list(completions), list(rows))):
                total[i] += weight * value
        return total


def _asked(name: str, function: Callable[..., Any], completions: list[str], rows: list[Row]) -> list[float]:
    where = f"objective.rewards: {name}"
    try:
        found = list(function(completions, rows))
    except Exception as error:
        at, said = _culprit(function, completions, rows, error)
        what = f"raised {type(said).__name__} at {at}: {said}"
        raise DataError(where, what, "mend the function, or let a check set such rows aside") from error
    if len(found) != len(completions):
        ids = sorted({row.get("row_id") for row in rows}, key=str)
        what = f"gave {len(found)} rewards for {len(completions)} completions, of rows {ids}"
        raise ModelError(where, what, "return a list with one number for each completion")
    rewards = []
    for value, row, completion in zip(found, rows, completions, strict=True):
        try:
            reward = float(value)
        except (TypeError, ValueError):
            reward = math.nan
        if not math.isfinite(reward):
            what = f"gave {value!r} at row {row.get('row_id')}, to the completion {completion[:80]!r}"
            raise ModelError(where, what, "return a finite number; 0 where a completion deserves none")
        rewards.append(reward)
    return rewards


def _culprit(
    function: Callable[..., Any], completions: list[str], rows: list[Row], error: Exception
) -> tuple[str, Exception]:
    """The row at which a function raises that was asked about all of them, and what it raises there."""
    for completion, row in zip(completions, rows, strict=True):
        try:
            function([completion], [row])
        except Exception as found:  # noqa: BLE001
            return f"row {row.get('row_id')}", found
    return f"rows {sorted({row.get('row_id') for row in rows}, key=str)}", error
