"""The client of the Hub that a recipe publishes to; the local one runs for as long as it is needed.

The Hub is the one in the folder .hub/, served on this machine for as long as somebody asks it, unless HF_ENDPOINT or the
recipe names another.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from params import HubRefusedError
from params.artifacts import Artifacts
from tasks.hub_server.server import LOCAL_TOKEN, LocalHub

if TYPE_CHECKING:
    from huggingface_hub import HfApi

LOCAL = "local"
LOCAL_FOLDER = ".hub"


def chosen_endpoint(endpoint: str) -> str:
    """The Hub's address, or `local`: the recipe's, else HF_ENDPOINT, else the Hub of this machine.

    Raises:
        HubRefusedError: the address holds a password, which would be in every message and in the receipt.
    """
    chosen = os.environ.get("HF_ENDPOINT", LOCAL) if endpoint == LOCAL else endpoint
    scheme, _, rest = chosen.partition("://")
    if "@" in rest:
        where = f"{scheme}://***@{rest.rpartition('@')[2]}"
        what = "the endpoint holds a user or a password, which would be in every message and in the receipt"
        raise HubRefusedError(where, what, "leave it out; the token belongs into HF_TOKEN")
    return chosen


@contextlib.contextmanager
def open_hub(
    artifacts: Artifacts, *, repo_id: str, endpoint: str, to_write: bool = False
) -> Iterator[tuple[HfApi, str]]:
    """The client of the chosen Hub, and the Hub's name in receipts; the local one runs inside the block.

    Args:
        artifacts: of the project whose .hub/ it may be.
        repo_id: the repository, whose owner the client acts for on the local Hub.
        endpoint: as the recipe says.
        to_write: whether a token is needed.

    Raises:
        HubRefusedError: there is no token for a Hub elsewhere, or a password in its address.
    """
    endpoint = chosen_endpoint(endpoint)
    if endpoint != LOCAL:
        from huggingface_hub import HfApi, get_token

        token = get_token()
        if not token and to_write:
            raise HubRefusedError(endpoint, "there is no token", "set HF_TOKEN, or log in with `hf auth login`")
        yield HfApi(endpoint=endpoint, token=token or False), endpoint
        return
    from huggingface_hub import HfApi, constants

    owner = repo_id.split("/", maxsplit=1)[0]
    xet_off, constants.HF_HUB_DISABLE_XET = constants.HF_HUB_DISABLE_XET, True  # the local Hub has no such storage
    try:
        with LocalHub(artifacts.root / LOCAL_FOLDER, tokens={LOCAL_TOKEN: owner}) as hub:
            yield HfApi(endpoint=hub.endpoint, token=LOCAL_TOKEN), LOCAL
    finally:
        constants.HF_HUB_DISABLE_XET = xet_off
