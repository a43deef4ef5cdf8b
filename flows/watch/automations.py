"""Let a self-hosted Prefect server watch the runs: `evergreen watch`.

Lost runs become crashed. A worker reports a flow that was killed, but if both die at once, with their machine for example,
nothing reports it: the run would stay RUNNING for ever, or PENDING if its process had not begun, and keep its place in the
work queue. Prefect Cloud notices this by itself; here an automation does. Other automations send messages. All of them stand in
automations.yaml.jinja.

A message goes to a block of Prefect's. For a plain address, `watch` makes a block of its own. The address may have a password or a
token in it, so the block keeps it as a secret, and only its host is ever shown.

Automations that are already as they should be stay as they are: a new one would forget how long a run has been silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

from jinja2 import Environment, StrictUndefined
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.objects import DeploymentSchedule
from prefect.client.schemas.responses import DeploymentResponse
from prefect.events.filters import AutomationFilter, AutomationFilterTags
from prefect.events.schemas.automations import Automation, AutomationCore
from prefect.exceptions import ObjectNotFound
from prefect.settings import get_current_settings
from pydantic import TypeAdapter
from ruamel.yaml import YAML

from flows.run import final_state, untold_releases
from flows.server.clock import clock_warning
from flows.server.configured import answers_without_password, open_configured_server_client, read_pages, url_origin
from params import EvergreenError
from tasks.report.formatting import format_duration

T = TypeVar("T")
FLOW: Final = "retrain"  # the flow whose runs are reported
KINDS: Final = ("crashed", "failed", "refused", "unrecorded", "published", "proposed", "stuck", "late")
_OTHER_ENDS: Final = (final_state.REFUSED, final_state.NOT_RECORDED, "Failed", "TimedOut", "Crashed", "Cancelled")
ENDS: Final = (*final_state.SUCCESSES, *_OTHER_ENDS)
"""All states in which a run of the flow can end."""
_TAG: Final = "evergreen-watch"  # the tag of the automations that `evergreen watch` makes, replaces and removes
_DATES: Final = 1000  # how many coming dates of a schedule are looked at: the most that Prefect computes
_OWN = "evergreen-watch-"  # how the names of our own blocks begin; a number follows
_OWN_TYPE = CustomWebhookNotificationBlock.get_block_type_slug()


class MessageDestination(NamedTuple):
    """A block that sends messages."""

    label: str  # what may be shown of it
    block: UUID


@dataclass(frozen=True)
class WatchRules:
    silence_s: float = 900  # seconds without an event after which a run is lost
    kinds: Sequence[str] = KINDS  # the kinds of messages that are sent
    max_s: float = 24 * 3600  # how long a run may take: after that it is stuck
    late_after: float = 2.0  # so many intervals without a success, but at least `max_s`, make a deployment late
    repeat_s: float = 3600  # before that, the same trouble of the same recipe is not reported again


def build_automations(
    rules: WatchRules,
    to: Sequence[MessageDestination] = (),
    deployments: Sequence[DeploymentResponse] = (),
    ui_url: str = "",
) -> list[AutomationCore]:
    """Return the automation that marks lost runs, and for each kind of message the one that sends it to `to`.

    `ui_url` is the address of Prefect's pages, used if the server does not know its own.
    """
    late = []
    for deployment in deployments if "late" in rules.kinds else ():
        interval = None if deployment.paused else longest_interval_between_runs(deployment.schedules)
        if interval is not None:
            late.append((deployment, max(rules.late_after * interval.total_seconds(), rules.max_s)))
    template = Environment(  # noqa: S701  # YAML
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="{#",
        undefined=StrictUndefined,
    ).from_string(Path(__file__).with_name("automations.yaml.jinja").read_text(encoding="utf-8"))
    text = template.render(
        vars(rules),
        tag=_TAG,
        flow=FLOW,
        successes=final_state.SUCCESSES,
        ends=ENDS,
        destinations=to,
        late=late,
        ui_url=ui_url,
        release_event=untold_releases.EVENT,
        releases=f"{untold_releases.RESOURCES}.*",
        # An event is sent again by each run of that time.
        released_s=2 * untold_releases.LOOKED_AT.total_seconds(),
        duration=format_duration,
    )
    return [AutomationCore.model_validate(one) for one in YAML(typ="safe").load(text)]


def replace_server_automations(notify: Sequence[str], rules: WatchRules) -> None:
    """Have the server mark lost runs as crashed, and send messages to `notify` (see `create_or_find_destinations`)."""
    with open_configured_server_client() as client:
        found = create_or_find_destinations(client, notify)
        of_flow = FlowFilter(name=FlowFilterName(any_=[FLOW]))
        deployments = list(read_pages(partial(client.read_deployments, flow_filter=of_flow))) if found else ()
        _bring_up_to_date(client, build_automations(rules, found, deployments, get_current_settings().ui_url or ""))
        delete_unused_blocks(client, found)
    if warning := clock_warning():
        print(warning)
    if answers_without_password():
        where = url_origin(get_current_settings().api.url or "")
        print(f"Prefect's server at {where} has no password: whoever reaches it can let its workers run any command")
        print("  make one with `evergreen password`, and restart server and workers (docs/operation.md)")


def select_message_kinds(only: Sequence[str], without: Sequence[str]) -> list[str]:
    """Return the kinds of messages in `only`, or all, that are not in `without`."""
    for kind in {*only, *without} - {*KINDS}:
        where, fix = f"--only or --without {kind}", f"choose of {', '.join(KINDS)}"
        raise EvergreenError(where, "there is no such kind", fix)
    return [kind for kind in only or KINDS if kind not in without]


def print_automations() -> None:
    """Print the automations that `replace_server_automations` has made."""
    with open_configured_server_client() as client:
        for automation in _made(client):
            _print(automation)


def delete_automations() -> None:
    """Delete all that `replace_server_automations` has made."""
    with open_configured_server_client() as client:
        _bring_up_to_date(client, [])
        delete_unused_blocks(client, [])


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
    tagged = AutomationFilter(tags=AutomationFilterTags(any_=[_TAG]))
    return list(read_pages(partial(client.read_automations, automations=tagged)))


def _print(automation: AutomationCore) -> None:
    print(f"{automation.name}: {automation.description}")


def longest_interval_between_runs(schedules: Sequence[DeploymentSchedule]) -> timedelta | None:
    """Return the longest time between two coming runs of the active schedules together; None if there are not two."""
    from prefect.server.schemas.schedules import SCHEDULE_TYPES  # the classes of the client compute no dates

    known = TypeAdapter[Any](SCHEDULE_TYPES)
    active = (known.validate_python(one.schedule.model_dump()) for one in schedules if one.active)
    coming = [dates for one in active if (dates := asyncio.run(one.get_dates(_DATES)))]
    # A schedule that still goes on after its last known date may have more: there the others say nothing either.
    end = min((dates[-1] for dates in coming if len(dates) == _DATES), default=None)
    all_dates = {date for dates in coming for date in dates}
    due = sorted(date for date in all_dates if end is None or date <= end)
    return max((later - earlier for earlier, later in itertools.pairwise(due)), default=None)


def create_or_find_destinations(client: SyncPrefectClient, notify: Sequence[str]) -> list[MessageDestination]:
    """Return the destinations that the user names: addresses, ids of blocks, or types and names such as `slack-webhook/team`.

    Makes a block for each address.
    """
    numbers = itertools.count(1)
    return [_of_address(one, f"{_OWN}{next(numbers)}") if "://" in one else _of_block(client, one) for one in notify]


def delete_unused_blocks(client: SyncPrefectClient, used: Sequence[MessageDestination]) -> None:
    """Delete the blocks that an earlier `watch` made and that no message uses any more."""
    with contextlib.suppress(ObjectNotFound):
        client.read_block_type_by_slug(_OWN_TYPE)  # a new server may not have it; the next call has no such error
        for document in client.read_block_documents_by_type(_OWN_TYPE, include_secrets=False):
            if (document.name or "").startswith(_OWN) and document.id not in {one.block for one in used}:
                client.delete_block_document(document.id)


def _of_address(address: str, name: str) -> MessageDestination:
    with contextlib.suppress(ValueError):  # of the port, for example
        parts = urlsplit(address)
        if parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
            block = CustomWebhookNotificationBlock(
                name="Evergreen",
                url="{{ address }}",
                json_data={"subject": "{{ subject }}", "text": "{{ subject }}\n\n{{ body }}"},
                secrets={"address": address},
            )
            saved = block.save(name, overwrite=True)
            assert isinstance(saved, UUID), "it is not awaited here"
            return MessageDestination(url_origin(address), saved)
    what = "an address does not have the form https://host/path"  # it is not shown: it may have a password in it
    raise EvergreenError("--notify", what, "write the whole address, or name a block: slack-webhook/team")


def _of_block(client: SyncPrefectClient, name: str) -> MessageDestination:
    slug, _, document_name = name.partition("/")
    try:
        if document_name:
            document = client.read_block_document_by_name(document_name, slug, include_secrets=False)
        else:
            document = client.read_block_document(UUID(name), include_secrets=False)
    except (ObjectNotFound, ValueError):
        fix = "`prefect block ls` shows the blocks there are; name one as type/name, such as slack-webhook/team, or by its id"
        raise EvergreenError(f"--notify {name}", "the Prefect server has no such block", fix) from None
    if not document.block_schema or "notify" not in document.block_schema.capabilities:
        fix = "name a notification block, such as slack-webhook/team, or write the address of a webhook"
        raise EvergreenError(f"--notify {name}", "the block cannot notify", fix)
    return MessageDestination(name, document.id)
