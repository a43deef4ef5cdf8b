"""Python code in a process of its own that imports the libraries and nothing of the project, as somebody else runs it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.support import forked, forked_project

_ROOT = str(Path(__file__).parents[2])


def run_elsewhere(code: str, *arguments: str, environment: Mapping[str, str]) -> str:
    """What the code prints, errors included; it sees the arguments as `sys.argv[1:]`, and must end well."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output.txt")
        process = forked.start(_run, code, arguments, environment=environment, folder=Path(folder), output=output)
        process.join()
        said = output.read_text(encoding="utf-8")
    assert process.exitcode == os.EX_OK, said
    return said


def _run(code: str, arguments: tuple[str, ...]) -> None:
    forked_project.forget()
    sys.path[:] = [path for path in sys.path if path not in ("", _ROOT)]
    sys.argv = ["-c", *arguments]
    exec(compile(code, "<code>", "exec"), {"__name__": "__main__"})
    imported = {name.partition(".")[0] for name in sys.modules}
    assert not imported & {"params", "tasks", "trainer", "flows"}, "it imports the project"
