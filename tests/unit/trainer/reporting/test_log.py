"""What people see of a log, in a process that has one of its own."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project import ROOT
from trainer.reporting import log


def test_a_log_that_was_there_before_gets_what_it_got(caplog: pytest.LogCaptureFixture) -> None:
    log.log_for_people()
    with caplog.at_level(logging.INFO, logger="of others"):
        logging.getLogger("of others").info("a line that people need not read")
    assert caplog.messages == ["a line that people need not read"]


PARTS = ("torch.distributed.distributed_c10d", "torch._dynamo", "torch.utils._pytree", "transformers.trainer")
LIBRARIES = """
import logging, sys, warnings
from pathlib import Path
from trainer.reporting import log

with log.libraries_print_nothing():
    import torch, transformers
    log.log_for_people()
    with log.log_to_file(Path(sys.argv[1])):
        for name in sys.argv[2:]:
            record = logging.LogRecord(name, logging.WARNING, torch.__file__, 1, "advice of " + name, (), None)
            logging.getLogger(name).handle(record)
        warnings.warn("old")
"""


def test_warnings_of_libraries_are_in_the_file_only(tmp_path: Path) -> None:
    """Torch prints its lines by handlers of its own, one for each of its parts, and Python its warnings without the log."""
    command = [sys.executable, "-c", LIBRARIES, str(tmp_path / "log"), *PARTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    logged = (tmp_path / "log").read_text()
    assert "UserWarning: old" in logged
    assert [name for name in PARTS if f"advice of {name}\n" not in logged] == []


class TestOneAfterTheOther:
    """What a command chooses in the process of the tests ends with its test: tests/conftest.py sees to it."""

    def test_a_command_chooses_what_its_process_logs(self) -> None:
        log.log_for_people(logging.DEBUG)
        assert logging.getLogger("trainer").level == logging.DEBUG

    def test_the_next_test_finds_what_was_there_before(self) -> None:
        assert logging.getLogger("trainer").level == logging.NOTSET
        assert log._levels["ours"] == logging.INFO
