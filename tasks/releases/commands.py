"""What people do with releases: list them, go back to an older one, rebuild one.

python -m tasks releases                                     of every recipe in params/
python -m tasks rollback release-0123456789ab --why "..."     the recipe is the one whose repository has the tag
python -m tasks reproduce owner/name@release-0123456789ab
"""

from __future__ import annotations

import getpass
import logging
import subprocess
from collections.abc import Sequence
from pathlib import Path

from params import HubRefusedError, Recipe, RecipeError, load
from params.artifacts import Artifacts
from tasks.hub_client.connection import LOCAL, open_hub

logger = logging.getLogger(__name__)


def show_releases(recipe: Path | None) -> None:
    """Print the releases of one recipe, or of all.

    Raises:
        HubRefusedError, TransientError: the Hub does not say.
    """
    from tasks.hub_client.release_log import lines, releases

    for path in [recipe] if recipe else _recipes():
        publish = load(path).publish
        print(f"{path.stem}: {publish.repo_id} on {publish.endpoint}")
        with open_hub(Artifacts(path.stem), repo_id=publish.repo_id, endpoint=publish.endpoint) as (api, _):
            try:
                print("\n".join(f"  {line}" for line in lines(releases(api, publish.repo_id))))
            except HubRefusedError as error:
                if recipe:
                    raise
                print(f"  {error.what}")


def roll_back(tag: str, *, recipe: Path | None, by: str | None, why: str) -> None:
    """Publish the files of an older release again, as a new commit that says who asked for it and why.

    Args:
        tag: of the release.
        recipe: whose repository it is; by default the one that has the tag.
        by: who asks; by default the user of git or of this machine.
        why: the reason.

    Raises:
        HubRefusedError: there is no such tag, or the Hub refuses.
        RecipeError: several recipes publish to repositories with this tag.
        TransientError: no clear answer in time; running it again is safe.
    """
    from tasks.releases import rollback

    path = recipe or _recipe_with(tag)
    publish = load(path).publish
    hub = open_hub(Artifacts(path.stem), repo_id=publish.repo_id, endpoint=publish.endpoint, to_write=True)
    with hub as (api, _):
        done = rollback.roll_back(
            api,
            publish.repo_id,
            tag,
            by=by or _user(),
            why=why,
            deadline_s=publish.timeout_s,
            log=lambda line: logger.info("rollback: %s", line),
        )
    what = "is rolled back to" if done.changed else "holds already the files of"
    print(f"{publish.repo_id} {what} {tag}, at {done.commit}")


def rebuild(target: str, *, keep: bool) -> None:
    """Rebuild a release in a temporary clone, and compare its weights.

    Raises:
        ModelError: the weights differ.
        EvergreenError: it cannot be rebuilt.
    """
    from tasks.releases.reproduce import reproduce

    repo_id = target.partition("@")[0]
    endpoints = {load(path).publish.endpoint for path in _recipes() if load(path).publish.repo_id == repo_id}
    endpoint = endpoints.pop() if len(endpoints) == 1 else LOCAL
    reproduce(Path(), target, endpoint=endpoint, keep=keep).require_equal()


def _recipes() -> Sequence[Path]:
    return sorted(Path("params").glob("*.yaml"))


def _recipe_with(tag: str) -> Path:
    """The recipe whose repository has a tag."""
    found: dict[tuple[str, str], Path] = {}
    for path in _recipes():
        publish = load(path).publish
        if _has_tag(path, load(path), tag):
            found.setdefault((publish.endpoint, publish.repo_id), path)
    if not found:
        fix = "`python -m tasks releases` lists those there are; --recipe names a recipe outside of params/"
        raise HubRefusedError("params/", f"no recipe publishes to a repository with the tag {tag}", fix)
    if len(found) > 1:
        names = " and ".join(repo_id for _, repo_id in found)
        raise RecipeError("params/", f"the tag {tag} is in {names}", "say which with --recipe params/<recipe>.yaml")
    return next(iter(found.values()))


def _has_tag(path: Path, recipe: Recipe, tag: str) -> bool:
    from tasks.hub_client.release_log import releases

    publish = recipe.publish
    with open_hub(Artifacts(path.stem), repo_id=publish.repo_id, endpoint=publish.endpoint) as (api, _):
        try:
            return any(tag in entry.tags for entry in releases(api, publish.repo_id))
        except HubRefusedError:
            return False


def _user() -> str:
    """Who sits here, as git or else the machine knows them."""
    told = subprocess.run(["git", "config", "user.name"], capture_output=True, text=True, check=False).stdout.strip()
    return told or getpass.getuser()
