"""Work on shards by a real Dask cluster of two workers on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from params import DataError, KilledError, RecipeError, TransientError
from params.foundation.artifacts import Artifacts
from params.foundation.hashing import file_sha256
from params.schema import Launch
from tasks.shards import executor
from tasks.shards.kept_work import ShardWorkers
from tasks.stage_run import run_stage
from tasks.validation import by_key
from tests.support import forked, tiny
from tests.support.project import ROOT, free_port
from tests.unit.tasks.shards.test_executor import killed, refuse


class Cluster:
    """A scheduler and two workers, each a process of its own."""

    def __init__(self, folder: Path, *, deaths: int | None = None) -> None:
        self.folder = folder
        self._is_real = deaths is not None  # Dask reads its settings when it is imported, which forks have done
        setting = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": str(deaths)}
        self.environment = os.environ | setting if self._is_real else forked.commands(os.environ)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self.start("dask_scheduler", "--host", self.address, "--no-dashboard", "--no-show")
        self.workers: list[subprocess.Popen[bytes]] = []

    def start_worker(self, folder: Path = ROOT) -> subprocess.Popen[bytes]:
        options = ("--nthreads", "1", "--no-dashboard", "--no-nanny", "--local-directory", str(self.folder))
        worker = self.start("dask_worker", self.address, *options, folder=folder)
        self.workers.append(worker)
        return worker

    def start(self, command: str, *arguments: str, folder: Path = ROOT) -> subprocess.Popen[bytes]:
        started = [sys.executable if self._is_real else "python", "-m", f"distributed.cli.{command}", *arguments]
        with (self.folder / f"{command}.log").open("ab") as log:
            process = subprocess.Popen(started, cwd=folder, env=self.environment, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def launch(self) -> Launch:
        return Launch(micro_batch_size=1, data_cluster=self.address)

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    running = Cluster(tmp_path)
    try:
        for _ in range(2):
            running.start_worker()
        yield running
    finally:
        running.stop()


def nap(number: int) -> tuple[int, int]:
    time.sleep(0.2)
    return number, os.getpid()


def run_all(launch: Launch, folder: Path, function, items):
    with ShardWorkers(Artifacts("trial", folder), "tests", launch) as workers:
        return list(workers.map(function, items, what="numbers"))


def test_a_cluster_gives_the_results_in_order(cluster: Cluster, tmp_path: Path) -> None:
    found = run_all(cluster.launch(), tmp_path, nap, range(12))
    assert [number for number, _ in found] == list(range(12))
    assert len({process for _, process in found}) == len(cluster.workers)
    with pytest.raises(DataError) as caught:
        run_all(cluster.launch(), tmp_path, refuse, range(8))
    assert (caught.value.where, caught.value.fix) == ("row 3", "fix it")


def test_a_killed_worker_costs_what_it_was_at(cluster: Cluster, tmp_path: Path) -> None:
    """The call goes to the other worker."""
    work = partial(killed, folder=tmp_path, times=1)
    assert run_all(cluster.launch(), tmp_path, work, range(12)) == list(range(12))
    assert (tmp_path / "2").read_text() == "xx"
    assert len([worker for worker in cluster.workers if worker.poll() is None]) == 1


def test_work_that_kills_each_worker_ends_the_stage(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, deaths=1)
    try:
        for _ in range(3):
            cluster.start_worker()
        with pytest.raises(KilledError, match="a worker was killed several times at the same shard") as caught:
            run_all(cluster.launch(), tmp_path, partial(killed, folder=tmp_path, times=99), range(4))
        assert caught.value.where == "launch.data_cluster"
    finally:
        cluster.stop()


def test_a_cluster_that_goes_away_is_worth_another_try(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.shards.executor._CLUSTER_TIMEOUT_S", 15)

    def work() -> None:
        with ShardWorkers(Artifacts("trial", tmp_path), "tests", cluster.launch()) as workers:
            for number, _ in workers.map(nap, range(100), what="numbers"):
                if number == 3:
                    cluster.processes[0].kill()

    with pytest.raises(TransientError, match="does not answer any more"):
        work()


def test_a_worker_with_other_code_is_refused(tmp_path: Path) -> None:
    """Its results might differ."""
    other = tmp_path / "other"
    for package in ("params", "tasks", "trainer"):
        shutil.copytree(ROOT / package, other / package, ignore=shutil.ignore_patterns("__pycache__"))
    with (other / "tasks/shards/split_rows.py").open("a") as file:
        file.write("# changed\n")
    cluster = Cluster(tmp_path)
    try:
        cluster.start_worker(other)
        with pytest.raises(RecipeError, match=r"the worker on .* has Evergreen \w{12} instead of \w{12}\n") as caught:
            run_all(cluster.launch(), tmp_path, nap, range(4))
        assert caught.value.key == "launch.data_cluster"
        assert "run again, if the code was edited meanwhile" in str(caught.value)
    finally:
        cluster.stop()


def test_a_worker_without_the_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        RecipeError, match=r"the worker on .* cannot read .*: No such file(?s:.*)project's folder at the same path"
    ):
        executor._function(tmp_path / "another machine's")


def test_without_a_scheduler_the_error_names_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.shards.executor._CLUSTER_TIMEOUT_S", 1)
    nobody = Launch(micro_batch_size=1, data_cluster=f"tcp://127.0.0.1:{free_port()}")
    with pytest.raises(TransientError, match=f"the cluster at {nobody.data_cluster} cannot be used"):
        run_all(nobody, tmp_path, nap, range(4))
    assert [number for number, _ in run_all(nobody, tmp_path, nap, range(3))] == [0, 1, 2], (
        "little work needs no cluster"
    )


def test_a_cluster_needs_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(RecipeError, match=r"Dask is not installed\n  fix: install the extra `cluster`"):
        run_all(Launch(micro_batch_size=1, data_cluster="tcp://here:1"), tmp_path, nap, range(4))


def data_stages(launch: dict[str, Any]) -> dict[str, str]:
    """Run the data stages in the working directory, and return the hash of each file that they leave."""
    unique = {"type": "expect_column_values_to_be_unique", "column": "text"}
    changes = {"launch": {"micro_batch_size": 1, **launch}, "validation.expectations": [unique]}
    path = tiny.write(Path("params/rows.yaml"), tiny.recipe({**changes, "validation.max_quarantined": 0.5}))
    for stage in ("ingest", "validate", "tokenize"):
        run_stage(stage, path)
    files = (file for file in Path("runs/rows").rglob("*") if file.is_file())
    return {str(file): file_sha256(file) for file in sorted(files)}


def test_the_data_stages_give_the_same_bytes_wherever_they_run(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process, in two, and on a cluster that loses a worker while it validates."""
    monkeypatch.setattr("tasks.ingestion.parts.PART_ROWS", 100)
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    texts = [*tiny.sentences(700, 1), *tiny.sentences(60, 2)[::2] * 2]
    Path("data/rows.csv").write_text("text\n" + "".join(f'"{text}"\n' for text in texts))
    one = data_stages({"data_workers": 1})
    assert {f"runs/rows/tokens/train/0000{number}.arrow" for number in range(8)} < set(one)
    assert data_stages({"data_workers": 2}) == one

    check = by_key.find_duplicate_rows

    def kill_a_worker(*arguments: Any) -> Any:
        cluster.workers[0].kill()
        return check(*arguments)

    monkeypatch.setattr("tasks.validation.check_results.find_duplicate_rows", kill_a_worker)
    assert data_stages({"data_cluster": cluster.address}) == one
    assert cluster.workers[0].wait() == -signal.SIGKILL
