"""Make a self-hosted Prefect server mark lost runs as crashed: `evergreen watch [seconds of silence]`.

A worker reports a flow that was killed. If both die at once, with their machine for example, nothing reports it: the run
would stay RUNNING for ever, or PENDING if its process had not begun, and keep its place in the work queue. Prefect Cloud
notices this by itself; here an automation does.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta

from prefect.automations import Automation
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification

NAME = "crash-silent-runs"
_BEGIN = ("Pending", "Running", "Retrying", "heartbeat")
_ANY_EVENT = "prefect.flow-run.*"
"""Events carry the name of the new state, not its type, and a state may have any name, such as `Kept the champion`."""


def crash_automation(silence_s: int) -> Automation:
    """Return the automation that marks a run as crashed after `silence_s` without an event, if it has not ended.

    The server itself refuses to change the state of a run that has ended.
    """
    return Automation(
        name=NAME,
        trigger=EventTrigger(
            after={f"prefect.flow-run.{event}" for event in _BEGIN},
            expect={_ANY_EVENT},
            match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=silence_s),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                message=f"no heartbeat for {silence_s} s: its process or its machine is gone; see the worker's log",
            )
        ],
    )


def watch(silence_s: int) -> None:
    """Have the server mark a run as crashed after `silence_s` seconds without an event."""
    asyncio.run(_replace(crash_automation(silence_s)))
    print(f"runs that are silent for {silence_s} s are marked as crashed")


async def _replace(automation: Automation) -> None:
    """Create an automation, in place of an earlier one of its name."""
    with contextlib.suppress(ValueError):  # there is none
        await (await Automation.aread(name=automation.name)).adelete()
    await automation.acreate()
