"""The rows of benchmarks/continual.py's year, its tables, and two months of it."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import continual
from benchmarks.continual import FADING_INTENT, INTENTS, MONTHS, NEW_FROM, NEW_INTENT, SHIFT_FROM, STRATEGIES
from tests.support import forked, pretrained
from tests.support.project import ROOT


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Intents whose texts say them, the first of them with the most rows."""
    folder = tmp_path_factory.mktemp("banking77")
    for name in ("train.csv", "test.csv"):
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            rows = [
                (f"What about {chr(97 + intent)}{chr(97 + intent)} {number} of {name}?", f"intent-{intent}")
                for intent in range(INTENTS + 1)
                for number in range(110 - intent)
            ]
            csv.writer(file).writerows([("text", "category"), *rows, rows[0]])
    return folder


def test_year_has_a_new_intent_a_fading_one_and_a_shift(data: Path) -> None:
    intents, learned, held_out = continual.draw_year(data, seed=3)
    months = [Counter(row.intent for row in (*mine, *others)) for mine, others in zip(learned, held_out, strict=True)]
    texts = [row.text for month in (*learned, *held_out) for row in month]
    assert len(texts) == len(set(texts))
    assert len(months) == MONTHS
    assert f"intent-{INTENTS}" not in intents
    new, fading, *others = intents
    assert [month[new] > 0 for month in months] == [number >= NEW_FROM for number in range(1, MONTHS + 1)]
    counts = [month[fading] for month in months]
    assert counts == sorted(counts, reverse=True)
    assert (counts[0], counts[-1]) == (24, 0)
    before, after = months[SHIFT_FROM - 2], months[SHIFT_FROM - 1]
    changes = Counter((before[intent], after[intent]) for intent in others)
    assert changes == {(20, 6): 3, (6, 20): 3, (14, 14): 4}
    assert all(len(rest) - len(mine) in {0, 1} for mine, rest in zip(held_out, learned, strict=True))
    assert continual.draw_year(data, seed=3) == (intents, learned, held_out)
    assert continual.draw_year(data, seed=4)[1] != learned


def test_error_is_the_larger_one() -> None:
    assert continual.mean_and_error(["1100", "1100"]) == "0.500 ± 0.177"  # over the rows: sqrt(0.25 / 8)
    assert continual.mean_and_error(["1111", "0000"]) == "0.500 ± 0.500"  # over the seeds: stdev / sqrt(2)
    assert continual.mean_and_error(["", ""]) == ""


def test_tables_say_what_was_right(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    intents, _, held_out = continual.draw_year(data, seed=3)
    name = STRATEGIES[0].name
    found = [
        {
            "strategy": name,
            "seed": 3,
            "month": month,
            "verdict": "publish" if month == 1 else "keep",
            "steps": 10,
            # right on this month, wrong on the one before; of the next month, only the new intent is wrong
            "right": ["0" * len(rows) for rows in held_out[: month - 1]]
            + ["1" * len(held_out[month - 1])]
            + ["".join("01"[row.intent != intents[NEW_INTENT]] for row in held_out[month])],
        }
        for month in (1, 2, 3)
    ]
    continual.print_tables(found, {3: (intents, held_out)})
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"| {name}")]
    cells = [cell.strip() for cell in lines[0].strip("|").split("|")]
    rows = [row for month in held_out[1:4] for row in month]
    share = sum(row.intent != intents[NEW_INTENT] for row in rows) / len(rows)
    faded = [[row.intent for row in month].count(intents[FADING_INTENT]) for month in held_out[:3]]
    assert cells[1].startswith(f"{share:.3f} ±")
    assert cells[2:5] == ["1.000 ± 0.000", "0.000 ± 0.000", ""]
    assert cells[5].startswith(f"{faded[2] / sum(faded):.3f} ±")
    assert cells[6:] == ["30", "1.0"]
    assert [cell.strip() for cell in lines[1].strip("|").split("|")][1:3] == ["1.00 (1)", "1.00 (0)"]


@pytest.mark.slow
def test_months_are_lived_through(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All stages, the gate and the published model."""
    pretrained.write_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with forked.ranks():
        continual.live(data, STRATEGIES[-1], 3, 2, kept := tmp_path / "months.jsonl")
    first, second = map(json.loads, kept.read_text().splitlines())
    assert (first["month"], first["verdict"], second["month"]) == (1, "publish", 2)
    assert second["steps"] > first["steps"], "both starts count"
    _, _, held_out = continual.draw_year(data, 3)
    assert [len(marks) for marks in second["right"]] == [len(rows) for rows in held_out[:3]]
