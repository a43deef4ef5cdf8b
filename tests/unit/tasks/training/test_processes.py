"""How the processes of a training start."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from params.schema import Launch
from tasks.training import processes
from trainer.runtime import fork_server, forked

ROOT = Path(fork_server.__file__).parents[2]
RANK = """
import os, pathlib, sys
pathlib.Path(sys.argv[1]).write_text(str(os.environ.get("EVERGREEN_FORK") == str(os.getpid())))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux forks")
@pytest.mark.parametrize("count", [1, 2])
def test_trainings_that_a_command_starts_one_after_the_other_are_forked_unless_a_launcher_starts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    (tmp_path / "trainer").symlink_to(ROOT / "trainer")
    (tmp_path / "rank.py").write_text(RANK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name in (fork_server.VARIABLE, "PYTHONUNBUFFERED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(fork_server, "OF_TRAINING", ["colorsys"])

    def command(*_: Any) -> list[str]:
        return [sys.executable, *forked.module_arguments("rank", "said.txt")]

    monkeypatch.setattr(processes, "launch_command", command)
    job: Any = SimpleNamespace(launch=Launch(num_processes=count, micro_batch_size=1), folder=tmp_path)
    with processes.trainings_are_forked(job.launch):
        for _ in range(2):
            assert processes.start_processes(job, tmp_path / "job.json").wait(30) == 0
            assert (tmp_path / "said.txt").read_text() == str(count == 1)
