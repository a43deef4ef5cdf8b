"""Neither an endpoint nor a token of the machine that runs the tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def without_hub_settings(folder: Path) -> Iterator[None]:
    """Leave the Hub's client without an endpoint and a token; `folder` holds none."""
    with pytest.MonkeyPatch.context() as patched:
        for name in ("HF_ENDPOINT", "HF_TOKEN", "HF_HUB_OFFLINE"):
            patched.delenv(name, raising=False)
        patched.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(folder / "no-token"))
        yield
