"""What a benchmark prints: a line that says what was measured where, and tables of medians with their range.

`python -m benchmarks` puts them into docs/benchmarks.md, each benchmark's between marks of its own, so that all figures below one
line are of one commit and one machine.
"""

from __future__ import annotations

import datetime as dt
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

_ROOT = Path(__file__).parents[1]
PAGE = _ROOT / "docs" / "benchmarks.md"


def environment(rounds: int | None = None) -> str:
    """Describe commit, day, machine, versions and rounds in one line, for figures that follow."""
    commit = _git("rev-parse", "--short=8", "HEAD") or "unknown"
    if _git("status", "--porcelain", "--", ".", f":!{PAGE.relative_to(_ROOT)}"):
        commit += " with changes"
    day = f"{dt.datetime.now(dt.UTC):%Y-%m-%d}"
    load = f"{os.getloadavg()[0]:.1f} at its start"
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs with a load of {load}, {torch.get_num_threads()} threads"
    counted = "" if rounds is None else f", rounds: {rounds}"
    return f"Commit {commit}, {day}, {machine}, torch {torch.__version__}, Python {platform.python_version()}{counted}."


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(_ROOT), *arguments], check=False, capture_output=True, text=True)
    return done.stdout.strip()


def spread(values: Iterable[float], digits: int = 2) -> str:
    """Return the median and, in brackets, the least and the most."""
    found = [*values]
    shown = [f"{value:.{digits}f}" for value in (statistics.median(found), min(found), max(found))]
    return f"{shown[0]} ({shown[1]} to {shown[2]})"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table of the page, each row as soon as it is there. Columns but the first are aligned to the right."""
    print(f"\n| {' | '.join(columns)} |\n| --- |{' ---: |' * (len(columns) - 1)}", flush=True)
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def put_into_page(name: str, printed: str, page: Path = PAGE) -> None:
    """Replace what stands between the marks of a benchmark by what it has printed.

    Raises:
        ValueError: the page has no marks of this name.
    """
    text = page.read_text(encoding="utf-8")
    begin, end = f"<!-- benchmark: {name} -->\n", f"<!-- end: {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise ValueError(f"{page}: it needs the line {begin.strip()} and, behind it, {end}, once")
    page.write_text(pattern.sub(lambda _: f"{begin}{printed.strip()}\n{end}", text), encoding="utf-8")
