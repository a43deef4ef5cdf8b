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
