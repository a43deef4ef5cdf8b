"""Make a self-hosted Prefect server mark silent runs as crashed: `evergreen watch [seconds of silence]`.

A worker reports a flow that was killed. If both die at once, with their machine for example, nothing reports it, and the
run would stay RUNNING for ever. Flows send heartbeats (prefect.toml says how often); this creates or replaces the
automation that marks a run as crashed when they stop. Prefect Cloud does this by itself.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from prefect.automations import Automation
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification

NAME = "crash-silent-runs"
_HEARTBEAT = "prefect.flow-run.heartbeat"
_ENDS = ("Completed", "Failed", "Cancelled", "Crashed")


def automation(silence_s: int) -> Automation:
    """Return the automation that marks a run as crashed `silence_s` after its last heartbeat, if it has not ended."""
    return Automation(
        name=NAME,
        trigger=EventTrigger(
            after={_HEARTBEAT},
            expect={_HEARTBEAT, *(f"prefect.flow-run.{end}" for end in _ENDS)},
            match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=silence_s),
        ),
        actions=[
            ChangeFlowRunState(state=StateType.CRASHED, message="no heartbeat: its process or its machine is gone")
        ],
    )


async def replace(made: Automation) -> None:
    """Create an automation, in place of an earlier one of its name."""
    try:
        earlier = await Automation.aread(name=made.name)
    except ValueError:
        pass
    else:
        await earlier.adelete()
    await made.acreate()


def watch(silence_s: int) -> None:
    """Have the server mark a run as crashed after `silence_s` seconds without a heartbeat."""
    asyncio.run(replace(automation(silence_s)))
    print(f"runs that are silent for {silence_s} s are marked as crashed")
