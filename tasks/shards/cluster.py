"""A Dask cluster that does the work of a stage; its errors are those of Evergreen.

Dask's own executor (`Client.get_executor`) is not used: when the scheduler has gone, its futures never end (distributed 2026.8.0).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Final

from params import KilledError, RecipeError, TransientError

if TYPE_CHECKING:
    from distributed import Client

_KEY: Final = "launch.data_cluster"
_TIMEOUT_S: Final = 30


@contextlib.contextmanager
def connect(address: str) -> Iterator[Client]:
    """Connect to the scheduler at `address`, for example `tcp://scheduler:8786`; inside the block, its errors are ours.

    A call whose worker is killed goes to another one.

    Raises:
        RecipeError: Dask is not installed.
        TransientError: nothing answers there, the cluster has no worker, or it has gone.
        KilledError: several workers were killed at a call.
    """
    try:
        from distributed import Client, KilledWorker
        from distributed.comm.core import CommClosedError
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
        try:
            yield client
        except KilledWorker as error:
            what = f"a worker was killed several times at the same shard: memory may be short ({error})"
            fix = "give the workers more memory, or let fewer of them share a machine"
            raise KilledError(_KEY, what, fix) from error
        except (CancelledError, CommClosedError) as error:
            what = f"the cluster at {address} does not answer any more"
            raise TransientError(_KEY, what, "start it again; what is done of the shards is kept") from error
