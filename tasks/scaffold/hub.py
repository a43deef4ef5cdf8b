"""What a repository on a Hub holds: the files of a dataset; the commit, the small files and the size of a model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from params import ModelError
from tasks.hub_client.token import find_token_for_hub
from tasks.ingestion.hub_dataset import translate_hub_errors

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_TIMEOUT_S = 60.0


def list_dataset_files(repo_id: str, revision: str) -> list[str]:
    """Return the names of the files of a dataset at a branch, a tag or a commit.

    The errors are those of `translate_hub_errors`.
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
    from huggingface_hub import HfApi, constants

    api = HfApi(constants.ENDPOINT, token=find_token_for_hub(constants.ENDPOINT) or False)
    with translate_hub_errors(f"{api.endpoint}/{repo_id}", revision):
        yield api
