"""Servers that end soon: uvicorn looks ten times a second whether it shall end, and once more waits for a tenth of a second."""

import asyncio
from types import ModuleType

import uvicorn.server


def take_quick_turns() -> None:
    """Let servers of this process, and of what it forks, look ten times as often."""
    often = ModuleType("asyncio")
    vars(often).update(vars(asyncio), sleep=lambda seconds: asyncio.sleep(seconds / 10))
    uvicorn.server.asyncio = often  # type: ignore[attr-defined]
