"""Schedules from prefect.yaml; last successes from the Prefect server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pydantic
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from params import EvergreenError
from tasks.history.recipe_history import Schedule
from tasks.report.formatting import duration, one_line

logger = logging.getLogger(__name__)
_FLOW = "flows/retrain.py:retrain"
_ANSWER_S = 5.0


def read_schedules(root: Path, now: datetime) -> dict[str, list[Schedule]]:
    """Return the active schedules of each recipe, from the deployments in prefect.yaml."""
    try:
        content = YAML(typ="safe").load((root / "prefect.yaml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        logger.warning("prefect.yaml cannot be read, so nothing is known to be overdue: %s", error)
        return {}
    found: dict[str, list[Schedule]] = {}
    for deployment in _mappings(content, "deployments"):
        parameters = deployment.get("parameters")
        recipe = parameters.get("recipe", "default") if isinstance(parameters, Mapping) else "default"
        if deployment.get("entrypoint") == _FLOW:
            for schedule in _mappings(deployment, "schedules"):
                if schedule.get("active", True):
                    found.setdefault(Path(str(recipe)).name.removesuffix(".yaml"), []).append(_schedule(schedule, now))
    return found


def _mappings(content: Any, key: str) -> Iterator[Mapping[str, Any]]:
    listed = content.get(key) if isinstance(content, Mapping) else None
    yield from (item for item in listed if isinstance(item, Mapping)) if isinstance(listed, list) else ()


def _schedule(item: Mapping[str, Any], now: datetime) -> Schedule:
    if "cron" in item:
        zone = str(item.get("timezone") or "UTC")
        text = one_line(f"by cron {item['cron']}, {zone}", 100)
        return Schedule(text, _cron_limit(str(item["cron"]), zone, now))
    if "interval" in item:
        try:
            interval = pydantic.TypeAdapter(timedelta).validate_python(item["interval"])
        except pydantic.ValidationError:
            return Schedule(one_line(f"every {item['interval']}", 100), None)
        return Schedule(f"every {duration(interval.total_seconds())}", now - 2 * interval)
    return Schedule(one_line(item.get("rrule", "at unknown times"), 100), None)


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


def last_successes(recipes: Sequence[str]) -> dict[str, datetime]:
    """Return when a run of each recipe last succeeded on any worker, as far as the configured Prefect server knows.

    It is empty without a server, or if the server does not answer at once.
    """
    from prefect import settings

    if not recipes or not (url := settings.get_current_settings().api.url):
        return {}
    from prefect.client.orchestration import get_client
    from prefect.client.schemas import filters
    from prefect.client.schemas.objects import StateType
    from prefect.client.schemas.sorting import FlowRunSort

    from flows.server.configured import check_api_url

    found: dict[str, datetime] = {}
    completed = filters.FlowRunFilterStateType(any_=[StateType.COMPLETED])
    try:
        check_api_url(url)
        quickly = {settings.PREFECT_CLIENT_MAX_RETRIES: 0, settings.PREFECT_API_REQUEST_TIMEOUT: _ANSWER_S}
        with settings.temporary_settings(quickly), get_client(sync_client=True) as client:
            for recipe in recipes:
                names = filters.FlowRunFilterName(any_=[f"retrain-{recipe}", f"retrain-params/{recipe}.yaml"])
                wanted = filters.FlowRunFilter(name=names, state=filters.FlowRunFilterState(type=completed))
                runs = client.read_flow_runs(flow_run_filter=wanted, sort=FlowRunSort.END_TIME_DESC, limit=1)
                if runs and (ended := runs[0].end_time):
                    found[recipe] = ended
    except (httpx.HTTPError, EvergreenError) as error:
        logger.warning("the Prefect server does not say when runs last succeeded: %s", error)
    return found
