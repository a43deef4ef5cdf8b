"""Progress lines in the log."""

from __future__ import annotations

import logging

import pytest

from tasks.progress import progress


@pytest.mark.parametrize("total", [3, None])
def test_progress_logs_the_first_item(caplog, total):
    with caplog.at_level(logging.INFO):
        assert list(progress("abc", what="letters", total=total, every_s=0.0)) == ["a", "b", "c"]
    assert caplog.records[0].getMessage().startswith("letters: 1")
    assert len(caplog.records) == 2
