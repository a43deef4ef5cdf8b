"""The parts of `evergreen watch` that need no server."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest
from prefect.client.schemas.objects import DeploymentSchedule
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule, RRuleSchedule

from flows import retrain
from flows.run import final_state, untold_releases
from flows.server.configured import url_origin
from flows.watch import automations
from flows.watch.automations import longest_interval_between_runs, select_message_kinds
from params import EvergreenError

NIGHTLY, OFTEN = CronSchedule(cron="0 3 * * *"), CronSchedule(cron="*/10 8-17 * * 1-5")


@pytest.mark.parametrize(
    ("schedules", "expected"),
    [
        ([], None),
        ([IntervalSchedule(interval=timedelta(minutes=7))], timedelta(minutes=7)),
        ([NIGHTLY], timedelta(days=1)),
        ([CronSchedule(cron="0 3 * * *", timezone="Europe/Berlin")], timedelta(hours=25)),
        ([CronSchedule(cron="0 3 1 * *")], timedelta(days=31)),
        ([OFTEN], timedelta(days=2, hours=14, minutes=10)),
        ([OFTEN, NIGHTLY], timedelta(days=1)),
        ([RRuleSchedule(rrule="FREQ=DAILY;COUNT=1")], None),
    ],
)
def test_the_longest_interval_of_schedules(schedules, expected) -> None:
    active = [DeploymentSchedule(schedule=one) for one in schedules]
    assert longest_interval_between_runs(active) == expected
    assert longest_interval_between_runs([one.model_copy(update={"active": False}) for one in active]) is None


def test_every_state_of_the_flow_is_known() -> None:
    names = {value for name, value in vars(final_state).items() if name.isupper() and isinstance(value, str)}
    assert names == {
        *("Published", "Kept the champion", "Proposed", "Rejected", "Refused", "Nothing new", "Not recorded")
    }
    assert names < set(automations.ENDS)
    assert retrain.retrain.name == automations.FLOW


def test_messages_wait_for_states_in_which_a_run_can_end() -> None:
    deployment = DeploymentResponse(
        flow_id=UUID(int=1), name='every "night"', schedules=[DeploymentSchedule(schedule=NIGHTLY)]
    )
    made = automations.build_automations(
        automations.WatchRules(), [automations.MessageDestination("hook", UUID(int=2))], [deployment], "http://ui"
    )
    expected = {one.name: {event.removeprefix("prefect.flow-run.") for event in one.trigger.expect} for one in made}
    assert expected.pop("crash-silent-runs") == {"*"}
    assert expected.pop('tell-late-every "night"') == set(final_state.SUCCESSES)
    assert expected.keys() == {f"tell-{kind}" for kind in automations.KINDS if kind != "late"}
    assert untold_releases.EVENT in expected["tell-published"], "of a lost run, which a later one tells"
    expected["tell-published"].remove(untold_releases.EVENT)
    assert all(names <= set(automations.ENDS) for names in expected.values())
    assert len(automations.build_automations(automations.WatchRules())) == 1, "without a destination, no messages"


def test_kinds_are_chosen() -> None:
    assert select_message_kinds([], []) == list(automations.KINDS)
    assert select_message_kinds(["late", "failed"], []) == ["late", "failed"]
    assert select_message_kinds([], ["late", "stuck", "crashed", "unrecorded"]) == [
        *("failed", "refused", "published", "proposed")
    ]
    with pytest.raises(EvergreenError, match="there is no such kind"):
        select_message_kinds([], ["later"])


def test_only_the_host_of_an_address_is_shown() -> None:
    assert url_origin("https://me:secret@hooks.example:8443/secret?token=secret#secret") == "https://hooks.example:8443"
    assert url_origin("http://hooks.example") == "http://hooks.example"
