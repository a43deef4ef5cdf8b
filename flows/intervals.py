"""How often a deployment is due."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from prefect.client.schemas.objects import DeploymentSchedule

_DATES = 1000
"""How many coming dates of a schedule are looked at: the most that Prefect computes."""


def longest_interval(schedules: Sequence[DeploymentSchedule]) -> timedelta | None:
    """Return the longest time between two coming runs of the active schedules together; None if there are not two."""
    coming = [dates for one in schedules if one.active and (dates := _dates(one))]
    if not coming:
        return None
    # A schedule that still goes on after its last known date may have more: there the others say nothing either.
    end = min((dates[-1] for dates in coming if len(dates) == _DATES), default=None)
    due = sorted({date for dates in coming for date in dates if end is None or date <= end})
    return max((later - earlier for earlier, later in pairwise(due)), default=None)


def _dates(schedule: DeploymentSchedule) -> list[datetime]:
    from prefect.server.schemas.schedules import SCHEDULE_TYPES  # the classes of the client compute no dates
    from pydantic import TypeAdapter

    known = TypeAdapter(SCHEDULE_TYPES).validate_python(schedule.schedule.model_dump())
    return list(asyncio.run(known.get_dates(_DATES)))
