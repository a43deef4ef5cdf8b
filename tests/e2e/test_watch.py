"""`evergreen watch` on a real server: lost runs become crashed, and people get messages, about these runs and no other.

The tests share one server, and stand in the order in which they change it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.postgresql import start_if_installed
from tests.support.project import ServedProject, copy_project, wait_for
from tests.support.webhook import Webhook, webhook

pytestmark = pytest.mark.in_order

SILENCE_S = 10
SILENCE_OF_CLOCKS_S = 75  # heartbeats come every 30 s
WATCH = """
import sys
from flows.watch.automations import WatchRules, replace_server_automations
replace_server_automations(sys.argv[2:], WatchRules(int(sys.argv[1]), max_s=10, late_after=2))
"""
OF_THE_USER = """
from datetime import timedelta
from prefect.automations import Automation
from prefect.events.actions import DoNothing
from prefect.events.schemas.automations import EventTrigger, Posture
trigger = EventTrigger(expect={"x"}, posture=Posture.Proactive, within=timedelta(seconds=99))
Automation(name="of-the-user", trigger=trigger, actions=[DoNothing()]).create()
"""
FLOW = """
import pathlib, sys, time
import flows.retrain  # its heartbeats are those of all flows here
from flows.run.final_state import KEPT
from prefect import flow
from prefect.states import Completed

@flow(flow_run_name="{ending}")
def short(ending):
    while not pathlib.Path(f"end-{ending}").exists():
        time.sleep(0.1)
    if ending == "refused":
        raise ValueError("refused")
    return Completed(name=KEPT)

short(sys.argv[1])
"""


STRANGER = """
import json, os, sys, urllib.error, urllib.request
headers = {"Content-Type": "application/json"}
if key := os.environ.get("WANTED"):
    headers["Authorization"] = f"Basic {key}"
run = {"flow_id": "00000000-0000-4000-8000-000000000000", "job_variables": {"command": "env"}}
for path, body in (("flows/", {"name": "retrain"}), ("flow_runs/", run), ("deployments/filter", {})):
    request = urllib.request.Request(f"{sys.argv[1]}/{path}", json.dumps(body).encode(), headers)
    try:
        print(urllib.request.urlopen(request).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""


class Watched(ServedProject):
    """A project whose server looks for lost runs, and sends messages to `received`."""

    received: Webhook
    deployments: dict[str, str]

    def watch(self, silence_s: int = SILENCE_S) -> None:
        """Have the server watch, with times that fit a test."""
        self.run("python", "-c", WATCH, str(silence_s), self.received.url)

    def retrain(self, *states: tuple[str, str, str], flow: str = "retrain", **run: object) -> str:
        """Create a run without a process that goes through states: type, name, message; its id."""
        fields = {"name": "retrain-tiny", "parameters": {"recipe": "tiny"}, "state": {"type": "PENDING"}} | run
        created = self.post("flow_runs/", flow_id=self.post("flows/", name=flow)["id"], **fields)["id"]
        for kind, name, message in states:
            self.post(f"flow_runs/{created}/set_state", state={"type": kind, "name": name, "message": message})
        return created

    def automations(self) -> dict[str, str]:
        """Id by name of each automation; a name that occurs twice fails the test."""
        found = self.post("automations/filter")
        assert len(found) == len({one["name"] for one in found})
        return {one["name"]: one["id"] for one in found}

    def states(self) -> dict[str, tuple[str, str]]:
        """Type and name of each run's state, by the run's name."""
        return {run["name"]: (run["state"]["type"], run["state"]["name"]) for run in self.post("flow_runs/filter")}

    def create_run(self, name: str, first: str, *later: str) -> None:
        """Create a run without a process, in one state after another."""
        flow = self.post("flows/", name="short")["id"]
        run = self.post("flow_runs/", flow_id=flow, name=name, state={"type": first})["id"]
        self.wait_for_events(f"prefect.flow-run.{first.title()}", 1, run)
        for state in later:
            self.post(f"flow_runs/{run}/set_state", state={"type": state})
            self.wait_for_events(f"prefect.flow-run.{state.title()}", 1, run)

    def wait_for_events(self, name: str, count: int, run: str = "") -> None:
        wait_for(lambda: self.count_events(name, run) >= count, f"{count} {name}", 90, every_s=1)

    def count_events(self, name: str, run: str = "") -> int:
        resource = {"resource": {"id": [f"prefect.flow-run.{run}"]}} if run else {}
        return len(self.post("events/filter", filter={"event": {"name": [name]}, **resource})["events"])


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, make_prefect_home: Callable[[], Path]) -> Iterator[Watched]:
    root = tmp_path_factory.mktemp("watched")
    copy_project(root)
    (root / "short.py").write_text(FLOW, encoding="utf-8")
    project = Watched(root, make_prefect_home())
    # No runs but those of the tests. The server does not know its address, as when it is started as the README says.
    address = project.environment.pop("PREFECT_API_URL")
    project.environment["PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED"] = "false"
    project.environment["PREFECT_SERVER_SERVICES_EVENT_PERSISTER_FLUSH_INTERVAL"] = "0.5"
    try:
        with webhook() as project.received, contextlib.ExitStack() as opened:
            project.environment |= start_if_installed(opened)
            project.start_server()
            project.environment["PREFECT_API_URL"] = address
            flow = project.post("flows/", name="retrain")["id"]
            every = [{"schedule": {"interval": 5}, "active": True}]
            project.deployments = {
                name: project.post("deployments/", name=name, flow_id=flow, schedules=every)["id"]
                for name in ("good", "bad")
            }
            project.run("python", "-c", OF_THE_USER)
            project.run("python", "-m", "flows.cli", "watch")  # the server has no type of blocks yet
            project.watch()
            yield project
    finally:
        project.end()


@pytest.mark.slow
def test_lost_runs_become_crashed_and_no_other_run_does(watched: Watched) -> None:
    """One thing after another: on a busy SQLite, the server loses events."""
    heartbeat = "prefect.flow-run.heartbeat"
    endings = ("kept", "refused")
    processes = [watched.start("python", "short.py", ending, log=f"{ending}.log") for ending in endings]
    watched.wait_for_events(heartbeat, 2)
    for ending, process in zip(endings, processes, strict=True):
        (watched.root / f"end-{ending}").touch()
        process.wait(60)
    watched.create_run("cancelled", "PENDING", "RUNNING", "CANCELLED")
    watched.create_run("due", "SCHEDULED")

    killed = watched.start("python", "short.py", "killed", log="killed.log")
    watched.wait_for_events(heartbeat, 3)
    killed.kill()
    watched.create_run("pending", "PENDING")
    watched.wait_for_events("prefect.flow-run.Crashed", 2)

    # The other runs began earlier, so they would have been noticed by now.
    states = watched.states()
    assert {name for name, (kind, _) in states.items() if kind == "CRASHED"} == {"killed", "pending"}
    assert states["kept"] == ("COMPLETED", "Kept the champion")
    assert states["refused"][0] == "FAILED"
    assert states["cancelled"][0] == "CANCELLED"
    assert states["due"][0] == "SCHEDULED"
    assert watched.received.messages == [], "these are runs of another flow"


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("faketime"), reason="faketime is not installed")
def test_clocks_that_differ_make_no_healthy_run_crashed(watched: Watched) -> None:
    """A worker ahead of the server and one behind, by more than the silence, and by hours; lost runs are noticed as before."""
    watched.watch(SILENCE_OF_CLOCKS_S)
    watched.environment["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] = "30"  # the shortest
    lost = {"+7200s", "-7200s"}
    processes = {}
    for shift in ("+0s", "+150s", "-150s", *sorted(lost)):
        for ending in (f"lives{shift}", *([f"dies{shift}"] if shift in lost else [])):
            command = ("faketime", "-f", shift, "python", "short.py", ending)
            processes[ending] = watched.start(*command, log=f"{ending}.log")
    wait_for(lambda: set(watched.states()) >= set(processes), "all runs", 120, every_s=1)
    watched.wait_for_events("prefect.flow-run.heartbeat", len(processes))
    for ending, process in processes.items():
        if ending.startswith("dies"):
            os.killpg(process.pid, signal.SIGKILL)
    wait_for(
        lambda: all(watched.states()[name][0] == "CRASHED" for name in processes if name.startswith("dies")),
        "the lost runs to be noticed",
        4 * SILENCE_OF_CLOCKS_S,
        every_s=1,
    )
    time.sleep(SILENCE_OF_CLOCKS_S)
    states = watched.states()
    assert {states[name] for name in processes if name.startswith("lives")} == {("RUNNING", "Running")}
    for ending in processes:
        (watched.root / f"end-{ending}").touch()


@pytest.mark.slow
def test_each_end_that_matters_is_told_once_with_its_metrics_and_a_link(watched: Watched) -> None:
    """One thing after another, see above."""
    received, metrics = (
        watched.received,
        'accuracy is 0.007 better than the champion\'s ("95%" {{ 1 + 1 }})\nrows: 3,080',
    )
    running, told = ("RUNNING", "Running", ""), {}
    received.refusals = 1  # Prefect tries again
    for end, words in (
        (("CRASHED", "Crashed", metrics), "crashed"),
        (("FAILED", "Failed", metrics), "failed"),
        (("FAILED", "Refused", metrics), "was refused by the gate"),
        (("COMPLETED", "Published", metrics), "was published"),
        (("COMPLETED", "Proposed", metrics), "waits for approval"),
    ):
        told[words] = watched.retrain(running, end)
        wait_for(lambda words=words: received.about(f"Evergreen: tiny {words}"), f"the message that it {words}", 60)
    for name in ("Kept the champion", "Nothing new", "Completed"):
        run = watched.retrain(running, ("COMPLETED", name, metrics))
        watched.wait_for_events(f"prefect.flow-run.{name}", 1, run)
    for end, other in (
        (("CANCELLED", "Cancelled", ""), {}),
        (("COMPLETED", "Published", ""), {"flow": "short"}),
        (("FAILED", "Failed", "again, within the hour"), {}),
    ):
        run = watched.retrain(end, **other)
        watched.wait_for_events(f"prefect.flow-run.{end[1]}", 1, run)
    late = watched.retrain(running, ("FAILED", "TimedOut", ""), name="retrain-other", parameters={"recipe": "other"})
    wait_for(lambda: received.about("Evergreen: other failed"), "the last message", 60)
    assert received.subjects() == sorted(["Evergreen: other failed", *(f"Evergreen: tiny {words}" for words in told)])
    address = str(watched.api.base_url).removesuffix("/api/")
    for words, run in told.items():
        (message,) = received.about(f"Evergreen: tiny {words}")
        text = f"Evergreen: tiny {words}\n\n{metrics}\n\nrun: retrain-tiny {address}/runs/flow-run/{run}"
        assert message == {"subject": f"Evergreen: tiny {words}", "text": text}
    assert late in received.about("other failed")[0]["text"]
    assert set(received.paths) == {"/hooks/secret-token"}
    assert all(user.startswith("Basic ") for user in received.users)


@pytest.mark.slow
def test_a_run_that_does_not_end_and_a_deployment_without_a_success_are_told_once(watched: Watched) -> None:
    watched.watch(600)  # these runs have no heartbeats
    received = watched.received
    received.messages.clear()
    good, bad = ({"deployment_id": watched.deployments[name]} for name in ("good", "bad"))
    stuck = watched.retrain(("RUNNING", "Running", ""), name="hangs")
    paused = watched.retrain(("RUNNING", "Running", ""), ("PAUSED", "Paused", ""), name="waits")
    watched.retrain(("CANCELLED", "Cancelled", ""), **bad)
    give_up = time.monotonic() + 90
    while not (received.about("bad is late") and len(received.about("is stuck")) >= 2):
        assert time.monotonic() < give_up, received.messages
        watched.retrain(("RUNNING", "Running", ""), ("COMPLETED", "Nothing new", ""), **good)
        time.sleep(2)
    assert not received.about("good")
    wait_for(lambda: received.about("good is late"), "the end of the good runs to be noticed", 60)
    subjects = ["Evergreen: bad is late", "Evergreen: good is late", *2 * ["Evergreen: tiny is stuck"]]
    assert received.subjects() == subjects
    for run in (stuck, paused):
        (message,) = received.about("has not ended for 10 s", f"/runs/flow-run/{run}")
        assert f"prefect flow-run cancel {run}`" in message["text"]
    assert received.about("No run of the deployment bad has succeeded for 10 s", "/runs/flow-run/")


def test_no_run_overtakes_one_that_was_marked_as_crashed_and_lives(watched: Watched) -> None:
    deployment = {"deployment_id": watched.deployments["good"]}
    watched.environment["PREFECT__FLOW_RUN_ID"] = watched.retrain(("RUNNING", "Running", ""), **deployment)
    other = {"deployment_id": watched.deployments["bad"]}  # of the same project, as default-on-notice beside default
    crashed = watched.retrain(("RUNNING", "Running", ""), ("CRASHED", "Crashed", ""), name="marked", **other)

    def refuse(heartbeat_after_s: int, *recipes: str) -> str:
        resource = {"prefect.resource.id": f"prefect.flow-run.{crashed}"}
        occurred = (datetime.now(UTC) + timedelta(seconds=heartbeat_after_s)).isoformat()
        event = {"event": "prefect.flow-run.heartbeat", "resource": resource, "occurred": occurred, "id": str(uuid4())}
        watched.api.post("events", json=[event]).raise_for_status()
        if heartbeat_after_s < 0:  # the server shows no others before their time
            watched.wait_for_events("prefect.flow-run.heartbeat", 1, crashed)
        else:
            time.sleep(2)  # events are written every 0.5 s
        code = """if True:
            import sys
            from flows.run.other_runs import refuse_to_overtake
            from params import EvergreenError
            for recipe in sys.argv[1:]:
                try:
                    refuse_to_overtake(recipe)
                except EvergreenError as error:
                    print(f"{recipe} is refused: {error}")
        """
        return watched.run("python", "-c", code, *recipes)

    assert refuse(-5, "tiny") == "", "this heartbeat was on its way when the run ended"
    gone = {"recipe": "params/gone.yaml"}  # a recipe that was removed since
    watched.retrain(("RUNNING", "Running", ""), ("CRASHED", "Crashed", ""), name="gone", parameters=gone, **other)
    said = refuse(60, "tiny", "another")
    assert said.startswith("tiny is refused: ")
    assert "as crashed, but its process still sends heartbeats\n  fix: wait until it has ended" in said
    assert "another is refused" not in said
    del watched.environment["PREFECT__FLOW_RUN_ID"]


def test_runs_that_only_the_server_knows_are_logged_once(watched: Watched) -> None:
    good, bad = ({"deployment_id": watched.deployments[name]} for name in ("good", "bad"))
    running = ("RUNNING", "Running", "")
    unrecorded = ("FAILED", "Not recorded", "{}, but not recorded: origin/main: cannot read")
    spent = "Flow run encountered an exception: BudgetSpentError: the training has used up its hours"
    ends = {
        watched.retrain(running, end, **deployment): outcome
        for deployment, end, outcome in (
            (good, ("CRASHED", "Crashed", "its machine is gone"), "crashed"),
            (bad, ("CANCELLED", "Cancelled", ""), "cancelled"),
            (good, ("FAILED", "Failed", spent), "budget spent"),
            (good, (*unrecorded[:2], unrecorded[2].format("Published")), "published"),
            (good, (*unrecorded[:2], unrecorded[2].format("Nothing new")), None),
            (good, ("COMPLETED", "Nothing new", ""), None),
            (good, ("CRASHED", "Crashed", ""), None),
        )
    }
    known = list(ends)[-1]
    code = """if True:
        import logging, sys
        from flows.run.lost_runs import log_runs_without_entry
        from params.foundation.artifacts import Artifacts
        from tasks.history.run_log import RunEntry, append_run, read_runs
        times = dict.fromkeys(("started", "ended"), "2026-01-01T00:00:00Z")
        entry = RunEntry(run_id=sys.argv[1], recipe="tiny", outcome="cancelled", **times)
        append_run(Artifacts("tiny"), entry)
        for _ in range(2):
            log_runs_without_entry(Artifacts("tiny"), logging.getLogger())
        for run in read_runs(Artifacts("tiny")):
            print(f"{run.run_id}={run.outcome}")
    """
    watched.environment["PREFECT__FLOW_RUN_ID"] = watched.retrain(running, **good)
    lines = watched.run("python", "-c", code, known).splitlines()
    found = sorted(line for line in lines if line.partition("=")[0] in ends)
    expected = {run: outcome for run, outcome in ends.items() if outcome} | {known: "cancelled"}
    assert found == sorted(f"{run}={outcome}" for run, outcome in expected.items())
    del watched.environment["PREFECT__FLOW_RUN_ID"]


def test_lost_runs_of_a_deployment_that_was_deleted_are_logged(watched: Watched) -> None:
    """As after it was renamed. Whose it was, nobody knows where another project has a recipe of the same name."""
    running, crashed = ("RUNNING", "Running", ""), ("CRASHED", "Crashed", "its machine is gone")
    own = watched.api.get(f"deployments/{watched.deployments['good']}").raise_for_status().json()
    fields = {name: own[name] for name in ("flow_id", "entrypoint", "path", "pull_steps")}

    def deploy(name: str, recipe: str, **changes: object) -> str:
        body = fields | {"name": name, "parameters": {"recipe": recipe}} | changes
        return str(watched.api.post("deployments/", json=body).raise_for_status().json()["id"])

    lost, by_person = {}, []
    for recipe in ("renamed", "shared"):
        parameters, old = {"recipe": recipe}, deploy(f"old-{recipe}", recipe)
        lost[recipe] = watched.retrain(running, crashed, deployment_id=old, parameters=parameters)
        by_person.append(watched.retrain(running, crashed, parameters=parameters))
        watched.api.delete(f"deployments/{old}").raise_for_status()
    steps = [{"prefect.deployments.steps.run_shell_script": {"script": "other"}}]
    other = deploy("other", "shared", pull_steps=steps)
    watched.retrain(running, crashed, deployment_id=other, parameters={"recipe": "shared"})
    code = """if True:
        import logging
        from flows.run.lost_runs import log_runs_without_entry
        from params.foundation.artifacts import Artifacts
        from tasks.history.run_log import read_runs
        for recipe in ("renamed", "shared"):
            log_runs_without_entry(Artifacts(recipe), logging.getLogger())
            print([run.run_id for run in read_runs(Artifacts(recipe))])
    """
    watched.environment["PREFECT__FLOW_RUN_ID"] = watched.retrain(running, deployment_id=watched.deployments["good"])
    said = watched.run("python", "-c", code).splitlines()[-2:]
    del watched.environment["PREFECT__FLOW_RUN_ID"]
    assert said == [str([lost["renamed"]]), "[]"]
    assert not any(run in line for run in by_person for line in said), "a command in a shell has its own log"
    watched.api.delete(f"deployments/{other}").raise_for_status()


def test_the_release_of_a_lost_run_is_told_once_by_a_later_one_that_tells_of_its_own(watched: Watched) -> None:
    """Also of a run that was lost while it was recorded. What another run may still tell of, or has told of, is left to that."""
    watched.watch(600)  # these runs have no heartbeats
    received = watched.received
    received.messages.clear()
    recipe = {"name": "retrain-told", "parameters": {"recipe": "told"}}
    running, ok = ("RUNNING", "Running", ""), ("COMPLETED", "Published", "by itself")
    runs = {
        "lost-in-the-record": watched.retrain(running, ("CRASHED", "Crashed", "gone"), **recipe),
        "unrecorded": watched.retrain(running, ("FAILED", "Not recorded", "Published, but not recorded"), **recipe),
        "told": watched.retrain(running, ok, **recipe),
        "recorded-now": watched.retrain(running, **recipe),
        "of-a-shell": str(uuid4()),
    }
    code = """if True:
        import json, logging, sys
        from datetime import UTC, datetime, timedelta
        from flows.run.untold_releases import tell_untold_releases
        from params.foundation.artifacts import Artifacts
        from tasks.release_log.events import ReleaseEvent, append_release_event
        from tasks.history.run_log import RunEntry, append_run
        from tasks.release_log.receipt import Receipt
        from tasks.stages import save_report
        artifacts, now = Artifacts("told"), datetime.now(UTC)
        place = {"repo_id": "team/told", "endpoint": "http://hub"}
        runs, hours = json.loads(sys.argv[1]), {"released-meanwhile": 1, "of-last-year": -24 * 365}
        for commit in (*runs, "lost", "own", *hours):
            event = ReleaseEvent(event="published", reasons=("its reason",), commit=commit, tag=f"tag-{commit}", **place)
            time = now.replace(minute=0) + timedelta(hours=hours.get(commit, -1))
            append_release_event(artifacts, event, time)
        for commit, run in runs.items():
            entry = RunEntry(run_id=run, recipe="told", started=now, ended=now, outcome="published", commit=commit)
            append_run(artifacts, entry)
        receipt = Receipt(status="published", reasons=(), commit="own", **place)
        save_report(receipt, artifacts.receipt)
        tell_untold_releases(artifacts, now, {"publish": "ran"}, logging.getLogger())
    """
    for night in range(2):
        own = watched.environment["PREFECT__FLOW_RUN_ID"] = watched.retrain(running, **recipe)
        watched.run("python", "-c", code, json.dumps(runs))
        end = {"type": "COMPLETED", "name": "Published", "message": f"its own, of night {night}"}
        watched.post(f"flow_runs/{own}/set_state", state=end)
        wait_for(lambda end=end: received.about(end["message"]), "the message of its own release", 60)
    del watched.environment["PREFECT__FLOW_RUN_ID"]
    watched.wait_for_events("evergreen.release.published", 4)
    published = received.about("Evergreen: told was published", "has not told of it")
    assert sorted(one["text"].split("tree/")[1].split()[0] for one in published) == ["lost", "lost-in-the-record"]
    assert all("its reason\n" in one["text"] and "/runs/flow-run/" in one["text"] for one in published)
    assert len(received.about("Evergreen: told was published")) == len(published) + 3, "and each run of its own"


def test_watching_again_changes_what_has_to_change(watched: Watched) -> None:
    watched.watch(600)
    first = watched.automations()
    ends = [f"tell-{kind}" for kind in ("crashed", "failed", "proposed", "published", "refused", "unrecorded")]
    late = ["tell-late-bad", "tell-late-good"]
    assert sorted(first) == ["crash-silent-runs", "of-the-user", *ends[:2], *late, *ends[2:5], "tell-stuck", ends[5]]
    watched.watch(600)
    assert watched.automations() == first, "what is as it should be is not made anew"
    evergreen = ("python", "-m", "flows.cli", "watch")
    other = watched.received.url.replace("anyone", "nobody")
    out = watched.run(*evergreen, "--notify", other, "--without", "late", "--without", "stuck")
    assert "removed tell-late-bad" in out
    assert f"tell-published: a message when a run is published, to {address_of(other)}\n" in out
    out += watched.run(*evergreen, "--list")
    second = watched.automations()
    assert sorted(second) == ["crash-silent-runs", "of-the-user", *ends]
    assert [name for name in second if second[name] == first[name]] == ["of-the-user", *ends], "one block, in place"
    blocks = [block["name"] for block in watched.post("block_documents/filter")]
    assert blocks == ["evergreen-watch-1"]
    out += watched.run(*evergreen, "--remove")
    assert list(watched.automations()) == ["of-the-user"]
    assert watched.post("block_documents/filter") == []
    assert "secret" not in out


@pytest.mark.slow
def test_blocks_of_the_user_send_messages_and_stay(watched: Watched) -> None:
    received = watched.received
    received.messages.clear()
    make = "import sys; from prefect.blocks.notifications import CustomWebhookNotificationBlock as Block; "
    make += "Block(name='mine', url=sys.argv[1], json_data={'subject': '{{subject}}', 'text': '{{body}}'}).save('mine')"
    watched.run("python", "-c", make, received.url)
    watched.run("python", "-m", "flows.cli", "watch", "--notify", "custom-webhook/mine", "--only", "published")
    assert sorted(watched.automations()) == ["crash-silent-runs", "of-the-user", "tell-published"]
    run = watched.retrain(("COMPLETED", "Published", 'so "good"\n{{ 1 }}'))
    wait_for(lambda: received.messages, "the message", 60)
    (message,) = received.messages
    assert message["subject"] == "Evergreen: tiny was published"
    assert message["text"].startswith('so "good"\n{{ 1 }}\n\nrun: retrain-tiny http://')
    assert message["text"].endswith(run)
    watched.run("python", "-m", "flows.cli", "watch", "--remove")
    assert [block["name"] for block in watched.post("block_documents/filter")] == ["mine"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--notify", "slack-webhook/team"], "the Prefect server has no such block"),
        (["--notify", "https:///secret"], "an address does not have the form https://host/path"),
        (["--notify", "https://me:secret@host:port/"], "an address does not have the form https://host/path"),
        (["--only", "finished"], "there is no such kind"),
    ],
)
def test_wrong_options_are_errors_that_show_no_secret(watched: Watched, options: list[str], words: str) -> None:
    out = watched.run("python", "-m", "flows.cli", "watch", *options, ok=False)
    assert words in out
    assert "fix: " in out
    assert "secret" not in out
    assert list(watched.automations()) == ["of-the-user"]


@pytest.mark.parametrize("sent", [None, "evergreen:", "evergreen:wrong", "evergreen:secret "])
def test_another_user_of_the_machine_can_start_nothing(watched: Watched, sent: str | None) -> None:
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    key = {"WANTED": base64.b64encode(sent.encode()).decode()} if sent else {}
    watched_runs = len(watched.post("flow_runs/filter"))
    done = subprocess.run(
        [*user, sys.executable, "-I", "-c", STRANGER, watched.environment["PREFECT_API_URL"]],
        env={"PATH": os.environ["PATH"], **key},
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["401"] * 3, done
    assert len(watched.post("flow_runs/filter")) == watched_runs


def test_the_password_is_asked_for(watched: Watched) -> None:
    command = "PREFECT_API_AUTH_STRING={} python -m flows.cli watch --list"
    out = watched.run("sh", "-c", command.format("evergreen:wrong"), ok=False)
    assert "status 401" in out
    assert "set PREFECT_API_AUTH_STRING to its password" in out
    assert "has no password" not in watched.run("python", "-m", "flows.cli", "watch")


def test_without_a_server_the_commands_say_so(watched: Watched) -> None:
    for command in ("watch", "notice tiny"):
        out = watched.run("sh", "-c", f"PREFECT_API_URL= python -m flows.cli {command}", ok=False)
        assert "PREFECT_API_URL: names no Prefect server" in out
    for command in ("watch", "notice tiny", "run tiny"):
        away = f"PREFECT_API_URL=http://127.0.0.1:9/api python -m flows.cli {command}; test $? -eq {os.EX_TEMPFAIL}"
        assert "Prefect's server at http://127.0.0.1:9: does not answer" in watched.run("sh", "-c", away)


@pytest.mark.parametrize("command", ["watch", "notice tiny", "run tiny", "history"])
def test_an_address_of_the_pages_instead_of_the_api_is_named(watched: Watched, command: str) -> None:
    api = watched.environment["PREFECT_API_URL"]
    pages = api.removesuffix("/api")
    out = watched.run("sh", "-c", f"PREFECT_API_URL={pages} python -m flows.cli {command}", ok=command == "history")
    assert f"{pages} is not the API: /api is missing" in out
    assert f"export PREFECT_API_URL={api}" in out


def address_of(url: str) -> str:
    """Scheme, host and port."""
    return re.sub(r"//.*@(.*?)/.*", r"//\1", url)
