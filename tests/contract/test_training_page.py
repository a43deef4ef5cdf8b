"""docs/training.md cannot drift: its recipe lines are valid, its tests exist, and no field of TrainingArguments is left out.

A row is `| feature | recipe lines | shown by |`. Recipe lines are `dotted.key: value` in backticks, the value in YAML's
flow style, several with `<br>` between them; `always` means that no key turns it off, `-` that it is not a recipe key.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from ruamel.yaml import YAML
from transformers import Seq2SeqTrainingArguments

from params import Recipe
from params.schema import ObjectiveChoice, Training
from tasks.diagnostics.check import find_recipe_problems
from tasks.recipes.loading import read_yaml_document
from tests.support import tiny
from tests.support.project import ROOT
from tests.support.reward_models import write_classifier
from tests.support.settings_check import check_settings_in_this_process
from trainer import objectives
from trainer.loop import arguments

PAGE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
HEAD = ["feature", "recipe lines", "shown by"]
NO_KEY = ("always", "-")
NAMES, REFUSED, UNTESTED = "Names of transformers and TRL", "Refused", "Passed through, not tested"
OUTPUTS = "What own metrics get"


def cells(section: str) -> list[list[str]]:
    """The rows of a section's tables, heads and rules left out."""
    lines = [line for line in SECTIONS[section].splitlines() if line.startswith("|")]
    split = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [
        row for row in split if row[0] not in (HEAD[0], "field", "name", "objective") and not set(row[0]) <= set("- ")
    ]


ROWS = {
    f"{section}: {row[0]}": row
    for section in SECTIONS
    if "| feature | recipe lines | shown by |" in SECTIONS[section]
    for row in cells(section)
}


def lines(cell: str) -> dict[str, Any]:
    """The recipe lines of a cell, by dotted key."""
    found = {}
    for written in re.findall(r"`([^`]+)`", cell):
        key, _, value = written.partition(": ")
        assert re.fullmatch(r"\w+(\.\w+)*", key), f"{written!r} is not `dotted.key: value`"
        found[key] = YAML(typ="safe").load(value)
    return found


def test_every_table_is_parsed() -> None:
    in_tables = sum(line.startswith("|") for line in PAGE.splitlines())
    tables = sum(line.startswith("| --- |") for line in PAGE.splitlines())
    assert in_tables == len(ROWS) + sum(len(cells(s)) for s in (NAMES, REFUSED, UNTESTED, OUTPUTS)) + 2 * tables
    assert len(ROWS) > 10


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_check_accepts_the_recipe_lines_of_a_row(row: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    assert len(row) == 3, "a row has three cells"
    feature, written, _ = row
    if written in NO_KEY:
        return
    assert re.fullmatch(r"`[^`]+`(<br>`[^`]+`)*", written), "recipe lines stand in backticks, with <br> between them"
    changes = lines(written)
    content = tiny.recipe({"data.source": {"kind": "files", "train": "rows.jsonl"}})
    name = changes.get("objective.name") or changes.get("objective", {}).get("name")
    if name:
        content["objective"] = {"name": name}  # the tiny recipe's options are those of another one
    for key, value in changes.items():
        *parents, last = key.split(".")
        node = content
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = value
    for given, other in (("training.epochs", "training.max_steps"), ("model.pretrained", "model.config")):
        section, key = other.split(".")
        if given in changes:
            del content[section][key]
    choice = ObjectiveChoice.model_validate(content["objective"])
    for path in objectives.build_objective(choice).models().values():
        write_classifier(tmp_path / path)
    named = objectives.build_objective(choice).columns()
    columns = {name: 1.5 if kind == "number" else "a text" for name, kind in named.items()}
    columns |= {"text": "a text", "label": "a label"} | dict(
        objectives.import_objective_class(choice.name).example_rows[0]
    )
    for name in ("rows", "documents"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(columns) + "\n")
    monkeypatch.chdir(tmp_path)
    check_settings_in_this_process(monkeypatch)
    found = find_recipe_problems(read_yaml_document(tiny.write(tmp_path / "row.yaml", content)))
    if "GPU" in feature:  # where there is none, `check` says so
        found = [p for p in found if "GPU" not in p.what and "not installed" not in p.what]
    assert found == []


@cache
def functions_of(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_tests_of_a_row_exist(row: list[str]) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row[-1])
    assert named, "no row without its test"
    assert re.fullmatch(r"`[^`]+`((,|<br>) ?`[^`]+`)*", row[-1]), "tests stand in backticks, with commas between them"
    assert row[-1].count("`") == 2 * len(named), "`tests/....py::test_...`, for each of them"
    for path, test in named:
        assert (ROOT / path).exists(), path
        assert test in functions_of(path), f"{path}::{test}"


def test_every_objective_has_a_row() -> None:
    written = [lines(row[1]) for row in ROWS.values() if row[1] not in NO_KEY]
    names = {x.get("objective.name") or x.get("objective", {}).get("name") for x in written}
    assert set(objectives.objective_names()) - names == set()


def is_owned(field: str) -> bool:
    return field in arguments._REFUSED or field.startswith("hub_")


def schema_has(key: str) -> bool:
    types: tuple[Any, ...] = (Recipe,)
    for part in key.split("."):
        fields = [
            t.model_fields[part]
            for t in types
            if isinstance(t, type) and issubclass(t, BaseModel) and part in t.model_fields
        ]
        if not fields:
            return False
        types = get_args(fields[0].annotation) or (fields[0].annotation,)  # a section that may be null is a union
    return True


def test_keys_for_names_of_transformers_and_trl_exist() -> None:
    """Every field that has a key of its own is listed with that key, and so are arguments and methods of Trainer."""
    keys = {name: row[1].strip("`") for row in cells(NAMES) for name in re.findall(r"`([^`]+)`", row[0])}
    assert keys.items() >= arguments._OWN_KEYS.items()
    options = {
        o
        for name in objectives.objective_names()
        for o in objectives.import_objective_class(name).options_class.model_fields
    }
    for key in set(keys.values()):
        section, _, option = key.partition(".")
        in_schema = key.startswith("training.arguments.") or schema_has(key)
        assert option in options | {"name"} if section == "objective" else in_schema, key


def test_every_field_of_training_arguments_is_covered() -> None:
    """It is a key of the recipe, refused, in a row with its test, or listed as untested; and only one of these."""
    known = set(arguments.training_argument_types())
    first_class = set(arguments._OWN_KEYS)
    theirs = known | {field.name for field in dataclasses.fields(Seq2SeqTrainingArguments)}
    assert first_class | set(arguments._REFUSED) <= theirs, "names that transformers no longer has"
    assert not first_class & set(arguments._REFUSED)
    prefix = "training.arguments."
    keys = [key for key in arguments._OWN_KEYS.values() if not key.startswith((prefix, "objective."))]
    assert all(schema_has(key) for key in keys)
    rows = {
        key.removeprefix(prefix).split(".")[0]
        for row in ROWS.values()
        if row[1] not in NO_KEY
        for key in lines(row[1])
        if key.startswith(prefix)
    }
    passed = {f for f in known if f not in first_class and not is_owned(f)}
    assert rows <= passed, "rows of fields that a recipe cannot set"
    untested = {row[0].strip("`"): row[1] for row in cells(UNTESTED)}
    assert set(untested) == passed - rows, f"the list under {UNTESTED!r} differs from what has no row"
    assert all(untested.values()), "each with a reason"


def test_refused_fields_are_listed_with_the_reason() -> None:
    listed = {row[0].strip("`"): row[1] for row in cells(REFUSED)}
    assert listed == arguments._REFUSED | {"hub_*": "the publish stage pushes, exactly once"}


def test_every_key_of_the_training_section_has_a_row() -> None:
    written = {key for row in ROWS.values() if row[1] not in NO_KEY for key in lines(row[1])}
    named = {".".join(key.split(".")[:2]) for key in written}
    assert {f"training.{name}" for name in Training.model_fields} - named == set()
