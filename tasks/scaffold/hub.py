"""What a repository on a Hub holds: the commit of a branch, the names of its files, and its small files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import httpx2

from params import DataError, EvergreenError, HubRefusedError, TransientError
from tasks.hub_client.token import token_for

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_TIMEOUT_S = 60.0


def repository_commit(repo_id: str, revision: str, *, kind: Literal["dataset", "model"]) -> str:
    """Return the commit that a branch, a tag or a hash stands for; the errors are those of `repository_files`."""
    return str(_info(repo_id, revision, kind).sha)


def repository_files(repo_id: str, revision: str, *, kind: Literal["dataset", "model"]) -> list[str]:
    """Return the names of the files of a repository.

    Raises:
        DataError: there is no such repository or revision, or nobody may see it.
        HubRefusedError: the Hub refuses access.
        TransientError: the Hub cannot be reached.
    """
    return sorted(file.rfilename for file in _info(repo_id, revision, kind).siblings or ())


def download(repo_id: str, commit: str, names: list[str]) -> Path:
    """Download some small files of a model, and return their folder; the errors are those of `repository_files`."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    api = _api()
    try:
        folder = snapshot_download(
            repo_id, revision=commit, endpoint=api.endpoint, token=api.token, allow_patterns=names
        )
    except (HfHubHTTPError, httpx2.HTTPError, OfflineModeIsEnabled, OSError) as error:
        raise _error(error, repo_id, commit) from error
    return Path(folder)


def weight_parameters(repo_id: str, commit: str) -> int | None:
    """Return the number of parameters of a model, from the headers of its safetensors; None if it has none."""
    from huggingface_hub.errors import HfHubHTTPError, NotASafetensorsRepoError, SafetensorsParsingError

    try:
        found = _api().get_safetensors_metadata(repo_id, revision=commit)
    except (NotASafetensorsRepoError, SafetensorsParsingError):
        return None
    except (HfHubHTTPError, httpx2.HTTPError, OSError) as error:
        raise _error(error, repo_id, commit) from error
    return sum(found.parameter_count.values())


def _api() -> HfApi:
    from huggingface_hub import HfApi, constants

    return HfApi(constants.ENDPOINT, token=token_for(constants.ENDPOINT) or False)


def _info(repo_id: str, revision: str, kind: Literal["dataset", "model"]) -> Any:
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        return _api().repo_info(repo_id, repo_type=kind, revision=revision, timeout=_TIMEOUT_S)
    except (HfHubHTTPError, httpx2.HTTPError, OfflineModeIsEnabled, OSError) as error:
        raise _error(error, repo_id, revision) from error


def _error(error: Exception, repo_id: str, revision: str) -> EvergreenError:
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    where = f"{constants.ENDPOINT}/{repo_id}"
    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        return _error(error.__cause__, repo_id, revision)
    known: dict[type[Exception], tuple[type[EvergreenError], str, str]] = {
        GatedRepoError: (
            HubRefusedError,
            "needs an access request (it is gated)",
            "accept its terms on the Hub, with the account of the token in HF_TOKEN",
        ),
        RevisionNotFoundError: (
            DataError,
            f"has no revision {revision}",
            "write a branch, a tag or a commit behind the @",
        ),
        RepositoryNotFoundError: (
            DataError,
            "does not exist, or is private",
            "check the name; a local path needs a file or folder that exists; for a private repository set HF_TOKEN",
        ),
        OfflineModeIsEnabled: (
            DataError,
            "HF_HUB_OFFLINE forbids to ask the Hub",
            "unset HF_HUB_OFFLINE, or give a local path",
        ),
    }
    for kind, (error_class, what, fix) in known.items():  # a gated repository is also one that is not found
        if isinstance(error, kind):
            return error_class(where, what, fix)
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else 0
    if status in (401, 403):
        return HubRefusedError(where, f"the Hub refuses access ({status})", "set HF_TOKEN to a token that may read it")
    what = f"the Hub answers {status}" if status else f"the Hub cannot be reached: {type(error).__name__}"
    return TransientError(where, what, "check the network and HF_ENDPOINT, then try again")
