"""Let a self-hosted Prefect server watch the runs: `evergreen watch`.

Lost runs become crashed. A worker reports a flow that was killed, but if both die at once, with their machine for example,
nothing reports it: the run would stay RUNNING for ever, or PENDING if its process had not begun, and keep its place in the
work queue. Prefect Cloud notices this by itself; here an automation does. Other automations send messages (flows.watch.messages).

Automations that are already as they should be stay as they are: a new one would forget how long a run has been silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import TypeVar

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.events.actions import ChangeFlowRunState
from prefect.events.filters import AutomationFilter, AutomationFilterTags
from prefect.events.schemas.automations import Automation, AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from prefect.settings import get_current_settings

from flows.server.configured import configured_server, is_without_password, url_without_credentials
from flows.watch.destinations import delete_unused, destinations
from flows.watch.messages import FLOW, KINDS, TAG, MessageAutomations, Rules
from params import EvergreenError
from tasks.report.formatting import duration

T = TypeVar("T")
NAME = "crash-silent-runs"
_BEGIN = ("Pending", "Running", "Retrying", "heartbeat")
_ANY_EVENT = "prefect.flow-run.*"
"""Events carry the name of the new state, not its type, and a state may have any name, such as `Kept the champion`."""


def crash_automation(silence_s: int) -> AutomationCore:
    """Return the automation that marks a run as crashed after `silence_s` without an event, if it has not ended.

    The server itself refuses to change the state of a run that has ended.
    """
    return AutomationCore(
        name=NAME,
        description=f"marks a run as crashed that is silent for {duration(silence_s)}",
        tags=[TAG],
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


def create_automations(silence_s: int, notify: Sequence[str] = (), rules: Rules | None = None) -> None:
    """Have the server mark a run as crashed after `silence_s` seconds without an event, and send messages.

    Args:
        silence_s: seconds between two events of a run that is alive.
        notify: where messages go, see `flows.watch.destinations`.
        rules: when messages are sent.

    Raises:
        EvergreenError: no server is configured, or there is no such destination.
        TransientError: the server does not answer.
    """
    with configured_server() as client:
        wanted, found = [crash_automation(silence_s)], destinations(client, notify)
        if found:
            messages = MessageAutomations(rules or Rules(), found, get_current_settings().ui_url or "")
            wanted += messages.automations(_deployments(client))
        _bring_up_to_date(client, wanted)
        delete_unused(client, found)
    if is_without_password():
        where = url_without_credentials(get_current_settings().api.url or "")
        print(f"Prefect's server at {where} has no password: whoever reaches it can let its workers run any command")
        print("  make one with `evergreen password`, and restart server and workers (docs/operation.md)")


def select_message_kinds(only: Sequence[str], without: Sequence[str]) -> list[str]:
    """Return the kinds of messages in `only`, or all, that are not in `without`.

    Raises:
        EvergreenError: there is no such kind.
    """
    for kind in (*only, *without):
        if kind not in KINDS:
            raise EvergreenError(
                f"--only or --without {kind}", "there is no such kind", f"choose of {', '.join(KINDS)}"
            )
    return [kind for kind in only or KINDS if kind not in without]


def show() -> None:
    """Print the automations that `create_automations` has made."""
    with configured_server() as client:
        for automation in _made(client):
            _print(automation)


def remove() -> None:
    """Delete all that `create_automations` has made."""
    with configured_server() as client:
        _bring_up_to_date(client, [])
        delete_unused(client, [])


def _bring_up_to_date(client: SyncPrefectClient, wanted: Sequence[AutomationCore]) -> None:
    """Make the automations that are not there, and delete those that are not wanted, or no longer as they are."""
    made = _made(client)
    current = [AutomationCore(**one.model_dump(exclude={"id"})) for one in made]
    for automation in wanted:
        if automation not in current:
            client.create_automation(automation)
        _print(automation)
    kept: list[str] = []
    for old, content in zip(made, current, strict=True):
        if content in wanted and old.name not in kept:
            kept.append(old.name)
            continue
        client.delete_automation(old.id)
        if old.name not in {one.name for one in wanted}:
            print(f"removed {old.name}")


def _made(client: SyncPrefectClient) -> list[Automation]:
    """The automations that this version or an earlier one has made."""
    tagged = AutomationFilter(tags=AutomationFilterTags(any_=[TAG]))
    return list(_all(partial(client.read_automations, automations=tagged)))


def _deployments(client: SyncPrefectClient) -> list[DeploymentResponse]:
    """The deployments of the flow."""
    return list(_all(partial(client.read_deployments, flow_filter=FlowFilter(name=FlowFilterName(any_=[FLOW])))))


def _all(read: Callable[..., list[T]]) -> Iterator[T]:
    """Read page after page: the server answers with at most 200 at a time."""
    offset = 0
    while page := read(offset=offset, limit=200):
        yield from page
        offset += len(page)


def _print(automation: AutomationCore) -> None:
    print(f"{automation.name}: {automation.description}")
