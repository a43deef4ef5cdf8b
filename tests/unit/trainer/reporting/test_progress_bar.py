"""The bar of work that takes longer than a second, on a real terminal and elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project import ROOT
from tests.support.terminal import terminal

SCRIPT = """
import logging, sys, time
from tasks.progress import iterate_with_progress
from trainer.reporting import progress_bar

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
progress_bar.enable_progress_bar()
for number in iterate_with_progress(range(30), what="rows", total=30, every_s=1.5):
    time.sleep(0.1)
    if number == 20:
        print("a printed line")
        logging.getLogger().info("a logged line")
print("the end", "rich" in sys.modules)
"""
QUICK = SCRIPT.replace("range(30)", "range(3)")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "NO_COLOR": ""}


def on_terminal(tmp_path: Path, script: str = SCRIPT, **environment: str) -> str:
    command = (sys.executable, "-c", script)
    with terminal(*command, folder=tmp_path, environment=ENVIRONMENT | environment) as seen:
        assert seen.end(60) == 0, seen.output
    return seen.output


def without_colour(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", text)


@pytest.mark.parametrize("colour", [True, False])
def test_a_bar_stays_below_the_lines(tmp_path: Path, colour: bool) -> None:
    output = on_terminal(tmp_path, NO_COLOR="" if colour else "1")
    assert re.search(r"rows ━+\S* +\d\d/30 [\d.]+/s 0:00:0\d", without_colour(output)), output
    assert bool(re.search(r"\x1b\[[39]\d", output)) is colour, repr(output)
    assert re.search(r"\r\x1b\[2Ka printed line\r\n", output), repr(output)
    assert re.search(r"\r\x1b\[2Ka logged line\r\n", output), repr(output)
    assert re.search(r"\x1b\[2Kthe end True\r\n$", output), "nothing of the bar is left"
    assert not re.search(r"rows: \d+ of 30", output), "the bar says it already"


@pytest.mark.parametrize("how", ["dumb", "pipe", "quick"])
def test_elsewhere_there_are_lines(tmp_path: Path, how: str) -> None:
    if how == "pipe":
        command = [sys.executable, "-c", SCRIPT]
        output = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout
    else:
        output = on_terminal(tmp_path, QUICK if how == "quick" else SCRIPT, TERM="xterm" if how == "quick" else how)
    assert "\x1b" not in output
    assert "the end False" in output, "rich takes a third of a second to import"
    assert bool(re.search(r"^rows: \d+ of 30 \(\d+%\), \d s left\r?$", output, re.MULTILINE)) is (how != "quick")


def test_the_process_that_has_the_terminal_draws_for_another(tmp_path: Path) -> None:
    (tmp_path / "stage.py").write_text(SCRIPT)
    draws = f"""
import subprocess, sys
from pathlib import Path
from rich.console import Console
from trainer.reporting import progress_bar

console = Console(highlight=False)
with progress_bar.draw_child_progress(Path("progress"), lambda: console):
    stage = subprocess.Popen([{sys.executable!r}, "stage.py"], stdout=subprocess.PIPE, text=True)
    for line in stage.stdout:
        console.print("log:", line.strip())
    assert not Path("progress").exists()
"""
    output = without_colour(on_terminal(tmp_path, draws))
    assert re.search(r"rows ━+\S* +\d\d/30", output), output
    assert re.search(r"\r\x1b\[2Klog: a printed line\r\n", output), repr(output)
    assert "log: rows: " in output, "a log has the lines"
    assert not re.search(r"log:[^\r\n]*━", output), "nothing of the bar"
