"""Releases that the log in git names and the Hub does not know: it is an empty one, another one, or an older copy of the right one.

Such a Hub has no champion, or not the right one, so a gate that believed it would let any model out as the first release. Whoever knows
that the releases are lost says so once, by `evergreen forget`: the lines before that do not count any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pydantic

from params import EvergreenError, HubRefusedError, TransientError
from params.foundation.artifacts import Artifacts
from tasks.hub_client.connection import open_repository, resolve_hub_endpoint
from tasks.hub_client.repository_name import name_repository
from tasks.recipes.loading import load
from tasks.stages import Report, list_runs_with_log, read_log_and_unrecorded, read_logs

if TYPE_CHECKING:
    from tasks.hub_client.main_history import MainHistory

logger = logging.getLogger(__name__)
_PATIENCE_S: Final = 10.0
"""How long validate waits for an answer that it can do without."""
FORGOTTEN = "forgotten"
"""The event of a line that says that the lines before it are about releases which the Hub has lost, while the log in git has it."""


class LoggedRelease(Report):
    """What a line of the log of releases (tasks/release_log/events.py) says of a Hub."""

    model_config = pydantic.ConfigDict(extra="ignore")
    time: str = ""
    event: str
    repo_id: str
    endpoint: str
    commit: str | None = None
    tag: str | None = None
    weights: str | None = None
    run: str = ""
    """The recipe in whose log it is."""

    @property
    def name(self) -> str:
        if self.event == "rollback":
            return f"the rollback to {self.tag} ({self.commit})"
        return f"the release {self.tag or self.commit}"


def find_lost_releases(artifacts: Artifacts, main: MainHistory, endpoint: str) -> list[LoggedRelease]:
    """Return the releases and rollbacks of the repository that the project's logs name and the Hub does not know, the newest last.

    What counts is the repository: a recipe that is new, or has another name now, replaces what others have published there.
    `endpoint` is the Hub as reports name it. Lines that a line about a later release follows, which the Hub knows, do not count: this
    Hub went on without them.
    """
    logs = list(_logs_about(main.repository.id, artifacts, endpoint))
    if not logs:
        return []
    commits = {one.commit_id for one in main.commits}

    def is_known(one: LoggedRelease) -> bool:
        # A tag outlives its commit on main where somebody has moved main back, or has shortened its history.
        return one.commit in commits or (one.event == "published" and one.tag in main.tags)

    known = {log[0].run: [one.time for one in log if is_known(one)] for log in logs}
    lost = list[LoggedRelease]()
    for log in logs:
        of_others = [time for run, times in known.items() if run != log[0].run for time in times]
        lost += _without_known_successor(log, is_known, max(of_others, default=None))
    return sorted(lost, key=lambda one: one.time)


def _logs_about(repo_id: str, artifacts: Artifacts, endpoint: str) -> Iterator[list[LoggedRelease]]:
    """Yield what each log of the project that is not of another Hub says of a repository, if it says anything."""
    for run in list_runs_with_log(artifacts):
        if run == artifacts or not _uses_another_hub(run, endpoint):
            log = _read_not_forgotten(run, repo_id, endpoint)
            if log:
                yield log


def _without_known_successor(
    log: Sequence[LoggedRelease], is_known: Callable[[LoggedRelease], bool], newest_of_others: str | None
) -> list[LoggedRelease]:
    """Return the lines that the Hub does not know, and that come after all that it knows, of other logs by their time."""
    later = [] if newest_of_others is None else [newest_of_others]
    found = []
    for one in reversed(log):
        if is_known(one):
            later.append(one.time)
        elif not any(time >= one.time for time in later):
            found.append(one)
    return found[::-1]


def _uses_another_hub(run: Artifacts, endpoint: str) -> bool:
    """Whether a recipe says that it publishes to another Hub, as one for trials does; one that is gone or cannot be read says nothing."""
    try:
        publish = load(run.recipe_path).publish
        own = name_repository(resolve_hub_endpoint(publish.endpoint), publish.repo_id)
        return own.hub != name_repository(endpoint, publish.repo_id).hub
    except (EvergreenError, OSError):
        return False


def _read_not_forgotten(run: Artifacts, repo_id: str, endpoint: str) -> list[LoggedRelease]:
    """Return what the log of a run says of releases and rollbacks of a repository, since the Hub was said to have lost the earlier ones."""
    entries = read_log_and_unrecorded(run, run.release_events, LoggedRelease)
    here = name_repository(endpoint, repo_id)
    said = [one for one in read_logs([run.release_events], LoggedRelease) if one.event == FORGOTTEN]
    named = [(name_repository(one.endpoint, one.repo_id), one) for one in entries]
    own = [(name, one) for name, one in named if name.repo_id == here.repo_id]
    forgotten = [number for number, (name, one) in enumerate(own) if one in said and name == here]
    left = [one for _, one in own[max(forgotten, default=-1) + 1 :] if one.event in {"published", "rollback"}]
    return [one.model_copy(update={"run": run.recipe}) for one in left]


def refuse_hub_without_releases(artifacts: Artifacts, *, repo_id: str, endpoint: str) -> None:
    """Stop before any work if the Hub does not know what the project's logs say was published there; evaluate and publish ask again.

    Raises:
        HubRefusedError: it does not, or refuses access.
    """
    if artifacts.start_to_pin.exists() or not list_runs_with_log(artifacts):
        return
    try:
        with open_repository(artifacts, repo_id=repo_id, endpoint=endpoint) as repository:
            from tasks.hub_client.main_history import MainHistory

            main = MainHistory.read(replace(repository, timeout_s=_PATIENCE_S))
            refuse_lost_releases(artifacts, main, resolve_hub_endpoint(endpoint))
    except TransientError as error:  # a stage that needs an answer says so
        logger.warning("validate: whether the Hub has what the log says was published was not checked: %s", error.what)


def refuse_lost_releases(
    artifacts: Artifacts, main: MainHistory, endpoint: str, *, weights: Collection[str] = ()
) -> None:
    """Check that the Hub knows what the project's logs say was published there.

    `weights` are the digests of the model in question: if it is the last release, to publish it again brings that back.

    Raises:
        HubRefusedError: the Hub does not know it.
    """
    lost = find_lost_releases(artifacts, main, endpoint)
    if lost and not (lost[-1].event == "published" and lost[-1].weights in weights):
        raise _lost_releases_error(artifacts, main.repository.where, endpoint, lost[-1])


def _lost_releases_error(artifacts: Artifacts, where: str, endpoint: str, last: LoggedRelease) -> HubRefusedError:
    log = Artifacts(last.run, artifacts.root).release_events
    what = f"does not have {last.name}, which {log} names: no model can be compared with it"
    place = f"the Hub at {last.endpoint}"
    if last.endpoint == "local":
        place = "the Hub in the folder .hub of the clone that published it, or serve that (`evergreen hub`)"
    fix = f"use {place} (HF_ENDPOINT, publish.endpoint), a token that may read it (HF_TOKEN), or bring its backup back"
    if last.endpoint == endpoint == "local":
        fix = "bring back the folder .hub from where it was published (git does not have it), or serve it there and set HF_ENDPOINT"
    fix += f"; if it is lost, or this is meant to be a new Hub: `evergreen forget {artifacts.recipe} --why ...`"
    return HubRefusedError(where, what, fix)
