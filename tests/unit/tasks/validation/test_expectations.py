"""Great Expectations: dropped expectations, engine errors, and the order of results."""

from __future__ import annotations

import os
import subprocess
import sys

import pandas as pd
import pytest

from params import RecipeError, ValidationEngineError
from params.sections.rows import Expectation
from tasks.validation.expectations import columns_named_by_expectations, expectation_problems, run_expectations

FRAME = pd.DataFrame({"text": ["one", "two", None], "n": [1, 2, 3]})


def test_unknown_expectation_is_named_with_its_index():
    known = Expectation(type="expect_column_values_to_not_be_null", column="text")
    (problem,) = expectation_problems([known, Expectation(type="expect_column_values_to_be_uniqe", column="text")])
    assert problem.key == ("validation", "expectations", 1, "type")
    assert problem.what == "there is no expectation `expect_column_values_to_be_uniqe`"
    assert problem.fix == "did you mean `expect_column_values_to_be_unique`?"


@pytest.mark.parametrize(
    ("arguments", "key", "fix"),
    [
        ({"column": "n", "value_set": [1], "mostyl": 1}, "mostyl", "did you mean `mostly`?"),
        ({"column": "n", "value_set": 7}, "value_set", "write a valid value"),
        ({"column": "n", "value_set": [1], "mostly": 3}, "mostly", "write a valid value"),
        ({"value_set": [1]}, "column", "add `column:`"),
        ({"column": "n", "value_set": [1], "severity": "info"}, "severity", "remove it"),
        ({"column": "n", "value_set": [1], "result_format": "BASIC"}, "result_format", "remove it"),
    ],
)
def test_wrong_arguments_are_named(arguments, key, fix):
    found = expectation_problems([Expectation(type="expect_column_values_to_be_in_set", **arguments)])
    assert [(p.key[-1], p.fix) for p in found] == [(key, fix)]


def test_arguments_that_contradict_each_other():
    (problem,) = expectation_problems([Expectation(type="expect_column_values_to_be_between", column="n")])
    assert problem.key == ("validation", "expectations", 0)
    assert "min_value and max_value cannot both be None" in problem.what


def test_all_problems_are_reported_together():
    found = expectation_problems([Expectation(type="expect_nothing"), Expectation(type="expect_less", column="n")])
    assert [problem.what.split("`")[1] for problem in found] == ["expect_nothing", "expect_less"]


def test_dropped_expectation_is_an_error(monkeypatch):
    from great_expectations import ExpectationSuite

    known = Expectation(type="expect_column_values_to_not_be_null", column="n")
    lost = Expectation(type="expect_column_values_to_be_unique", column="n")
    original = ExpectationSuite.__init__

    def init_without_the_last(self, name, expectations=()):
        original(self, name, expectations[:1])

    monkeypatch.setattr(ExpectationSuite, "__init__", init_without_the_last)
    with pytest.raises(RecipeError, match=f"Great Expectations ran only 1 of 2; missing: {lost.type}"):
        run_expectations([known, lost], FRAME)


@pytest.mark.parametrize(
    "arguments",
    [
        {"type": "expect_column_values_to_match_regex", "column": "text", "regex": "("},  # one record a failed metric
        {"type": "unexpected_rows_expectation", "unexpected_rows_query": "SELECT * FROM {batch}"},  # a single record
        {"type": "expect_column_values_to_be_between", "column": "text", "min_value": 3},  # text is not a number
        {"type": "expect_column_values_to_be_in_set", "column": "n", "value_set": {"$PARAMETER": "x"}},  # raised
    ],
)
def test_engine_error_is_not_bad_data(arguments):
    with pytest.raises(ValidationEngineError):
        run_expectations([Expectation(**arguments)], FRAME)


def test_results_follow_the_order_of_expectations():
    """GX returns them in another order."""
    suite = [
        Expectation(type="expect_compound_columns_to_be_unique", column_list=["text", "n"]),
        Expectation(type="expect_column_value_lengths_to_equal", column="text", value=3),
        Expectation(type="expect_table_row_count_to_equal", value=3),
        Expectation(type="expect_column_values_to_be_in_set", column="n", value_set=[1]),
        Expectation(type="expect_column_max_to_be_between", column="n", max_value=2),
        Expectation(type="expect_column_values_to_not_be_null", column="text"),
        Expectation(type="expect_column_values_to_not_be_null", column="text"),
    ]
    found = run_expectations(suite, FRAME)
    assert [(o.success, None if o.failing is None else o.failing.tolist(), o.observed) for o in found] == [
        (True, [], None),
        (True, [], None),
        (True, None, 3),
        (False, [1, 2], None),
        (False, None, 3),
        (False, [2], None),
        (False, [2], None),
    ]


def test_rows_keep_the_index_of_the_frame():
    (found,) = run_expectations(
        [Expectation(type="expect_column_values_to_be_in_set", column="n", value_set=[2])], FRAME.drop(index=0)
    )
    assert found.failing.tolist() == [2]


def test_columns_of():
    suite = [
        Expectation(type="expect_column_to_exist", column="never mind"),
        Expectation(type="expect_column_values_to_not_be_null", column="a"),
        Expectation(type="expect_column_pair_values_to_be_equal", column_A="b", column_B="a"),
        Expectation(type="expect_compound_columns_to_be_unique", column_list=["c", "a"]),
        Expectation(type="expect_table_row_count_to_equal", value=3),
    ]
    assert columns_named_by_expectations(suite) == ["a", "b", "c"]


def test_run_expectations_logs_nothing_and_opens_no_connection(tmp_path):
    """In a child process, since GX is imported once; it also writes no file to the home folder."""
    script = """
import logging, socket
logging.basicConfig(level=logging.INFO)
def connect(self, address):
    print("connects to", address)
    raise OSError
socket.socket.connect = socket.socket.connect_ex = connect
import pandas as pd
from params.sections.rows import Expectation
from tasks.validation.expectations import run_expectations
frame = pd.DataFrame({"n": [1, 2]})
run_expectations([Expectation(type="expect_column_values_to_be_in_set", column="n", value_set=[1])], frame)
"""
    home = tmp_path / "home"
    home.mkdir()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GX_")} | {"HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(home.iterdir()) == []
