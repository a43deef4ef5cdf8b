"""The names of the states in which a run ends, and what their messages say."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from prefect.client.schemas.objects import StateType

from flows.run.final_state import SUCCESSES, final_state, format_run_summary, gate_refused_state, name_and_message
from params import GateRefusedError
from params.foundation.artifacts import Artifacts
from params.foundation.stages import STAGES
from tasks.publishing import hub_changes
from tests.unit.tasks.report import example

RAN = dict.fromkeys(STAGES, "ran")
GAIN = "accuracy is 0.03 better than the champion's (95% interval 0.011 to 0.049 better; McNemar p = 0.004)"
VALUES = "accuracy: model 0.9, champion 0.87, untrained 0.1 (402 rows of test)"


@pytest.fixture
def run(tmp_path: Path) -> Artifacts:
    artifacts = example.write(tmp_path)
    artifacts.page.touch()
    return artifacts


def receipt(run: Artifacts, **changes: object) -> None:
    example.save(run.receipt, {**example.RECEIPT, "reasons": [GAIN], **changes})


@pytest.mark.parametrize(
    ("changes", "outcomes", "name"),
    [
        ({}, RAN, "Published"),
        ({"status": "kept"}, RAN, "Kept the champion"),
        ({"status": "dry-run"}, RAN, "Completed"),
        ({}, RAN | {"publish": "unchanged"}, "Nothing new"),
        ({}, dict.fromkeys(STAGES, "unchanged"), "Nothing new"),
        ({}, dict.fromkeys(STAGES[:-1], "ran"), "Completed"),
        ({}, dict.fromkeys(STAGES[:-1], "restored"), "Completed"),
        ({}, dict.fromkeys(STAGES[:-1], "unchanged"), "Nothing new"),
    ],
)
def test_the_name_says_what_became_of_the_model(run, changes, outcomes, name) -> None:
    receipt(run, **changes)
    state = final_state(run, outcomes)
    assert (state.type, state.name, state.data) == (StateType.COMPLETED, name, outcomes)
    assert name in SUCCESSES
    if name == "Nothing new":
        before = "Published" if "publish" in outcomes else "Completed"
        assert state.message.startswith(f"nothing has changed since the last run, which ended with: {before}\n")


def test_a_run_with_nothing_to_do_says_what_is_published_now(run, monkeypatch) -> None:
    """After a rollback, that is not what the last run published."""
    receipt(run)
    nothing = dict.fromkeys(STAGES, "unchanged")
    monkeypatch.setattr(
        hub_changes, "describe_later_release", lambda _: "tests/tiny release-old, by a rollback: Ann: odd"
    )
    now = "published now: tests/tiny release-old, by a rollback: Ann: odd"
    assert now in name_and_message(run, nothing)[1].splitlines()
    assert now in format_run_summary(run, nothing).splitlines()
    assert now not in name_and_message(run, RAN)[1] + format_run_summary(run, RAN), "a run that published knows"


def test_the_message_has_reason_metrics_release_and_report(run) -> None:
    receipt(run)
    report = f"report: {run.page.as_uri()} on {socket.gethostname()}"
    release = f"release: tests/tiny release-beef{{}}\n{report}"
    assert final_state(run, RAN).message == f"{GAIN}\n{VALUES}\n{release.format(' on the Hub in .hub')}"
    receipt(run, endpoint="https://hub.example", reasons=["first release"])
    link = f" https://hub.example/tests/tiny/tree/{'d' * 40}"
    assert final_state(run, RAN).message == f"first release\n{VALUES}\n{GAIN}\n{release.format(link)}"


def test_a_message_leaves_out_what_this_machine_does_not_have(run) -> None:
    receipt(run)
    run.report("details").unlink()
    run.page.unlink()
    assert final_state(run, RAN).message == f"{GAIN}\n{VALUES}\nrelease: tests/tiny release-beef on the Hub in .hub"
    run.report("evaluate").unlink()
    assert final_state(run, RAN).message == f"{GAIN}\nrelease: tests/tiny release-beef on the Hub in .hub"


def test_a_refusal_ends_in_a_failed_state_with_the_metrics_and_the_error(run) -> None:
    error = GateRefusedError("blessing.json", "the gate refuses the model: too slow", "learn")
    run.receipt.unlink()  # as DVC does
    state = gate_refused_state(run, error)
    assert (state.type, state.name) == (StateType.FAILED, "Refused")
    assert GAIN in state.message
    assert VALUES in state.message
    with pytest.raises(GateRefusedError, match="too slow"):
        state.result()
