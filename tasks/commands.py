"""The command line: run one stage of a recipe, inspect a run, or work with its releases.

`python -m tasks --help` lists the commands; `evergreen` has the same ones, and those of the flow (flows/cli.py). A command
is a function here: its name, its docstring and its parameters are all that the command line says about it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option
from typer.completion import shell_complete

from params import DataError, EvergreenError
from params.foundation import command_result
from params.foundation.artifacts import Artifacts
from params.foundation.printable import discard_output_without_reader, make_stdout_printable
from params.foundation.stages import PIPELINE
from tasks.recipes.loading import find_recipe, load, recipe_names_with_prefix
from tasks.releases import commands as releases
from tasks.scaffold import commands as scaffold
from tasks.stage_command import run_stage_as_command
from trainer.reporting import log, signs_of_life
from trainer.runtime.imports import hide_packages, hide_unused_packages

app = typer.Typer(
    add_completion=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    no_args_is_help=True,
    rich_markup_mode=None,  # rich takes a third of a second to import
)


def recipe_argument(parser: Callable[[str], Any], meaning: str = "default, or params/default.yaml.") -> Any:
    """Return the argument of a command that names a recipe."""
    return Argument(
        parser=parser, metavar="RECIPE", help=f"Name or path: {meaning}", autocompletion=recipe_names_with_prefix
    )


RecipePath = Annotated[Path, recipe_argument(find_recipe)]


@app.callback()
def set_up_command_output() -> None:
    """Run one stage of a recipe, inspect a run, or work with its releases."""
    log.log_for_people()
    if not sys.stdout.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def _stage_command(stage: str) -> Callable[[Path], None]:
    def command(recipe: RecipePath) -> None:
        hide_unused_packages(load(recipe))
        run_stage_as_command(stage, recipe)

    return command


app.command()(scaffold.new)
app.command()(scaffold.convert)
app.command()(scaffold.remove)
for _stage in PIPELINE:
    app.command(_stage.name, help=_stage.does)(_stage_command(_stage.name))


@app.command()
def check(recipe: RecipePath) -> None:
    """Find the mistakes in a recipe before anything runs.

    Takes seconds and downloads nothing. Reports every mistake with its line.
    """
    from tasks.diagnostics.check import check

    hide_packages("peft")
    check(recipe)


@app.command("show")
def show_recipe(recipe: RecipePath) -> None:
    """Print a recipe with all of its values.

    Those that its file does not give are marked as defaults.
    """
    from tasks.recipes.resolve import recipe_text_marking_defaults

    print(recipe_text_marking_defaults(Artifacts(recipe.stem)), end="")


@app.command(hidden=True)
def resolve(recipe: RecipePath) -> None:
    """Write runs/<recipe>/recipe.yaml, the recipe with all of its values. DVC runs this before the stages."""
    from tasks.recipes.resolve import write_resolved_recipe

    write_resolved_recipe(Artifacts(recipe.stem))


@app.command("trace")
def trace_row(recipe: RecipePath, *, row: Annotated[int, Option(help="The row's row_id in the raw data.")]) -> None:
    """Show what each stage makes of one row."""
    hide_unused_packages(load(recipe))
    from tasks.diagnostics.trace import trace

    trace(recipe, row_id=row)


@app.command()
def rehearse(recipe: RecipePath) -> None:
    """Run all stages on few rows, and publish nowhere.

    Takes a minute or two, and estimates time, memory and disk of the real run. Fails with what the real run would fail with after hours.
    """
    hide_unused_packages(load(recipe))
    from tasks.diagnostics.rehearse import rehearse

    rehearse(recipe)


@app.command()
def verify_resume(
    recipe: RecipePath,
    *,
    steps: Annotated[
        int | None, Option(help="Optimizer steps to train. By default three save intervals, but at most 30.")
    ] = None,
    kills: Annotated[int, Option(help="How often to kill a process.")] = 2,
) -> None:
    """Test that a killed training ends with the same weights.

    Trains the recipe's first steps twice, once without and once with kills, and compares the two runs bit for bit. Takes
    minutes. Needs the tokens of the recipe; leaves its artifacts and checkpoints alone.
    """
    from tasks.diagnostics.verify_resume import verify_resume

    verify_resume(recipe, steps=steps, kills=kills)


@app.command("report")
def write_report_page(recipe: RecipePath) -> None:
    """Write the report page of a run, runs/<recipe>/report.html.

    The page shows the stages that have run so far.
    """
    from tasks.report.page import write_run_report_page

    if not (artifacts := Artifacts(recipe.stem)).run.exists():
        raise DataError(
            str(artifacts.run), "no stage of this recipe has run here", f"run it: `evergreen run {recipe.stem}`"
        )
    print(f"report: {write_run_report_page(artifacts)}")


@app.command("join")
def join_training(
    recipe: RecipePath, *, machine: Annotated[int, Option(help="This machine's number, from 1.")]
) -> None:
    """Take part in a training of several machines.

    Run it on every machine but machine 0, which runs `train`. See docs/distributed.md.
    """
    from tasks.training.machines import join_training_as_machine

    join_training_as_machine(recipe, machine=machine)


@app.command("mirror")
def mirror_checkpoints(
    recipe: RecipePath,
    *,
    run: Annotated[
        str | None, Option(help="Key of a run: watch it and upload its checkpoints until standard input closes.")
    ] = None,
) -> None:
    """Upload checkpoints that launch.mirror has not uploaded yet."""
    from tasks.mirror.upload import mirror

    mirror(recipe, run=run)


@app.command("fetch")
def fetch_checkpoint(recipe: RecipePath) -> None:
    """Download the last checkpoint that a run has mirrored.

    For a training that another machine ran with launch.mirror; `train` then continues it. See docs/distributed.md.
    """
    from tasks.mirror.fetch import fetch_last_checkpoint

    fetch_last_checkpoint(recipe)


app.command()(releases.rollback)
app.command()(releases.forget)
app.command()(releases.reproduce)


@app.command("review")
def review_labels(
    recipe: RecipePath,
    *,
    out: Annotated[
        Path | None, Option(metavar="FILE", help="Write the rows without an answer to a new file, to be filled in.")
    ] = None,
    take: Annotated[
        Path | None, Option(metavar="FILE", help="Add the answers in this file to data.corrections of the recipe.")
    ] = None,
    new_labels: Annotated[
        bool, Option("--new-labels", help="Answers may be labels that no training row has yet.")
    ] = False,
) -> None:
    """Show which labels look wrong, or take answers of people.

    The rows are in runs/<recipe>/review.csv. People fill in its column `corrected_label`.
    """
    from tasks.measurements.label_review import review_answers

    if take and out:
        raise typer.BadParameter("give --out or --take")
    if take:
        review_answers.take_answers(recipe, take, may_be_new=new_labels)
    else:
        review_answers.print_queue(recipe, out)


@app.command("try")
def try_model(
    name: Annotated[
        str,
        Argument(
            metavar="NAME",
            help="A recipe, or owner/name; with @revision an older release.",
            autocompletion=recipe_names_with_prefix,
        ),
    ],
    texts: Annotated[list[str] | None, Argument(metavar="TEXT", help="By default the lines of standard input.")] = None,
    *,
    against: Annotated[
        str | None, Option(metavar="REVISION", help="Answer by this revision, too, or by another owner/name@revision.")
    ] = None,
    max_new_tokens: Annotated[int, Option(min=1, help="Maximum length of a generated text.")] = 64,
    temperature: Annotated[float, Option(min=0.0, help="Above 0, draw the words of a generated text at random.")] = 0.0,
    among: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Texts that an embedding searches, or a ranker puts in order, one per line. By default the texts after the first.",
        ),
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print a line of JSON for each text.")] = False,
    no_limits: Annotated[
        bool, Option("--no-limits", help="Let it take any time and memory: for models that you trust.")
    ] = False,
) -> None:
    """Let a published model answer texts.

    Prints generated text, classes with probabilities, the spans of the text, the nearest of other texts, or documents in the order of
    their relevance.
    """
    from tasks.inference.command import read_lines, try_model
    from tasks.inference.tried_model import AnswerOptions

    options = AnswerOptions(max_new_tokens, temperature, read_lines(among) if among else ())
    try_model(name, texts or (), against=against, options=options, as_json=as_json, is_bounded=not no_limits)


@app.command("hub")
def serve_hub(
    *,
    folder: Annotated[Path, Option(help="Where the repositories are.")] = Path(".hub"),
    host: Annotated[str, Option(help="Address to listen on; 127.0.0.1 is this machine only.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 7860,
    tokens: Annotated[Path | None, Option(help="File of access tokens and users. Required for any other host.")] = None,
    new: Annotated[bool, Option("--new", help="Make a new Hub in the folder; without it, one must be there.")] = False,
    answer: Annotated[
        bool, Option("--try", help="Let signed-in users try the models on their pages; this machine computes.")
    ] = False,
) -> None:
    """Serve the local Hub to browsers and to the Hub's client.

    See docs/hub.md.
    """
    from tasks.hub_client.local import serve_hub_until_signal
    from tasks.inference.hub_trials import HubModelAnswerer

    with HubModelAnswerer(folder) if answer else contextlib.nullcontext() as trials:
        serve_hub_until_signal(folder, host=host, port=port, tokens=tokens, new=new, answer=trials)


def main(argv: Sequence[str] | None = None, *, commands: typer.Typer = app, name: str = "python -m tasks") -> int:
    """Run a command and return its exit status: 0, 2 for wrong usage, or the `exit_code` of an error in params.foundation.errors.

    After Ctrl-C it is 130, after the end of what reads the output, such as `head`, 141. A `KeyboardInterrupt` with a text says what is kept.
    """
    with log.libraries_print_nothing(), make_stdout_printable() as printed:
        status = _main(argv, commands, name)
        printed.flush()
    return status or command_result.report_lost_output(printed.error)


def _main(argv: Sequence[str] | None, commands: typer.Typer, name: str) -> int:
    variable = f"_{name.upper()}_COMPLETE"
    try:
        group: Any = typer.main.get_command(commands)
        if instruction := os.environ.get(variable):  # a shell asks; only the group's own `main` looks at it
            return shell_complete(group, {}, name, variable, instruction)
        # Without the group's own `main`, which hides a BrokenPipeError or EOFError of a command.
        arguments = list(sys.argv[1:] if argv is None else argv)
        with command_result.report_result_on_exit(), group.make_context(name, arguments) as context:
            context.call_on_close(signs_of_life.hide_progress)
            if command := group.get_command(context, arguments[0]):
                doing = command.get_short_help_str(99).rstrip(".")
                signs_of_life.note(f"{command.name}: {doing[:1].lower()}{doing[1:]}")
            group.invoke(context)
            sys.stdout.flush()
    except BrokenPipeError:
        if not discard_output_without_reader():
            raise
        return 128 + signal.SIGPIPE
    except (typer.Exit, EvergreenError) as end:
        return end.exit_code
    except typer.TyperException as error:
        error.show()  # type: ignore[attr-defined]  # all that typer raises for wrong usage can show itself
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort) as interrupt:
        kept = str(interrupt) or ("nothing is changed" if isinstance(interrupt, typer.Abort) else "start again")
        sys.stdout.flush()
        print(f"\ninterrupted: {kept}", file=sys.stderr, flush=True)
        return 128 + signal.SIGINT
    return os.EX_OK
