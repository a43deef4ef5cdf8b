"""Work on shards in processes: the results in order, errors, and processes that are killed."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from params import DataError, KilledError
from params.foundation.artifacts import Artifacts
from params.schema import Launch
from tasks.shards import executor
from tasks.shards.kept_work import ShardTask, ShardWorkers
from tests.support.project import ROOT
from tests.support.tiny import inputs

TWO = Launch(micro_batch_size=1, data_workers=2)


def run_all(function: Callable[[Any], Any], items: Sequence[Any], folder: Path, launch: Launch = TWO) -> Iterator[Any]:
    with ShardWorkers(Artifacts("trial", folder), "tests", launch) as workers:
        yield from workers.map(function, items, what="numbers")
    assert not list(folder.rglob(".*.function"))


def square(number: int) -> tuple[int, int]:
    time.sleep(0.3 if number == 0 else 0)
    return number * number, os.getpid()


class Node:
    """An object in a cycle, which only a look for garbage frees."""

    def __init__(self) -> None:
        self.itself = self


def leave_garbage(seen: weakref.WeakSet[Node], _: int) -> None:
    """Do work that leaves garbage."""
    seen.add(Node())


def pid(_: int) -> int:
    time.sleep(0.05)
    return os.getpid()


def write_pid(file: Path) -> int:
    file.write_text(str(os.getpid()))
    return pid(0)


def refuse(number: int) -> int:
    if number >= 3:
        raise DataError(f"row {number}", "is wrong", "fix it")
    return number


def killed(number: int, *, folder: Path, times: int) -> int:
    """Die like a process that is out of memory, the first `times` times at 2; note each call."""
    with (folder / str(number)).open("a") as file:
        file.write("x")
    if number == 2 and (folder / "2").stat().st_size <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def killed_late(file: Path) -> int:
    """Write a number; the first process at 0 dies when others have written theirs."""
    file.write_text(file.name)
    if file.name == "0" and not (mark := file.with_suffix(".killed")).exists():
        mark.touch()
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    return int(file.name)


def workers_of(stage: psutil.Process) -> list[psutil.Process]:
    """The processes that the server of a stage has forked."""
    return [
        worker for child in stage.children() if "forkserver" in " ".join(child.cmdline()) for worker in child.children()
    ]


def test_results_come_in_order_from_other_processes(tmp_path: Path) -> None:
    found = list(run_all(square, range(20), tmp_path))
    assert [result for result, _ in found] == [number * number for number in range(20)]
    assert len({process for _, process in found} - {os.getpid()}) == 2
    assert not workers_of(psutil.Process())


@pytest.mark.parametrize(("items", "workers"), [([4, 5, 6], 2), ([1, 2, 3, 4], 1), ([], 2)])
def test_little_work_needs_no_other_process(items: list[int], workers: int, tmp_path: Path) -> None:
    launch = Launch(micro_batch_size=1, data_workers=workers)
    assert list(run_all(square, items, tmp_path, launch)) == [(i * i, os.getpid()) for i in items]


def test_garbage_of_work_in_this_process_does_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, most = weakref.WeakSet[Node](), 0
    monkeypatch.setattr(executor, "_FREE_EVERY_S", 0)
    gc.disable()  # a stage's process looks for garbage rarely
    try:
        for _ in run_all(
            partial(leave_garbage, seen), range(100), tmp_path, Launch(micro_batch_size=1, data_workers=1)
        ):
            most = max(most, len(seen))
    finally:
        gc.enable()
    assert most == 1


def test_processes_serve_several_calls(tmp_path: Path) -> None:
    with ShardWorkers(Artifacts("trial", tmp_path), "tests", TWO) as workers:
        calls = [set(workers.map(pid, range(8), what="numbers")) for _ in range(2)]
    assert calls[0] | calls[1] == calls[0], "no process is started for the second call"


@pytest.mark.parametrize("writes_files", [False, True])
def test_what_was_kept_needs_no_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes_files: bool
) -> None:
    artifacts, tasks = Artifacts("trial", tmp_path), tmp_path / "tasks"
    tasks.mkdir()

    def run(items: Sequence[int]) -> list[int]:
        works = [ShardTask(0, str(item)) for item in items]
        if writes_files:
            folder = Path(tempfile.mkdtemp(dir=tmp_path))
            works = [ShardTask(folder / str(item), str(item), [folder / str(item)]) for item in items]
        with ShardWorkers(artifacts, "tests", TWO, inputs("tests", artifacts, "1")) as workers:
            found = list(workers.run(write_pid if writes_files else pid, works, what="numbers"))
        assert [int(file.read_text()) for work in works for file in work.files] == (found if writes_files else [])
        return found

    first = run(range(8))
    assert os.getpid() not in first
    with_new = run([10, 0, 1, 11, *range(2, 8), 12, 13])
    assert [with_new[1], with_new[2], *with_new[4:10]] == first
    assert not {with_new[0], with_new[3], *with_new[10:]} & {os.getpid(), *first}
    with monkeypatch.context() as without_processes:
        without_processes.setattr(executor, "start_process_pool", None)
        assert run(range(8)) == first
    if writes_files:
        for kept in list(artifacts.shards.rglob("0"))[:2]:
            kept.write_text("0")  # also in the folders of runs before, whose files are the same
        again = run(range(8))
        assert len({*again} - {*first}) in {1, 2}, "damaged ones are made again"
        assert os.getpid() not in again


def test_where_nothing_can_be_kept_the_work_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither kept nor deleted, as on a disk that is read-only."""
    artifacts = Artifacts("trial", tmp_path)
    (tmp_path / "tasks").mkdir()
    snapshot = inputs("tests", artifacts, "1")

    def refuse(name: str) -> Callable[..., Any]:
        elsewhere = getattr(Path, name)

        def act(path: Path, *arguments: Any, **more: Any) -> Any:
            if path.is_relative_to(artifacts.shards):
                raise OSError("Read-only file system")
            return elsewhere(path, *arguments, **more)

        return act

    def run(items: Sequence[int]) -> list[Any]:
        with ShardWorkers(artifacts, "tests", TWO, snapshot) as workers:
            workers.expect_as_before()
            return [found for found, _ in workers.run(square, [ShardTask(i, str(i)) for i in items], what="numbers")]

    assert run([1, 2]) == [1, 4]
    (artifacts.shards / "tests" / "a file").touch()
    for name in ("unlink", "mkdir", "write_bytes"):
        monkeypatch.setattr(Path, name, refuse(name))
    assert run([2, 3]) == [4, 9]
    assert run(range(8)) == [number * number for number in range(8)]


def test_imports_begin_early_where_the_last_run_had_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started, artifacts = list[Sequence[str]](), Artifacts("trial", tmp_path)
    monkeypatch.setattr(executor, "start_fork_server", started.append)
    with ShardWorkers(artifacts, "tests", TWO, imports=["json"]) as workers:
        workers.expect_as_before()
        assert not started
        for number in range(4):
            (artifacts.shards / "tests" / str(number)).mkdir(parents=True)
        workers.expect_as_before()
        assert started == [["json"]]


def test_processes_that_run_get_little_work(tmp_path: Path) -> None:
    with ShardWorkers(Artifacts("trial", tmp_path), "tests", TWO) as workers:
        several, two, one = (set(workers.map(pid, range(n), what="numbers")) for n in (4, 2, 1))
    assert two <= several
    assert one == {os.getpid()}


def test_the_first_error_is_raised_as_it_is(tmp_path: Path) -> None:
    results = run_all(refuse, range(8), tmp_path)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(DataError) as caught:
        next(results)
    assert (caught.value.where, caught.value.fix) == ("row 3", "fix it")


def test_a_killed_process_costs_what_it_was_at(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    work = partial(killed, folder=tmp_path, times=1)
    assert list(run_all(work, range(12), tmp_path)) == list(range(12))
    assert (tmp_path / "2").read_text() == "xx"
    assert (tmp_path / "0").read_text() == (tmp_path / "11").read_text() == "x"
    assert "a process of the stage was killed; starting again from item " in caplog.text


def test_what_others_have_kept_when_a_process_is_killed_is_taken(tmp_path: Path) -> None:
    artifacts, tasks = Artifacts("trial", tmp_path), tmp_path / "tasks"
    tasks.mkdir()
    works = [ShardTask(tmp_path / str(i), str(i), [tmp_path / str(i)]) for i in range(8)]
    with ShardWorkers(artifacts, "tests", TWO, inputs("tests", artifacts, "1")) as workers:
        assert list(workers.run(killed_late, works, what="numbers")) == list(range(8))
    assert [int(work.item.read_text()) for work in works] == list(range(8))


def test_a_process_that_is_always_killed_ends_the_work(tmp_path: Path) -> None:
    with pytest.raises(KilledError, match=r"a process was killed 3 times at item [123] of 4") as caught:
        list(run_all(partial(killed, folder=tmp_path, times=99), range(4), tmp_path))
    assert caught.value.where == "launch.data_workers"


def stage(work: str, folder: Path) -> list[str]:
    """A command that lets two processes work."""
    code = (
        "import sys, time; from pathlib import Path; from params.schema import Launch; from tasks.shards.kept_work import ShardWorkers\n"
        "from params.foundation.artifacts import Artifacts\n"
        "if __name__ == '__main__':\n"
        "    launch = Launch(micro_batch_size=1, data_workers=2)\n"
        "    workers = ShardWorkers(Artifacts('trial', Path(sys.argv[1])), 'tests', launch, imports=['imaplib'])\n"
        f"    {work}"
    )
    return [sys.executable, "-c", code, str(folder)]


def test_processes_share_what_is_imported_once(tmp_path: Path) -> None:
    looks = ["'imaplib' in __import__('sys').modules"] * 4
    work = f"with workers: workers.expect(4); print(*workers.map(eval, {looks}, what='looks'), {looks[0]})"
    found = subprocess.run(stage(work, tmp_path), cwd=ROOT, check=True, capture_output=True, text=True)
    assert found.stdout.split() == ["True"] * 4 + ["False"]


def napping(folder: Path, seconds: float) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """Start a stage that leads a process group, and its two processes."""
    command = stage(f"with workers: list(workers.map(time.sleep, [{seconds}] * 4, what='naps'))", folder)
    started = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    process, workers, until = psutil.Process(started.pid), list[psutil.Process](), time.monotonic() + 60
    while len(workers) < 2 and time.monotonic() < until:
        workers = workers_of(process)
        time.sleep(0.1)
    assert len(workers) == 2
    return started, workers


def test_processes_end_with_the_stage(tmp_path: Path) -> None:
    process, _ = napping(tmp_path, 60.0)
    time.sleep(2)  # until they watch the stage
    everything = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(everything, timeout=20)
    assert not alive


@pytest.mark.parametrize("after_s", [0.0, 3.0])
def test_ctrl_c_interrupts_only_the_stage(tmp_path: Path, after_s: float) -> None:
    """A terminal sends it to the whole group."""
    process, workers = napping(tmp_path, 2.0)
    time.sleep(after_s)
    os.killpg(process.pid, signal.SIGINT)
    errors = process.communicate(timeout=60)[1]
    assert errors.count("Traceback") == 1, errors  # that of the stage
    assert "KeyboardInterrupt" in errors
    assert not psutil.wait_procs(workers, timeout=20)[1]
