"""Any value on one line of YAML is read as that value."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from tasks.scaffold.yaml_text import scalar


@given(st.text(st.characters(codec="utf-8"), max_size=30) | st.booleans() | st.none() | st.integers(-99, 10**9))
def test_values_survive(value: Any) -> None:
    assert YAML(typ="safe").load(f"a: {scalar(value)}\nb: [{scalar(value)}, 1]\n") == {"a": value, "b": [value, 1]}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3e-4, "3e-4"),
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
    ],
)
def test_values_are_readable(value: Any, text: str) -> None:
    assert scalar(value) == text
    found = YAML(typ="safe").load(text)
    assert found == value
    assert isinstance(found, float) == (isinstance(value, float) and value != 0)
