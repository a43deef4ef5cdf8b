"""The user's token, for the Hub that it belongs to."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from params import HubRefusedError
from tasks.loopback import is_loopback


def find_token_for_hub(endpoint: str) -> str | None:
    """Return the user's token, if it belongs to the Hub at `endpoint`.

    The token of HF_TOKEN or `hf auth login` belongs to the Hub of HF_ENDPOINT, else to huggingface.co. A recipe that names
    another Hub does not get it.
    """
    from huggingface_hub import get_token

    return get_token() if _is_home(endpoint) else None


def require_token_for_hub(endpoint: str) -> str:
    """Return the user's token for a Hub.

    Raises:
        HubRefusedError: there is none, it belongs to another Hub, or HF_HUB_OFFLINE forbids requests to other machines.
    """
    from huggingface_hub import is_offline_mode

    if is_offline_mode() and not is_loopback(urlsplit(endpoint).hostname):
        fix = "unset HF_HUB_OFFLINE; or publish to the local Hub, with `publish.endpoint: local`"
        raise HubRefusedError(endpoint, "HF_HUB_OFFLINE forbids requests to it", fix)
    if token := find_token_for_hub(endpoint):
        return token
    what, fix = f"there is no token for {endpoint}", "set HF_TOKEN, or log in with `hf auth login`"
    if not _is_home(endpoint):
        what += f": the user's token belongs to {_home()}"
        fix = f"set HF_TOKEN to a token for this Hub, and HF_ENDPOINT={endpoint}"
    raise HubRefusedError(endpoint, what, fix)


def _home() -> str:
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def _is_home(endpoint: str) -> bool:
    return endpoint.rstrip("/").lower() == _home().rstrip("/").lower()
