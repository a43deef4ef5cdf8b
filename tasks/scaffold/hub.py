"""What a repository on a Hub holds: the commit of a branch, the names of its files, and its small files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from params import DataError, EvergreenError, HubRefusedError, ModelError, TransientError
from tasks.hub_client.token import token_for

if TYPE_CHECKING:
    from huggingface_hub import HfApi

Kind = Literal["dataset", "model"]
_TIMEOUT_S = 60.0


def find_commit_and_files(repo_id: str, revision: str, *, kind: Kind) -> tuple[str, list[str]]:
    """Return the commit that a branch, a tag or a hash stands for, and the names of its files.

    Raises:
        DataError: there is no such repository or revision, or nobody may see it.
        HubRefusedError: the Hub refuses access.
        TransientError: the Hub cannot be reached.
    """
    with _api(repo_id, revision) as api:
        found: Any = api.repo_info(repo_id, repo_type=kind, revision=revision, timeout=_TIMEOUT_S)
    return str(found.sha), sorted(file.rfilename for file in found.siblings or ())


def download(repo_id: str, commit: str, names: list[str]) -> Path:
    """Download some small files of a model, and return their folder; the errors are those of `find_commit_and_files`."""
    from huggingface_hub import snapshot_download

    with _api(repo_id, commit) as api:
        folder = snapshot_download(
            repo_id, revision=commit, endpoint=api.endpoint, token=api.token, allow_patterns=names
        )
    return Path(folder)


def count_hub_parameters(repo_id: str, commit: str) -> int | None:
    """Return the number of parameters of a model, from the headers of its safetensors; None if it has none."""
    from huggingface_hub.errors import NotASafetensorsRepoError, SafetensorsParsingError

    with _api(repo_id, commit) as api:
        try:
            found = api.get_safetensors_metadata(repo_id, revision=commit)
        except (NotASafetensorsRepoError, SafetensorsParsingError):
            return None
    return sum(found.parameter_count.values())


def count_local_parameters(folder: Path) -> int | None:
    """Return the same for a model in a folder.

    Raises:
        ModelError: a file is damaged.
    """
    from huggingface_hub import parse_local_safetensors_file_metadata
    from huggingface_hub.errors import SafetensorsParsingError

    total = None
    for path in folder.glob("*.safetensors"):
        try:
            found = parse_local_safetensors_file_metadata(path).parameter_count
        except (OSError, SafetensorsParsingError) as error:
            raise ModelError(str(path), f"is no safetensors file: {error}", "copy or download it again") from error
        total = (total or 0) + sum(found.values())
    return total


@contextlib.contextmanager
def _api(repo_id: str, revision: str) -> Iterator[HfApi]:
    """Give a client; what it raises inside the block becomes an error for the user."""
    from huggingface_hub import HfApi, constants, errors

    from tasks.hub_client.faults import CLIENT_ERRORS, describe_without_secrets

    api = HfApi(constants.ENDPOINT, token=token_for(constants.ENDPOINT) or False)
    where = f"{api.endpoint}/{repo_id}"
    try:
        yield api
    except CLIENT_ERRORS as error:
        cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ else error
        status = cause.response.status_code if isinstance(cause, errors.HfHubHTTPError) else 0
        answers: dict[type[Exception], tuple[type[EvergreenError], str, str]] = {
            errors.GatedRepoError: (
                HubRefusedError,
                "needs an access request (it is gated)",
                "accept its terms on the Hub, with the account of the token in HF_TOKEN",
            ),
            errors.RevisionNotFoundError: (
                DataError,
                f"has no revision {revision}",
                "write a branch, a tag or a commit behind the @",
            ),
            errors.RepositoryNotFoundError: (
                DataError,
                "does not exist, or is private",
                "check the name; a local path needs a file or folder that exists; for a private repository set HF_TOKEN",
            ),
            errors.OfflineModeIsEnabled: (
                DataError,
                "HF_HUB_OFFLINE forbids to ask the Hub",
                "unset HF_HUB_OFFLINE, or give a local path",
            ),
        }
        for kind, (raised, what, fix) in answers.items():
            if isinstance(cause, kind):
                raise raised(where, what, fix) from error
        if status in (401, 403):
            fix = "set HF_TOKEN to a token that may read it"
            raise HubRefusedError(where, f"the Hub refuses access ({status})", fix) from error
        fix = "check the network and HF_ENDPOINT, then try again"
        raise TransientError(
            where, f"the Hub cannot be reached: {describe_without_secrets(cause, api)}", fix
        ) from error
