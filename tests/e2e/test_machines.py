"""Several machines in one training: two addresses of this one, and two hosts with a network, a name and processes of their own.

The hosts are namespaces with a cable between them; they share the folder, as the machines of a cluster do.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from params import RecipeError
from tasks.recipes.loading import load
from tasks.training.machines import join_training_as_machine
from tests.support import tiny
from tests.support.project import ROOT, free_port

CHANGES = {"training.max_steps": 80, "training.eval_steps": 40, "training.save_steps": 8, "launch.num_processes": 2}


class Host:
    """One machine: what is started on it runs under its address, and dies with it."""

    def __init__(self, name: str, address: str, prefix: tuple[str, ...] = ()) -> None:
        self.name, self.address, self._prefix = name, address, prefix
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, root, *command, log, path=ROOT):
        """`python -m tasks <command>` on this machine, in the project's folder `root`."""
        with (root / log).open("wb") as file:
            process = subprocess.Popen(
                [*self._prefix, sys.executable, "-m", "tasks", *command],
                cwd=root,
                env={**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def kill(self):
        """End everything on it at once; nobody there can say goodbye."""
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def hosts():
    """Two hosts with a cable between them."""
    names = [f"evergreen-{os.getpid()}-{n}" for n in "ab"]
    ends = [f"eg{os.getpid() % 10**6}{n}" for n in "ab"]
    # processes of its own as well: no host sees the other's, and what runs on it dies with the first of them
    own = (
        "unshare",
        "--uts",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "sh",
        "-c",
        'hostname "$0"; exec "$@"',
    )
    found: list[Host] = []
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", ends[0], "netns", names[0], "type", "veth", "peer", "name", ends[1], "netns", names[1])
        for number, (name, end) in enumerate(zip(names, ends, strict=True), 1):
            ip("-n", name, "addr", "add", f"10.231.7.{number}/24", "dev", end)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", end, "up")
            prefix = ("ip", "netns", "exec", name, *own, f"host-{number}")
            subprocess.run([*prefix, "true"], check=True, capture_output=True)
            found.append(Host(f"host-{number}", f"10.231.7.{number}", prefix))
        yield found
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this machine refuses namespaces: {getattr(error, 'stderr', None) or error}")
    finally:
        for host in found:
            host.kill()
        for name in names:
            with contextlib.suppress(OSError):
                subprocess.run(["ip", "netns", "del", name], capture_output=True)


@pytest.fixture
def addresses():
    """Two addresses of this machine, which need no permission."""
    found = [Host("first", "127.0.0.1"), Host("second", "127.0.0.2")]
    yield found
    for host in found:
        host.kill()


def project(root, hosts, changes=None):
    launch = {
        "launch.num_machines": 2,
        "launch.main_process_ip": hosts[0].address,
        "launch.main_process_port": free_port(),
    }
    return tiny.tokenized(root, tiny.recipe(CHANGES | launch | (changes or {})))[0]


def wait_for(condition, what, timeout_s=120.0):
    give_up = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < give_up, f"waited in vain for {what()}"
        time.sleep(0.02)
    return found


def said(artifacts, log):
    return (artifacts.root / log).read_text()


@pytest.fixture(scope="module")
def on_one_machine(tmp_path_factory):
    """The same training with both processes on one machine, uninterrupted."""
    artifacts = tiny.tokenized(tmp_path_factory.mktemp("one"), tiny.recipe(CHANGES))[0]
    process = Host("one", "127.0.0.1").start(artifacts.root, "train", "params/tiny.yaml", log="train.log")
    assert process.wait(120) == 0, said(artifacts, "train.log")
    return (artifacts.model / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_two_machines_train_as_one_does_and_the_first_waits_for_the_second(addresses, tmp_path, on_one_machine):
    artifacts = project(tmp_path, addresses)
    train = addresses[0].start(tmp_path, "train", "params/tiny.yaml", log="train.log")
    waits = "train: waiting for machine 1: run `evergreen join params/tiny.yaml --machine <n>` there"
    wait_for(lambda: waits in said(artifacts, "train.log"), lambda: said(artifacts, "train.log"))
    joined = addresses[1].start(tmp_path, "join", "params/tiny.yaml", "--machine", "1", log="join.log")
    assert train.wait(120) == 0, said(artifacts, "train.log") + said(artifacts, "join.log")
    assert joined.wait(60) == 0, said(artifacts, "join.log")
    assert "join: the training is finished" in said(artifacts, "join.log")
    assert (artifacts.model / "model.safetensors").read_bytes() == on_one_machine


@pytest.mark.slow
def test_a_killed_host_is_named_and_when_it_is_back_the_run_ends_with_the_same_bits(hosts, tmp_path, on_one_machine):
    artifacts = project(tmp_path, hosts)
    hosts[1].start(tmp_path, "join", "params/tiny.yaml", "--machine", "1", log="join.log")
    train = hosts[0].start(tmp_path, "train", "params/tiny.yaml", log="train.log")
    logs = lambda: said(artifacts, "train.log") + said(artifacts, "join.log")  # noqa: E731
    wait_for(lambda: [*artifacts.scratch.glob("checkpoints/*/checkpoint-8")], logs)
    (rank,) = artifacts.scratch.glob("checkpoints/*/rank-1")
    assert b" host-2 " in rank.read_bytes(), "rank 1 was meant to run on the second host"
    hosts[1].kill()
    killed_at = time.monotonic()
    assert train.wait(60) == os.EX_TEMPFAIL, logs()
    assert time.monotonic() - killed_at < 30, "gloo alone waits for half an hour"
    assert re.search(
        r"KilledError: train: lost with its machine: rank 1 \(process \d+ on host-2, at step \d+\)", logs()
    )
    assert not artifacts.model.exists()

    train = hosts[0].start(tmp_path, "train", "params/tiny.yaml", log="train.log")
    joined = hosts[1].start(tmp_path, "join", "params/tiny.yaml", "--machine", "1", log="join.log")
    assert train.wait(120) == 0, logs()
    assert joined.wait(60) == 0, logs()
    assert "the newest valid checkpoint" in said(artifacts, "train.log")
    assert (artifacts.model / "model.safetensors").read_bytes() == on_one_machine


@pytest.mark.slow
def test_a_machine_that_stays_comes_back_by_itself_after_the_first_host_was_killed(hosts, tmp_path, on_one_machine):
    artifacts = project(tmp_path, hosts)
    joined = hosts[1].start(tmp_path, "join", "params/tiny.yaml", "--machine", "1", log="join.log")
    hosts[0].start(tmp_path, "train", "params/tiny.yaml", log="train.log")
    logs = lambda: said(artifacts, "train.log") + said(artifacts, "join.log")  # noqa: E731
    wait_for(lambda: [*artifacts.scratch.glob("checkpoints/*/checkpoint-8")], logs)
    hosts[0].kill()
    train = hosts[0].start(tmp_path, "train", "params/tiny.yaml", log="train.log")
    assert train.wait(120) == 0, logs()
    assert joined.wait(60) == 0, logs()
    assert said(artifacts, "join.log").count("takes part in run") == 2
    assert (artifacts.model / "model.safetensors").read_bytes() == on_one_machine


def test_a_machine_that_never_comes_is_named(addresses, tmp_path):
    artifacts = project(tmp_path, addresses, {"launch.stall_timeout_s": 1.0})
    train = addresses[0].start(tmp_path, "train", "params/tiny.yaml", log="train.log")
    assert train.wait(60) == os.EX_TEMPFAIL
    assert "TransientError: launch.num_machines: machine 1 did not come within 1 s" in said(artifacts, "train.log")


@pytest.mark.slow
def test_a_machine_that_is_asked_to_stop_stops_all_of_them_with_a_checkpoint(addresses, tmp_path):
    artifacts = project(tmp_path, addresses, {"training.max_steps": 5000, "training.save_steps": 5000})
    train = addresses[0].start(tmp_path, "train", "params/tiny.yaml", log="train.log")
    joined = addresses[1].start(tmp_path, "join", "params/tiny.yaml", "--machine", "1", log="join.log")
    logs = lambda: said(artifacts, "train.log") + said(artifacts, "join.log")  # noqa: E731
    log = artifacts.stage_log("train")
    wait_for(lambda: log.exists() and "step 10 of" in log.read_text(), logs)
    joined.send_signal(signal.SIGTERM)
    assert train.wait(60) == os.EX_TEMPFAIL, logs()
    assert joined.wait(60) == os.EX_TEMPFAIL, logs()
    assert "PreemptedError: train: stopped by a request from outside" in said(artifacts, "train.log")
    (checkpoint,) = artifacts.scratch.glob("checkpoints/*/checkpoint-*")
    assert json.loads((checkpoint / "position.json").read_text())["processes"] == 2


@pytest.mark.slow
def test_a_machine_that_cannot_start_its_processes_says_so(addresses, tmp_path):
    artifacts = project(tmp_path, addresses)
    (tmp_path / "broken").mkdir()
    broken = "import sys\nif 'trainer.runtime.launcher' in sys.orig_argv: sys.exit('no launcher here')\n"
    (tmp_path / "broken" / "sitecustomize.py").write_text(broken)
    train = addresses[0].start(tmp_path, "train", "params/tiny.yaml", log="train.log")
    path = f"{tmp_path / 'broken'}{os.pathsep}{ROOT}"
    addresses[1].start(tmp_path, "join", "params/tiny.yaml", "--machine", "1", log="join.log", path=path)
    assert train.wait(120) == os.EX_NOINPUT, said(artifacts, "train.log")
    assert re.search(r"ModelError: train: machine 1 \(.+\) could not start its processes", said(artifacts, "train.log"))
    assert "no launcher here" in said(artifacts, "join.log")


@pytest.mark.parametrize(("machine", "machines"), [(0, 2), (2, 2), (1, 1)])
def test_a_machine_that_the_recipe_does_not_have_cannot_join(tmp_path, machine, machines):
    meeting = {"launch.num_machines": machines, "launch.main_process_ip": "127.0.0.1", "launch.main_process_port": 1}
    recipe = tiny.write(tmp_path / "params" / "tiny.yaml", tiny.recipe(CHANGES | meeting))
    assert load(recipe).launch.num_machines == machines
    with pytest.raises(RecipeError, match=f"is {machines}: machine {machine} cannot join"):
        join_training_as_machine(recipe, machine=machine)
