"""The parts of the flow: commands that end with their starter, DVC's lock file, errors that a command reports."""

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

from flows import child_process
from flows.dvc_project.locks import remove_dead_lock_owners
from flows.run import stages, unwatched_sources
from flows.run.final_state import format_run_summary
from flows.run.prefect_artifacts import flatten_to_table_rows
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
from params.foundation import command_result
from params.foundation.artifacts import Artifacts, write_text_atomically
from params.foundation.command_result import CommandResult
from tasks.evaluation.report import EvaluationReport
from tasks.ingestion.report import IngestReport
from tasks.report.formatting import metrics_markdown_table
from tasks.stages import save_report
from tests.support import tiny
from tests.support.project import ROOT, free_port, wait_for
from tests.unit.tasks.report import example
from trainer.runtime import fork_server
from trainer.runtime.lifetime import stop_process_group

log = logging.getLogger("test")


def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> str:
    (tmp_path / "acting.py").write_text(code, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    return "acting"


class TestChildProcess:
    def run(self, name: str, root: Path, listener: child_process.Logger = log, **limits: float) -> bool:
        return child_process.run_python_module(name, [], Artifacts("test", root), listener, name="test", **limits)

    def test_lines_arrive_while_the_command_runs(self, tmp_path, monkeypatch, caplog) -> None:
        told = tmp_path / "told"
        code = f"import pathlib, time\nprint('one')\nwhile not pathlib.Path({str(told)!r}).exists(): time.sleep(0.01)\nprint('two')"
        name = module(tmp_path, monkeypatch, code)
        with caplog.at_level(logging.INFO, logger="test"):
            done = threading.Thread(target=self.run, args=(name, tmp_path))
            done.start()
            try:
                wait_for(lambda: "one" in caplog.text, "the first line", 20)
            finally:
                told.touch()
                done.join()
        assert "two" in caplog.text

    def test_a_grandchild_that_holds_the_pipe_is_neither_waited_for_nor_left(self, tmp_path, monkeypatch) -> None:
        code = "import subprocess, sys\np = subprocess.Popen(['sleep', '60'])\nprint(p.pid)\nsys.exit(3)"
        start = time.monotonic()
        with pytest.raises(EvergreenError, match=r"test: exited with 3: \d+") as raised:
            self.run(module(tmp_path, monkeypatch, code), tmp_path)
        assert time.monotonic() - start < 10
        wait_for(lambda: not alive(int(raised.value.what.split()[-1])), "the end of the grandchild", 5)

    def test_a_stop_lets_the_stage_end_in_order_and_then_kills(self, tmp_path, monkeypatch) -> None:
        child = "import signal, sys, time; signal.signal(15, lambda *_: (print('saved', flush=True), sys.exit(0)));"
        child += "print('ready', flush=True); time.sleep(60)"
        code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])\nprint('orderly')"
        process = child_process.start_python_module(module(tmp_path, monkeypatch, code), [], subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        stop_process_group(process, child_process.GRACE_S)
        assert process.stdout.read() == b"saved\norderly\n"
        process.stdout.close()

    @pytest.mark.parametrize(("grace_s", "is_heard"), [(15.0, True), (0.1, False)])
    def test_a_stopped_command_has_its_grace_and_the_last_word(
        self, tmp_path, monkeypatch, caplog, grace_s: float, is_heard: bool
    ) -> None:
        code = "import os, signal, sys, time\n"
        code += "signal.signal(15, lambda *_: (time.sleep(1), print('resumes at step 7', flush=True), os._exit(75)))\n"
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
            self.run(module(tmp_path, monkeypatch, code), tmp_path, listener, grace_s=grace_s)
        assert ("resumes at step 7" in caplog.messages) is is_heard

    def test_a_command_that_takes_too_long_is_stopped_with_its_grace(self, tmp_path, monkeypatch, caplog) -> None:
        code = "import os, signal, sys, time\n"
        code += "signal.signal(15, lambda *_: (time.sleep(1), print('resumes at step 7', flush=True), os._exit(75)))\n"
        code += "while True: print('busy', flush=True); time.sleep(0.1)"
        with caplog.at_level(logging.INFO, logger="test"), pytest.raises(subprocess.TimeoutExpired):
            self.run(module(tmp_path, monkeypatch, code), tmp_path, limit_s=2.0)
        assert "busy" in caplog.messages
        assert caplog.messages[-1] == "resumes at step 7"

    def test_a_command_in_time_is_left_alone(self, tmp_path, monkeypatch, caplog) -> None:
        name = module(tmp_path, monkeypatch, "print('done')")
        with caplog.at_level(logging.INFO, logger="test"):
            assert not self.run(name, tmp_path, limit_s=60.0), "it reported nothing"
        assert caplog.messages == ["done"]

    def test_a_training_has_the_grace_of_its_recipe_and_time_to_end(self, tmp_path, monkeypatch) -> None:
        monkeypatch.chdir(tmp_path)
        tiny.write(tmp_path / "params/tiny.yaml", tiny.recipe({"launch.grace_s": 120.0}))
        assert stages._grace_s("train", Artifacts("tiny")) == 130.0
        assert stages._grace_s("evaluate", Artifacts("tiny")) == child_process.GRACE_S

    def test_the_command_dies_with_its_starter(self, tmp_path, monkeypatch) -> None:
        name = module(tmp_path, monkeypatch, "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)")
        starter = f"from flows import child_process; import time; child_process.start_python_module({name!r}, [], None); time.sleep(60)"
        process = subprocess.Popen([sys.executable, "-c", starter], cwd=ROOT, stdout=subprocess.PIPE)
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert alive(pid)
        process.kill()
        process.wait()
        wait_for(lambda: not alive(pid), "the end of the command", 5)
        process.stdout.close()


class TestClearStaleLocks:
    def put(self, root: Path, content: str) -> Path:
        lock = root / ".dvc/tmp/rwlock"
        lock.parent.mkdir(parents=True)
        lock.write_text(content, encoding="utf-8")
        return lock

    def test_an_owner_whose_id_another_process_has_now_is_taken_out(self, tmp_path) -> None:
        stranger = {"pid": os.getpid(), "cmd": "dvc repro train@default"}
        lock = self.put(tmp_path, json.dumps({"write": {"a": stranger}, "read": {"b": [stranger]}}))
        remove_dead_lock_owners(log, tmp_path)
        assert json.loads(lock.read_text()) == {"write": {}, "read": {}}

    def test_a_living_owner_stays(self, tmp_path) -> None:
        me = {"pid": os.getpid(), "cmd": " ".join(["x", *psutil.Process().cmdline()[1:]])}
        gone = {"pid": 2**22 + 1, "cmd": "dvc repro"}
        lock = self.put(tmp_path, json.dumps({"write": {"a": me}, "read": {"b": [me, gone], "c": [gone]}}))
        remove_dead_lock_owners(log, tmp_path)
        assert json.loads(lock.read_text()) == {"write": {"a": me}, "read": {"b": [me]}}

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="nothing is forked")
    def test_a_fork_is_a_living_owner_while_its_command_lives(self, tmp_path, monkeypatch) -> None:
        code = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)"
        name = module(tmp_path, monkeypatch, code)
        monkeypatch.chdir(ROOT)
        with fork_server.running(child_process._environment(), ["colorsys"]):
            command = child_process.start_python_module(name, ["train@tiny", "--force"], subprocess.PIPE)
            assert command.stdout is not None
            pid = int(command.stdout.readline())
            assert pid != command.pid, "it is forked"
            fork, other = ({"pid": pid, "cmd": f"x/stage.py {own}@tiny --force"} for own in ("train", "evaluate"))
            lock = self.put(tmp_path, json.dumps({"write": {"a": fork, "b": other}, "read": {"c": [fork, other]}}))
            remove_dead_lock_owners(log, tmp_path)
            assert json.loads(lock.read_text()) == {"write": {"a": fork}, "read": {"c": [fork]}}
            stop_process_group(command, 5)
            command.stdout.close()

    def test_a_file_cut_short_is_removed(self, tmp_path) -> None:
        lock = self.put(tmp_path, '{"write": {"')
        remove_dead_lock_owners(log, tmp_path)
        assert not lock.exists()


class TestUnwatchedSources:
    """A source that DVC cannot watch is read in every run of the flow, but not while a run with its rows is unfinished."""

    @pytest.fixture
    def artifacts(self, tmp_path, monkeypatch) -> Artifacts:
        monkeypatch.chdir(tmp_path)
        self.write({"kind": "sql", "url": "sqlite:///rows.db", "query": "SELECT 1"})
        self.stale(monkeypatch, "train")
        return Artifacts("tiny")

    def write(self, source: dict) -> None:
        content = tiny.recipe({"launch.keep_rows_hours": 2.0})
        tiny.write(Path("params/tiny.yaml"), content | {"data": {"source": source}})

    def stale(self, monkeypatch, *names: str) -> None:
        monkeypatch.setattr(
            "flows.dvc_project.stage.is_any_stage_stale", lambda *asked: any(n.split("@")[0] in names for n in asked)
        )

    def test_it_is_read_in_every_run(self, artifacts) -> None:
        assert unwatched_sources.update_imports_and_check_ingest(artifacts, log)
        unwatched_sources.keep_rows_until_trained("ingest", artifacts, None)
        unwatched_sources.keep_rows_until_trained("train", artifacts, None)
        assert unwatched_sources.update_imports_and_check_ingest(artifacts, log)

    @pytest.mark.parametrize("stage", ["validate", "tokenize", "train"])
    def test_an_interrupted_run_keeps_its_rows(self, artifacts, monkeypatch, caplog, stage) -> None:
        unwatched_sources.keep_rows_until_trained("ingest", artifacts, None)
        self.stale(monkeypatch, stage)
        for error in (KilledError("a", "b", "c"), StorageError("a", "b", "c"), TransientError("a", "b", "c")):
            unwatched_sources.keep_rows_until_trained(stage, artifacts, error)
            with caplog.at_level(logging.INFO, logger="test"):
                assert not unwatched_sources.update_imports_and_check_ingest(artifacts, log)
        assert "ingest@tiny: keeps the rows of 0.0 hours ago" in caplog.text

    def test_an_old_run_is_given_up(self, artifacts, caplog) -> None:
        unwatched_sources.keep_rows_until_trained("ingest", artifacts, None)
        for hours, gives_up in ((1.9, False), (2.1, True)):
            then = time.time() - hours * 3600
            os.utime(artifacts.rows_taken, (then, then))
            assert unwatched_sources.update_imports_and_check_ingest(artifacts, log) is gives_up
        assert "gave up the unfinished run of 2.1 hours ago" in caplog.text

    @pytest.mark.parametrize("kind", [DataError, ModelError, RecipeError])
    def test_rows_that_fail_again_are_not_kept(self, artifacts, kind) -> None:
        unwatched_sources.keep_rows_until_trained("ingest", artifacts, None)
        unwatched_sources.keep_rows_until_trained("train", artifacts, kind("a", "b", "c"))
        assert unwatched_sources.update_imports_and_check_ingest(artifacts, log)

    def test_a_run_that_dvc_has_finished_keeps_nothing(self, artifacts, monkeypatch) -> None:
        unwatched_sources.keep_rows_until_trained("ingest", artifacts, None)
        self.stale(monkeypatch, "evaluate", "publish")
        assert unwatched_sources.update_imports_and_check_ingest(artifacts, log)

    def test_an_unfinished_run_needs_no_hub(self, artifacts, monkeypatch) -> None:
        away = f"http://127.0.0.1:{free_port()}"
        self.write({"kind": "hub", "repo_id": "a/b", "revision": "main", "train": "*.csv", "endpoint": away})
        unwatched_sources.keep_rows_until_trained("ingest", artifacts, None)
        report = IngestReport(source="hub", revision="0" * 40, rows={}, columns={}, data_sha256={})
        save_report(report, artifacts.report("ingest"))
        assert not unwatched_sources.update_imports_and_check_ingest(artifacts, log)
        self.stale(monkeypatch)
        with pytest.raises(TransientError):
            unwatched_sources.update_imports_and_check_ingest(artifacts, log)

    def test_imported_files_are_updated_unless_a_run_is_unfinished(self, artifacts, monkeypatch) -> None:
        self.write({"kind": "files", "train": "rows.csv", "refresh": True})
        updates: list[str] = []
        monkeypatch.setattr("flows.child_process.run_python_module", lambda module, *_, **__: updates.append(module))
        unwatched_sources.keep_rows_until_trained("ingest", artifacts, None)
        assert not unwatched_sources.update_imports_and_check_ingest(artifacts, log)
        unwatched_sources.fetch_missing_source_files(artifacts, log)
        assert updates == []
        assert unwatched_sources.update_imports_and_check_ingest(artifacts, log, force=True)
        unwatched_sources.keep_rows_until_trained("train", artifacts, None)
        assert not unwatched_sources.update_imports_and_check_ingest(artifacts, log), "DVC sees what has changed"
        assert updates == ["flows.dvc_project.update"] * 2
        unwatched_sources.fetch_missing_source_files(artifacts, log)
        assert updates == ["flows.dvc_project.update"] * 3
        Path("rows.csv").touch()
        unwatched_sources.fetch_missing_source_files(artifacts, log)
        assert updates == ["flows.dvc_project.update"] * 3

    def test_other_sources_are_left_to_dvc(self, artifacts) -> None:
        self.write({"kind": "files", "train": "rows.csv"})
        assert not unwatched_sources.update_imports_and_check_ingest(artifacts, log)
        self.write({"kind": "function", "function": "rows:rows"})
        assert not unwatched_sources.update_imports_and_check_ingest(artifacts, log)
        self.write({"kind": "function", "function": "rows:rows", "refresh": True})
        assert unwatched_sources.update_imports_and_check_ingest(artifacts, log)


class TestErrors:
    def test_the_error_that_a_stage_reports_comes_back_with_the_stage_and_all_its_fields(self) -> None:
        reported = RecipeError.at("data.source.train", "3 are bad\n  fix: nothing", "fix them")
        error = command_result.error_of_failed_command("validate@x", 78, "other words", CommandResult(reported))
        assert type(error) is RecipeError
        assert error.where == "validate@x: data.source.train"
        assert (error.what, error.fix, error.key) == (reported.what, reported.fix, reported.key)

    @pytest.mark.parametrize(
        ("status", "reported", "expected"),
        [
            (137, None, KilledError),
            (-9, None, KilledError),
            (137, DataError("a", "b", "c"), KilledError),
            (75, None, TransientError),
            (74, None, StorageError),
            (78, None, RecipeError),
            (1, None, EvergreenError),
            (75, TransientError("Hub", "no answer", "wait"), TransientError),
            (75, StaleBlessingError("Hub", "another one", "compare"), StaleBlessingError),
            (66, ModelError("blessing.json", "the gate refuses", "learn"), ModelError),
        ],
    )
    def test_an_exit_status_becomes_its_error(self, status, reported, expected) -> None:
        result = CommandResult(reported) if reported else None
        error = command_result.error_of_failed_command("train@x", status, "first\nDataError: x: y\n ", result)
        assert type(error) is expected
        assert reported or status in {137, -9} or error.what == f"exited with {status}: DataError: x: y"

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

        assert stages.should_retry_stage(None, None, Failed(data=error)) is again


def test_a_report_becomes_a_table() -> None:
    assert flatten_to_table_rows({"a": {"b": 1}, "c": [1, 2]}) == [
        {"name": "a.b", "value": 1},
        {"name": "c", "value": "1, 2"},
    ]


EVALUATION = {"split": "test", "rows": 40, "sequences": 40, "metric": "loss", "verdict": "publish"}


def evaluation(**metrics: dict[str, float] | None) -> EvaluationReport:
    return EvaluationReport.model_validate(EVALUATION | metrics)


def test_metrics_stand_beside_those_of_the_champion_and_of_the_untrained_model() -> None:
    model = {"loss": 1.5, "bits_per_byte": 0.5}
    both = metrics_markdown_table(evaluation(model=model, untrained={"loss": 5.0}, champion={"bits_per_byte": 0.75}))
    assert "| metric | model | champion | untrained |" in both
    assert "| loss | 1.5 | | 5 |" in both
    assert "| bits_per_byte | 0.5 | 0.75 | |" in both
    assert both.endswith("on the test split, 40 rows")
    alone = metrics_markdown_table(evaluation(model=model, untrained=None, champion=None))
    assert "| metric | model |\n" in alone
    assert "| loss | 1.5 |\n" in alone


def receipt(tmp_path: Path, **changes: object) -> Artifacts:
    artifacts = Artifacts("tiny", tmp_path)
    content = {"status": "published", "reasons": ["it is better"], "repo_id": "o/n", "endpoint": "local"}
    content |= {"commit": "c" * 40, "tag": "release-1", "publish_id": "d" * 64, **changes}
    write_text_atomically(artifacts.receipt, json.dumps(content))
    metrics = evaluation(model={"loss": 1.5}, untrained=None, champion=None)
    write_text_atomically(artifacts.report("evaluate"), metrics.model_dump_json())
    return artifacts


def test_the_summary_says_what_became_of_the_model_and_why(tmp_path) -> None:
    artifacts = receipt(tmp_path)
    said = format_run_summary(artifacts, {"publish": "ran"})
    assert "published: o/n on the Hub in .hub\n  it is better\n" in said
    artifacts = receipt(tmp_path, status="kept", reasons=["it is worse", "it is slower"], publish_id=None)
    said = format_run_summary(artifacts, {"publish": "ran"})
    assert "kept the champion: o/n on the Hub in .hub\n  it is worse\n  it is slower\n" in said


def test_the_summary_of_a_run_up_to_the_evaluation_says_the_verdict_and_why(tmp_path) -> None:
    said = format_run_summary(example.write(tmp_path), {"evaluate": "ran"})
    assert "\nthe gate says publish\n  accuracy is " in said


def test_the_summary_says_how_many_labels_look_wrong_and_where_they_are(tmp_path) -> None:
    artifacts = example.write(tmp_path)
    said = format_run_summary(artifacts, {"publish": "ran"}).splitlines()
    counts = "labels that look wrong: 8 of 10,000 train rows that were looked at, of 12,998, 3 of 402 test rows"
    assert f"{counts}: {artifacts.review}" in said


@pytest.mark.parametrize("name", ["DO_NOT_TRACK", "DVC_NO_ANALYTICS", "PREFECT_SERVER_ANALYTICS_ENABLED"])
def test_nothing_is_reported_unless_the_user_says_so(name: str) -> None:
    def value(**setting: str) -> str:
        environment = {k: v for k, v in os.environ.items() if k != name} | setting
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


@pytest.mark.parametrize("recipe", ["gone", "params/gone.yaml"])
def test_a_deployment_whose_recipe_was_removed_says_that_it_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    from flows.retrain import name_of_recipe_to_run

    monkeypatch.chdir(tmp_path)
    (tmp_path / "params").mkdir()
    (tmp_path / "params/gone-too.yaml").touch()
    with pytest.raises(RecipeError, match="did you mean "):  # a person has mistyped it
        name_of_recipe_to_run(recipe)
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__NAME", "nightly")
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__FLOW_NAME", "retrain")
    with pytest.raises(RecipeError, match="the deployment retrain/nightly still runs it") as caught:
        name_of_recipe_to_run(recipe)
    assert "`prefect deployment delete retrain/nightly`" in caught.value.fix
    (tmp_path / "params/gone.yaml").touch()
    assert name_of_recipe_to_run(recipe) == "gone"
