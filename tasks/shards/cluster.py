"""A Dask cluster that does the work of a stage; its errors are those of Evergreen.

Dask's own executor (`Client.get_executor`) is not used: when the scheduler has gone, its futures never end (distributed 2026.8.0).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from params import KilledError, RecipeError, TransientError

if TYPE_CHECKING:
    from distributed import Client, Future

_KEY: Final = "launch.data_cluster"
_TIMEOUT_S: Final = 30


@dataclass(frozen=True)
class Call:
    """A call that a worker of the cluster makes."""

    future: Future[Any]
    address: str

    def result(self) -> Any:
        """Return what the call gives.

        Raises:
            KilledError: several workers were killed at it.
            TransientError: the cluster has gone.
        """
        from distributed import KilledWorker
        from distributed.comm.core import CommClosedError

        try:
            return self.future.result()
        except KilledWorker as error:
            what = f"a worker was killed several times at the same shard: memory may be short ({error})"
            fix = "give the workers more memory, or let fewer of them share a machine"
            raise KilledError(_KEY, what, fix) from error
        except (CancelledError, CommClosedError) as error:
            what = f"the cluster at {self.address} does not answer any more"
            raise TransientError(_KEY, what, "start it again; what is done of the shards is kept") from error

    def cancel(self) -> None:
        """Give up the call."""
        self.future.release()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Cluster:
    """The workers of a cluster. A call whose worker is killed goes to another one."""

    client: Client
    address: str

    @property
    def processes(self) -> int:
        """Calls that run at the same time."""
        return sum(self.client.nthreads().values())  # type: ignore[no-untyped-call]

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Call:
        """Start a call."""
        return Call(self.client.submit(function, *arguments, pure=False), self.address)


@contextlib.contextmanager
def connect(address: str) -> Iterator[Cluster]:
    """Connect to the scheduler at `address`, for example `tcp://scheduler:8786`.

    Raises:
        RecipeError: Dask is not installed.
        TransientError: nothing answers there, or the cluster has no worker.
    """
    try:
        from distributed import Client
    except ImportError as error:
        fix = "install the extra `cluster`, for example with `pip install evergreen[cluster]`"
        raise RecipeError.at(_KEY, "Dask is not installed", fix) from error
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what it logs is raised as well
    with contextlib.ExitStack() as stack:
        try:
            client = stack.enter_context(
                Client(address, timeout=_TIMEOUT_S, set_as_default=False)  # type: ignore[no-untyped-call]
            )
            client.wait_for_workers(1, timeout=_TIMEOUT_S)
        except (OSError, TimeoutError, ValueError) as error:
            what = f"the cluster at {address} cannot be used: {error}"
            fix = "start it with `dask scheduler` and `dask worker`, and check the address"
            raise TransientError(_KEY, what, fix) from error
        yield Cluster(client, address)
