"""docs/tutorial.md, command by command: each one works, and prints what the page says, where `...` stands for anything."""

from __future__ import annotations

import re
import shutil
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.project import ROOT, ServedProject, copy_project, wait_for

PAGE = ROOT / "docs" / "tutorial.md"
SILENT = "# prints nothing"
GAINS = "gain                    rows"
"""In the head of the history, a column as wide as the gains below it, which depend on the number of epochs."""


def commands() -> Iterator[tuple[str, str]]:
    """Each command of the page, which begins with `$`, and the output that the page shows."""
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL):
        assert block.startswith("$ ")
        yield from re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, flags=re.MULTILINE)


def agrees(expected: str, output: str) -> bool:
    """Whether each line of a page is that of the output; the line `...` stands for any lines, and `...` in a line for any text."""
    lines, skips = (line.rstrip() for line in output.splitlines() if line.strip()), False
    for wanted in filter(str.strip, expected.splitlines()):
        if wanted.strip() == "...":
            skips = True
            continue
        pattern = ".*".join(map(re.escape, wanted.rstrip().split("...")))
        while not re.fullmatch(pattern, line := next(lines, "")):
            if not skips or not line:
                return False
        skips = False
    return skips or next(lines, None) is None


@pytest.mark.parametrize(
    ("expected", "output", "same"),
    [
        ("a 1\nb\n", "a 1\n\nb\n", True),
        ("a ...\nb\n", "a 1 2\nb\n", True),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("...\na\n...\n", "a\n", True),
        ("a\n", "a\nb\n", False),
        ("a\nb\n", "a\n", False),
        ("...\nb\n", "a\n", False),
        ("a ... c\n", "a b\nc\n", False),
        ("", "a\n", False),
    ],
)
def test_outputs_are_compared_line_by_line(expected: str, output: str, same: bool) -> None:
    assert agrees(expected, output) is same


@pytest.fixture
def project(tmp_path: Path, make_prefect_home: Callable[[], Path]) -> Iterator[ServedProject]:
    """A clone, and a port for a Prefect server that nobody has started yet."""
    copy_project(tmp_path / "clone")
    shutil.copytree(ROOT / "docs", tmp_path / "clone" / "docs")
    made = ServedProject(tmp_path / "clone", make_prefect_home())
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"):
        del made.environment[name]  # the page sets it
    made.environment["PREFECT_WORKER_QUERY_SECONDS"] = "1"
    made.run("git", "init", "-q", "-b", "main")
    try:
        yield made
    finally:
        made.run("prefect", "server", "stop", ok=None)
        made.end()


class Shell:
    """One shell for all commands: it keeps what is exported, and its jobs."""

    def __init__(self, bash: subprocess.Popen[str]) -> None:
        self._bash = bash

    def run(self, command: str) -> tuple[int, str]:
        """The exit status of a command, and its output."""
        assert self._bash.stdin
        assert self._bash.stdout
        self._bash.stdin.write(f"{{ {command}\n}} < /dev/null; echo; echo end of command $?\n")
        self._bash.stdin.flush()
        lines = []
        while not (line := self._bash.stdout.readline()).startswith("end of command "):
            assert line, "the shell has ended"
            lines.append(line)
        return int(line.split()[-1]), "".join(lines)


@pytest.mark.parametrize(
    ("epochs", "last"), [(3, "evergreen password"), pytest.param(10, None, marks=pytest.mark.slow)], ids=["3", "10"]
)
def test_the_tutorial_is_true(project: ServedProject, epochs: int, last: str | None) -> None:
    """With fewer epochs than the page's recipe has, only the number of steps and the gains are others.

    The deployment, which comes after the password, takes half of the time; nights are lived through elsewhere.
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(
        ["bash"], cwd=project.root, env=forked.commands(project.environment), text=True, **pipes
    ) as bash:
        seen = follow(Shell(bash), project, epochs, last)
    evergreen = {("evergreen", name) for name in ("new", "rehearse", "run", "try")}
    later = {("evergreen", "history"), ("evergreen", "remove"), ("prefect", "deployment"), ("prefect", "worker")}
    assert (evergreen if last else evergreen | later) <= seen


def has_completed(project: ServedProject) -> bool:
    return any(run["state_type"] == "COMPLETED" for run in project.post("flow_runs/filter"))


def follow(shell: Shell, project: ServedProject, epochs: int, last: str | None) -> set[tuple[str, ...]]:
    """Run the page's commands one after the other, up to the last one; return how they begin."""
    seen, port = set(), project.environment["PREFECT_SERVER_API_PORT"]
    for command, shown in commands():
        expected = shown.replace("; 520 steps", f"; {52 * epochs} steps").replace(GAINS, "gain ... rows")
        status, output = shell.run(command.replace(":4200", f":{port}"))
        indented = textwrap.indent(output, "    ")
        assert status == 0, f"{command}\n  ended with {status}\n{indented}"
        assert expected.strip() or SILENT in command, f"the page shows no output of\n  {command}"
        said = textwrap.indent(expected, "    ")
        if "before it reached" in output:  # on a busy machine Prefect loses the stream of events, and the run goes on
            wait_for(lambda: has_completed(project), "the run", 300, every_s=1.0)
        else:
            assert agrees(expected, output), f"{command}\n  prints\n{indented}\n  and the page says\n{said}"
        if command == "evergreen password":
            project.read_password()
        if command.startswith("evergreen new "):
            project.edit("params/questions.yaml", "epochs: 10 ", f"epochs: {epochs} ")
            for name in ("eval_steps", "save_steps"):
                project.edit("params/questions.yaml", f"{name}: 30 ", f"{name}: 60 ")
        if "server start" in command:
            wait_for(project._answers, "the server", 120)
        seen.add(tuple(command.split()[:2]))
        if command == last:
            break
    return seen
