"""The history of all runs: what each run of the flow adds to it, and `evergreen history`.

Whether a recipe is overdue follows from the schedules in prefect.yaml that are deployed, and from the last successes that the
Prefect server knows.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from zoneinfo import ZoneInfo

import httpx
import pydantic
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from params import EvergreenError
from params.foundation.artifacts import Artifacts
from tasks.history.cells import runs_markdown_table, runs_terminal_table
from tasks.history.recipe_history import RecipeHistory, Schedule, read_recipe_histories, read_runs_with_receipts
from tasks.history.run_log import utc_now_to_second
from tasks.history.run_recorder import RunRecorder
from tasks.report.formatting import format_duration, format_one_line

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

T = TypeVar("T")
logger = logging.getLogger(__name__)
_FLOW = "flows/retrain.py:retrain"
_IN_PREFECT = 10  # runs in the table that Prefect's UI shows


@contextlib.contextmanager
def log_run_in_block(artifacts: Artifacts) -> Iterator[RunRecorder]:
    """Log the flow run that the block does, if it does something, and bring the page of all runs up to date."""
    from prefect.runtime import flow_run

    from flows.run.stops import was_stopped_by_person

    run = RunRecorder(artifacts, run_id=flow_run.id or "", was_stopped=was_stopped_by_person)
    try:
        with run:
            yield run
    finally:
        if run.entry and run.entry.outcome not in {"cancelled", "crashed"}:  # then there is little time
            _show(artifacts)


def _show(artifacts: Artifacts) -> None:
    """Write the page, and show the last runs in Prefect's UI; that this fails is no failure of the run."""
    from flows.run.prefect_artifacts import add_history_artifact

    try:
        _, page = _page(artifacts.root)
        runs = read_runs_with_receipts(artifacts)[: -_IN_PREFECT - 1 : -1]
        text = f"{runs_markdown_table(runs)}\n\nAll runs: [{page}]({page.resolve().as_uri()})"
        add_history_artifact(artifacts, text)
    except Exception as error:
        is_known = isinstance(error, EvergreenError | OSError)
        logger.warning("the page of all runs could not be written: %s", error, exc_info=not is_known)


def _page(root: Path) -> tuple[list[RecipeHistory], Path]:
    from tasks.history.page import write_history_page

    time = utc_now_to_second()
    schedules = read_prefect_yaml_schedules(root, time, fetch_scheduled_deployments())
    histories = read_recipe_histories(root, schedules, fetch_last_success_times(list(schedules)))
    return histories, write_history_page(root, histories, now=time)


def print_history_and_write_page(recipe: str | None, *, as_json: bool, last: int) -> None:
    """Print the last runs of one recipe or of all, newest first, and write the page of all runs."""
    if as_json:
        logging.basicConfig(stream=sys.stderr, format="%(message)s", force=True)  # standard output is only JSON
    histories, page = _page(Path())
    runs = [run for one in histories if recipe in (None, one.recipe) for run in one.runs]
    runs = sorted(runs, key=lambda run: run.started, reverse=True)[:last]
    if as_json:
        print(json.dumps([run.model_dump(mode="json") for run in runs], indent=1))
        return
    print("\n".join(runs_terminal_table(runs)) if runs else "No run is logged yet.")
    for one in histories:
        if one.is_overdue and recipe in (None, one.recipe):
            since = f"{one.succeeded:%Y-%m-%d %H:%M} UTC" if one.succeeded else "its first run"
            print(f"overdue: {one.recipe} has not succeeded since {since}")
    print(f"page: {page}")


def read_prefect_yaml_schedules(
    root: Path, now: datetime, deployed: Collection[str] | None = None
) -> dict[str, list[Schedule]]:
    """Return the active schedules of each recipe, from the deployments in prefect.yaml that are `deployed`; None: all."""
    content = _read_prefect_yaml(root, "so nothing is known to be overdue")
    found: dict[str, list[Schedule]] = {}
    for deployment in _mappings(content, "deployments"):
        parameters = deployment.get("parameters")
        recipe = recipe_of_parameters(parameters if isinstance(parameters, Mapping) else {})
        if deployment.get("entrypoint") == _FLOW and (deployed is None or deployment.get("name") in deployed):
            for schedule in _mappings(deployment, "schedules"):
                if schedule.get("active", True):
                    found.setdefault(recipe, []).append(_schedule(schedule, now))
    return found


def read_prefect_yaml_names(root: Path) -> set[str]:
    """Return the names of the deployments in prefect.yaml; on one server, no other project can have them."""
    content = _read_prefect_yaml(root, "so which deployments are of this project is guessed from what they do")
    return {str(one["name"]) for one in _mappings(content, "deployments") if "name" in one}


def _read_prefect_yaml(root: Path, otherwise: str) -> Any:
    try:
        return YAML(typ="safe").load((root / "prefect.yaml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        logger.warning("prefect.yaml cannot be read, %s: %s", otherwise, error)
        return None


def recipe_of_parameters(parameters: Mapping[str, Any]) -> str:
    """Return the name of the recipe of a run or deployment with these parameters, whether it still exists or not."""
    return Path(str(parameters.get("recipe", "default"))).name.removesuffix(".yaml")


def _mappings(content: Any, key: str) -> Iterator[Mapping[str, Any]]:
    listed = content.get(key) if isinstance(content, Mapping) else None
    yield from (item for item in listed if isinstance(item, Mapping)) if isinstance(listed, list) else ()


def _schedule(item: Mapping[str, Any], now: datetime) -> Schedule:
    if "cron" in item:
        zone = str(item.get("timezone") or "UTC")
        text = format_one_line(f"by cron {item['cron']}, {zone}", 100)
        return Schedule(text, _cron_limit(str(item["cron"]), zone, now))
    if "interval" in item:
        try:
            interval = pydantic.TypeAdapter(timedelta).validate_python(item["interval"])
        except pydantic.ValidationError:
            return Schedule(format_one_line(f"every {item['interval']}", 100), None)
        return Schedule(f"every {format_duration(interval.total_seconds())}", now - 2 * interval)
    return Schedule(format_one_line(item.get("rrule", "at unknown times"), 100), None)


def _cron_limit(cron: str, zone: str, now: datetime) -> datetime | None:
    """Return the time twice the schedule's interval ago; None if the schedule cannot be read.

    Intervals may differ, as over a weekend: it is as long after the third last due time as it is now after the last one, but
    no later than the second last one.
    """
    from prefect._vendor.croniter.croniter import croniter

    try:
        here = now.astimezone(ZoneInfo(zone))
        wall_clock = croniter(cron, here.replace(tzinfo=None))  # type: ignore[no-untyped-call]
        before: Callable[[type[datetime]], datetime] = wall_clock.get_prev
        last, second, third = (before(datetime).replace(tzinfo=here.tzinfo) for _ in range(3))
    except (ValueError, KeyError):
        return None
    return min(second, third + (here - last)).astimezone(UTC)


def fetch_scheduled_deployments() -> set[str] | None:
    """Return the deployments with an active schedule on the configured server.

    None if the server does not answer: then any may have one. Where no server is configured, there is none.
    """

    def ask(client: SyncPrefectClient) -> set[str] | None:
        ours = (one for one in read_pages(client.read_deployments) if one.entrypoint == _FLOW)
        return {one.name for one in ours if not one.paused and any(each.active for each in one.schedules)}

    from flows.server.configured import read_pages

    return _ask_server("what is deployed", ask, unconfigured=set[str](), unknown=None)


def fetch_last_success_times(recipes: Sequence[str]) -> dict[str, datetime]:
    """Return when a run of each recipe last succeeded on any worker, as far as the configured Prefect server knows.

    It is empty without a server, or if the server does not answer at once.
    """

    def ask(client: SyncPrefectClient) -> dict[str, datetime]:
        found: dict[str, datetime] = {}
        completed = filters.FlowRunFilterStateType(any_=[StateType.COMPLETED])
        for recipe in recipes:
            names = filters.FlowRunFilterName(any_=[f"retrain-{recipe}", f"retrain-params/{recipe}.yaml"])
            wanted = filters.FlowRunFilter(name=names, state=filters.FlowRunFilterState(type=completed))
            runs = client.read_flow_runs(flow_run_filter=wanted, sort=FlowRunSort.END_TIME_DESC, limit=1)
            if runs and (ended := runs[0].end_time):
                found[recipe] = ended
        return found

    from prefect.client.schemas import filters
    from prefect.client.schemas.objects import StateType
    from prefect.client.schemas.sorting import FlowRunSort

    return _ask_server("when runs last succeeded", ask, unconfigured={}, unknown={}) if recipes else {}


def _ask_server(what: str, ask: Callable[[SyncPrefectClient], T], *, unconfigured: T, unknown: T) -> T:
    """Return what the configured server answers, or `unknown` if it does not at once."""
    from prefect.settings import get_current_settings

    if not (url := get_current_settings().api.url):
        return unconfigured
    from flows.server.configured import open_impatient_client, refuse_non_api_url

    try:
        refuse_non_api_url(url)
        with open_impatient_client() as client:
            return ask(client)
    except (httpx.HTTPError, EvergreenError) as error:
        from flows.server.configured import to_evergreen_error

        told = to_evergreen_error(error, url) if isinstance(error, httpx.HTTPError) else error
        logger.warning("the Prefect server does not say %s: %s", what, told)
        return unknown
