"""Run one stage of a recipe, or look at it.

python -m tasks {ingest,validate,tokenize,train,evaluate,publish} params/<recipe>.yaml
python -m tasks check params/<recipe>.yaml          find what is wrong in seconds, before any download
python -m tasks trace params/<recipe>.yaml --row 17  what becomes of one row in every stage
python -m tasks report params/<recipe>.yaml          all of a run on one page, runs/<recipe>/report.html
python -m tasks join params/<recipe>.yaml --machine 1  take part in a training of several machines
python -m tasks fetch params/<recipe>.yaml           take up a run that another machine mirrors to a Hub
python -m tasks verify-resume params/<recipe>.yaml   does a killed run end like one that was left alone? (minutes)
python -m tasks releases [recipe]                    what is published, and what was
python -m tasks rollback <tag> --why "..."           publish an older release again, as a new commit
python -m tasks reproduce <owner/name>@<revision>    rebuild a release in a temporary clone, and compare the weights
python -m tasks hub                                  serve the Hub in .hub/ on this machine
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from params import EvergreenError, TransientError, load
from params.artifacts import Artifacts
from tasks.stages import FUNCTIONS
from trainer.runtime.lifetime import die_with_parent


def main(argv: list[str] | None = None) -> int:
    """Run the command line; the return value is the exit status, see params.errors."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    for ours in ("params", "trainer", "tasks"):
        logging.getLogger(ours).setLevel(logging.INFO)
    # A thread that waits for the others shall not keep a core busy that another program could use: up to five times
    # faster beside one, and no slower alone. Read when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if not sys.stdout.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if "DVC_STAGE" in os.environ:
        die_with_parent()
    try:
        _COMMANDS.get(arguments.command, _stage)(arguments)
    except EvergreenError as error:
        sys.stdout.flush()
        print(f"\n{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr, flush=True)
        return 128 + signal.SIGINT
    return os.EX_OK


def _check(arguments: argparse.Namespace) -> None:
    from tasks.diagnostics.check import check
    from trainer.runtime.imports import leave_out

    leave_out("peft")
    check(arguments.recipe)


def _trace(arguments: argparse.Namespace) -> None:
    from tasks.diagnostics.trace import trace

    trace(arguments.recipe, row_id=arguments.row)


def _join(arguments: argparse.Namespace) -> None:
    from tasks.training.join import join

    join(arguments.recipe, machine=arguments.machine)


def _mirror(arguments: argparse.Namespace) -> None:
    from tasks.mirror.upload import mirror

    mirror(arguments.recipe, run=arguments.run)


def _fetch(arguments: argparse.Namespace) -> None:
    from tasks.mirror.fetch import fetch

    fetch(arguments.recipe)


def _releases(arguments: argparse.Namespace) -> None:
    from tasks.releases.commands import show_releases

    show_releases(arguments.recipe)


def _rollback(arguments: argparse.Namespace) -> None:
    from tasks.releases.commands import roll_back

    roll_back(arguments.tag, recipe=arguments.recipe, by=arguments.by, why=arguments.why)


def _reproduce(arguments: argparse.Namespace) -> None:
    from tasks.releases.commands import rebuild

    rebuild(arguments.target, keep=arguments.keep)


def _report(arguments: argparse.Namespace) -> None:
    from tasks.report.page import read_timings, write_report

    artifacts = Artifacts(arguments.recipe.stem)
    print(f"report: {write_report(artifacts, timings=read_timings(artifacts))}")


def _verify_resume(arguments: argparse.Namespace) -> None:
    from tasks.diagnostics.verify_resume import verify_resume

    verify_resume(arguments.recipe, steps=arguments.steps, kills=arguments.kills)


def _hub(arguments: argparse.Namespace) -> None:
    from tasks.hub_client.local import serve

    serve(arguments.folder, host=arguments.host, port=arguments.port, tokens=arguments.tokens)


def _stage(arguments: argparse.Namespace) -> None:
    from trainer.runtime.imports import leave_out_unused

    leave_out_unused(load(arguments.recipe))
    _run_stage(arguments.command, arguments.recipe)


def _run_stage(stage: str, recipe: Path) -> None:
    """Run a stage, note what it took, and bring the run's page up to date where it ends."""
    from tasks import stages
    from tasks.report.timings import Timing, record_timing

    start = time.monotonic()
    print(f"{stage}: {recipe}", flush=True)
    failed, page_due = "", stage == "publish"
    try:
        report = stages.run(stage, recipe)
        for name, value in stages.figures(report.model_dump(mode="json")):
            print(f"  {name}: {value}")
    except BaseException as error:
        failed = str(error) or type(error).__name__
        page_due = page_due or (isinstance(error, EvergreenError) and not isinstance(error, TransientError))
        raise
    finally:
        seconds = time.monotonic() - start
        timing = Timing(
            stage=stage,
            seconds=round(seconds, 2),
            peak_memory_mib=round(_peak_memory_mib(), 1),
            outcome="failed" if failed else "ran",
            error=failed,
        )
        with contextlib.suppress(EvergreenError):  # a full disk: the stage itself has said so, or goes well
            record_timing(Artifacts(recipe.stem), timing)
        if page_due:
            _write_page(Artifacts(recipe.stem))
    print(f"{stage}: done in {seconds:.1f} s", flush=True)


def _write_page(artifacts: Artifacts) -> None:
    """Write the run's page; that it cannot be written is no failure of the run."""
    try:
        from tasks.report.page import read_timings, write_report

        print(f"report: {write_report(artifacts, timings=read_timings(artifacts))}", flush=True)
    except EvergreenError as error:
        print(f"report: {error.where}: {error.what}", flush=True)
    except Exception:
        logging.getLogger(__name__).warning("the report could not be written", exc_info=True)


def _peak_memory_mib() -> float:
    """Most memory that this process or one of its children held."""
    own, children = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return float(max(own, children)) / unit


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tasks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in {**{stage: f"run the {stage} stage" for stage in FUNCTIONS}, **_OTHERS}.items():
        command = commands.add_parser(name, help=text, description=text)
        if name not in {"hub", "releases", "rollback", "reproduce"}:
            command.add_argument("recipe", type=Path, help="params/<recipe>.yaml")
    commands.choices["releases"].add_argument(
        "recipe", type=Path, nargs="?", help="params/<recipe>.yaml; by default all"
    )
    rollback = commands.choices["rollback"]
    rollback.add_argument("tag", help="of the release to go back to")
    rollback.add_argument("--why", required=True, help="the reason, for those who come after you")
    rollback.add_argument("--by", help="who asks for it (default: the user of git)")
    rollback.add_argument("--recipe", type=Path, help="whose repository it is (default: the one that has the tag)")
    commands.choices["reproduce"].add_argument("target", help="<owner/name>@<tag, commit or branch>")
    commands.choices["reproduce"].add_argument("--keep", action="store_true", help="keep the clone, to look at it")
    commands.choices["trace"].add_argument("--row", type=int, required=True, help="row_id, as in the raw data")
    commands.choices["join"].add_argument("--machine", type=int, required=True, help="its number, from 1 on")
    commands.choices["mirror"].add_argument("--run", help="key of the run to watch until standard input ends")
    verify = commands.choices["verify-resume"]
    verify.add_argument("--steps", type=int, help="optimizer steps; by default three save intervals, but at most 30")
    verify.add_argument("--kills", type=int, default=2, help="how often a process is killed (default: 2)")
    commands.choices["hub"].add_argument("--folder", type=Path, default=Path(".hub"), help="where repositories are")
    commands.choices["hub"].add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: this machine)"
    )
    commands.choices["hub"].add_argument("--port", type=int, default=7860, help="port (default: 7860)")
    commands.choices["hub"].add_argument(
        "--tokens", type=Path, help="file of tokens and users; needed for another host"
    )
    return parser


_OTHERS = {
    "check": "find what is wrong with a recipe in seconds, before any download",
    "trace": "show what becomes of one row in every stage",
    "join": "take part, on a further machine, in the training that the train stage on machine 0 supervises",
    "mirror": "upload the checkpoints that a training with launch.mirror has left to upload",
    "fetch": "download the last checkpoint of a run that another machine mirrors; the train stage goes on from it",
    "report": "write the page of a run, runs/<recipe>/report.html, from what there is of it",
    "releases": "list what is published, what was, and what was rolled back by whom and why",
    "rollback": "publish the files of an older release again, as a new commit; the gate is overridden",
    "reproduce": "rebuild a release from its own record in a temporary clone, and compare the weights",
    "verify-resume": "train the recipe's first steps with and without kills, and compare the runs bit for bit",
    "hub": "serve the Hub in .hub/ on this machine, to browse it and to load models from it",
}

_COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "check": _check,
    "trace": _trace,
    "join": _join,
    "mirror": _mirror,
    "fetch": _fetch,
    "releases": _releases,
    "rollback": _rollback,
    "reproduce": _reproduce,
    "report": _report,
    "verify-resume": _verify_resume,
    "hub": _hub,
}

if __name__ == "__main__":
    sys.exit(main())
