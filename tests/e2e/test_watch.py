"""`evergreen watch` on a real server: lost runs become crashed, and no other run does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.project import ServedProject, copy_project, wait_for

SILENCE_S = 10
FLOW = """
import pathlib, sys, time
from flows.artifacts import KEPT
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


class Watched(ServedProject):
    """A project whose server looks for lost runs."""

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


@pytest.fixture
def watched(tmp_path_factory: pytest.TempPathFactory, make_prefect_home: Callable[[], Path]) -> Iterator[Watched]:
    root = tmp_path_factory.mktemp("watched")
    copy_project(root)
    (root / "short.py").write_text(FLOW, encoding="utf-8")
    project = Watched(root, make_prefect_home())
    try:
        project.start_server()
        project.run("python", "-c", f"from flows.watch import watch; watch({SILENCE_S})")
        yield project
    finally:
        project.end()


def test_lost_runs_become_crashed_and_no_other_run_does(watched: Watched) -> None:
    """One thing after another: a busy SQLite lets the server lose events."""
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
