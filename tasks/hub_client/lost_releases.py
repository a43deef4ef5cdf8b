"""Releases that the log in git names and the Hub does not know: it is an empty one, another one, or an older copy of the right one.

Such a Hub has no champion, or not the right one, so a gate that believed it would let any model out as the first release. Whoever knows
that the releases are lost says so once, by `evergreen forget`: the lines before that do not count any more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pydantic

from params.foundation.artifacts import Artifacts
from params.foundation.errors import HubRefusedError
from tasks.hub_client.repository import MAIN, HubRepository
from tasks.stages import Report, read_log_and_unrecorded

FORGOTTEN = "forgotten"
"""The event of a line that says that the lines before it are about releases which the Hub has lost."""


class LoggedRelease(Report):
    """What a line of the log of releases (tasks/evaluation/release_events.py) says of a Hub."""

    model_config = pydantic.ConfigDict(extra="ignore")
    time: str = ""
    event: str
    repo_id: str
    endpoint: str
    commit: str | None = None
    tag: str | None = None
    weights: str | None = None

    @property
    def name(self) -> str:
        if self.event == "rollback":
            return f"the rollback to {self.tag} ({self.commit})"
        return f"the release {self.tag or self.commit}"


def find_lost_releases(artifacts: Artifacts, repository: HubRepository, endpoint: str) -> list[LoggedRelease]:
    """Return the releases and rollbacks of the repository that the recipe's log names and the Hub does not know, the newest last.

    `endpoint` is the Hub as reports name it. Lines that a line about a later release follows, which the Hub knows, do not count: this
    Hub went on without them.

    Raises:
        HubRefusedError, TransientError: the Hub does not say what it has.
    """
    entries = read_log_and_unrecorded(artifacts, artifacts.release_events, LoggedRelease)
    own = [one for one in entries if one.repo_id == repository.id]
    forgotten = [number for number, one in enumerate(own) if one.event == FORGOTTEN and one.endpoint == endpoint]
    made = [one for one in own[max(forgotten, default=-1) + 1 :] if one.event in {"published", "rollback"}]
    if not made:
        return []
    commits, tags = _read_names(repository)
    # A tag outlives its commit on main where somebody has moved main back, or has shortened its history.
    known = [one.commit in commits or (one.event == "published" and one.tag in tags) for one in made]
    return [one for number, one in enumerate(made) if not known[number] and not _goes_on(made, known, number)]


def _goes_on(made: Sequence[LoggedRelease], known: Sequence[bool], number: int) -> bool:
    later = range(number + 1, len(made))
    return any(known[other] and made[other].time >= made[number].time for other in later)


def _read_names(repository: HubRepository) -> tuple[Collection[str], Collection[str]]:
    """Return the commits of main, and the tags; nothing of a repository that is not there."""

    def look() -> tuple[Collection[str], Collection[str]]:
        branches, tags = repository.refs()
        return {one.commit_id for one in repository.history()} if MAIN in branches else (), tags.keys()

    return repository.retry_until_clear(look, missing=lambda: ((), ()))


def refuse_lost_releases(
    artifacts: Artifacts, repository: HubRepository, endpoint: str, *, weights: Collection[str] = ()
) -> None:
    """Check that the Hub knows what the recipe's log says was published there.

    `weights` are the digests of the model in question: if it is the last release, to publish it again brings that back.

    Raises:
        HubRefusedError: the Hub does not know it.
        TransientError: no clear answer in time.
    """
    lost = find_lost_releases(artifacts, repository, endpoint)
    if lost and not (lost[-1].event == "published" and lost[-1].weights in weights):
        raise lost_releases_error(artifacts, repository, endpoint, lost[-1])


def lost_releases_error(
    artifacts: Artifacts, repository: HubRepository, endpoint: str, last: LoggedRelease
) -> HubRefusedError:
    """Return the error that says what the Hub lacks, and what to do."""
    what = f"does not have {last.name}, which {artifacts.release_events} names: no model can be compared with it"
    place = f"the Hub at {last.endpoint}"
    if last.endpoint == "local":
        place = "the Hub in the folder .hub of the clone that published it, or serve that (`evergreen hub`)"
    fix = f"use {place} (HF_ENDPOINT, publish.endpoint), a token that may read it (HF_TOKEN), or bring its backup back"
    if last.endpoint == endpoint == "local":
        fix = "bring back the folder .hub from where it was published (git does not have it), or serve it there and set HF_ENDPOINT"
    fix += f"; if it is lost, or this is meant to be a new Hub: `evergreen forget {artifacts.recipe} --why ...`"
    return HubRefusedError(repository.where, what, fix)
