"""What people see of a log, in a process that has one of its own."""

from __future__ import annotations

import logging

import pytest

from trainer.reporting import log


def test_a_log_that_was_there_before_gets_what_it_got(caplog: pytest.LogCaptureFixture) -> None:
    log.log_for_people()
    with caplog.at_level(logging.INFO, logger="of others"):
        logging.getLogger("of others").info("a line that people need not read")
    assert caplog.messages == ["a line that people need not read"]


class TestOneAfterTheOther:
    """What a command chooses in the process of the tests ends with its test: tests/conftest.py sees to it."""

    def test_a_command_chooses_what_its_process_logs(self) -> None:
        log.log_for_people(logging.DEBUG)
        assert logging.getLogger("trainer").level == logging.DEBUG

    def test_the_next_test_finds_what_was_there_before(self) -> None:
        assert logging.getLogger("trainer").level == logging.NOTSET
        assert log._levels["ours"] == logging.INFO
