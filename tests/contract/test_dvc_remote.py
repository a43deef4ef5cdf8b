"""Outputs that are elsewhere, with the real DVC: what makes a stage stale, what is fetched, and what runs again."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flows.dvc_project import push as dvc_push
from flows.dvc_project import remote as dvc_remote
from flows.dvc_project import stage as dvc_stage
from flows.dvc_project.remote import DvcRemote
from params import DataError, EvergreenError, RemoteRefusedError, StorageError, TransientError
from params.foundation import command_result
from tests.support import forked

DVC_YAML = """\
stages:
  make:
    cmd: mkdir -p made/rows && cut -d, -f1 source > made/rows/a && cut -d, -f2 source > made/about && echo make >> ../log
    deps: [source]
    outs: [made]
  use: {cmd: cp made/rows/a used && echo use >> ../log, deps: [made/rows], outs: [used]}
  sum: {cmd: cat used made/about > sum && echo sum >> ../log, deps: [used, made/about], outs: [sum]}
  judge: {cmd: sort -r sum > verdict && echo judge >> ../log, deps: [sum], outs: [{verdict: {cache: false}}]}
"""
NO_REMOTE = "[core]\nno_scm = True\n"
STAGES = ("make", "use", "sum", "judge")
KEPT_IN_GIT = ("dvc.yaml", "dvc.lock", "source", "verdict", ".dvc/config")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a project whose stages have run, and with its remote, which has got all of it."""
    folder = tmp_path_factory.mktemp("made")
    root = folder / "there"
    root.mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(root)
        Path("dvc.yaml").write_text(DVC_YAML)
        Path("source").write_text("one,two\n")
        (folder / "storage/files/md5").mkdir(parents=True)  # a new remote
        for command in (("init", "--no-scm", "-q"), ("remote", "add", "-q", "-d", "storage", "../storage")):
            subprocess.run([forked.python(), "-m", "dvc", *command], check=True)
        for stage in STAGES:
            assert run(stage) == (0, None)
        assert push() > 0
    (folder / "log").unlink()
    return folder


@pytest.fixture
def there(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose stages have run, and whose remote has got all of it. The working directory."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path / "there")
    return tmp_path / "there"


@pytest.fixture
def clone(there: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What git would have of it, with a cache of its own. The working directory."""
    return clone_of(there, monkeypatch)


def clone_of(there: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = there.with_name("clone")
    for name in KEPT_IN_GIT:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(there / name, root / name)
    monkeypatch.chdir(root)
    return root


def run(stage: str, *options: str) -> tuple[int, EvergreenError | None]:
    """Bring a stage up to date, as the flow does: the exit status, and the error if it was reported."""
    variable = command_result.preallocate_result_file(Path("result.json"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(*next(iter(variable.items())))
        status = dvc_stage.main(stage, *options)
    result = command_result.read_result_file(Path("result.json"))
    return status, result.error if result else None


@contextmanager
def remote() -> Iterator[tuple[DvcRemote, list[Any]]]:
    """The remote of the working directory's project, and its stages."""
    from dvc.repo import Repo

    with Repo() as repo, repo.lock:
        found = DvcRemote.of(repo)
        assert found
        yield found, [stage for name in STAGES for stage in repo.stage.collect(name)]


def push() -> int:
    with remote() as (found, stages):
        return found.push(stages)


def ran(root: Path) -> list[str]:
    """The stages whose commands have run since the remote got everything."""
    log = root.with_name("log")
    return log.read_text().split() if log.exists() else []


def cached(root: Path) -> set[str]:
    """The content of the files in the project's cache; lists of files count as `list`."""
    objects = [path for path in (root / ".dvc/cache/files").rglob("*") if path.is_file()]
    return {"list" if path.suffix == ".dir" else path.read_text().strip() for path in objects}


def remove_from_remote(root: Path, content: str) -> None:
    (found,) = [
        path
        for path in (root.parent / "storage/files").rglob("*")
        if path.is_file() and path.suffix != ".dir" and path.read_text() == content
    ]
    found.unlink()


def test_a_clone_has_nothing_to_do_and_fetches_only_lists(clone: Path) -> None:
    assert not dvc_stage.is_any_stage_stale(*STAGES)
    assert cached(clone) == {"list"}
    for stage in STAGES:
        assert run(stage) == (0, None)
    assert ran(clone) == []
    assert not (clone / "made").exists()


def test_without_a_remote_what_is_missing_is_stale(clone: Path) -> None:
    (clone / ".dvc/config").write_text(NO_REMOTE)
    assert dvc_stage.is_any_stage_stale("make")


def test_a_stage_gets_what_it_reads_and_no_more(clone: Path) -> None:
    assert run("sum", "--force") == (0, None)
    assert ran(clone) == ["sum"]
    assert (clone / "sum").read_text() == "one\ntwo\n"
    assert not (clone / "made/rows").exists()
    assert cached(clone) == {"list", "one", "two", "one\ntwo"}, "`used` has the content of made/rows/a"


def test_a_part_of_a_folder_makes_nothing_stale_and_is_not_left_alone(clone: Path) -> None:
    run("sum", "--force")
    assert sorted(path.name for path in (clone / "made").iterdir()) == ["about"]
    assert not dvc_stage.is_any_stage_stale("use", "sum", "judge")
    assert run("use", "--force") == (0, None)
    assert (clone / "made/rows/a").read_text() == "one\n"
    assert not dvc_stage.is_any_stage_stale(*STAGES)
    shutil.rmtree(clone / "made/rows")
    assert not dvc_stage.is_any_stage_stale(*STAGES)
    assert not (clone / "made").exists(), "DVC would take what is left of it for a change"
    assert ran(clone) == ["sum", "use"]


def test_another_version_makes_nothing_stale_and_is_removed(there: Path) -> None:
    """Another worker has run with new rows, and its dvc.lock comes by git."""
    newer = {name: Path(name).read_text() for name in ("source", "dvc.lock", "verdict")}
    Path("source").write_text("three,four\n")
    for stage in STAGES:
        run(stage)
    for name, text in newer.items():
        Path(name).write_text(text)
    assert not dvc_stage.is_any_stage_stale(*STAGES)
    assert not any(Path(name).exists() for name in ("made", "used", "sum"))
    assert run("judge", "--force") == (0, None)
    assert ran(there) == [*STAGES, "judge"]
    assert Path("verdict").read_text() == "two\none\n"


def test_a_changed_file_is_no_part_of_what_was_recorded(clone: Path) -> None:
    run("sum", "--force")
    (clone / "made/about").write_text("three\n")
    assert dvc_stage.is_any_stage_stale("make")
    assert run("make") == (0, None)
    assert (clone / "made/about").read_text() == "two\n"
    assert ran(clone) == ["sum"], "it was restored"


def test_a_stage_is_stale_if_another_worker_has_made_a_newer_version_of_what_it_reads(there: Path) -> None:
    """As the model of another recipe: dvc.lock came by git, and what exists locally is the version that the stage has read."""
    Path("source").write_text("three,two\n")
    run("make")
    run("use")
    push()
    Path("used").write_text("one\n")
    assert not dvc_stage.is_any_stage_stale("make")
    assert dvc_stage.is_any_stage_stale("sum")
    assert run("sum") == (0, None)
    assert (Path("used").read_text(), Path("sum").read_text()) == ("three\n", "three\ntwo\n")
    assert ran(there) == ["make", "use", "sum"]
    assert not dvc_stage.is_any_stage_stale("sum")


@pytest.mark.parametrize(
    ("source", "stale"),
    [("three,two\n", {"make": False, "use": True}), ("one,four\n", {"make": False, "use": False, "sum": True})],
)
def test_a_stage_is_stale_if_an_earlier_one_has_another_output(
    there: Path, monkeypatch: pytest.MonkeyPatch, source: str, stale: dict[str, bool]
) -> None:
    """Also if it reads only a part of that: a run that failed after its first stage was recorded like this."""
    Path("source").write_text(source)
    assert run("make") == (0, None)
    push()
    clone_of(there, monkeypatch)
    assert {stage: dvc_stage.is_any_stage_stale(stage) for stage in stale} == stale


def test_what_the_remote_lacks_is_made_again(clone: Path) -> None:
    remove_from_remote(clone, "two\n")
    assert run("sum", "--force") == (0, None)
    assert ran(clone) == ["make", "sum"]
    assert (clone / "sum").read_text() == "one\ntwo\n"
    assert not dvc_stage.is_any_stage_stale(*STAGES)


def test_a_missing_file_that_git_should_have_makes_its_stage_stale(clone: Path) -> None:
    (clone / "verdict").unlink()
    assert dvc_stage.is_any_stage_stale("judge")
    assert run("judge") == (0, None)
    assert ran(clone) == ["judge"]
    assert (clone / "verdict").read_text() == "two\none\n"


def test_the_work_of_a_run_that_git_does_not_know_is_restored(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = clone_of(there, monkeypatch)
    Path("dvc.lock").unlink()
    for stage in STAGES:
        assert run(stage) == (0, None)
    assert ran(clone) == ["judge"], "the only one whose output DVC does not keep"
    assert Path("dvc.lock").read_text() == (there / "dvc.lock").read_text()


class TestRemoteThatIsAway:
    @pytest.fixture(autouse=True)
    def _away(self, clone: Path) -> None:
        (clone.parent / "storage").rename(clone.parent / "away")

    def test_what_is_missing_is_a_transient_error_and_nothing_runs(self, clone: Path) -> None:
        status, error = run("sum", "--force")
        assert status == TransientError.exit_code
        assert type(error) is TransientError
        assert "the DVC remote `storage`: " in str(error)
        assert "is no folder: a share may not be mounted there" in str(error)
        assert ran(clone) == []

    def test_what_cannot_be_compared_is_left_to_whoever_runs_the_stage(self, clone: Path) -> None:
        assert not dvc_stage.is_any_stage_stale("make")
        assert dvc_stage.is_any_stage_stale("use"), "it reads a part of a folder whose list is on the remote"
        status, error = run("use")
        assert (status, type(error)) == (TransientError.exit_code, TransientError)

    def test_a_stage_that_misses_nothing_runs(self, there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(there)
        Path("source").write_text("three,two\n")
        assert run("make") == (0, None)
        assert ran(there) == ["make"]


class TestPush:
    def test_everything_is_sent_once(self, there: Path) -> None:
        assert push() == 0
        Path("source").write_text("one,four\n")
        run("make")
        assert push() == 2, "a list and a file"

    def test_a_clone_that_lacks_the_files_sends_what_it_made(self, clone: Path) -> None:
        Path("source").write_text("one,four\n")
        for stage in STAGES:
            run(stage)
        assert ran(clone) == ["make", "sum", "judge"]
        assert push() == 3
        (clone / "source").write_text("one,two\n")

    def test_a_clone_in_which_only_a_later_stage_ran_sends_what_that_made(self, clone: Path) -> None:
        """What the other stages read does not exist locally, and nothing is to be sent of them."""
        assert run("sum", "--force") == (0, None)
        (clone / "source").unlink()
        shutil.rmtree(clone / "made")
        assert push() == 0

    def test_what_is_nowhere_is_an_error(self, there: Path) -> None:
        shutil.rmtree(there / ".dvc/cache")
        remove_from_remote(there, "one\ntwo\n")
        with pytest.raises(DataError, match=r"1 objects of sum are neither in DVC's cache nor on the remote"):
            push()

    @pytest.mark.parametrize("is_allowed", [True, False])
    def test_an_object_that_cannot_be_written_is_one_error_with_its_cause(
        self, there: Path, capfd: pytest.CaptureFixture[str], is_allowed: bool
    ) -> None:
        Path("source").write_text("one,four\n")
        run("make")
        shutil.rmtree(there.parent / "storage/files")
        folder = there.parent / "storage/files/md5"
        if is_allowed:
            folder.parent.mkdir()
            folder.touch()
            kind, words = TransientError, "does not answer: .*Error: .*storage/files/md5"
        else:
            folder.mkdir(parents=True)
            lock = (
                [["chattr", "+i", folder], ["chattr", "-i", folder]]
                if os.geteuid() == 0
                else [["chmod", "a-w", folder]]
            )
            if not shutil.which("chattr") or subprocess.run(lock[0], check=False, capture_output=True).returncode:
                pytest.skip("this file system has no immutable folders")
            kind, words = RemoteRefusedError, "cannot be used: .*storage/files/md5"
        try:
            with pytest.raises(kind, match=words):
                push()
        finally:
            if not is_allowed:
                subprocess.run(lock[-1], check=True)
        assert "Traceback" not in "".join(capfd.readouterr())

    @pytest.mark.parametrize("place", ["no folder", "empty"])
    def test_into_the_place_of_a_share_that_is_not_mounted_nothing_is_sent(self, there: Path, place: str) -> None:
        storage = there.parent / "storage"
        shutil.rmtree(storage)
        if place == "empty":
            storage.mkdir()
        for ask in (push, dvc_remote.require_default_remote_folder):
            with pytest.raises(
                TransientError, match=f"the DVC remote `storage`: .*storage is {place}: a share may not"
            ):
                ask()
        assert not storage.exists() or not any(storage.iterdir())
        (storage / "files/md5").mkdir(parents=True)  # as the error says
        dvc_remote.require_default_remote_folder()
        assert push() > 0

    @pytest.mark.parametrize("size", [1 << 10, 4 << 20], ids=["a small file", "a large one, copied block by block"])
    def test_a_full_disk_of_the_remote_is_told_as_such_and_nothing_half_sent_stays_but_that_of_others(
        self, there: Path, size: int
    ) -> None:
        storage = there.parent / "storage"
        mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "none", str(storage)]
        Path("source").write_text(f"{'x' * size},two\n")
        run("make")
        if subprocess.run(mount, check=False, capture_output=True).returncode:
            pytest.skip("this user may not mount")
        try:
            (storage / "ballast").write_bytes(bytes(190 << 10) + bytes(6 << 10))
            of_others = {
                storage / ".begun-before.tmp": -60,
                storage / ".begun-now.tmp": 0,
                storage / ".begun-later.tmp": 60,
            }
            for path, seconds in of_others.items():
                path.touch()
                os.utime(path, (time.time() + seconds,) * 2)
            with pytest.raises(StorageError) as caught:
                push()
            left = set(storage.rglob("*.tmp"))
        finally:
            subprocess.run(["umount", str(storage)], check=True)
        assert caught.value.where == "the DVC remote `storage`"
        assert f"{storage} takes no more: No space left on device" in caught.value.what
        assert left == set(of_others), "another worker may be sending"

    def test_a_remote_that_keeps_versions_is_refused(self, there: Path) -> None:
        from dvc.repo import Repo

        versioned = "remote = s\n['remote \"s\"']\nurl = s3://bucket\nversion_aware = true\n"
        Path(".dvc/config").write_text(NO_REMOTE + versioned)
        with Repo() as repo, repo.lock, pytest.raises(RemoteRefusedError, match="use a remote without version_aware"):
            dvc_push.push_recipe_outputs(repo, "tiny")


def test_a_part_of_an_output_is_brought_for_who_asks_for_it(clone: Path) -> None:
    about = clone / "made/about"
    dvc_stage.restore_inputs("sum", Path("made/about"))
    assert about.read_text() == "two\n"
    assert [path.name for path in about.parent.iterdir()] == ["about"]
    assert not dvc_stage.is_any_stage_stale("make")
    remove_from_remote(clone, "two\n")
    shutil.rmtree(clone / ".dvc/cache")
    about.unlink(missing_ok=True)
    dvc_stage.restore_inputs("sum", Path("made/about"))
    assert not about.exists()


def test_all_that_a_stage_reads_is_brought(clone: Path) -> None:
    dvc_stage.restore_inputs("sum")
    assert [Path(name).read_text() for name in ("used", "made/about")] == ["one\n", "two\n"]
    assert not Path("made/rows").exists()
    assert ran(clone) == []


def test_the_default_remote_is_known_without_opening_the_project(there: Path) -> None:
    assert dvc_remote.read_default_remote_name() == "storage"
    Path(".dvc/config").write_text("")
    assert dvc_remote.read_default_remote_name() is None
    Path(".dvc/config").write_text("[core]\nremote = s\n['remote \"s\"']\nurl = nosuch://bucket\n")
    with pytest.raises(RemoteRefusedError, match=r"Unsupported URL type nosuch"):
        dvc_remote.read_default_remote_name()


def test_a_remote_that_cannot_be_used_is_refused(clone: Path) -> None:
    (clone / ".dvc/config").write_text(f"{NO_REMOTE}remote = elsewhere\n")
    status, error = run("sum", "--force")
    assert status == RemoteRefusedError.exit_code
    assert "the DVC remote `elsewhere`: cannot be used" in str(error)


def test_a_remote_that_cannot_be_used_stops_nothing_that_misses_nothing(
    there: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    Path(".dvc/config").write_text(f"{NO_REMOTE}remote = elsewhere\n")
    assert not dvc_stage.is_any_stage_stale(*STAGES)
    Path("source").write_text("three,two\n")
    assert run("make") == (0, None)
    assert ran(there) == ["make"]
    assert "make: runs without asking whether another worker has done it: the DVC remote" in capfd.readouterr().out
