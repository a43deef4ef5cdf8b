"""Where the processes of one machine meet: a store that only this machine can reach.

torchrun's own stores listen on all network interfaces, whatever address they are given. The store holds the addresses of the
processes, which send each other pickled objects: who can write to it can have them run code.
"""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

BACKEND = "loopback"
"""Its name among the rendezvous backends of torchrun."""
ADDRESS = "127.0.0.1"
_TIMEOUT_S = 600


class LoopbackRendezvous(StaticTCPRendezvous):
    """The rendezvous of a launcher that starts all processes, with its store at a random port of 127.0.0.1."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        listening = socket.create_server((ADDRESS, 0))
        port = listening.getsockname()[1]
        super().__init__(ADDRESS, port, 0, 1, parameters.run_id, _TIMEOUT_S)
        timeout = timedelta(seconds=_TIMEOUT_S)
        self._store = TCPStore(ADDRESS, port, 1, is_master=True, timeout=timeout, master_listen_fd=listening.detach())

    def get_backend(self) -> str:
        return BACKEND
