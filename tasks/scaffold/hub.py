"""What a repository on a Hub holds: the files of a dataset; the commit, the small files and the size of a model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from params import DataError, HubRefusedError, ModelError, TransientError
from tasks.hub_client.token import find_token_for_hub

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_TIMEOUT_S = 60.0


def list_dataset_files(repo_id: str, revision: str) -> list[str]:
    """Return the names of the files of a dataset at a branch, a tag or a commit.

    Raises:
        DataError: there is no such repository or revision, or nobody may see it.
        HubRefusedError: the Hub refuses access.
        TransientError: the Hub cannot be reached.
    """
    with _api(repo_id, revision) as api:
        found = api.dataset_info(repo_id, revision=revision, timeout=_TIMEOUT_S)
    return sorted(file.rfilename for file in found.siblings or ())


def download_and_count_parameters(repo_id: str, revision: str, patterns: list[str]) -> tuple[str, Path, int | None]:
    """Return the commit of a model, a folder with its files that match, and its number of parameters (None without safetensors)."""
    from huggingface_hub import errors, snapshot_download

    with _api(repo_id, revision) as api:
        commit = str(api.model_info(repo_id, revision=revision, timeout=_TIMEOUT_S).sha)
        folder = snapshot_download(
            repo_id, revision=commit, endpoint=api.endpoint, token=api.token, allow_patterns=patterns
        )
        with contextlib.suppress(errors.NotASafetensorsRepoError, errors.SafetensorsParsingError):
            headers = api.get_safetensors_metadata(repo_id, revision=commit)
            return commit, Path(folder), sum(headers.parameter_count.values())
    return commit, Path(folder), None


def count_local_parameters(folder: Path) -> int | None:
    """Return the number of parameters of a model in a folder, from the headers of its safetensors; None if it has none."""
    from huggingface_hub import parse_local_safetensors_file_metadata
    from huggingface_hub.errors import SafetensorsParsingError

    counts = []
    for path in folder.glob("*.safetensors"):
        try:
            counts.append(sum(parse_local_safetensors_file_metadata(path).parameter_count.values()))
        except (OSError, SafetensorsParsingError) as error:
            raise ModelError(str(path), f"is no safetensors file: {error}", "copy or download it again") from error
    return sum(counts) if counts else None


@contextlib.contextmanager
def _api(repo_id: str, revision: str) -> Iterator[HfApi]:
    """Give a client; what it raises inside the block becomes an error for the user."""
    from huggingface_hub import HfApi, constants, errors

    from tasks.hub_client.faults import CLIENT_ERRORS, describe_without_secrets

    api = HfApi(constants.ENDPOINT, token=find_token_for_hub(constants.ENDPOINT) or False)
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
            fix = "check the name; a local path needs a file or folder that exists; "
            fix += "for a private repository set HF_TOKEN"
            raise DataError(where, "does not exist, or is private", fix) from error
        if isinstance(cause, errors.OfflineModeIsEnabled):
            what = "HF_HUB_OFFLINE forbids to ask the Hub"
            raise DataError(where, what, "unset HF_HUB_OFFLINE, or give a local path") from error
        if status in (401, 403):
            fix = "set HF_TOKEN to a token that may read it"
            raise HubRefusedError(where, f"the Hub refuses access ({status})", fix) from error
        what = f"the Hub cannot be reached: {describe_without_secrets(cause, api)}"
        raise TransientError(where, what, "check the network and HF_ENDPOINT, then try again") from error
