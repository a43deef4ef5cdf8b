"""A server of uvicorn that ends at once: uvicorn looks ten times a second whether it shall end, and then waits for another tenth."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import uvicorn

_TURN_S = 0.005


class PromptServer(uvicorn.Server):
    """Waits for its end, and then only for answers that are on their way, at most `timeout_graceful_shutdown` of its configuration.

    Connections that are left then are closed, before asyncio cancels their tasks: so each request ends as if its client had gone.
    """

    def end(self) -> None:
        """Ask it to end, from another thread, once it has `started`."""
        self.should_exit = True
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._end.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        await super().startup(sockets)

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # which renews the time in answers
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._end.wait(), 1)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while self.server_state.connections or self.server_state.tasks:
                    await asyncio.sleep(_TURN_S)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
