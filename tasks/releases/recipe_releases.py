"""The releases of recipes: list them, roll back to an older one, or say once that a Hub has lost what the log of releases names."""

from __future__ import annotations

import contextlib
import getpass
import logging
import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from params import HubRefusedError, RecipeError
from params.foundation.artifacts import Artifacts
from params.schema import Publish
from tasks.hub_client.connection import name_of_hub, open_repository, resolve_hub_endpoint
from tasks.hub_client.lost_releases import find_lost_releases, refuse_lost_releases
from tasks.hub_client.main_history import MainHistory, release_table_lines, to_one_printable_line
from tasks.hub_client.repository import HubRepository
from tasks.recipes.loading import load
from tasks.release_log.events import (
    ReleaseEvent,
    append_forgotten_releases,
    append_release_event,
    format_release_event,
    read_release_events,
)
from tasks.releases import rollback

logger = logging.getLogger(__name__)


def print_releases(chosen: Sequence[Path], *, last: int, must_exist: bool) -> None:
    """Print the last releases of recipes and the last lines of their logs, or that there are none yet.

    Raises:
        HubRefusedError: a repository cannot be read that `must_exist`.
    """
    for path in chosen:
        publish = load(path).publish
        print(f"{path.stem}: {publish.repo_id} on {name_of_hub(resolve_hub_endpoint(publish.endpoint))}")
        events = read_release_events(Artifacts(path.stem))
        with _open(path, publish) as repository:
            try:
                main = MainHistory.read(repository)
                lines = _release_lines(main, last)
                refuse_lost_releases(Artifacts(path.stem), main, resolve_hub_endpoint(publish.endpoint))
            except HubRefusedError as error:
                if must_exist:
                    raise
                lines = [error.what]
        print("\n".join(f"  {line}" for line in lines))
        for entry in events[-last:]:
            print(f"  log: {to_one_printable_line(format_release_event(entry))}")


def _release_lines(main: MainHistory, last: int) -> list[str]:
    commits = main.describe_commits()
    has_release = any(commit.kind == "release" for commit in commits)
    return [*(release_table_lines(commits[:last]) if commits else []), *([] if has_release else ["no release yet"])]


def roll_back_and_log(tag: str, *, recipe: Path | None, by: str | None, why: str) -> None:
    """Publish the files of an older release again, as a new commit that says who asked for it and why.

    Running it again is safe.

    Raises:
        RecipeError: the repositories of several recipes have this tag.
        HubRefusedError, TransientError: as `rollback.commit_rollback`.
    """
    path = recipe or _recipe_with(tag)
    publish = load(path).publish
    with _open(path, publish, to_write=True) as opened:
        repository = replace(opened, timeout_s=publish.timeout_s, log=lambda line: logger.info("rollback: %s", line))
        by = by or name_of_user()
        commit, changed = rollback.commit_rollback(repository, tag, by=by, why=why)
        time = repository.time_of(commit)
    if changed:
        where = {"repo_id": publish.repo_id, "endpoint": resolve_hub_endpoint(publish.endpoint), "commit": commit}
        event = ReleaseEvent(event="rollback", reasons=(why,), by=by, tag=tag, **where)
        artifacts = Artifacts(path.stem)
        append_release_event(artifacts, event, time)
        print(f"commit {artifacts.release_events}: then every history says so")
    print(f"{publish.repo_id} {'is rolled back to' if changed else 'already holds the files of'} {tag}, at {commit}")


def forget_lost_releases(recipe: Path, *, by: str, why: str) -> None:
    """Log that the releases of the recipe's repository are lost which its Hub does not know; if it knows all, nothing is written.

    Then the next run may publish there. Other recipes may have published them: then it is their logs that get the line.

    Raises:
        HubRefusedError, TransientError: the Hub does not say what it has.
    """
    publish, artifacts = load(recipe).publish, Artifacts(recipe.stem)
    endpoint = resolve_hub_endpoint(publish.endpoint)
    with _open(recipe, publish) as repository:
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


def name_of_user() -> str:
    """Return how git, or else this machine, knows the user."""
    found = subprocess.run(["git", "config", "user.name"], capture_output=True, text=True, check=False).stdout
    return found.strip() or getpass.getuser()


def list_recipe_paths() -> Sequence[Path]:
    return sorted(Path("params").glob("*.yaml"))


def _open(recipe: Path, publish: Publish, *, to_write: bool = False) -> AbstractContextManager[HubRepository]:
    artifacts = Artifacts(recipe.stem)
    return open_repository(artifacts, repo_id=publish.repo_id, endpoint=publish.endpoint, to_write=to_write)


def _recipe_with(tag: str) -> Path:
    found: dict[tuple[str, str], Path] = {}
    for path in list_recipe_paths():
        publish = load(path).publish
        with _open(path, publish) as repository, contextlib.suppress(HubRefusedError):
            if tag in repository.retry_until_clear(repository.refs).tags:
                found.setdefault((publish.endpoint, publish.repo_id), path)
    if not found:
        fix = "choose a tag that `evergreen releases` lists"
        raise HubRefusedError("params/", f"no recipe publishes to a repository with the tag {tag}", fix)
    if len(found) > 1:
        names = " and ".join(repo_id for _, repo_id in found)
        raise RecipeError("params/", f"the tag {tag} is in {names}", "say which with --recipe params/<recipe>.yaml")
    return next(iter(found.values()))
