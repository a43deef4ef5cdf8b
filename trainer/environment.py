"""Variables of this process's environment, for what it starts meanwhile."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def environment_variable(name: str, value: str | None) -> Iterator[None]:
    """Give a variable a value in the block, or with None remove it; afterwards it is as it was before."""
    before = os.environ.get(name)
    _put(name, value)
    try:
        yield
    finally:
        _put(name, before)


def _put(name: str, value: str | None) -> None:
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value
