"""A model that goes back to a release which people have rolled back: what they distrust in that is in its weights, too.

Such a candidate is not published. A rollback can come at any time, so evaluate asks, and publish asks again. With a start that was rolled back, the
flow runs validate again, which pins what is published then.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from params import HubRefusedError, TransientError
from params.foundation.artifacts import Artifacts
from tasks.digests import ReleasedModel
from tasks.hub_client.connection import open_repository, resolve_hub_endpoint
from tasks.hub_client.lost_releases import LoggedRelease
from tasks.hub_client.main_history import MainHistory, RolledBackCommit
from tasks.lineage.ancestors import Ancestor, list_ancestors_of_model
from tasks.stages import list_runs_with_log, read_log_and_unrecorded

logger = logging.getLogger(__name__)
_PATIENCE_S: Final = 10.0
"""How long to wait for a Hub other than the one that the recipe publishes to."""


def why_ancestor_is_distrusted(artifacts: Artifacts, main: MainHistory, endpoint: str) -> str | None:
    """Return why the trained model is not to be published: a release that it goes back to was rolled back; None if none was.

    `main` is the history of the repository that the recipe publishes to, on the Hub `endpoint`. A base that comes from another repository
    is asked for there.

    Raises:
        HubRefusedError, TransientError: this Hub does not say it.
    """
    ancestors = [(one, one.releases()) for one in list_ancestors_of_model(artifacts)]
    for one, _ in ancestors:
        if one.unknown:
            logger.warning(
                "evaluate: it is not known whether it goes back to a release that was rolled back: %s", one.unknown
            )
    weights = {release.weights for _, releases in ancestors for release in releases}
    forms = [{release.weights for release in one.published} for one, _ in ancestors]
    found = main.find_rolled_back(weights, forms)
    for place, repo_id in sorted(_list_places(artifacts, ancestors, endpoint) - {(endpoint, main.repository.id)}):
        found |= _ask_other_repository(artifacts, weights, forms, (place, repo_id), endpoint)
    for one, releases in ancestors:
        for release in releases:
            if release.weights in found:
                return _describe(artifacts, one, release, found[release.weights])
    return None


def _list_places(
    artifacts: Artifacts, ancestors: Iterable[tuple[Ancestor, tuple[ReleasedModel, ...]]], endpoint: str
) -> set[tuple[str, str]]:
    """Return the Hubs and repositories where these releases may be, by what they say and by the logs of the project.

    A record may be a stranger's: its repositories are asked for on this Hub, and on the one that it comes from.
    """
    places, weights = set[tuple[str, str]](), set[str]()
    for one, releases in ancestors:
        for release in releases:
            weights.add(release.weights)
            if release.repo_id:
                places |= {(endpoint, release.repo_id), (one.endpoint or endpoint, release.repo_id)}
    for run in list_runs_with_log(artifacts) if weights else ():
        for line in read_log_and_unrecorded(run, run.release_events, LoggedRelease):
            if line.event == "published" and line.weights in weights:
                places.add((line.endpoint, line.repo_id))
    return {(resolve_hub_endpoint(place), repo_id) for place, repo_id in places}


def _ask_other_repository(
    artifacts: Artifacts,
    weights: Iterable[str],
    forms: Iterable[Collection[str]],
    repository_name: tuple[str, str],
    endpoint: str,
) -> Mapping[str, RolledBackCommit]:
    place, repo_id = repository_name
    try:
        with open_repository(artifacts, repo_id=repo_id, endpoint=place) as repository:
            patient = repository if place == endpoint else replace(repository, timeout_s=_PATIENCE_S)
            return MainHistory.read(patient).find_rolled_back(set(weights), forms)
    except (HubRefusedError, TransientError) as error:
        if place == endpoint:
            raise
        told = "evaluate: it is not known whether %s, which the model goes back to, was rolled back on %s: %s"
        logger.warning(told, repo_id, place, error.what)
        return {}


def _describe(artifacts: Artifacts, ancestor: Ancestor, release: ReleasedModel, found: RolledBackCommit) -> str:
    """Say what was rolled back, how the model goes back to it, and what helps."""
    is_itself = release in ancestor.published and not ancestor.through
    name = ancestor.through or ancestor.name
    if ancestor.is_of_base:
        what = f"the base model, {name}, {'is' if is_itself else 'goes back to'} {found.sentence}"
        return f"{what}; train from a base that does not go back to it (`model.pretrained`, `model.revision`)"
    if not is_itself:
        fix = "roll back to a release that does not, or set model.start: base for one run"
        return f"the training started from {name}, which goes back to {found.sentence}; {fix}"
    again = f"`dvc repro --single-item --force validate@{artifacts.recipe}`"
    fix = f"the next run of the flow starts from what is published then; without the flow, {again} does so"
    return f"the training started from {found.sentence}; {fix}"
