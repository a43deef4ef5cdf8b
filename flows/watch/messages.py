"""The messages that `evergreen watch` has the Prefect server send: what starts each kind, and what it says.

A message is an automation of Prefect's. Events of runs carry the names of their states, so triggers name those of
`flows.run.final_state`. The templates are filled in by the server, from the run that the event is about.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from prefect.client.schemas.objects import DeploymentSchedule
from prefect.client.schemas.responses import DeploymentResponse
from prefect.events.actions import SendNotification
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification

from flows.run import final_state
from flows.watch.destinations import Destination
from tasks.report.formatting import duration

FLOW: Final = "retrain"
"""The flow whose runs are reported."""
TAG: Final = "evergreen-watch"
"""The tag of the automations that `evergreen watch` makes, replaces and removes."""
STATES: Final[Mapping[str, tuple[str, ...]]] = {
    "crashed": ("Crashed",),
    "failed": ("Failed", "TimedOut"),
    "refused": (final_state.REFUSED,),
    "published": (final_state.PUBLISHED,),
    "proposed": (final_state.PROPOSED,),
}
"""The kinds of messages about a run that ends, and the states that it ends in."""
KINDS: Final = (*STATES, "stuck", "late")
ENDS: Final = (*final_state.SUCCESSES, final_state.REFUSED, "Failed", "TimedOut", "Crashed", "Cancelled")
"""All states in which a run of the flow can end."""
_DATES: Final = 1000
"""How many coming dates of a schedule are looked at: the most that Prefect computes."""
_AGAIN: Final = timedelta(hours=1)
_TROUBLE: Final = ("crashed", "failed", "refused")
_WORDS: Final = {
    "crashed": "crashed",
    "failed": "failed",
    "refused": "was refused by the gate",
    "published": "was published",
    "proposed": "waits for approval",
}
_RUN: Final = "prefect.flow-run."
_ANY_RUN: Final = ResourceSpecification({"prefect.resource.id": [f"{_RUN}*"]})
_OF_FLOW: Final = ResourceSpecification({"prefect.resource.role": ["flow"], "prefect.resource.name": [FLOW]})
_RECIPE: Final = "{{ flow_run.parameters.recipe | default('default', true) }}"
_MESSAGE: Final = "{{ event.resource['prefect.state-message'] | default('', true) | truncate(3000) }}"
_STUCK: Final = (
    "The run has not ended for {limit}. It may hang, be paused, or need more time: see its log. To end it: "
    "`prefect flow-run cancel {{{{ flow_run.id }}}}`. To allow runs more time: `evergreen watch --max-hours`."
)
_LATE: Final = (
    "No run of the deployment {name} has succeeded for {limit}. Is its worker running? Do its runs fail? "
    "`prefect flow-run ls --flow-name {flow}` shows them."
)


@dataclass(frozen=True)
class Rules:
    """When messages are sent."""

    kinds: Collection[str] = KINDS
    max_time: timedelta = timedelta(hours=24)
    """How long a run may take: after that it is stuck."""
    late_after: float = 2.0
    """So many intervals of its schedule without a success, but at least `max_time`, make a deployment late."""
    repeat_after: timedelta = timedelta(hours=1)
    """Before that, the same trouble of the same recipe is not reported again."""


@dataclass(frozen=True)
class MessageAutomations:
    """The automations for messages."""

    rules: Rules
    destinations: Sequence[Destination]
    ui_url: str
    """Address of Prefect's pages, used if the server does not know its own."""

    def automations(self, deployments: Sequence[DeploymentResponse]) -> Iterator[AutomationCore]:
        """Yield an automation for each kind of message, and for each deployment with a schedule that can be late."""
        for kind in STATES:
            if kind in self.rules.kinds:
                yield self._about_end(kind)
        if "stuck" in self.rules.kinds:
            yield self._about_stuck()
        if "late" in self.rules.kinds:
            for deployment in deployments:
                interval = None if deployment.paused else longest_interval(deployment.schedules)
                if interval is not None:
                    yield self._about_late(deployment, max(self.rules.late_after * interval, self.rules.max_time))

    def _about_end(self, kind: str) -> AutomationCore:
        """A message about each run that ends so; about trouble not again within `repeat_after`, by the run's name.

        Prefect evaluates an event again after an error, such as a busy database: without an interval, it would act again.
        """
        is_rare = kind in _TROUBLE and self.rules.repeat_after
        trigger = EventTrigger(
            expect={f"{_RUN}{state}" for state in STATES[kind]},
            match=_ANY_RUN,
            match_related=_OF_FLOW,
            for_each={"prefect.resource.name" if is_rare else "prefect.resource.id"},
            posture=Posture.Reactive,
            within=self.rules.repeat_after if is_rare else _AGAIN,
        )
        when = f"when a run is {kind}" if kind != "failed" else "when a run fails"
        return self._automation(f"tell-{kind}", when, trigger, f"{_RECIPE} {_WORDS[kind]}", _MESSAGE)

    def _about_stuck(self) -> AutomationCore:
        """A message about a run that has begun and does not end, whether it is alive or not."""
        trigger = EventTrigger(
            after={f"{_RUN}Pending", f"{_RUN}Running"},
            expect={f"{_RUN}{state}" for state in ENDS},
            match=_ANY_RUN,
            match_related=_OF_FLOW,
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            within=self.rules.max_time,
        )
        limit = duration(self.rules.max_time.total_seconds())
        when = f"when a run has not ended after {limit}"
        return self._automation("tell-stuck", when, trigger, f"{_RECIPE} is stuck", _STUCK.format(limit=limit))

    def _about_late(self, deployment: DeploymentResponse, time: timedelta) -> AutomationCore:
        """A message about a deployment without a success for so long since the last one, or since a run was due."""
        successes = {f"{_RUN}{state}" for state in final_state.SUCCESSES}
        trigger = EventTrigger(
            after={f"{_RUN}Pending", f"{_RUN}Late"} | successes,
            expect=successes,
            match=_ANY_RUN,
            match_related=ResourceSpecification({"prefect.resource.id": [f"prefect.deployment.{deployment.id}"]}),
            for_each={"related:deployment:prefect.resource.id"},
            posture=Posture.Proactive,
            within=time,
        )
        name, limit = deployment.name, duration(time.total_seconds())
        when, text = f"when no run of {name} has succeeded for {limit}", _LATE.format(name=name, limit=limit, flow=FLOW)
        return self._automation(f"tell-late-{name}", when, trigger, f"{name} is late", text)

    def _automation(self, name: str, when: str, trigger: EventTrigger, subject: str, text: str) -> AutomationCore:
        """An automation with an action for each destination; `subject` and `text` are templates."""
        text = f"{text}\n\nrun: {{{{ flow_run.name }}}} {_link(self.ui_url)}"
        return AutomationCore(
            name=name,
            description=f"a message {when}, to {', '.join(one.label for one in self.destinations)}",
            tags=[TAG],
            trigger=trigger,
            actions=[
                SendNotification(block_document_id=one.block, subject=f"Evergreen: {subject}", body=text)
                for one in self.destinations
            ],
        )


def _link(ui_url: str) -> str:
    """A template for the address of the run's page; a server that was started without PREFECT_API_URL does not know its own."""
    return f"{{{{ flow_run | ui_url or {json.dumps(f'{ui_url}/runs/flow-run/')} ~ flow_run.id }}}}"


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
