"""Signs of life: on a real terminal, through a pipe, and from a process that another one has started."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import pytest

from tests.support.clock import Heard, listen
from tests.support.project import ROOT
from tests.support.signs_of_life import without_signs_of_life
from tests.support.terminal import CTRL_C, terminal
from trainer.reporting import signs_of_life
from trainer.reporting.signs_of_life import Work


def test_tests_leave_out_these_lines_and_no_other() -> None:
    said = f"{Work('check: loads torch', since_s=9).as_line()}\n"
    for other in (
        "check: UserWarning: something is odd\n",
        "check: x.yaml is sound\n",
        "",
        "Traceback (most recent call last)\n",
    ):
        assert without_signs_of_life(said + other + said) == other


HEAD = """
import logging, sys, time
from pathlib import Path
from tasks.progress import iterate_with_progress
from trainer.reporting import signs_of_life

signs_of_life.LINE_AFTER_S = 1.0
signs_of_life._CHILD_LINE_AFTER_S = 1.0
signs_of_life.start_signs_of_life("new")
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
"""
COUNTS = (
    HEAD
    + """
for number in iterate_with_progress(range(30), what="rows", total=30):
    time.sleep(0.1)
    if number == 20:
        print("a printed line")
        logging.getLogger().info("a logged line")
print("the end", "rich" in sys.modules)
"""
)
IMPORTS = HEAD + "import slow_library\nprint('the end')\n"
ENVIRONMENT = {**os.environ, "PYTHONPATH": f".{os.pathsep}{ROOT}", "TERM": "xterm"}


def heard(folder: Path, script: str, *, on_terminal: bool = False, **environment: str) -> Heard:
    command = (sys.executable, "-c", script)
    found = listen(*command, folder=folder, environment=ENVIRONMENT | environment, on_terminal=on_terminal)
    assert found.status == 0, found.parts
    return found


def text_of(found: Heard) -> str:
    return "".join(text for _, text in found.parts)


def test_a_bar_stays_below_the_lines_and_leaves_nothing(tmp_path: Path) -> None:
    found = heard(tmp_path, COUNTS, on_terminal=True)
    output = text_of(found)
    assert re.search(r"\r\x1b\[2K. rows ━+─* \d\d/30 [\d.]+/s 0:00:0\d\r", output), repr(output)
    assert "\r\x1b[2Ka printed line\r\n" in output
    assert found.lines == ["a printed line", "a logged line", "the end False"], (
        "rich takes a third of a second to import"
    )


@pytest.mark.parametrize("how", [pytest.param("dumb terminal", marks=pytest.mark.slow), "pipe"])
def test_elsewhere_lines_say_it_after_a_silence(tmp_path: Path, how: str) -> None:
    found = heard(tmp_path, COUNTS, on_terminal=how != "pipe", TERM="dumb")
    assert "\x1b" not in text_of(found)
    assert re.search(r"^rows: \d+ of 30 \(\d+%\), \d s left$", found.lines[0]), found.lines
    assert len(found.lines) <= 6, "no line comes while others do"


def test_a_library_that_is_imported_is_named(tmp_path: Path) -> None:
    (tmp_path / "slow_library").mkdir()
    (tmp_path / "slow_library" / "__init__.py").write_text("import slow_library.part")
    (tmp_path / "slow_library" / "part.py").write_text("import time; time.sleep(2.5)")
    assert heard(tmp_path, IMPORTS).lines[0] in {"new: loads slow_library", "new: loads slow_library (1 s)"}
    assert "new: loads slow_library  0:0" in text_of(heard(tmp_path, IMPORTS, on_terminal=True))


def test_nothing_moves_while_somebody_types(tmp_path: Path) -> None:
    script = HEAD + "signs_of_life.note('asks')\nprint('Which model? ', end='', flush=True); input(); time.sleep(1.5)"
    with terminal(sys.executable, "-c", script, folder=tmp_path, environment=ENVIRONMENT) as seen:
        seen.wait_for("Which model? ")
        seen.type("tiny")
        seen.wait_for("tiny")
        time.sleep(signs_of_life.DRAW_AFTER_S + 0.5)
        seen.type("er")
        seen.wait_for("tinyer")
        assert "\x1b" not in seen.output.partition("Which model? ")[2]
        seen.type("\n")
        assert seen.end(60) == 0


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    with terminal(sys.executable, "-c", HEAD + "time.sleep(60)", folder=tmp_path, environment=ENVIRONMENT) as seen:
        seen.wait_for("new: starts  0:01")
        seen.type(CTRL_C)
        assert seen.end(20) != 0


@pytest.mark.parametrize("on_terminal", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_process_shows_what_those_below_it_do(tmp_path: Path, on_terminal: bool) -> None:
    """A flow starts DVC, which starts a stage, which starts a training: each reports to the one above it."""
    (tmp_path / "training.py").write_text(COUNTS)
    starts = """
import subprocess
signs_of_life.note({note!r})
with signs_of_life.show_child_progress(Path({file!r})):
    subprocess.run([sys.executable, {script!r}], check=True, capture_output={captures})
assert not Path({file!r}).exists()
"""
    stage = HEAD + starts.format(note="train: starts", file="progress-train", script="training.py", captures=False)
    (tmp_path / "stage.py").write_text(stage)
    flow = HEAD + starts.format(note="train@tiny", file="progress", script="stage.py", captures=on_terminal)
    found = heard(tmp_path, flow, on_terminal=on_terminal)
    if on_terminal:
        assert re.search(r"rows ━+─* +\d\d/30", text_of(found)), found.parts
    else:
        said = [line for line in found.lines if line.startswith("rows: ")]
        assert said, found.lines
        assert not any("train: starts" in line for line in found.lines[found.lines.index(said[0]) :]), found.lines


@pytest.mark.parametrize(
    ("work", "line", "bar"),
    [
        (
            Work("rows", 3, 12, "", 6.0),
            "rows: 3 of 12 (25%), 18 s left",
            "rows ━━━━━━────────────────── 3/12 0.5/s 0:00:18",
        ),
        (Work("rows", 3, None, "", 60.0), "rows: 3", "rows ──────────────────────── 3/? 3.0/min"),
        (Work("steps", 90, 100, "loss 0.5", 10.0, 80), "steps: 90 of 100 (90%), 10 s left, loss 0.5", None),
        (Work("steps", 80, 100, "", 10.0, 80), "steps: 80 of 100 (80%)", None),
        (Work("batches", 0, 1, "", 18.0, 0, 18), "batches: 0 of 1 (0%), no new one for 18 s", None),
        (Work("new: loads torch", since_s=75), "new: loads torch (75 s)", "new: loads torch  1:15"),
    ],
)
def test_forms(work: Work, line: str, bar: str | None) -> None:
    assert work.as_line() == line
    assert bar is None or work.as_bar() == bar


def test_no_sign_repeats_words_without_progress_or_time(tmp_path: Path) -> None:
    script = """
signs_of_life.note("new: reads the rows")
time.sleep(0.8)
print("a row has no text")
time.sleep(1.4)
for number in iterate_with_progress(range(2), what="rows", total=2):
    time.sleep(2.5 * (not number))
time.sleep(1.2)
"""
    said = heard(tmp_path, HEAD + script).lines
    assert {"new: reads the rows (1 s)", "new: reads the rows (2 s)"} & set(said), "its time goes on after another line"
    assert {"rows: 0 of 2 (0%)", "rows: 0 of 2 (0%), no new one for 1 s"} & set(said), said
    assert re.fullmatch(r"new: reads the rows \([5-9] s\)", said[-1]), "its time goes on after other work"
    assert len(set(said)) == len(said), said
