"""Rows from the files of a dataset repository on a Hub, at one commit, through the Hugging Face cache."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Literal

import huggingface_hub
from huggingface_hub import constants, errors

from params import DataError, EvergreenError, HubRefusedError, RecipeError, TransientError
from params.sections.data import RowsFromHubDataset
from tasks.hub_client.token import find_token_for_hub
from tasks.ingestion.batches import Batches
from tasks.ingestion.connections import is_connection_error
from tasks.ingestion.file_index import FileRowIndex
from tasks.ingestion.files import FileSource


class HubSource:
    """A dataset repository on a Hub; it is downloaded when the first row is read.

    Raises:
        RecipeError: a pattern points outside the repository.
    """

    def __init__(self, source: RowsFromHubDataset, memory: Callable[[str], Path | None] = lambda _: None) -> None:
        self._source = source
        self._memory = memory
        self._patterns = source.patterns
        for split, pattern in self._patterns.items():
            if PurePosixPath(pattern).is_absolute() or ".." in PurePosixPath(pattern).parts:
                fix = "write a path or glob relative to the repository's root"
                raise RecipeError.at(f"data.source.{split}", f"{pattern}: points outside the repository", fix)

    @property
    def splits(self) -> Sequence[str]:
        return tuple(self._patterns)

    @cached_property
    def revision(self) -> str:
        """The commit that the recipe names, or the one that its branch is at.

        Raises:
            RecipeError: there is no such branch or commit.
            HubRefusedError: the Hub refuses access.
            TransientError: the Hub cannot be reached.
        """
        if self._source.is_pinned:
            return self._source.revision
        api = huggingface_hub.HfApi(self._endpoint, token=self._token)
        with self._errors_as_ours():
            found = api.dataset_info(self._source.repo_id, revision=self._source.revision, timeout=60.0)
        return str(found.sha)

    def batches(self, split: str) -> Batches:
        return self._files.batches(split)

    def indexes(self, split: str) -> list[FileRowIndex] | None:
        return self._files.indexes(split)

    @cached_property
    def _files(self) -> FileSource:
        # The client matches with fnmatch, where `**/` needs at least one folder; in a recipe it may stand for none.
        patterns = {p for pattern in self._patterns.values() for p in (pattern, pattern.replace("**/", ""))}
        revision = self.revision
        with self._errors_as_ours():
            folder = huggingface_hub.snapshot_download(
                self._source.repo_id,
                repo_type="dataset",
                revision=revision,
                endpoint=self._endpoint,
                token=self._token,
                allow_patterns=sorted(patterns),
            )
        place, cached = (
            f"{self._source.repo_id} at {revision}",
            Path(folder).parents[1],
        )  # whose blobs the files are links to
        return FileSource(self._patterns, Path(folder), place=place, memory=self._memory, within=cached)

    @property
    def _endpoint(self) -> str:
        return self._source.endpoint or constants.ENDPOINT

    @property
    def _token(self) -> str | Literal[False]:
        return find_token_for_hub(self._endpoint) or False

    def _errors_as_ours(self) -> contextlib.AbstractContextManager[None]:
        endpoint = self._source.endpoint or ""
        where = f"{endpoint}/datasets/{self._source.repo_id}".lstrip("/")
        return translate_hub_errors(where, self._source.revision, f", and HF_ENDPOINT={endpoint}" if endpoint else "")


@contextlib.contextmanager
def translate_hub_errors(where: str, revision: str, also: str = "") -> Iterator[None]:
    """Raise what the client raises for a repository as an error for the user; `also` is what a token needs beside it.

    Raises:
        RecipeError: it has no such branch, tag or commit.
        HubRefusedError: the Hub refuses access, or says that there is no such repository.
        DataError: it is not in the cache, and nothing may be downloaded.
        TransientError: the Hub cannot be reached.
    """
    try:
        yield
    except EvergreenError:
        raise
    except Exception as error:
        known = (errors.HTTPError, errors.LocalEntryNotFoundError, ValueError)  # type: ignore[attr-defined]
        if not isinstance(error, known) and not is_connection_error(error):
            raise
        cause = (error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) else None) or error
        if isinstance(cause, errors.HfHubHTTPError):
            raise _refusal(cause, where, revision, also) from error
        if isinstance(cause, errors.OfflineModeIsEnabled):
            what = "is not in the local cache, and HF_HUB_OFFLINE forbids a download"
            raise DataError(where, what, "unset HF_HUB_OFFLINE, or download it first") from error
        if isinstance(cause, errors.HFValidationError):
            raise RecipeError(where, "is no name of a repository", "write owner/name") from error
        what = f"the Hub cannot be reached: {type(cause).__name__}"
        fix = "check the network and the endpoint, then run this again"
        raise TransientError(where, what, fix) from error


def _refusal(error: errors.HfHubHTTPError, where: str, revision: str, also: str) -> EvergreenError:
    """Return the error for an HTTP error of the Hub, which also answers 401 where a repository does not exist."""
    status, fix = error.response.status_code, f"set HF_TOKEN to a token that may read it{also}"
    if isinstance(error, errors.RevisionNotFoundError):
        return RecipeError(where, f"has no revision {revision}", "name a branch, a tag or the full hash of a commit")
    if isinstance(error, errors.GatedRepoError):
        fix = "accept its terms on the Hub, with the account of the token in HF_TOKEN"
        return HubRefusedError(where, "needs an access request (it is gated)", fix)
    if isinstance(error, errors.RepositoryNotFoundError):
        what = "does not exist, or is private"
        return HubRefusedError(where, what, f"check the name, or the path of a local one; for a private one {fix}")
    if status in (401, 403):
        return HubRefusedError(where, f"the Hub refuses access ({status})", fix)
    if status in (408, 429) or status >= 500:
        return TransientError(where, f"the Hub answers {status}", "run this again later")
    fix = "check that the repository can be opened on the Hub"
    return DataError(where, f"the Hub answers {status} to a download", fix)
