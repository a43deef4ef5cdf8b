"""Files of a repository, by the client's cache: a Hub that does not answer is told from one that says no."""

from __future__ import annotations

import os
import re
from pathlib import Path


def fetch_if_there(repo_id: str, name: str, revision: str | None = None) -> Path | None:
    """Return a file of a repository, in the cache; None if its Hub says, or has said of this commit, that there is no such file.

    Raises:
        OSError, ValueError: nobody can say it: the Hub does not answer, refuses, or has no such repository; or the name is not one.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RemoteEntryNotFoundError

    never_changes = re.fullmatch("[0-9a-f]{40}", revision or "") is not None
    if never_changes and _has_said_no(repo_id, name, revision):
        return None
    try:
        return Path(hf_hub_download(repo_id, name, revision=revision, endpoint=os.environ.get("HF_ENDPOINT")))
    except RemoteEntryNotFoundError:
        return None
    except LocalEntryNotFoundError:
        if _has_said_no(repo_id, name, revision):
            return None
        raise


def _has_said_no(repo_id: str, name: str, revision: str | None) -> bool:
    from huggingface_hub import _CACHED_NO_EXIST, try_to_load_from_cache

    return try_to_load_from_cache(repo_id, name, revision=revision) is _CACHED_NO_EXIST
