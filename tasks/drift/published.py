"""The profile in the published revision."""

from __future__ import annotations

from dataclasses import dataclass, replace

from params import HubRefusedError, TransientError
from params.foundation.artifacts import Artifacts
from tasks.drift.profile import MAX_BYTES, Profile

_PATIENCE_S = 15.0
"""How long to wait for each answer if the run can do without it."""
_PUBLIC = "a public release has one if the recipe sets validation.drift"


@dataclass(frozen=True)
class Published:
    """What the Hub has to compare with."""

    revision: str | None
    """Tag or commit of the published model; None if there is none, or the Hub did not say."""
    profile: Profile | None
    reason: str = ""
    """Why there is no profile."""


def fetch(artifacts: Artifacts, *, repo_id: str, endpoint: str, must_answer: bool) -> Published:
    """Return the profile of the rows that the published model learned from.

    Raises:
        HubRefusedError, TransientError: the Hub refuses or gives no clear answer, and it `must_answer`.
    """
    try:
        return _fetch(artifacts, repo_id, endpoint, None if must_answer else _PATIENCE_S)
    except (HubRefusedError, TransientError) as error:
        if must_answer:
            raise
        return Published(None, None, f"the Hub did not say which model is published ({error.where}: {error.what})")


def _fetch(artifacts: Artifacts, repo_id: str, endpoint: str, patience_s: float | None) -> Published:
    from tasks.hub_client.connection import LOCAL, chosen_endpoint, local_folder, open_repository

    nothing = Published(None, None, f"no model was published yet as {repo_id}")
    if chosen_endpoint(endpoint) == LOCAL and not local_folder(artifacts).exists():
        return nothing
    with open_repository(artifacts, repo_id=repo_id, endpoint=endpoint) as opened:
        repository = opened if patience_s is None else replace(opened, timeout_s=patience_s)
        head = repository.head()
        if head is None:
            return nothing
        path = artifacts.data_profile.name

        def look() -> bytes | None:
            return repository.read(head.commit, path, max_bytes=MAX_BYTES)

        revision = head.tag or head.commit
        try:
            content = repository.retry_until_clear(look)
        except HubRefusedError as error:
            if patience_s is None:
                raise
            return Published(revision, None, f"{path} of {revision} cannot be read: {error.what}")
    if content is None:
        return Published(revision, None, f"{revision} of {repo_id} has no profile of its rows ({path}); {_PUBLIC}")
    try:
        return Published(revision, Profile.load(content))
    except ValueError as error:
        return Published(revision, None, f"{path} of {revision} cannot be read: {error}")
