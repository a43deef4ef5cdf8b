"""What may not reach a terminal becomes an escape, and all other text stays as it is."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from params import DataError
from params.foundation.printable import make_stdout_printable, printable


@pytest.mark.parametrize("text", ["plain", "two\nlines\tand a tab", "äöü 我的卡 🏳️\u200d🌈 سلام", "\xa0\xad"])
def test_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    "code", [0, 7, 8, 0xB, 0xD, 0x1B, 0x7F, 0x85, 0x9B, 0x61C, 0x200E, 0x2028, 0x202E, 0x2066, 0xD800]
)
def test_what_controls_a_terminal_is_an_escape(code: int) -> None:
    assert printable(f"a{chr(code)}b") == f"a\\u{code:04x}b"


@given(st.dictionaries(st.text(), st.text()))
@settings(max_examples=40)
def test_json_means_the_same(value: dict[str, str]) -> None:
    assert json.loads(printable(json.dumps(value, ensure_ascii=False))) == value


def test_errors_and_output_are_printable(capsys: pytest.CaptureFixture[str]) -> None:
    error = DataError("rows.csv:\x1b[2J", "the label \x9b1m\nis wrong", "mend it")
    assert str(error) == "rows.csv:\\u001b[2J: the label \\u009b1m\nis wrong\n  fix: mend it"
    before = sys.stdout
    with make_stdout_printable():
        print("\x1b[2J", end="")
        sys.stdout.writelines(["\x1b[1m", "and"])
    assert sys.stdout is before
    assert capsys.readouterr().out == "\\u001b[2J\\u001b[1mand"
