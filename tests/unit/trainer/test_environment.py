"""A variable that a block sets is as before when the block ends, however it ends."""

from __future__ import annotations

import contextlib
import os

import pytest

from trainer.environment import environment_variable


@pytest.mark.parametrize("before", [None, "", "old"])
@pytest.mark.parametrize("value", [None, "new"])
def test_a_variable_is_as_before_after_the_block(
    monkeypatch: pytest.MonkeyPatch, before: str | None, value: str | None
) -> None:
    monkeypatch.delenv("EVERGREEN_TEST", raising=False)
    if before is not None:
        monkeypatch.setenv("EVERGREEN_TEST", before)
    with contextlib.suppress(ValueError), environment_variable("EVERGREEN_TEST", value):
        assert os.environ.get("EVERGREEN_TEST") == value
        raise ValueError
    assert os.environ.get("EVERGREEN_TEST") == before
