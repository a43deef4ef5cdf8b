"""Stages start only in a flow run that runs: with a real server, whose runs change their state as a person changes it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import Any
from uuid import UUID

import pytest
from prefect import flow, get_run_logger
from prefect.client.orchestration import get_client
from prefect.exceptions import Abort, Pause
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import (
    Cancelled,
    Cancelling,
    Completed,
    Crashed,
    Failed,
    Paused,
    Running,
    State,
    StateType,
    Suspended,
)

from flows import retrain
from flows.record.recording import RecordTarget
from flows.run import pauses, stops
from flows.server import own as server
from params import PreemptedError, TransientError
from params.foundation.artifacts import Artifacts
from trainer.runtime.lifetime import stop_process_group

pytestmark = pytest.mark.runs_last


@pytest.fixture(scope="module")
def prefect(tmp_path_factory: pytest.TempPathFactory, make_prefect_home: Callable[..., Any]) -> Iterator[None]:
    """A server that flows of this process use."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PREFECT_HOME", str(make_prefect_home()))
    patch.setattr(pauses, "POLL_S", 0.2)
    started = server.OwnPrefectServer(tmp_path_factory.mktemp("server") / "log")
    try:
        with started.used():
            yield
    finally:
        stop_process_group(started.process, 0)
        patch.undo()


def set_state(run: UUID, state: State[Any], *, force: bool = True) -> None:
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run, state, force=force)


def stages_of(state: State[Any], then: State[Any] | None = None) -> tuple[list[str], State[Any], BaseException | None]:
    """Run a flow of two stages whose run gets `state` during the first, and `then` soon after it.

    Returns:
        The stages that started, the state of the run in the end, and what ended it.
    """
    started, ids, ended = [], [], None

    @flow(name="two-stages")
    def two_stages() -> None:
        ids.append(run := UUID(flow_run.id))
        for name in ("train", "publish"):
            pauses.wait_while_paused(get_run_logger())
            started.append(name)
            if name == "train":
                set_state(run, state)
                if then is not None:
                    threading.Timer(1.0, copy_context().run, (set_state, run, then)).start()

    try:
        two_stages()
    except (TransientError, Abort, Pause) as error:
        ended = error
    with get_client(sync_client=True) as client:
        found = client.read_flow_run(ids[0]).state
    assert found is not None
    return started, found, ended


@pytest.mark.parametrize("state", [Running(), Crashed(message="no heartbeat for 900 s")], ids=["running", "crashed"])
def test_a_run_that_runs_or_that_the_server_lost_goes_on(prefect: None, state: State[Any]) -> None:
    started, _, ended = stages_of(state)
    assert (started, ended) == (["train", "publish"], None)


@pytest.mark.parametrize(
    ("state", "left"),
    [
        (Cancelling(), StateType.CANCELLED),
        (Cancelled(), StateType.CANCELLED),
        (Failed(), StateType.FAILED),
        (Completed(), StateType.COMPLETED),
    ],
    ids=["cancelling", "cancelled", "failed", "completed"],
)
def test_a_run_that_somebody_ended_starts_no_stage(prefect: None, state: State[Any], left: StateType) -> None:
    started, found, ended = stages_of(state)
    assert (started, found.type) == (["train"], left)
    assert isinstance(ended, Abort)


def test_a_suspended_run_ends_its_process_and_stays_suspended(prefect: None) -> None:
    started, found, ended = stages_of(Suspended(timeout_seconds=600))
    assert (started, found.name) == (["train"], "Suspended")
    assert isinstance(ended, Pause)


def test_a_paused_run_goes_on_when_it_is_resumed(prefect: None) -> None:
    start = time.monotonic()
    started, found, ended = stages_of(Paused(timeout_seconds=600), then=Running())
    assert (started, found.type, ended) == (["train", "publish"], StateType.COMPLETED, None)
    assert time.monotonic() - start > 1


def test_a_run_that_ends_while_a_remote_answers_publishes_nothing(
    prefect: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def before_release(*_: object) -> None:
        asked.append("the remote")
        set_state(UUID(flow_run.id), Cancelled())

    monkeypatch.setattr(retrain, "ensure_recordable_before_publish", before_release)

    @flow(name="one-stage")
    def one_stage() -> None:
        branch = RecordTarget(remote="origin", branch="runs")
        retrain.wait_until_stage_may_start("publish", Artifacts("a"), branch, {}, get_run_logger())
        asked.append("the Hub")

    with pytest.raises(Abort, match="its next stage does not start"):
        one_stage()
    assert asked == ["the remote"]


@pytest.mark.parametrize(
    "then",
    [pytest.param(Cancelling(), marks=pytest.mark.slow), Cancelled(), Crashed()],  # as a run that is not paused
    ids=["cancelling", "cancelled", "crashed"],
)
def test_a_paused_run_that_is_not_resumed_starts_no_stage(prefect: None, then: State[Any]) -> None:
    started, _, ended = stages_of(Paused(timeout_seconds=600), then=then)
    assert started == ["train"]
    assert isinstance(ended, Abort)


def test_a_server_that_stays_away_starts_no_stage(prefect: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "flow_run", type("Run", (), {"id": UUID(int=1)}))
    away = {PREFECT_API_URL: "http://127.0.0.1:9/api", PREFECT_CLIENT_MAX_RETRIES: 0}
    with temporary_settings(away), pytest.raises(TransientError, match="does not say whether the run is paused"):
        pauses.wait_while_paused(logging.getLogger("test"))


@pytest.mark.parametrize(
    ("state", "by_person", "left"),
    [
        (Cancelled(), True, StateType.CANCELLED),
        (Crashed(), False, StateType.CRASHED),
        (Running(), False, StateType.CRASHED),
    ],
    ids=["cancelled", "crashed", "running"],
)
def test_who_stopped_an_earlier_run_is_what_the_server_says(
    prefect: None, state: State[Any], by_person: bool, left: StateType
) -> None:
    with get_client(sync_client=True) as client:
        run = client.create_flow_run(flow(lambda: None, name="earlier"), state=Running())
        client.set_flow_run_state(run.id, state, force=True)
        assert stops.was_stopped_by_person(str(run.id)) is by_person
        found = client.read_flow_run(run.id).state
    assert found is not None
    assert found.type is left


def test_outside_of_a_run_nothing_is_asked() -> None:
    pauses.wait_while_paused(logging.getLogger("test"))


@pytest.mark.parametrize("signal", [Abort("the run is Cancelled"), Pause("the run was suspended")])
def test_who_waits_for_the_run_is_told(signal: BaseException) -> None:
    with pytest.raises(PreemptedError, match=str(signal)), stops.turn_user_stop_into_error():
        raise signal
