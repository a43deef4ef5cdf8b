"""The commands `rollback`, `forget` and `reproduce`, for tasks/commands.py: imported at the start of every command, so they import late."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tasks.recipes.loading import find_recipe


def rollback(
    tag: Annotated[str, Argument(help="Tag of the release, for example release-0123456789ab.")],
    *,
    why: Annotated[str, Option(help="The reason; `releases` shows it.")],
    by: Annotated[str | None, Option(help="Your name. By default the user.name of git.")] = None,
    recipe: Annotated[
        Path | None,
        Option(
            parser=find_recipe,
            metavar="RECIPE",
            help="The recipe that published it. By default the one whose repository has the tag.",
        ),
    ] = None,
) -> None:
    """Publish an older release again, whatever the gate says.

    The files of that release become a new commit, with the reason and your name.
    """
    from tasks.releases.recipe_releases import roll_back_and_log

    roll_back_and_log(tag, recipe=recipe, by=by, why=why)


def forget(
    recipe: Annotated[Path, Argument(parser=find_recipe, metavar="RECIPE", help="The recipe.", show_default=False)],
    *,
    why: Annotated[str, Option(help="What happened to the Hub, or why there is another one; the log keeps it.")],
    by: Annotated[str | None, Option(help="Your name. By default the user.name of git.")] = None,
) -> None:
    """Go on without releases that the Hub has lost.

    Until then, no run publishes there: its model would be compared with nothing, or with an older model.
    """
    from tasks.releases.recipe_releases import forget_lost_releases, name_of_user

    forget_lost_releases(recipe, by=by or name_of_user(), why=why)


def reproduce(
    target: Annotated[str, Argument(help="owner/name@revision; the revision is a tag, a commit or a branch.")],
    *,
    keep: Annotated[bool, Option("--keep", help="Keep the temporary clone.")] = False,
    chain: Annotated[
        bool, Option("--chain", help="Train again the release that it started from, too, and so on to the first.")
    ] = False,
    trust_commit: Annotated[
        list[str] | None,
        Option(
            metavar="COMMIT", help="Run the code of this commit, which no branch of the project has. Read it first."
        ),
    ] = None,
) -> None:
    """Train a release again, and compare the weights.

    Works in a temporary clone of this project. Succeeds if the weights have the same hash. Runs the code that the release names,
    if a branch of this project has it.
    """
    from tasks.hub_client.connection import find_repository_endpoint
    from tasks.releases.reproduce import reproduce

    endpoint = find_repository_endpoint(target.partition("@")[0])
    reproduce(Path(), target, endpoint=endpoint, keep=keep, chain=chain, trusted=trust_commit or ())
