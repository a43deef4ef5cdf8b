"""`evergreen review`: what waits for people is counted and copied, and their answers come into `data.corrections` once."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from params.foundation.artifacts import Artifacts
from tasks.commands import main
from tasks.measurements.label_review import review_answers
from tasks.measurements.label_review.review_table import COLUMNS, review_csv
from tasks.measurements.label_review.suspects import Suspect
from tests.support import tiny
from trainer.objectives.bases.rows import format_row_hash

HASHES = {number: format_row_hash(number) for number in range(9)}
TAKEN = Path("data/people/review.csv")


def write_project(root: Path, content: dict[str, Any], corrections: str | None = "data/people/*.csv") -> Artifacts:
    artifacts = Artifacts("tiny", root)
    recipe = tiny.recipe(**content)
    recipe["data"] = {**recipe["data"], **({"corrections": corrections} if corrections else {})}
    tiny.write(root / "params/tiny.yaml", recipe)
    (root / "data/people").mkdir(parents=True)
    artifacts.tokens.mkdir(parents=True)
    (artifacts.tokens / "objective.json").write_text(json.dumps({"labels": ["bill", "card"]}))
    queue = [
        Suspect("train", 1, "bill", "card", 0.9, -0.8),
        Suspect("test", 2, "card", "bill", 0.8, -0.7, "models disagree"),
        Suspect("test", 3, "card", "", float("nan"), 0.0, "random"),
        Suspect("test", 4, "=card", "bill", 0.7, -0.1, "suspect; random"),
    ]
    artifacts.review.write_text(review_csv(queue, {i: f"text {i},\n of two lines" for i in HASHES}, {}, HASHES))
    return artifacts


@pytest.fixture
def artifacts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_project(tmp_path, tiny.CLASSES)


def read(path: Path | str) -> list[dict[str, str]]:
    with Path(path).open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def answer(path: str, answers: dict[int, str], delimiter: str = ",") -> str:
    """Fill in the queue as a person would, with a spreadsheet."""
    rows = [row | {"corrected_label": answers.get(int(row["row_id"]), "")} for row in read("runs/tiny/review.csv")]
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, delimiter=delimiter)
        table.writeheader()
        table.writerows(rows)
    return path


def test_the_queue_is_counted_and_copied_without_what_has_an_answer(artifacts, capsys):
    assert main(["review", "tiny"]) == 0
    said = capsys.readouterr().out
    assert "review.csv: 4 rows wait for people: 2 suspect, 2 random, 1 models disagree\n" in said
    assert "--take COPY.csv" in said
    assert main(["review", "tiny", "--take", answer("filled.csv", {2: "bill", 3: "card"})]) == 0
    capsys.readouterr()
    assert main(["review", "tiny", "--out", "next.csv"]) == 0
    said = capsys.readouterr().out
    assert "2 rows wait for people: 2 suspect, 1 random; 2 have an answer\n" in said
    assert "evergreen review tiny --take next.csv" in said
    assert [row["row_id"] for row in read("next.csv")] == ["1", "4"]
    assert read("next.csv")[0] == read(artifacts.review)[0]
    before = Path("next.csv").read_bytes()
    assert main(["review", "tiny", "--out", "next.csv"]) != 0, "it may hold answers"
    assert Path("next.csv").read_bytes() == before
    assert "exists, and may hold answers" in capsys.readouterr().err


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_answers_are_taken_once_and_rows_without_one_are_not(artifacts, capsys, delimiter):
    file = answer("filled.csv", {1: "card", 3: " card "}, delimiter)
    for _ in range(2):
        assert main(["review", "tiny", "--take", file]) == 0
        assert [(row["row_hash"], row["corrected_label"]) for row in read(TAKEN)] == [
            (HASHES[1], "card"),
            (HASHES[3], " card "),
        ]
    first, again = capsys.readouterr().out.split("the source stays as it is\n")
    assert "2 of 4 rows have an answer, 0 were taken before" in first
    assert "2 new answers, 1 with another label and 1 that confirm it" in first
    assert again == "filled.csv: 2 of 4 rows have an answer, 2 were taken before\n"
    assert read(TAKEN)[0]["text"] == "text 1,\n of two lines", "all that people saw is kept"
    assert main(["review", "tiny", "--take", answer("more.csv", {1: "card", 4: "card"})]) == 0
    assert [row["row_id"] for row in read(TAKEN)] == ["1", "3", "4"]


def test_answers_beside_a_table_of_other_columns_leave_that_as_it_is(artifacts):
    own = Path("data/people/own.csv")
    own.write_text("label;text;note\nbill;pay;of Ann\n")
    before = own.read_bytes()
    assert main(["review", "tiny", "--take", answer("filled.csv", {1: "card"})]) == 0
    assert own.read_bytes() == before
    write_recipe = tiny.recipe(**tiny.CLASSES)
    tiny.write(artifacts.recipe_path, write_recipe | {"data": {**write_recipe["data"], "corrections": str(own)}})
    assert main(["review", "tiny", "--take", answer("filled.csv", {1: "card"})]) == 0
    first, second = read(own)
    assert (first["label"], first["text"], first["note"], first["row_hash"]) == ("bill", "pay", "of Ann", "")
    assert (second["label"], second["corrected_label"], second["row_hash"]) == ("", "card", HASHES[1])


def test_two_answers_to_one_row_are_an_error_with_both_lines(artifacts, capsys):
    file = answer("filled.csv", {1: "card", 2: "bill"})
    twice = [*read(file), read(file)[0] | {"corrected_label": "bill"}]
    with Path(file).open("w", encoding="utf-8", newline="") as opened:
        table = csv.DictWriter(opened, COLUMNS)
        table.writeheader()
        table.writerows(twice)
    assert main(["review", "tiny", "--take", file]) != 0
    assert "filled.csv:10: says {'label': 'bill'}, and filled.csv:2 says {'label': 'card'}" in capsys.readouterr().err
    assert not TAKEN.exists()
    assert main(["review", "tiny", "--take", answer("filled.csv", {1: "card"})]) == 0
    kept = TAKEN.read_bytes()
    assert main(["review", "tiny", "--take", answer("later.csv", {1: "bill", 2: "bill"})]) != 0
    assert f"later.csv:2: says {{'label': 'bill'}}, and {TAKEN}:2 says {{'label': 'card'}}" in capsys.readouterr().err
    assert TAKEN.read_bytes() == kept


def test_unknown_labels_are_an_error_unless_they_may_be_new(artifacts, capsys):
    file = answer("filled.csv", {1: "cart", 2: "bill", 3: "loan"})
    assert main(["review", "tiny", "--take", file]) != 0
    said = capsys.readouterr().err
    assert "filled.csv:2: no training row has the label 'cart'; did you mean `card`?" in said
    assert "filled.csv:6: no training row has the label 'loan'\n" in said
    assert "--new-labels" in said
    assert not TAKEN.exists()
    assert main(["review", "tiny", "--take", file, "--new-labels"]) == 0
    assert [row["corrected_label"] for row in read(TAKEN)] == ["cart", "bill", "loan"]


def test_lists_of_labels_are_compared_as_lists(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_project(tmp_path, tiny.LABEL_SETS)
    assert main(["review", "tiny", "--take", answer("filled.csv", {1: '["card", "cart"]'})]) != 0
    assert "no training row has the label 'cart'; did you mean" in capsys.readouterr().err
    assert main(["review", "tiny", "--take", answer("filled.csv", {1: "card, bill"})]) != 0
    assert "filled.csv:2: 'card, bill' is no list" in capsys.readouterr().err
    assert main(["review", "tiny", "--take", answer("filled.csv", {1: '["card", "bill"]', 2: "[]"})]) == 0
    assert [row["corrected_label"] for row in read(TAKEN)] == ['["card", "bill"]', "[]"]


def test_a_recipe_without_corrections_says_which_lines_to_add(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    artifacts = write_project(tmp_path, tiny.CLASSES, corrections=None)
    Path("recipes.yaml").write_text("recipes:\n  tiny: {data: data/rows.csv, objective: a, base: b, code: c}\n")
    assert main(["review", "tiny", "--take", answer("filled.csv", {1: "card"})]) != 0
    said = capsys.readouterr().err
    assert "write this below `data:` in params/tiny.yaml" in said
    assert "\n  corrections: data/corrections/*.csv\n" in said
    assert "let `data` of its item in recipes.yaml be data" in said
    assert artifacts.recipe_path.exists()
    assert not list(Path("data").rglob("*.csv"))


@pytest.mark.parametrize("pattern", ["data/people/[ab].csv", "data/people/rows.jsonl", "data/people/*"])
def test_a_pattern_that_names_no_csv_file_is_refused(tmp_path, monkeypatch, capsys, pattern):
    monkeypatch.chdir(tmp_path)
    write_project(tmp_path, tiny.CLASSES, pattern)
    assert main(["review", "tiny", "--take", answer("filled.csv", {1: "card"})]) != 0
    assert f"{pattern} does not say which CSV file gets answers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--take", "none.csv"], "none.csv: cannot be read"),
        (["--take", "table.xlsx"], "is no CSV file"),
        (["--take", "a.csv", "--out", "b.csv"], "give --out or --take"),
    ],
)
def test_wrong_use_says_what_to_do(artifacts, capsys, arguments, told):
    Path("table.xlsx").write_bytes(b"PK")
    assert main(["review", "tiny", *arguments]) != 0
    assert told in capsys.readouterr().err


def test_before_an_evaluation_there_is_no_queue(artifacts, capsys):
    artifacts.review.unlink()
    assert main(["review", "tiny"]) != 0
    assert "evergreen run tiny --no-publish" in capsys.readouterr().err
    artifacts.review.write_text(review_csv([], {}))
    assert main(["review", "tiny"]) == 0
    assert "only objectives that give whole rows a label" in capsys.readouterr().out


@pytest.mark.parametrize("place", ["filled.csv", "data/people/kept.csv"])
def test_a_table_that_would_take_all_memory_is_not_read(artifacts, monkeypatch, capsys, place):
    """Rows of one byte each, in columns that have names: whatever a compressed file stands for."""
    monkeypatch.setattr(review_answers, "_MAX_BYTES", 64 * 1000)
    monkeypatch.chdir(artifacts.root)
    Path(place).write_text("row_hash,corrected_label\n" + ",\n" * 600)
    assert main(["review", "tiny", "--take", "filled.csv" if place == "filled.csv" else answer("own.csv", {})]) != 0
    assert f"{place}:502: the rows up to here have more than" in capsys.readouterr().err
