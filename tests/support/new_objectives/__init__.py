"""New objectives, each in one file: what a user might put into trainer/objectives/."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trainer import objectives

FOLDER = Path(__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))


@contextmanager
def known() -> Iterator[None]:
    """The objectives of this folder are found beside those of the project."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objectives, "__path__", [*objectives.__path__, str(FOLDER)])
        yield
