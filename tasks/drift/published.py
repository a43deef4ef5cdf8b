"""The profile in the published revision."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

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
    from tasks.hub_client.connection import LOCAL, chosen_endpoint, local_hub_folder, open_repository

    nothing = Published(None, None, f"no model was published yet as {repo_id}")
    path, revision = artifacts.data_profile.name, None
    try:
        if chosen_endpoint(endpoint) == LOCAL and not local_hub_folder(artifacts).exists():
            return nothing
        with open_repository(artifacts, repo_id=repo_id, endpoint=endpoint) as opened:
            repository = opened if must_answer else replace(opened, timeout_s=_PATIENCE_S)
            head = repository.head()
            if head is None:
                return nothing
            revision = head.tag or head.commit
            content = repository.retry_until_clear(partial(repository.read, head.commit, path, max_bytes=MAX_BYTES))
    except (HubRefusedError, TransientError) as error:
        if must_answer:
            raise
        if revision is None or isinstance(error, TransientError):
            return Published(None, None, f"the Hub did not say which model is published ({error.where}: {error.what})")
        return Published(revision, None, f"{path} of {revision} cannot be read: {error.what}")
    if content is None:
        return Published(revision, None, f"{revision} of {repo_id} has no profile of its rows ({path}); {_PUBLIC}")
    profile, reason = None, ""
    try:
        profile = Profile.load(content)
    except ValueError as error:
        reason = f"{path} of {revision} cannot be read: {error}"
    return Published(revision, profile, reason)
