"""What a repository on a Hub holds: the commit of a branch, the names of its files, and its small files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from params import DataError, HubRefusedError, TransientError
from tasks.hub_client.token import token_for

if TYPE_CHECKING:
    from huggingface_hub import HfApi

Kind = Literal["dataset", "model"]
_TIMEOUT_S = 60.0


def repository_commit(repo_id: str, revision: str, *, kind: Kind) -> str:
    """Return the commit that a branch, a tag or a hash stands for; the errors are those of `repository_files`."""
    return str(_info(repo_id, revision, kind).sha)


def repository_files(repo_id: str, revision: str, *, kind: Kind) -> list[str]:
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

    with _api(repo_id, commit) as api:
        folder = snapshot_download(
            repo_id, revision=commit, endpoint=api.endpoint, token=api.token, allow_patterns=names
        )
    return Path(folder)


def weight_parameters(repo_id: str, commit: str) -> int | None:
    """Return the number of parameters of a model, from the headers of its safetensors; None if it has none."""
    from huggingface_hub.errors import NotASafetensorsRepoError, SafetensorsParsingError

    with _api(repo_id, commit) as api:
        try:
            found = api.get_safetensors_metadata(repo_id, revision=commit)
        except (NotASafetensorsRepoError, SafetensorsParsingError):
            return None
    return sum(found.parameter_count.values())


def _info(repo_id: str, revision: str, kind: Kind) -> Any:
    with _api(repo_id, revision) as api:
        return api.repo_info(repo_id, repo_type=kind, revision=revision, timeout=_TIMEOUT_S)


@contextlib.contextmanager
def _api(repo_id: str, revision: str) -> Iterator[HfApi]:
    """Give a client; what it raises inside the block becomes an error for the user."""
    from huggingface_hub import HfApi, constants, errors

    from tasks.hub_client.faults import CLIENT_ERRORS, explain

    api = HfApi(constants.ENDPOINT, token=token_for(constants.ENDPOINT) or False)
    where = f"{api.endpoint}/{repo_id}"
    try:
        yield api
    except CLIENT_ERRORS as error:
        cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ else error
        status = cause.response.status_code if isinstance(cause, errors.HfHubHTTPError) else 0
        if isinstance(cause, errors.GatedRepoError):
            fix = "accept its terms on the Hub, with the account of the token in HF_TOKEN"
            raise HubRefusedError(where, "needs an access request (it is gated)", fix) from error
        if isinstance(cause, errors.RevisionNotFoundError):
            fix = "write a branch, a tag or a commit behind the @"
            raise DataError(where, f"has no revision {revision}", fix) from error
        if isinstance(cause, errors.RepositoryNotFoundError):
            fix = (
                "check the name; a local path needs a file or folder that exists; for a private repository set HF_TOKEN"
            )
            raise DataError(where, "does not exist, or is private", fix) from error
        if isinstance(cause, errors.OfflineModeIsEnabled):
            fix = "unset HF_HUB_OFFLINE, or give a local path"
            raise DataError(where, "HF_HUB_OFFLINE forbids to ask the Hub", fix) from error
        if status in (401, 403):
            fix = "set HF_TOKEN to a token that may read it"
            raise HubRefusedError(where, f"the Hub refuses access ({status})", fix) from error
        fix = "check the network and HF_ENDPOINT, then try again"
        raise TransientError(where, f"the Hub cannot be reached: {explain(cause, api)}", fix) from error
