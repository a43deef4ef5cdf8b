"""The command `evergreen`: all commands of `python -m tasks`, and those of the flow.

evergreen run default          every stage that is stale, by the flow
evergreen check default        as python -m tasks check default
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from params.foundation.artifacts import Artifacts
from params.foundation.stages import STAGES
from tasks import commands
from tasks.recipes.loading import recipe_name
from trainer.reporting import signs_of_life

app = typer.Typer(context_settings={"help_option_names": ["--help", "-h"]}, no_args_is_help=True, rich_markup_mode=None)
RecipeName = Annotated[str, commands.recipe_argument(recipe_name)]
AnyRecipe = Annotated[str | None, commands.recipe_argument(recipe_name, "by default every recipe.")]


@app.callback()
def set_up_before_command(context: typer.Context) -> None:
    """Run a recipe or one of its stages, inspect a run, or work with its releases."""
    if context.invoked_subcommand not in {"run", "watch", "notice"}:  # there, Prefect decides on the log
        commands.set_up_command_output()


@app.command()
def run(
    recipe: RecipeName = "default",
    *,
    force: Annotated[bool, Option("--force", help="Run every stage, stale or not.")] = False,
    no_publish: Annotated[bool, Option("--no-publish", help="Stop after the evaluation.")] = False,
    record: Annotated[
        str | None,
        Option(metavar="REMOTE/BRANCH", help="Record the run there, such as origin/main.", show_default=False),
    ] = None,
) -> None:
    """Run every stale stage of a recipe, and publish the model.

    Uses the Prefect server that PREFECT_API_URL names, or else one of its own until it ends. If nothing is stale, it says so
    without running the flow; a server of yours gets a flow run that says so, too.
    """
    from flows.dvc_project.locks import hold_recipe_lock
    from flows.run import nothing_new, stages
    from flows.run.final_state import format_run_summary
    from flows.server.own import is_own_server_needed

    artifacts, branch, log = Artifacts(recipe), None, logging.getLogger(__name__)
    if record:
        from flows.record import recording
        from flows.record.outside_clone import keep_outside_of_clone

        branch = recording.RecordTarget.parse(record)
    url = os.environ.get("PREFECT_API_URL")
    outcomes: Any = None
    signs_of_life.note("run: looks for what has changed")
    if not force and not (url and branch):
        outcomes = stages.outcomes_if_all_unchanged(STAGES[:-1] if no_publish else STAGES, artifacts)
    parameters = {"recipe": recipe, "publish": not no_publish, "force": force, "record": None}
    if outcomes and (
        nothing_new.add_run_to_server(url, artifacts, outcomes, parameters) if url else is_own_server_needed()
    ):
        artifacts.succeeded.touch()
        if branch:  # an earlier run may not be recorded yet
            with keep_outside_of_clone(artifacts, branch), hold_recipe_lock(artifacts, log):
                recording.record_run_on_branch(artifacts, branch, log, outcomes)
    else:  # also if a profile of Prefect's names the server
        outcomes = _run_flow(artifacts, publish=not no_publish, force=force, record=branch)
    print(format_run_summary(artifacts, outcomes))


def _run_flow(artifacts: Artifacts, **parameters: Any) -> Any:
    """Run the flow on a server of its own, or on the configured one."""
    from flows.child_process import fork_modules
    from flows.server.own import OwnPrefectServer, is_own_server_needed

    signs_of_life.note("run: waits for the Prefect server")
    server = None if os.environ.get("PREFECT_API_URL") else OwnPrefectServer(artifacts.server_log)
    with contextlib.ExitStack() as opened:
        if server and is_own_server_needed():  # to ask takes a second, in which the server starts
            _import_flow()
            opened.enter_context(fork_modules())  # sooner, its imports would delay those of the server
            opened.enter_context(server.used())
        else:
            if server:
                server.stop()
            opened.enter_context(fork_modules())
            from flows.server.configured import open_configured_server_client

            # Without this, a flow would end with an error of Prefect's that says less.
            with open_configured_server_client() as client:
                client.api_version()
        opened.enter_context(signs_of_life.show_child_progress(artifacts.scratch / "progress"))
        from flows.retrain import retrain
        from flows.run.stops import turn_user_stop_into_error

        with turn_user_stop_into_error():
            return retrain(artifacts.recipe, **parameters)


def _import_flow() -> None:
    """Import the flow, and what it asks the local Hub with, while the server starts: both take as long."""
    import flows.retrain  # noqa: F401
    import tasks.hub_server.application
    import tasks.publishing.hub_changes  # noqa: F401


@app.command()
def releases(
    recipe: AnyRecipe = None,
    *,
    last: Annotated[int, Option(min=1, help="How many releases, and lines of the log.")] = 30,
    record: Annotated[
        bool, Option("--record", help="First record a pull request that was merged or closed, as the next run does.")
    ] = False,
) -> None:
    """List releases and rollbacks, and what is published now.

    Changes nothing, unless `--record` is given: then a merged release gets its tag, and dvc.lock, receipt and log say so.
    """
    from flows.run.stages import has_unrecorded_decision, record_pull_request_decision
    from tasks.releases.recipe_releases import list_recipe_paths, print_releases

    chosen = [Artifacts(recipe).recipe_path] if recipe else list_recipe_paths()
    if record:
        for path in chosen:
            record_pull_request_decision(Artifacts(path.stem))
    print_releases(chosen, last=last, must_exist=recipe is not None)
    for path in chosen:
        if has_unrecorded_decision(Artifacts(path.stem)):
            print(
                f"{path.stem}: its pull request was merged or closed; the next run records that, or `evergreen releases --record`"
            )


@app.command()
def history(
    recipe: AnyRecipe = None,
    *,
    as_json: Annotated[bool, Option("--json", help="Print the entries of the logs as JSON.")] = False,
    last: Annotated[int, Option(min=1, help="How many runs.")] = 30,
) -> None:
    """List the runs, and write a page with all of them.

    The newest run comes first; the page is runs/index.html. A run with nothing to do is not logged. Rollbacks and what
    `dvc repro` published are in the list, too.
    """
    from flows.run.history import print_history_and_write_page

    print_history_and_write_page(recipe, as_json=as_json, last=last)


@app.command("watch")
def configure_server_watch(
    silence_s: Annotated[
        int, Argument(metavar="SECONDS", min=120, help="Seconds without a heartbeat, which come every minute.")
    ] = 900,
    *,
    notify: Annotated[
        list[str] | None,
        Option(metavar="WHERE", help="Send messages to this webhook, or this block: slack-webhook/team, or its id."),
    ] = None,
    only: Annotated[list[str] | None, Option(metavar="KIND", help="Send only this kind of messages.")] = None,
    without: Annotated[list[str] | None, Option(metavar="KIND", help="Do not send this kind.")] = None,
    max_hours: Annotated[float, Option(min=0.1, help="A run that takes longer is stuck.")] = 24,
    late_after: Annotated[
        float, Option(min=1, help="Intervals of its schedule without a success that make a deployment late.")
    ] = 2,
    repeat_hours: Annotated[
        float, Option(min=0, help="When the same trouble of the same recipe is reported again, at the earliest.")
    ] = 1,
    show: Annotated[bool, Option("--list", help="Only show what there is.")] = False,
    remove: Annotated[bool, Option("--remove", help="Only remove what there is.")] = False,
) -> None:
    """Let the Prefect server notice lost runs and send messages.

    Run it on a server of your own, which would otherwise show a run as RUNNING or PENDING for ever when its process and its
    worker are both gone; and again when deployments or options change. It replaces what an earlier one has made.
    Kinds of messages: crashed, failed, refused, unrecorded, published, proposed, stuck, late. --notify, --only and --without
    can be given several times.
    """
    from flows.watch import automations

    if show or remove:
        (automations.print_automations if show else automations.delete_automations)()
        return
    kinds = automations.select_message_kinds(only or (), without or ())
    rules = automations.WatchRules(silence_s, kinds, max_hours * 3600, late_after, repeat_hours * 3600)
    automations.replace_server_automations(notify or (), rules)


@app.command("password")
def make_password() -> None:
    """Make a password for your Prefect server, in .env.

    Call it in the project's folder before the server starts there. Server, workers and commands in this folder then use it;
    elsewhere, set PREFECT_API_AUTH_STRING to it. Without one, every user of this machine can let your workers run commands.
    """
    from flows.server import password

    is_new, was_open = password.add_password_to_dotenv(), password.restrict_dotenv_permissions()
    print(f"{password.FILE}: {'has a new password' if is_new else 'has a password already, which is kept'}")
    if was_open:
        what = "every user of this machine could read it, and now only its owner can"
        print(f"{password.FILE}: {what}; for a new password, delete the lines of this one and call this again")


@app.command("notice")
def announce_new_data(
    recipe: Annotated[str, Argument(metavar="RECIPE", help="Name of the recipe.", show_default=False)],
    *,
    data: Annotated[
        list[str] | None, Option(metavar="KEY=VALUE", help="What to add to the event; can be given several times.")
    ] = None,
) -> None:
    """Tell the Prefect server that a recipe has new data.

    Starts the deployments whose `triggers` in prefect.yaml wait for it, on any machine that reaches the server.
    """
    pairs = [text.partition("=") for text in data or ()]
    if not all(key and sign for key, sign, _ in pairs):
        raise typer.BadParameter("write --data KEY=VALUE")
    from flows.server import configured

    # Whatever delivers the data may be elsewhere; in the project, a wrong name is found out.
    configured.announce_new_data(
        recipe_name(recipe) if Path("params").is_dir() else recipe, {key: value for key, _, value in pairs}
    )


@app.command()
def clean(
    *,
    releases: Annotated[
        int, Option(min=0, help="How many releases in a repository keep their data; with 0, no Hub is asked.")
    ] = 10,
    unfinished: Annotated[
        bool,
        Option(
            "--unfinished", help="Also the newest run of each recipe, which then cannot be resumed or trained longer."
        ),
    ] = False,
    shared_cache: Annotated[
        bool, Option("--shared-cache", help="Also DVC's cache outside of the project, if only clones of it use that.")
    ] = False,
    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Show what nothing needs any more, and delete it.

    Checkpoints of superseded runs, data in DVC's cache that nothing in git and no recent release uses, and objects of the
    local Hub that no branch, tag or pull request leads to. Names the folders, and asks first.
    """
    from flows.clean import delete_unneeded_if_confirmed

    delete_unneeded_if_confirmed(releases=releases, unfinished=unfinished, yes=yes, shared_cache=shared_cache)


app.registered_commands += commands.app.registered_commands


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status, see tasks.commands.main."""
    if "" not in sys.path:  # a console script does not have the working directory there, where a recipe's own code is
        sys.path.insert(0, "")
    return commands.main(argv, commands=app, name="evergreen")


if __name__ == "__main__":
    sys.exit(main())
