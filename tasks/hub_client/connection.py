"""Opens the repository that a recipe publishes to.

It is on the Hub that the recipe names, else on that of HF_ENDPOINT, else on the local Hub: the folder .hub/, which is served
on this machine while the repository is open.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from params import HubRefusedError
from params.foundation.artifacts import MAX_BYTES, Artifacts, replace_folder_atomically
from tasks.hub_client.token import find_token_for_hub, require_token_for_hub
from tasks.hub_server.server import LocalHub, new_token
from tasks.recipes.loading import load

if TYPE_CHECKING:
    from tasks.hub_client.repository import HubRepository

logger = logging.getLogger(__name__)
LOCAL = "local"
LOCAL_FOLDER = ".hub"


def current_dvc_experiment() -> str | None:
    """Return the name of the experiment of DVC that this process belongs to, or the commit that it starts from; None if none."""
    return os.environ.get("DVC_EXP_NAME") or os.environ.get("DVC_EXP_BASELINE_REV")


def local_hub_folder(artifacts: Artifacts) -> Path:
    """Return the folder of the local Hub. A queued experiment runs in a copy of the project; DVC says where the project is."""
    root = os.environ.get("DVC_ROOT") if current_dvc_experiment() else None
    return (Path(root) if root else artifacts.root) / LOCAL_FOLDER


def resolve_hub_endpoint(endpoint: str) -> str:
    """Return the address of the Hub, or `local`: the recipe's, else that of HF_ENDPOINT, else the local Hub.

    Reports name the Hub by it. An address with a password is refused: it would be in every message and in the receipt.

    Raises:
        HubRefusedError: the address holds a password, or is not an address.
    """
    chosen = os.environ.get("HF_ENDPOINT", LOCAL) if endpoint == LOCAL else endpoint
    scheme, _, rest = chosen.partition("://")
    if "@" in rest:
        where = f"{scheme}://***@{rest.rpartition('@')[2]}"
        what = "the endpoint holds a user or a password, which would be in every message and in the receipt"
        raise HubRefusedError(where, what, "remove it, and set HF_TOKEN")
    if chosen != LOCAL and not (scheme in ("http", "https") and rest.strip("/") and chosen.isprintable()):
        raise HubRefusedError(
            ascii(chosen), "the endpoint is not an address of a Hub", "correct the endpoint: write https://<host>"
        )
    return chosen


def name_of_hub(endpoint: str) -> str:
    """Return how texts for people name a Hub: by its address, or the local one by its folder."""
    return f"the Hub in {LOCAL_FOLDER}" if endpoint == LOCAL else endpoint


def find_repository_endpoint(repo_id: str) -> str:
    """Return the Hub of a repository: that of the recipes which publish there, if they agree, else `local`."""
    publishes = [load(path).publish for path in sorted(Path("params").glob("*.yaml"))]
    endpoints = {publish.endpoint for publish in publishes if publish.repo_id == repo_id}
    return endpoints.pop() if len(endpoints) == 1 else LOCAL


@contextlib.contextmanager
def open_repository(
    artifacts: Artifacts, *, repo_id: str, endpoint: str, to_write: bool = False
) -> Iterator[HubRepository]:
    """Open a repository; the local Hub runs inside the block.

    On the local Hub, the client acts for the namespace of `repo_id`, with a token that only this process knows. Another Hub
    needs a token `to_write`. Who only reads makes no folder of a local Hub where none is: there, an empty one is served.

    Raises:
        HubRefusedError: there is no token for a remote Hub, or its address holds a password.
    """
    endpoint = resolve_hub_endpoint(endpoint)
    if endpoint != LOCAL:
        from huggingface_hub import HfApi

        from tasks.hub_client.repository import HubRepository

        token = require_token_for_hub(endpoint) if to_write else find_token_for_hub(endpoint)
        yield HubRepository(HfApi(endpoint=endpoint, token=token or False), repo_id)
        return
    folder = local_hub_folder(artifacts)
    if to_write or folder.exists():
        with open_local_repository(folder, repo_id) as repository:
            yield repository
        return
    with TemporaryDirectory() as empty, open_local_repository(Path(empty), repo_id) as repository:
        yield replace(repository, folder=folder.name)


@contextlib.contextmanager
def open_local_repository(folder: Path, repo_id: str) -> Iterator[HubRepository]:
    """Open a repository in the folder of a local Hub, which is served inside the block."""
    from huggingface_hub import HfApi

    from tasks.hub_client.repository import HubRepository

    owner, token = repo_id.split("/", maxsplit=1)[0], new_token()
    with LocalHub(folder, tokens={token: owner}) as hub, _no_transfer_bars():
        yield HubRepository(HfApi(endpoint=hub.endpoint, token=token), repo_id, folder=folder.name)


def fetch_model_once(artifacts: Artifacts, repository: HubRepository, commit: str) -> Path:
    """Return the folder of a published model on this machine, downloaded unless it is there; it takes the place of another one."""
    folder = artifacts.champion / commit
    if not folder.exists():
        shutil.rmtree(folder.parent, ignore_errors=True)
        logger.info("downloading the published model, %s of %s", commit, repository.id)
        with replace_folder_atomically(folder) as staging:
            repository.download_model(commit, staging)
            for name, size in MAX_BYTES.items():
                with contextlib.suppress(HubRefusedError):  # one may be too large: then there is none
                    read = partial(repository.read, commit, name, max_bytes=size)
                    if content := repository.retry_until_clear(read):
                        (staging / name).write_bytes(content)
            shutil.rmtree(staging / ".cache", ignore_errors=True)  # the client's notes on the download
    return folder


@contextlib.contextmanager
def _no_transfer_bars() -> Iterator[None]:
    """Draw no bars in the block: within this machine, a file is there at once."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
