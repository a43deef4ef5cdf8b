"""Any value on one line of YAML is read as that value."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from params import RecipeError
from tasks.scaffold.project import (
    _lines,
    format_yaml_value,
    prefect_yaml_with_deployment,
    recipes_yaml_with_item,
    replace_unprintable_characters,
)
from tests.support.project import ROOT
from trainer.objectives.advice.base import AdvisedValue

RECIPES = "recipes:\n  default: {data: a, objective: b, base: c, code: d}\n"
PREFECT = (ROOT / "prefect.yaml").read_text(encoding="utf-8")


@given(st.text(st.characters(codec="utf-8"), max_size=30) | st.booleans() | st.none() | st.integers(-99, 10**9))
def test_values_survive(value: Any) -> None:
    assert YAML(typ="safe").load(f"a: {format_yaml_value(value)}\nb: [{format_yaml_value(value)}, 1]\n") == {
        "a": value,
        "b": [value, 1],
    }


ODD = st.text(
    st.sampled_from("ab :#'\"-[]{},&*!|>%@`\\\n\r\t\x85\u2028\u2029\x1b\x07\ufeff\u202e~")
    | st.characters(codec="utf-8")
)


@given(ODD, ODD, st.sampled_from([0, 2, 4]))
def test_lines_of_a_recipe_say_what_was_meant(value: str, why: str, indent: int) -> None:
    """Whatever a row, a label, a column or a path has in it: a comment stays one, and a value the same."""
    lines = [replace_unprintable_characters(line) for line in _lines({"key": AdvisedValue(value, why)}, " " * indent)]
    assert YAML(typ="safe").load("\n".join([*lines, f"{' ' * indent}last: 1"])) == {"key": value, "last": 1}


@given(ODD)
def test_items_of_dvc_and_prefect_say_what_was_meant(path: str) -> None:
    if "${" not in path:
        after = YAML(typ="safe").load(recipes_yaml_with_item(RECIPES, "rows", data=path, objective="sft"))
        watched = {"objective": "trainer/objectives/sft.py", "base": "trainer/rewards.py", "code": "trainer/losses.py"}
        assert after["recipes"]["rows"] == {"data": path} | watched
    after = YAML(typ="safe").load(prefect_yaml_with_deployment(PREFECT, "rows", path))["deployments"][-1]
    assert after["schedules"] == [{"slug": "schedule", "cron": path, "timezone": "UTC"}]


def test_path_that_dvc_would_fill_in_is_refused() -> None:
    with pytest.raises(RecipeError, match="has a meaning for DVC"):
        recipes_yaml_with_item(RECIPES, "rows", data="data/${key}.csv", objective="sft")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3e-4, "3e-4"),
        (1.1e-4, "1.1e-4"),
        (5e-7, "5e-7"),
        (2e-5, "2e-5"),
        (5e-3, "5e-3"),
        (0.02, "0.02"),
        (0.1, "0.1"),
        (0.0, "0"),
        ("data/a.csv", "data/a.csv"),
        ("../shared/a", "../shared/a"),
        ("no", '"no"'),
        ("a: b", '"a: b"'),
        (["a b", "c"], '["a b", c]'),
        ([{"type": "check", "values": ["-"]}], '[{type: check, values: ["-"]}]'),
    ],
)
def test_values_are_readable(value: Any, text: str) -> None:
    assert format_yaml_value(value) == text
    found = YAML(typ="safe").load(text)
    assert found == value
    assert isinstance(found, float) == (isinstance(value, float) and value != 0)
