"""Commands that are forked behave as commands that are started; real processes, in a project of their own."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from trainer.runtime import fork_server

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it is for Linux")
ROOT = Path(fork_server.__file__).parents[2]
COMMAND = """
import sys
from trainer.runtime import fork_server
if __name__ == "__main__":
    fork_server.hand_over("work", "main")
    from work import main
    sys.exit(main())
"""
WAIT = """
import os, subprocess, sys, time
def main():
    below = subprocess.Popen(["sleep", "600"])
    print(os.getpid(), below.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose only command is `python command.py`; it calls `work.main`."""
    (tmp_path / "trainer").symlink_to(ROOT / "trainer")
    (tmp_path / "command.py").write_text(COMMAND)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(fork_server.VARIABLE, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def server(project: Path) -> Iterator[Path]:
    with fork_server.running(environment(), ["colorsys"]):
        yield project


def environment() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"
    }  # each phase of a test has its own


def start(project: Path, work: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    (project / "work.py").write_text(work)
    command = [sys.executable, "command.py", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environment() | variables, text=True, **pipes)  # type: ignore[call-overload,no-any-return]


def end(process: subprocess.Popen[str], said: str = "") -> tuple[int, str, str]:
    """Return how a command ended, and what it wrote."""
    out, err = process.communicate(said, timeout=30)
    return process.returncode, out, err


def has_ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def wait_for(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.02)


LEAVE = """
import os, subprocess
def main():
    print(subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid, flush=True)
    os.kill(os.getpid(), int(os.environ["EVERGREEN_SIGNAL"]))
"""
IS_FORKED = """
import os
def main():
    print("EVERGREEN_FORK" in os.environ)
"""
IMPORTED = """
import sys
def main():
    return 3 * ("colorsys" in sys.modules)
"""
FORKED = """
import os, sys
def main():
    print(sys.stdin.readline().strip(), sys.argv[1], os.environ["DVC_SAID"], os.getcwd(), file=sys.stderr)
    print("colorsys" in sys.modules, os.getpgid(0) == os.getsid(0) == os.getpid(), os.environ["EVERGREEN_FORK"])
    return 3
"""


def test_a_fork_has_the_command_s_streams_arguments_and_environment_and_its_status_is_the_command_s(
    server: Path,
) -> None:
    for _ in range(100):  # until the server has imported it
        if end(start(server, IMPORTED))[0] == 3:
            break
    process = start(server, FORKED, "one", DVC_SAID="two")
    status, out, err = end(process, "zero\n")
    assert (status, err) == (3, f"zero one two {server}\n")
    assert out.split()[:2] == ["True", "True"]
    assert int(out.split()[2]) != process.pid


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGTERM])
def test_a_fork_that_a_signal_ends_ends_the_command_by_the_same_signal(server: Path, number: signal.Signals) -> None:
    assert end(start(server, f"import os\ndef main():\n    os.kill(os.getpid(), {int(number)})"))[0] == -number


def test_an_error_of_a_fork_is_shown_as_python_shows_it(server: Path) -> None:
    status, _, err = end(start(server, "def main():\n    raise ValueError('of the fork')"))
    assert status == 1
    assert err.endswith("ValueError: of the fork\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_fork_and_its_children_end_with_the_command(server: Path, number: signal.Signals) -> None:
    process = start(server, WAIT)
    assert process.stdout
    pids = [int(pid) for pid in process.stdout.readline().split()]
    process.send_signal(number)
    assert end(process)[0] == -number
    wait_for(lambda: all(map(has_ended, pids)))


@pytest.mark.parametrize("number", [0, signal.SIGKILL])
def test_what_a_fork_leaves_behind_ends_with_it(server: Path, number: int) -> None:
    status, out, _ = end(start(server, LEAVE, EVERGREEN_SIGNAL=str(int(number))))
    assert status == -number
    wait_for(lambda: has_ended(int(out)))


def test_a_command_that_is_killed_while_it_asks_ends_no_other_command(server: Path) -> None:
    process = start(server, "import sys\ndef main():\n    print('begun', flush=True)\n    print(sys.stdin.readline())")
    assert process.stdout
    assert process.stdout.readline() == "begun\n"
    with socket.socket(socket.AF_UNIX) as asks:
        asks.connect("\0" + os.environ[fork_server.VARIABLE])
    assert end(start(server, IS_FORKED))[1] == "True\n"
    assert end(process, "said\n")[:2] == (0, "said\n\n")


def test_a_command_is_started_once_packages_have_changed(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    site = tmp_path_factory.mktemp("site")
    (project / "sitecustomize.py").write_text(f"import site\nsite.getsitepackages = lambda: [{str(site)!r}]")
    with fork_server.running(environment(), ["colorsys"]):
        assert end(start(project, IS_FORKED))[1] == "True\n"
        (site / "new-1.0.dist-info").mkdir()
        assert end(start(project, IS_FORKED))[1] == "False\n"


def test_a_command_ends_with_the_server_and_the_next_one_does_its_work_itself(server: Path) -> None:
    process = start(server, WAIT.replace('"sleep", "600"', '"true"'))
    assert process.stdout
    fork, _ = (int(pid) for pid in process.stdout.readline().split())
    parent = psutil.Process(fork).parent()
    assert parent
    assert "trainer.runtime.fork_server" in parent.cmdline()
    parent.kill()
    assert end(process)[0] == -signal.SIGKILL
    wait_for(lambda: has_ended(fork))
    assert end(start(server, IS_FORKED))[1] == "False\n"


def test_a_fork_runs_the_code_that_is_there_when_it_starts(server: Path) -> None:
    for said in ("before", "after it"):
        assert end(start(server, f"def main():\n    print('{said}')"))[1] == f"{said}\n"


def test_a_command_is_started_in_another_folder_or_environment_and_where_the_user_wants_no_forks(
    server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert end(start(server, IS_FORKED))[1] == "True\n"
    assert end(start(server, IS_FORKED, HF_HOME="elsewhere"))[1] == "False\n"
    assert end(start(server, IS_FORKED, **{fork_server.VARIABLE: "none"}))[1] == "False\n"
    (server / "elsewhere").mkdir()
    (server / "elsewhere" / "command.py").symlink_to(server / "command.py")
    monkeypatch.chdir(server / "elsewhere")
    assert end(start(server, IS_FORKED))[1] == "False\n"


SUPERVISE = """
import os, subprocess, sys
from trainer.runtime import fork_server, forked
def main():
    more = {"EVERGREEN_SUPERVISOR": str(os.getpid()), "OMP_NUM_THREADS": "3", "TOKENIZERS_PARALLELISM": "false"}
    subprocess.run([sys.executable, *forked.module_arguments("rank", "one")], env=os.environ | more)
"""
RANK = """
import os, sys, time
from trainer.runtime.lifetime import die_with_parent
die_with_parent(ancestors=[int(os.environ["EVERGREEN_SUPERVISOR"])])
import torch
print(os.getpid(), os.environ.get("EVERGREEN_FORK"), __name__, sys.argv[1], torch.threads, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("is_forked", [True, False])
def test_a_training_forked_from_a_stage_has_its_threads_and_ends_with_it(project: Path, is_forked: bool) -> None:
    (project / "torch.py").write_text(
        "import os\nthreads = int(os.environ.get('OMP_NUM_THREADS', 8))\n"
        "def set_num_threads(number):\n    global threads\n    threads = number\n"
    )
    (project / "rank.py").write_text(RANK)
    own = environment()
    own.pop("OMP_NUM_THREADS", None)
    with fork_server.running(own, ["torch"]):
        (project / "work.py").write_text(SUPERVISE)
        variables = own | {fork_server.VARIABLE: os.environ[fork_server.VARIABLE] if is_forked else "none"}
        with subprocess.Popen(
            [sys.executable, "command.py"], env=variables, text=True, stdout=subprocess.PIPE
        ) as stage:
            assert stage.stdout
            line = stage.stdout.readline()
            stage.kill()
        pid, fork, *said = line.split()
        assert said == ["__main__", "one", "3"]
        assert (fork == pid) is is_forked
        wait_for(lambda: has_ended(int(pid)))


SHARDS = """
import os, sys, time
from tasks.shards import executor
def imported(number):
    time.sleep(0.3)
    return number * number, os.getpid(), "colorsys" in sys.modules
def main():
    executor.start_fork_server(["json"])
    with executor.start_process_pool(2) as pool:
        squares, processes, have = zip(*pool.map(imported, range(8)))
        print(squares == tuple(n * n for n in range(8)), {*have}, *{*processes}, flush=True)
        if sys.argv[1:]:
            time.sleep(600)
"""


@pytest.mark.parametrize("is_forked", [True, False])
@pytest.mark.parametrize("is_killed", [True, False])
def test_processes_for_shards_have_what_the_server_has_imported_and_end_with_the_stage(
    server: Path, is_forked: bool, is_killed: bool
) -> None:
    for name in ("tasks", "params"):
        (server / name).symlink_to(ROOT / name)
    variables = {} if is_forked else {fork_server.VARIABLE: "none"}
    stage = start(server, SHARDS, *["wait"] * is_killed, **variables)
    assert stage.stdout
    said, have, *processes = stage.stdout.readline().split()
    assert (said, have, len(processes)) == ("True", str({is_forked}), 2)
    if is_killed:
        stage.kill()
    assert end(stage)[:2] == (-signal.SIGKILL if is_killed else 0, "")
    for process in processes:
        wait_for(lambda process=process: has_ended(int(process)))


CHILD_OF_A_FORK = """
import subprocess, sys
CHILD = "from trainer.runtime.lifetime import die_with_parent; die_with_parent(ancestors=[1 << 30]); print('goes on')"
def main():
    return subprocess.run([sys.executable, "-c", CHILD]).returncode
"""


def test_what_a_fork_starts_is_no_orphan_although_no_process_of_dvc_is_above_it(server: Path) -> None:
    assert end(start(server, CHILD_OF_A_FORK)) == (0, "goes on\n", "")
    started = end(start(server, CHILD_OF_A_FORK, **{fork_server.VARIABLE: "none"}))
    assert started == (os.EX_TEMPFAIL, "", "the process that started this one has ended\n")


@pytest.mark.parametrize(
    "changed", ["ulimit -S -f 100000", "umask 077", "ulimit -S -v 8000000", "renice -n 15 $$ > /dev/null"]
)
def test_a_command_is_started_with_limits_and_rights_that_the_server_does_not_have(server: Path, changed: str) -> None:
    (server / "work.py").write_text(IS_FORKED)
    command = ["sh", "-c", f'{changed}; exec "$0" command.py', sys.executable]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    assert end(start(server, IS_FORKED))[1] == "True\n"


def test_a_command_of_another_version_ends_no_other_command_and_is_started(server: Path) -> None:
    process = start(server, "import sys\ndef main():\n    print('begun', flush=True)\n    print(sys.stdin.readline())")
    assert process.stdout
    assert process.stdout.readline() == "begun\n"
    with socket.socket(socket.AF_UNIX) as asks:
        asks.connect("\0" + os.environ[fork_server.VARIABLE])
        message = b'{"do": "fork"}'
        socket.send_fds(asks, [struct.pack("!I", len(message)) + message], [0, 1, 2, 0])
        assert asks.recv(100) == b""
    assert end(process, "said\n")[:2] == (0, "said\n\n")
