"""A tenth of the zoo of models, drawn by the date; `make zoo` tries all of it (docs/models.md)."""

from __future__ import annotations

import datetime as dt
import random

from tests.support.zoo.architectures import ARCHITECTURES
from tests.support.zoo.cells import Cell, all_cells
from tests.support.zoo.running import REASONS, run_cells


def drawn_by(day: dt.date) -> list[Cell]:
    """All architectures in ten days, a tenth on each; of each, one objective in one way."""
    names = list(ARCHITECTURES)
    random.Random(day.toordinal() // 10).shuffle(names)
    chance = random.Random(day.toordinal())
    own = names[day.toordinal() % 10 :: 10]
    return [chance.choice([cell for cell in all_cells() if cell.architecture == name]) for name in own]


def test_a_tenth_of_the_zoo_goes_through_all_stages() -> None:
    """Or as much of it as is begun in 4 seconds."""
    today = drawn_by(dt.datetime.now(dt.UTC).date())
    found = {str(cell): error for cell, error in run_cells(today, processes=2, start_within_s=4)}
    assert {name: error for name, error in found.items() if bool(error) != (name in REASONS)} == {}


def test_ten_days_try_every_architecture() -> None:
    days = [dt.date.fromordinal(10 * 74_000 + day) for day in range(10)]
    drawn = [cell.architecture for day in days for cell in drawn_by(day)]
    assert sorted(drawn) == sorted(ARCHITECTURES)
