"""The command `evergreen`: all commands of `python -m tasks`, and those of the flow.

evergreen run default          every stage that is stale, by the flow
evergreen check default        as python -m tasks check default
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from params.artifacts import STAGES, Artifacts
from params.loading import recipe_name
from tasks import commands

app = typer.Typer(
    add_completion=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    no_args_is_help=True,
    rich_markup_mode=None,
)
RecipeName = Annotated[
    str, typer.Argument(parser=recipe_name, metavar="RECIPE", help="Name or path: default, or params/default.yaml.")
]


@app.callback()
def set_up(context: typer.Context) -> None:
    """Run a recipe or one of its stages, inspect a run, or work with its releases."""
    if context.invoked_subcommand not in {"run", "watch"}:  # there, Prefect decides on the log
        commands.set_up()


@app.command()
def run(
    recipe: RecipeName = "default",
    *,
    force: Annotated[bool, typer.Option("--force", help="Run every stage, stale or not.")] = False,
    no_publish: Annotated[bool, typer.Option("--no-publish", help="Stop after the evaluation.")] = False,
) -> None:
    """Run every stale stage of a recipe, and publish the model.

    Uses the Prefect server that PREFECT_API_URL names, or else one of its own until it ends. Then, if nothing is stale, it
    says so without a run of the flow.
    """
    from contextlib import nullcontext

    from flows import stages
    from flows.server import is_prepared, start_unless_configured
    from flows.summary import summary
    from trainer.runtime.memory import collect_rarely

    collect_rarely()
    artifacts = Artifacts(recipe)
    server = start_unless_configured(artifacts.server_log)
    outcomes: Any = None
    if server and is_prepared() and not force:  # a server that others look at is told of every run
        outcomes = stages.unchanged(STAGES[:-1] if no_publish else STAGES, artifacts)
        if outcomes:
            artifacts.succeeded.touch()
    if not outcomes:
        with server.used() if server else nullcontext():
            from flows.retrain import retrain

            outcomes = retrain(recipe, publish=not no_publish, force=force)
    print(summary(artifacts, outcomes))


@app.command()
def history(
    recipe: Annotated[
        str | None,
        typer.Argument(parser=recipe_name, metavar="RECIPE", help="Name or path; by default every recipe."),
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the entries of the logs as JSON.")] = False,
    last: Annotated[int, typer.Option(min=1, help="How many runs.")] = 30,
) -> None:
    """List the runs, and write a page with all of them.

    The newest run comes first; the page is runs/index.html. A run with nothing to do is not logged. Rollbacks and what
    `dvc repro` published are in the list, too.
    """
    from flows.history import history

    history(recipe, as_json=as_json, last=last)


@app.command()
def watch(
    silence_s: Annotated[
        int, typer.Argument(metavar="SECONDS", min=120, help="Seconds without a heartbeat, which come every minute.")
    ] = 900,
) -> None:
    """Make the Prefect server mark lost runs as crashed.

    Run it once on a server of your own, which would otherwise show a run as RUNNING or PENDING for ever when its process
    and its worker are both gone. Prefect Cloud does this by itself.
    """
    from flows.watch import watch

    watch(silence_s)


@app.command()
def clean(
    *,
    releases: Annotated[int, typer.Option(min=1, help="How many releases of a recipe keep their data.")] = 10,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Also the newest run of each recipe, which then cannot be resumed.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Show what nothing needs any more, and delete it.

    Checkpoints of superseded runs, data in DVC's cache of old releases, and objects of the local Hub that no branch or
    tag leads to. Asks first.
    """
    from flows.clean import clean

    clean(releases=releases, unfinished=unfinished, yes=yes)


app.registered_commands += commands.app.registered_commands


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status, see tasks.commands.main."""
    if "" not in sys.path:  # a console script does not have the working directory there, where a recipe's own code is
        sys.path.insert(0, "")
    return commands.main(argv, commands=app, name="evergreen")


if __name__ == "__main__":
    sys.exit(main())
