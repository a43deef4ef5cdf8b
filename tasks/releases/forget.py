"""Say once that a Hub has lost what the log of releases names, so that the next run may publish there."""

from __future__ import annotations

from pathlib import Path

from params.foundation.artifacts import Artifacts
from tasks.hub_client.connection import open_repository, resolve_hub_endpoint
from tasks.hub_client.lost_releases import find_lost_releases
from tasks.hub_client.main_history import MainHistory
from tasks.recipes.loading import load
from tasks.release_log.events import ReleaseEvent, append_forgotten_releases


def forget_lost_releases(recipe: Path, *, by: str, why: str) -> None:
    """Log that the releases of the recipe's repository are lost which its Hub does not know; if it knows all, nothing is written.

    Other recipes may have published them: then it is their logs that get the line.

    Raises:
        HubRefusedError, TransientError: the Hub does not say what it has.
    """
    publish, artifacts = load(recipe).publish, Artifacts(recipe.stem)
    endpoint = resolve_hub_endpoint(publish.endpoint)
    with open_repository(artifacts, repo_id=publish.repo_id, endpoint=publish.endpoint) as repository:
        lost, where = find_lost_releases(artifacts, MainHistory.read(repository), endpoint), repository.where
    if not lost:
        print(f"{where} knows every release that the project's logs name: nothing is to be forgotten")
        return
    logs = list[str]()
    for last in {one.run: one for one in lost}.values():
        run = Artifacts(last.run, artifacts.root)
        place = {"repo_id": publish.repo_id, "endpoint": endpoint, "commit": last.commit, "tag": last.tag}
        append_forgotten_releases(run, ReleaseEvent(event="forgotten", reasons=(why,), by=by, **place))
        logs.append(str(run.release_events))
    print(f"forgotten: {', '.join(one.name for one in lost)}")
    print(f"commit {' and '.join(logs)}: then the next run on any machine compares with what {where} has")
    print(f"to take it back: git checkout {' '.join(logs)}")
