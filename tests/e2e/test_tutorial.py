"""docs/tutorial.md, command by command: each one works, and prints what the page says, where `...` stands for anything."""

from __future__ import annotations

import doctest
import re
import shutil
import textwrap
from collections.abc import Iterator

from tests.support.project import ROOT, Project

PAGE = ROOT / "docs" / "tutorial.md"


def commands() -> Iterator[tuple[str, str]]:
    """Each command of the page that begins with `$`, and the output that the page shows."""
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL):
        yield from re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, flags=re.MULTILINE)


def test_the_tutorial_is_true(project: Project) -> None:
    shutil.copytree(ROOT / "docs", project.root / "docs")
    checker, seen = doctest.OutputChecker(), []
    for command, expected in commands():
        output = project.run("bash", "-c", command.partition("  # ")[0])
        same = checker.check_output(expected, output, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        shown = textwrap.indent(output, "    ")
        assert same or not expected.strip(), (
            f"{command}\n  prints\n{shown}\n  and the page says\n{textwrap.indent(expected, '    ')}"
        )
        seen.append(command.split()[:2])
    assert {tuple(one) for one in seen} >= {("evergreen", name) for name in ("new", "rehearse", "run", "try", "remove")}
