"""The supervisor of a training, against small real processes: failures, stalls, stops and memory."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from params import (
    DataError,
    EvergreenError,
    KilledError,
    MemoryExhaustedError,
    ModelError,
    PreemptedError,
    StalledError,
)
from params.schema import Launch, Model, ObjectiveChoice, Training
from tasks.training import processes, ranks
from tasks.training.processes import launch_command
from tasks.training.ranks import RankMonitor
from tasks.training.supervisor import supervise_training
from tests.support import forked
from tests.support.project import ROOT, wait_for
from trainer.job import Job
from trainer.loop import collectives
from trainer.runtime import heartbeat, launcher
from trainer.runtime.launcher import REPORT

START = """\
import json, os, subprocess, sys, time
from pathlib import Path
from types import SimpleNamespace
import params
from trainer.runtime.heartbeat import Heartbeat
job = json.loads(Path(sys.argv[1]).read_bytes(), object_hook=lambda found: SimpleNamespace(**found))
job.folder = Path(job.folder)
rank = int(os.environ.get("RANK", "0"))
"""
"""Without `trainer.job`, whose import would take longer than all else that a process does here."""
BEATS = """\
heart = Heartbeat(job.folder, rank)
def work(until=lambda: False):
    step = 0
    while not until():
        step += 1
        heart.beat("training", step)
        time.sleep(0.02)
def fail(kind, what="bad data"):
    heart.fail(getattr(params, kind)("here", what, "fix it"))
    sys.exit(3)
def has_reported(other, text):
    path = job.folder / f"rank-{other}"
    return path.exists() and text in path.read_bytes()
"""


def command(**launch):
    return launch_command(Launch(micro_batch_size=1, **launch), Path("job.json"))[1:]


def test_launch_command():
    """accelerate starts one process, whatever --num_processes says, without --multi_gpu."""
    assert " ".join(command()) == "-m trainer.worker job.json"
    assert " ".join(command(num_processes=2)) == (
        "-m trainer.runtime.launcher --multi_gpu --main_process_port 0 --num_processes 2 --num_machines 1 "
        "--mixed_precision no --dynamo_backend no -m trainer.worker job.json"
    )
    assert " ".join(command(num_processes=2, accelerate_config="fsdp.yaml")).startswith(
        "-m trainer.runtime.launcher --config_file fsdp.yaml --main_process_port 0 --num_processes 2 --num_machines 1 "
    )


MEET = """
import json, os, psutil, torch, torch.distributed as dist
dist.init_process_group("gloo")
group = dist.new_group(backend="gloo")
found = [None, None]
here = [c.laddr.ip for c in psutil.Process().net_connections("inet") if c.status == "LISTEN"]
dist.all_gather_object(found, here, group=group)
if dist.get_rank() == 0:
    above = psutil.Process().parent().net_connections("inet")
    print(json.dumps([*found, [c.laddr.ip for c in above if c.status == "LISTEN"]]))
dist.destroy_process_group()
"""


def test_processes_of_one_machine_listen_on_it_only(tmp_path):
    script, own = tmp_path / "meet.py", Launch(micro_batch_size=1, num_processes=2, main_process_port=29500)
    script.write_text(MEET)
    command = [forked.python(), *launch_command(own, Path("job.json"))[1:-3], str(script)]
    env = {**os.environ, **processes.gloo_environment(own), REPORT: str(tmp_path / "report"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    listening = json.loads(done.stdout)
    assert all(listening), "each process listens, and the launcher"
    assert {address for one in listening for address in one} == {"127.0.0.1"}
    assert done.stderr == ""


class FakeTraining:
    """A run whose processes execute `code`: through the real launcher if there are several, forked if its end is not the matter."""

    def __init__(self, folder, monkeypatch):
        self.folder, self._monkeypatch = folder, monkeypatch
        self.starts, self.launcher = [], sys.executable
        monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def job(self, code, **launch):
        script = self.folder / "rank.py"
        script.write_text(START + code)

        def command_of(launch, job_path, _machine):
            self.starts.append(launch)
            if launch.num_processes == 1:
                return [sys.executable, str(script), str(job_path)]
            return [self.launcher, *launch_command(launch, job_path)[1:-3], str(script), str(job_path)]

        self._monkeypatch.setattr(processes, "launch_command", command_of)
        return Job(
            seed=1,
            objective=ObjectiveChoice(name="causal_lm"),
            model=Model(pretrained="none"),
            training=Training(max_steps=10, global_batch_size=8, learning_rate=0.1, eval_steps=5, save_steps=5),
            launch=Launch(micro_batch_size=4, **launch),
            tokens=self.folder,
            folder=self.folder,
            identity={},
        )

    def fails(self, code, **launch):
        """Supervise the run and return its error."""
        with pytest.raises(EvergreenError) as caught:
            supervise_training(self.job(code, **launch), lambda: None)
        assert self.processes() == []
        return caught.value

    def processes(self):
        """The processes of this run that still live a few seconds later: a killed process does not end at once."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and str(self.folder) in " ".join(process.cmdline()):
                    found.append(process)
        return psutil.wait_procs(found, timeout=5)[1]

    def signal(self, *numbers, phase="training"):
        """Send signals to this process once a rank is in `phase`."""

        def send():
            wait_for(
                lambda: any(p.phase == phase for p in heartbeat.read_process_states(self.folder)), "a heartbeat", 20
            )
            for number in numbers:
                assert isinstance(signal.getsignal(number), processes.ReceivedStopSignals), (
                    "the signal would end the tests"
                )
                os.kill(os.getpid(), number)
                time.sleep(0.1)

        threading.Thread(target=send).start()


@pytest.fixture
def fake(tmp_path, monkeypatch):
    return FakeTraining(tmp_path, monkeypatch)


class TestFailures:
    def test_first_rank_to_fail_is_the_cause(self, fake, tmp_path, monkeypatch):
        fake.launcher = forked.python()
        (tmp_path / "tmp").mkdir()
        monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
        code = "if rank == 1: heart.fail(params.DataError('here', 'rank 1 failed', 'fix it')); time.sleep(1); sys.exit(3)\n"
        code += "while not has_reported(1, b'DataError'): time.sleep(0.01)\n"
        code += "time.sleep(0.1); fail('ModelError', 'rank 0 failed')"
        error = fake.fails(BEATS + code, num_processes=2)
        assert type(error) is DataError
        assert error.what.startswith("rank 1 failed (rank 1, process ")
        assert (error.where, error.fix) == ("here", "fix it")
        logs = ("torchelastic_", "evergreen-launcher-")
        assert not [path for path in (tmp_path / "tmp").iterdir() if path.name.startswith(logs)]

    def test_killed_rank_ends_ranks_that_ignore_sigterm(self, fake, capfd):
        code = "import signal; signal.signal(signal.SIGTERM, lambda *_: None)\n"
        code += "work(until=lambda: rank == 1 and heart._beats == 30); os.kill(os.getpid(), signal.SIGKILL)"
        start = time.monotonic()
        error = fake.fails(BEATS + code, num_processes=2)
        assert time.monotonic() - start < 20, "torchelastic alone takes 30 s"
        assert type(error) is KilledError
        (pid,) = (p.pid for p in heartbeat.read_process_states(fake.folder) if p.rank == 1)
        assert error.what == f"rank 1 (process {pid}) was killed by SIGKILL at step 29"
        assert "out of memory" in error.fix
        assert capfd.readouterr() == ("", "")

    def test_a_killed_rank_that_takes_long_to_end_is_the_cause(self, fake):
        """A kernel frees the memory of a process first: others may lose the connection to it while it still seems to live."""
        fake.launcher = forked.python()
        code = "import signal; signal.signal(signal.SIGTERM, lambda *_: None)\n"
        code += "heart.beat('training', 1)\n"
        code += "while not has_reported(1 - rank, b'lost_peer' if rank == 0 else b'training'): time.sleep(0.01)\n"
        code += "if rank == 1: heart.beat('lost_peer'); sys.exit(75)\n"
        code += "time.sleep(2); os.kill(os.getpid(), signal.SIGKILL)"
        error = fake.fails(BEATS + code, num_processes=2)
        assert type(error) is KilledError, error
        assert error.what.startswith("rank 0 (process ")
        assert error.what.endswith("was killed by SIGKILL at step 1")

    def test_rank_that_exits_without_an_error_report(self, fake):
        fake.launcher = forked.python()
        error = fake.fails(BEATS + "work(until=lambda: rank == 1)", num_processes=2)
        assert type(error) is ModelError
        assert error.what == "rank 1 exited without reporting an error"

    def test_failed_rank_that_does_not_exit_is_killed(self, fake, monkeypatch):
        monkeypatch.setattr(processes, "END_S", 0.5)
        code = "heart.fail(params.StorageError('here', 'the disk is full', 'make room')); time.sleep(600)"
        assert fake.fails(BEATS + code).what == "the disk is full"

    def test_children_of_a_failed_rank_are_killed(self, fake):
        code = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', str(job.folder)]); "
        assert fake.fails(BEATS + code + "fail('DataError')").what == "bad data"

    def test_failed_launcher_reports_the_reason(self, fake, tmp_path, capfd):
        fake.launcher = forked.python()
        (tmp_path / "broken.yaml").write_text("no_such_key: 1\n")
        error = fake.fails("", num_processes=2, accelerate_config=str(tmp_path / "broken.yaml"))
        assert type(error) is ModelError
        assert error.what.startswith("the trainer did not start: ValueError: A `distributed_type` must be specified")
        assert capfd.readouterr() == ("", "")

    def test_killed_launcher_ends_the_training(self, fake):
        code = "import signal; work(until=lambda: heart._beats == 20); os.kill(os.getppid(), signal.SIGKILL); work()"
        job = fake.job(BEATS + code, num_processes=2)
        with pytest.raises(KilledError, match="its launcher was killed by SIGKILL"):
            supervise_training(job, lambda: None)
        assert fake.processes() == []


class TestStalls:
    def test_rank_that_never_starts_is_stalled(self, fake, monkeypatch):
        monkeypatch.setattr(ranks, "STARTING_S", 0.0)
        error = fake.fails("time.sleep(600)", stall_timeout_s=1.5)
        assert type(error) is StalledError
        assert error.what == "rank 0 has not started in 2 s"

    def test_missing_rank_is_named_instead_of_those_waiting(self, tmp_path, monkeypatch):
        monkeypatch.setattr(ranks, "STARTING_S", 0.0)
        with StalledProcesses(tmp_path, 1) as stalled:
            stalled.count = 2
            assert [str(one) for one in stalled.watch()] == ["rank 1 has not started in 1 s"]

    def test_hanging_user_code_is_named_with_its_line(self, fake, caplog):
        code = BEATS + "def endless():\n    time.sleep(600)\nwork(until=lambda: heart._beats > 20)\nendless()"
        error = fake.fails(code, stall_timeout_s=1.5)
        assert type(error) is StalledError
        first, *places = error.what.splitlines()
        assert first.endswith("has made no progress for 2 s: step 20, training, sleeping")
        line = (START + code).splitlines().index("    time.sleep(600)") + 1
        assert places[0].endswith(f"rank.py:{line} in endless")
        assert "most recent call first" in caplog.text

    def test_stopped_rank_is_named_instead_of_those_waiting(self, tmp_path):
        with StalledProcesses(tmp_path, 2) as stalled:
            stalled.processes[1].suspend()
            (found,) = stalled.watch()
        assert (found.rank, found.state, found.pulse.step) == (1, "stopped", 5)
        assert "in here" in str(found), "it was resumed to write its stack"

    def test_rank_that_stalled_first_is_named(self, tmp_path, monkeypatch):
        monkeypatch.setattr(ranks, "_NOISE_S", 0.5)
        code = "end = time.monotonic() + 1.5 * (rank != 1)\nwhile time.monotonic() < end: heart.beat('training', 5)"
        with StalledProcesses(tmp_path, 3, code) as stalled:
            assert [one.rank for one in stalled.watch(4.0)] == [1]

    TORCH, OURS = "/lib/torch/distributed/distributed_c10d.py", collectives.__file__
    WAITING = "code = compile('def all_reduce(): here()', '{}', 'exec')\nexec(code)\nif rank == 0: all_reduce()"

    @pytest.mark.parametrize(
        ("code", "ranks"),
        [
            ("heart.beat('training', 5 - rank)", [1]),
            (WAITING.format(TORCH), [1]),
            (WAITING.format(OURS), [1]),
            ("", [0, 1]),
        ],
        ids=["behind in steps", "outside a collective", "outside a collective of ours", "undecided"],
    )
    def test_stalled_ranks_are_named(self, tmp_path, code, ranks):
        with StalledProcesses(tmp_path, 2, code) as stalled:
            assert [rank.rank for rank in stalled.watch()] == ranks

    def test_starting_has_a_longer_timeout(self, tmp_path, monkeypatch):
        with StalledProcesses(tmp_path, 1, "heart.beat('starting')") as stalled:
            monkeypatch.setattr(ranks, "STARTING_S", 3.0)
            (found,) = stalled.watch(1.0)
        assert 3.0 <= found.idle_s < 4.0

    def test_time_while_the_watcher_is_suspended_does_not_count(self, tmp_path, monkeypatch):
        clock = [0.0]
        monkeypatch.setattr(ranks.time, "monotonic", lambda: clock[0])
        seen = RankMonitor(tmp_path, 1)
        clock[0] = 3600.0
        seen.poll()
        assert seen.stalled(100.0) == []
        for _ in range(200):
            clock[0] += 0.5
            seen.poll()
        assert [one.rank for one in seen.stalled(100.0)] == [0]

    def test_hang_after_the_end_counts_as_finished(self, fake, caplog):
        code = "heart.beat('finished'); (job.folder / 'finished.json').write_text('{}'); time.sleep(600)"
        supervise_training(fake.job(BEATS + code, stall_timeout_s=1.0), lambda: None)
        assert "finished, although" in caplog.text
        assert fake.processes() == []


class StalledProcesses:
    """Real processes that run some code and then sleep in a function `here`."""

    def __init__(self, folder, count, code=""):
        self.folder, self.count = folder, count
        head = "import sys, time\nfrom pathlib import Path\nfrom trainer.runtime.heartbeat import Heartbeat\nrank = int(sys.argv[1])\n"
        head += (
            "def here():\n    time.sleep(600)\nheart = Heartbeat(Path(sys.argv[2]), rank)\nheart.beat('training', 5)\n"
        )
        self.code = head + code + "\nhere()"

    def __enter__(self):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        starts = [[sys.executable, "-c", self.code, str(i), str(self.folder)] for i in range(self.count)]
        self._popen = [subprocess.Popen(start, env=environment) for start in starts]
        self.processes = [psutil.Process(process.pid) for process in self._popen]
        wait_for(
            lambda: len([p for p in heartbeat.read_process_states(self.folder) if p.step]) == self.count, "heartbeats"
        )
        time.sleep(0.3)
        return self

    def __exit__(self, *_):
        for process in self._popen:
            process.kill()
            process.wait()

    def watch(self, timeout_s=1.0):
        seen = RankMonitor(self.folder, self.count)
        while not (found := seen.stalled(timeout_s)):
            time.sleep(0.05)
            seen.poll()
        return found


class TestStops:
    def test_stop_request_is_forwarded_and_names_the_checkpoint(self, fake, caplog):
        code = "work(until=(job.folder / 'stop').exists); (job.folder / f'checkpoint-{heart._step}').mkdir()\n"
        job = fake.job(BEATS + code + "fail('PreemptedError')")
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        fake.signal(signal.SIGTERM)
        with caplog.at_level(logging.INFO), pytest.raises(PreemptedError) as caught:
            supervise_training(job, lambda: None)
        (checkpoint,) = fake.folder.glob("checkpoint-*")
        step = checkpoint.name.removeprefix("checkpoint-")
        assert caught.value.what == f"stopped by SIGTERM; its newest checkpoint is of step {step}"
        assert caught.value.fix == f"start again: it resumes from step {step}"
        assert caplog.messages == ["train: SIGTERM: stopping with a checkpoint, in at most 15 s; Ctrl-C twice: at once"]
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before

    def test_rank_that_ignores_a_stop_is_killed_after_the_grace(self, fake):
        (fake.folder / "checkpoint-2").mkdir()
        fake.signal(signal.SIGTERM)
        start = time.monotonic()
        error = fake.fails(BEATS + "work()", grace_s=1.0)
        assert 1.0 < time.monotonic() - start < 15
        assert type(error) is PreemptedError
        reached = heartbeat.read_process_states(fake.folder)[0].step
        expected = "stopped by SIGTERM, and killed after 1 s of grace; its newest checkpoint is of step 2"
        assert error.what.startswith(expected)
        repeated = int(error.what.removeprefix(f"{expected}, and the ").split()[0])
        assert reached - 20 < repeated + 2 <= reached, "the steps seen when it was killed"

    def test_second_interrupt_kills_at_once(self, fake):
        fake.signal(signal.SIGINT, signal.SIGINT)
        start = time.monotonic()
        error = fake.fails(BEATS + "work()", grace_s=60.0)
        assert time.monotonic() - start < 10
        assert error.what.startswith("stopped by SIGINT, at once; it has no checkpoint yet, and the ")
        assert error.fix == "start again: it resumes from step 0"

    def test_interrupt_in_the_last_steps_ends_the_command_with_a_finished_training(self, fake):
        fake.signal(signal.SIGINT)
        finish = "work(until=(job.folder / 'stop').exists); (job.folder / 'finished.json').write_text('{}')"
        job = fake.job(BEATS + finish)
        with pytest.raises(KeyboardInterrupt, match="the training is finished"):
            supervise_training(job, lambda: None)

    def test_stop_before_the_first_step_has_no_grace(self, fake):
        fake.signal(signal.SIGTERM, phase="starting")
        start = time.monotonic()
        error = fake.fails(BEATS + "time.sleep(600)", grace_s=60.0)
        assert time.monotonic() - start < 10
        assert error.what == "stopped by SIGTERM before its first step; it has no checkpoint yet"

    def test_failure_while_stopping_is_reported(self, fake):
        fake.signal(signal.SIGTERM)
        error = fake.fails(BEATS + "work(until=(job.folder / 'stop').exists); fail('StorageError', 'the disk is full')")
        assert error.what == "the disk is full"


class TestMemory:
    CODE = """
if job.launch.micro_batch_size > 2:
    heart.beat("training")
    fail("MemoryExhaustedError")
if job.launch.eval_batch_size > 8:
    heart.beat("evaluating")
    fail("MemoryExhaustedError")
(job.folder / "finished.json").write_text(str(job.checkpoint))
"""

    def test_out_of_memory_halves_the_batch_and_resumes(self, fake, caplog):
        job = fake.job(BEATS + self.CODE, eval_batch_size=32, out_of_memory_retries=3)
        newest = iter(range(10))
        supervise_training(job, lambda: Path(f"checkpoint-{next(newest)}"))
        assert [(s.micro_batch_size, s.eval_batch_size) for s in fake.starts] == [(4, 32), (2, 32), (2, 16), (2, 8)]
        assert (fake.folder / "finished.json").read_text() == "checkpoint-3"
        assert job.keep_freed_memory
        assert not Job.load(fake.folder / "job.json").keep_freed_memory
        assert caplog.messages[0] == (
            "train: out of memory: launch.micro_batch_size goes from 4 to 2, at the same global batch"
        )

    def test_out_of_memory_halves_the_batch_size_in_use(self, fake):
        """With a global batch of 8, a micro-batch of 7 means 4 in use."""
        job = fake.job(BEATS + self.CODE, eval_batch_size=8)
        job = job.model_copy(update={"launch": job.launch.model_copy(update={"micro_batch_size": 7})})
        supervise_training(job, lambda: None)
        assert [start.micro_batch_size for start in fake.starts] == [7, 2]

    def test_out_of_memory_retries_are_limited(self, fake):
        error = fake.fails(BEATS + self.CODE, eval_batch_size=32, out_of_memory_retries=1)
        assert type(error) is MemoryExhaustedError
        assert error.where == "launch.eval_batch_size"
        assert error.what == "out of memory with 32 sequence(s) in a forward pass, after halving that 1 time(s)"
        assert "raise launch.out_of_memory_retries" in error.fix

    def test_out_of_memory_with_one_sequence_is_final(self, fake):
        error = fake.fails(BEATS + "fail('MemoryExhaustedError')", out_of_memory_retries=9)
        assert len(fake.starts) == 3
        assert error.what == "out of memory with 1 sequence(s) in a forward pass, after halving that 2 time(s)"
        assert "raise" not in error.fix


def test_launcher_reports_a_single_process(tmp_path):
    script = tmp_path / "rank.py"
    script.write_text("import os; os.kill(os.getpid(), 9)")
    launch = [forked.python(), "-m", "trainer.runtime.launcher", "--num_processes", "1", "--num_machines", "1"]
    done = subprocess.run(
        [*launch, "--mixed_precision", "no", "--dynamo_backend", "no", str(script)],
        env={**os.environ, launcher.REPORT: str(tmp_path / "launch.json")},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    assert json.loads((tmp_path / "launch.json").read_text()) == {
        "failures": [{"rank": 0, "pid": None, "exit_code": -9}],
        "error": None,
    }
