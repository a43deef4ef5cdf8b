"""What the flow is made of: commands bound to their starter, DVC's lock file, errors read from a stage's output."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from flows import child_process, stages
from flows.artifacts import _rows, figures, kept, summary
from flows.locks import clear_stale_locks
from flows.retrain import is_transient
from params import (
    DataError,
    EvergreenError,
    KilledError,
    ModelError,
    RecipeError,
    StaleBlessingError,
    StorageError,
    TransientError,
)
from params.artifacts import Artifacts, write_whole
from tests.support import tiny
from tests.support.project import ROOT, wait_for

log = logging.getLogger("test")


def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> str:
    (tmp_path / "acting.py").write_text(code, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    return "acting"


class TestBound:
    def test_lines_arrive_while_the_command_runs(self, tmp_path, monkeypatch, caplog) -> None:
        name = module(tmp_path, monkeypatch, "import time\nprint('one')\ntime.sleep(5)\nprint('two')")
        with caplog.at_level(logging.INFO, logger="test"):
            done = threading.Thread(target=child_process.run, args=(name, [], log))
            done.start()
            wait_for(lambda: "one" in caplog.text, "the first line", 4)
            assert "two" not in caplog.text
            done.join()
        assert "two" in caplog.text

    def test_a_grandchild_that_holds_the_pipe_is_neither_waited_for_nor_left(self, tmp_path, monkeypatch) -> None:
        code = "import subprocess, sys\np = subprocess.Popen(['sleep', '60'])\nprint(p.pid)\nsys.exit(3)"
        start = time.monotonic()
        outcome = child_process.run(module(tmp_path, monkeypatch, code), [], log)
        assert outcome.status == 3
        assert time.monotonic() - start < 10
        wait_for(lambda: not alive(int(outcome.lines[0])), "the end of the grandchild", 5)

    def test_a_stop_lets_the_stage_end_in_order_and_then_kills(self, tmp_path, monkeypatch) -> None:
        child = "import signal, sys, time; signal.signal(15, lambda *_: (print('saved', flush=True), sys.exit(0)));"
        child += "print('ready', flush=True); time.sleep(60)"
        code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])\nprint('orderly')"
        process = child_process.start(module(tmp_path, monkeypatch, code), [], subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        child_process.stop(process)
        assert process.stdout.read() == b"saved\norderly\n"
        process.stdout.close()

    @pytest.mark.parametrize(("grace_s", "is_heard"), [(15.0, True), (0.1, False)])
    def test_a_stopped_command_has_its_grace_and_the_last_word(
        self, tmp_path, monkeypatch, caplog, grace_s: float, is_heard: bool
    ) -> None:
        code = "import os, signal, sys, time\n"
        code += (
            "signal.signal(15, lambda *_: (time.sleep(1), print('goes on from step 7', flush=True), os._exit(75)))\n"
        )
        code += "print('ready', flush=True); time.sleep(60)"

        class Stopped(BaseException):
            pass

        def info(line: str) -> None:
            log.info(line)
            if line == "ready":
                raise Stopped

        listener = logging.LoggerAdapter(log)
        monkeypatch.setattr(listener, "info", info)
        with caplog.at_level(logging.INFO, logger="test"), pytest.raises(Stopped):
            child_process.run(module(tmp_path, monkeypatch, code), [], listener, grace_s=grace_s)
        assert ("goes on from step 7" in caplog.messages) is is_heard

    def test_a_training_has_the_grace_of_its_recipe_and_time_to_end(self, tmp_path, monkeypatch) -> None:
        monkeypatch.chdir(tmp_path)
        tiny.write(tmp_path / "params/tiny.yaml", tiny.recipe({"launch.grace_s": 120.0}))
        assert stages._grace_s("train", "tiny") == 130.0
        assert stages._grace_s("evaluate", "tiny") == child_process.GRACE_S

    def test_the_command_dies_with_its_starter(self, tmp_path, monkeypatch) -> None:
        name = module(tmp_path, monkeypatch, "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)")
        starter = (
            f"from flows import child_process; import time; child_process.start({name!r}, [], None); time.sleep(60)"
        )
        process = subprocess.Popen([sys.executable, "-c", starter], cwd=ROOT, stdout=subprocess.PIPE)
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert alive(pid)
        process.kill()
        process.wait()
        wait_for(lambda: not alive(pid), "the end of the command", 5)
        process.stdout.close()


class TestHeal:
    def put(self, root: Path, content: str) -> Path:
        lock = root / ".dvc/tmp/rwlock"
        lock.parent.mkdir(parents=True)
        lock.write_text(content, encoding="utf-8")
        return lock

    def test_an_owner_whose_id_another_process_has_now_is_taken_out(self, tmp_path) -> None:
        stranger = {"pid": os.getpid(), "cmd": "dvc repro train@default"}
        lock = self.put(tmp_path, json.dumps({"write": {"a": stranger}, "read": {"b": [stranger]}}))
        clear_stale_locks(log, tmp_path)
        assert json.loads(lock.read_text()) == {"write": {}, "read": {}}

    def test_a_living_owner_stays(self, tmp_path) -> None:
        me = {"pid": os.getpid(), "cmd": " ".join(["x", *psutil.Process().cmdline()[1:]])}
        gone = {"pid": 2**22 + 1, "cmd": "dvc repro"}
        lock = self.put(tmp_path, json.dumps({"write": {"a": me}, "read": {"b": [me, gone], "c": [gone]}}))
        clear_stale_locks(log, tmp_path)
        assert json.loads(lock.read_text()) == {"write": {"a": me}, "read": {"b": [me]}}

    def test_a_file_cut_short_is_removed(self, tmp_path) -> None:
        lock = self.put(tmp_path, '{"write": {"')
        clear_stale_locks(log, tmp_path)
        assert not lock.exists()


class TestErrors:
    def test_the_error_that_a_stage_printed_comes_back(self) -> None:
        text = "validate: x\n\nDataError: rows: 3 are bad\nfirst: 17\n  fix: mend them\nERROR: failed, exited with 65"
        error = stages._error("validate@x", 255, text)
        assert type(error) is DataError
        assert (error.what, error.fix) == ("rows: 3 are bad\nfirst: 17", "mend them")

    @pytest.mark.parametrize(
        ("status", "text", "expected"),
        [
            (255, "ERROR: exited with -9", KilledError),
            (255, "ERROR: exited with 137", KilledError),
            (-9, "", KilledError),
            (255, "ERROR: exited with 75", TransientError),
            (255, "ERROR: exited with 74", StorageError),
            (255, "ERROR: exited with 78", RecipeError),
            (255, "ERROR: exited with 1", EvergreenError),
            (255, "'a' is busy, it is being blocked by:\n  (PID 4): dvc repro", TransientError),
            (255, "TransientError: Hub: no answer\n  fix: wait\nexited with 75", TransientError),
            (255, "StaleBlessingError: Hub: another one\n  fix: compare\nexited with 75", StaleBlessingError),
            (255, "ModelError: blessing.json: the gate refuses\n  fix: learn\nexited with 66", ModelError),
        ],
    )
    def test_an_exit_status_becomes_its_error(self, status, text, expected) -> None:
        assert type(stages._error("train@x", status, text)) is expected

    @pytest.mark.parametrize(
        ("error", "again"),
        [
            (KilledError("a", "b", "c"), True),
            (TransientError("a", "b", "c"), True),
            (DataError("a", "b", "c"), False),
            (ModelError("a", "b", "c"), False),
            (StaleBlessingError("a", "b", "c"), False),  # the same comparison would be as stale: the flow makes it anew
        ],
    )
    def test_only_what_may_pass_is_tried_again(self, error, again) -> None:
        from prefect.states import Failed

        assert is_transient(None, None, Failed(data=error)) is again


def test_a_report_becomes_a_table() -> None:
    assert _rows({"a": {"b": 1}, "c": [1, 2]}) == [{"figure": "a.b", "value": 1}, {"figure": "c", "value": "1, 2"}]


def test_figures_stand_beside_those_of_the_champion_and_of_the_untrained_model() -> None:
    shown = {"split": "test", "rows": 40, "model": {"loss": 1.5, "bits_per_byte": 0.5}}
    both = figures(shown | {"untrained": {"loss": 5.0}, "champion": {"bits_per_byte": 0.75}})
    assert "| metric | model | champion | untrained |" in both
    assert "| loss | 1.5 | | 5 |" in both
    assert "| bits_per_byte | 0.5 | 0.75 | |" in both
    assert both.endswith("on the test split, 40 rows")
    alone = figures(shown | {"untrained": None, "champion": None})
    assert "| metric | model |\n" in alone
    assert "| loss | 1.5 |\n" in alone


def receipt(tmp_path: Path, **changes: object) -> Artifacts:
    artifacts = Artifacts("tiny", tmp_path)
    content = {"verdict": "published", "reasons": ["it is better"], "repo_id": "o/n", "endpoint": "local"}
    content |= {"commit": "c" * 40, "tag": "release-1", "publish_id": "d" * 64, **changes}
    write_whole(artifacts.receipt, json.dumps(content))
    metrics = {"split": "test", "rows": 40, "model": {"loss": 1.5}, "untrained": None, "champion": None}
    write_whole(artifacts.report("evaluate"), json.dumps(metrics))
    return artifacts


def test_a_run_that_keeps_the_champion_says_so_and_why(tmp_path) -> None:
    artifacts = receipt(tmp_path)
    assert kept(artifacts) is None
    said = summary(artifacts, {"publish": "ran"})
    assert "published: o/n on the Hub in .hub\n  it is better\n" in said
    artifacts = receipt(tmp_path, verdict="kept", reasons=["it is worse", "it is slower"], publish_id=None)
    assert kept(artifacts) == "it is worse; it is slower"
    said = summary(artifacts, {"publish": "ran"})
    assert "kept the champion: o/n on the Hub in .hub\n  it is worse\n  it is slower\n" in said


@pytest.mark.parametrize("name", ["DO_NOT_TRACK", "DVC_NO_ANALYTICS", "PREFECT_SERVER_ANALYTICS_ENABLED"])
def test_nothing_is_reported_unless_the_user_says_so(name: str) -> None:
    def value(**given: str) -> str:
        environment = {k: v for k, v in os.environ.items() if k != name} | given
        code = f"import os, flows; print(os.environ[{name!r}])"
        return subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()

    assert value() in {"1", "false"}
    assert value(**{name: "mine"}) == "mine"


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
