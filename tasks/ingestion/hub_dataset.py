"""Rows from the files of a dataset repository on a Hub, at one commit, through the Hugging Face cache."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Literal

import huggingface_hub
from huggingface_hub import constants, errors

from params import DataError, EvergreenError, HubRefusedError, RecipeError, TransientError
from params.schema import RowsFromHubDataset
from tasks.hub_client.token import find_token_for_hub
from tasks.ingestion.batches import Batches
from tasks.ingestion.files import FileRowIndex, FileSource


class HubSource:
    """A dataset repository on a Hub; it is downloaded when the first row is read.

    Raises:
        RecipeError: a pattern points outside the repository.
    """

    def __init__(self, source: RowsFromHubDataset) -> None:
        self._source = source
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
        return FileSource(self._patterns, Path(folder), place=f"{self._source.repo_id} at {revision}")

    @property
    def _endpoint(self) -> str:
        return self._source.endpoint or constants.ENDPOINT

    @property
    def _token(self) -> str | Literal[False]:
        return find_token_for_hub(self._endpoint) or False

    @contextlib.contextmanager
    def _errors_as_ours(self) -> Iterator[None]:
        try:
            yield
        except (errors.HTTPError, errors.LocalEntryNotFoundError, ConnectionError, TimeoutError) as error:  # type: ignore[attr-defined]
            cause = (error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) else None) or error
            if isinstance(cause, errors.HfHubHTTPError):
                raise self._refusal(cause) from error
            if isinstance(cause, errors.OfflineModeIsEnabled):
                what = "is not in the local cache, and HF_HUB_OFFLINE forbids a download"
                raise DataError(self._where, what, "unset HF_HUB_OFFLINE, or download the dataset first") from error
            what = f"the Hub cannot be reached: {type(cause).__name__}"
            fix = "check the network and the endpoint, then run the stage again"
            raise TransientError(self._where, what, fix) from error

    def _refusal(self, error: errors.HfHubHTTPError) -> EvergreenError:
        """Return the error for an HTTP error of the Hub, which also answers 401 where a repository does not exist."""
        status = error.response.status_code
        if isinstance(error, errors.RevisionNotFoundError):
            fix = "set data.source.revision to the full hash of a commit, or to a branch"
            return RecipeError(self._where, f"has no revision {self._source.revision}", fix)
        if isinstance(error, errors.GatedRepoError):
            fix = "accept its terms on the Hub, with the account of the token in HF_TOKEN"
            return HubRefusedError(self._where, "the dataset needs an access request (it is gated)", fix)
        if isinstance(error, errors.RepositoryNotFoundError):
            fix = f"check data.source.repo_id; for a private dataset {self._token_fix}"
            return HubRefusedError(self._where, "does not exist, or is private", fix)
        if status in (401, 403):
            return HubRefusedError(self._where, f"the Hub refuses access ({status})", self._token_fix)
        if status in (408, 429) or status >= 500:
            return TransientError(self._where, f"the Hub answers {status}", "run the stage again later")
        fix = "check that the repository can be opened on the Hub"
        return DataError(self._where, f"the Hub answers {status} to a download", fix)

    @property
    def _token_fix(self) -> str:
        fix = "set HF_TOKEN to a token that may read it"
        return f"{fix}, and HF_ENDPOINT={self._source.endpoint}" if self._source.endpoint else fix

    @property
    def _where(self) -> str:
        endpoint = f"{self._source.endpoint}/" if self._source.endpoint else ""
        return f"{endpoint}datasets/{self._source.repo_id}"
