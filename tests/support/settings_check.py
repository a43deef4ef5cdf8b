"""The check of transformers' settings, which `check` starts in a process of its own."""

from __future__ import annotations

import pytest

from trainer.model import config_check


def check_settings_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `check` look at transformers' settings in this process, which is faster; tests of the command use another one."""
    monkeypatch.setattr(
        config_check,
        "start_transformers_settings_check",
        lambda config, names, _: lambda: config_check.find_transformers_settings_errors(config, names),
    )
