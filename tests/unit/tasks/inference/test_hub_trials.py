"""Limits of the process that lets models answer on the pages of a Hub. Real models answer in tests/e2e/test_published_models.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.hub_server.trials import TrialError
from tasks.inference.hub_trials import HubModelAnswerer

REQUEST = {"key": "a", "folder": "/nowhere", "where": "alice/model@main", "text": "hi"}


def test_process_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with HubModelAnswerer(tmp_path, timeout_s=0.3) as trials:  # it is importing transformers by then
        for _ in range(2):
            with pytest.raises(TrialError, match=r"alice/model@main: .* took longer than 0 s"):
                trials._ask(REQUEST)


def test_process_that_needs_too_much_memory_fails(tmp_path: Path) -> None:
    with HubModelAnswerer(tmp_path, memory_bytes=20 << 20) as trials:
        try:
            said = trials._ask(REQUEST)["error"]
        except TrialError as error:  # the process may not get as far as that
            said = str(error)
    assert "emory" in said or "allocate" in said
