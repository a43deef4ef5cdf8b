"""What is left of the local Hub after kills and races: `git fsck` accepts it, and it goes on serving."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError

from tasks.hub import LocalHub

# huggingface_hub uploads by `data=`, which httpx2 deprecates:
# https://github.com/huggingface/huggingface_hub/blob/main/src/huggingface_hub/lfs.py (_upload_single_part)
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")

REPO = "alice/model"
SERVE = """
    import sys
    from pathlib import Path
    from tasks.hub import LocalHub
    with LocalHub(Path(sys.argv[1]), tokens={"token-of-alice": "alice"}) as hub:
        print(hub.endpoint, flush=True)
        hub.serve_forever()
"""


@contextmanager
def server_process(root: Path) -> Iterator[tuple[subprocess.Popen[str], HfApi]]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SERVE), str(root)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process, HfApi(endpoint=process.stdout.readline().strip(), token="token-of-alice")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def fsck(root: Path) -> str:
    git = ["git", "-C", str(root / "models/alice/model.git"), "fsck", "--full", "--strict", "--no-dangling"]
    done = subprocess.run(git, capture_output=True, text=True)
    return f"{done.returncode} {done.stdout}{done.stderr}"


def put(api: HfApi, name: str, content: bytes, parent: str | None = None) -> str:
    operations = [CommitOperationAdd(name, content)]
    return str(api.create_commit(REPO, operations, commit_message=name, parent_commit=parent).oid)


def at_once(calls: list[Callable[[], object]]) -> list[object]:
    """The results of calls that start together, each on a thread of its own; for a refusal its status."""
    start = threading.Barrier(len(calls))

    def outcome(call: Callable[[], object]) -> object:
        start.wait()
        try:
            return call()
        except HfHubHTTPError as error:
            return error.response.status_code

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(outcome, calls))


def test_two_processes_on_one_folder_commit_in_turn(root: Path) -> None:
    rounds = 6
    with server_process(root) as (_, one), server_process(root) as (_, two):
        one.create_repo(REPO)
        for number in range(rounds):
            head = one.list_repo_commits(REPO)[0].commit_id
            outcomes = at_once(
                [
                    partial(put, api, f"{number}.txt", str(writer).encode(), parent=head)
                    for writer, api in enumerate([one, two] * 3)
                ]
            )
            won = [outcome for outcome in outcomes if outcome != 412]
            assert won == [two.list_repo_commits(REPO)[0].commit_id], outcomes
        assert len(one.list_repo_commits(REPO)) == rounds + 1
    assert fsck(root) == "0 "


def test_two_processes_create_one_repository(root: Path) -> None:
    with server_process(root) as (_, one), server_process(root) as (_, two):
        outcomes = at_once([partial(api.create_repo, REPO) for api in [one, two] * 4])
        assert outcomes.count(409) == 7, outcomes
    assert fsck(root) == "0 "
    assert [path.name for path in (root / "models/alice").iterdir()] == ["model.git"]


def commit_until_killed(endpoint: str, folder: str) -> list[str]:
    """Commit without a pause; the commits that were answered."""
    landed = []
    with httpx2.Client(headers={"Authorization": "Bearer token-of-alice"}) as client:
        while True:
            file = {"path": f"{folder}/{len(landed)}.txt", "content": "x" * 2000 + f"{folder} {len(landed)}"}
            body = [{"key": "header", "value": {"summary": "s"}}, {"key": "file", "value": file}]
            try:
                answer = client.post(
                    f"{endpoint}/api/models/{REPO}/commit/main", content="\n".join(map(json.dumps, body))
                )
                landed.append(answer.json()["commitOid"])
            except httpx2.TransportError:
                return landed


def test_kill_in_the_middle_of_commits(root: Path) -> None:
    """Clients commit as fast as they can; the server is killed, looked at, and started again."""
    with LocalHub(root, tokens={"token-of-alice": "alice"}) as hub:
        HfApi(endpoint=hub.endpoint, token="token-of-alice").create_repo(REPO)
    landed: list[str] = []
    for kill in range(4):
        with server_process(root) as (process, api), ThreadPoolExecutor(3) as threads:
            writers = [threads.submit(commit_until_killed, api.endpoint, f"{kill}/{writer}") for writer in range(3)]
            time.sleep(0.4 + 0.037 * kill)
            process.send_signal(signal.SIGKILL)
            landed += [oid for writer in writers for oid in writer.result()]
        # A file that dulwich was just writing is reported, and not counted as damage; the next commit sweeps it.
        assert [line for line in fsck(root).splitlines() if not line.endswith(".lock")] in ([], ["0 "])
    with server_process(root) as (_, api):
        history = [entry.commit_id for entry in api.list_repo_commits(REPO)]
        assert len(landed) > 10, "too few commits landed before the kills to say anything"
        assert set(landed) <= set(history), "a commit that was answered is gone"
        put(api, "after.txt", b"alive")
        assert api.file_exists(REPO, "after.txt")
    assert fsck(root) == "0 "


KILL_AT = """
    import os, signal, sys
    from pathlib import Path
    from tasks.hub.records import PutFile
    from tasks.hub.store import Store

    repository = Store(Path(sys.argv[1])).open("models", "alice", "model")
    step, replace = 0, os.replace

    def commit(content):
        changes = [PutFile("a/b.txt", b"b" + content), PutFile("c.txt", b"c" + content)]
        repository.commit("main", changes, title="t", description="", parent=None, user="alice")

    for fatal in range(1, 20):
        child = os.fork()
        if child == 0:
            def dying_replace(source, target):
                global step
                step += 1
                if step == fatal:
                    os.kill(os.getpid(), signal.SIGKILL)
                replace(source, target)
            os.replace = dying_replace
            commit(b"%d" % fatal)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status)
        print(fatal if killed else "done", end=" ", flush=True)
        if not killed:
            break
        commit(b"%d" % fatal)  # the same again, over what the killed one left behind
"""


def test_kill_before_each_write_of_a_commit(hub: LocalHub, alice: HfApi, root: Path) -> None:
    """A child is killed before its 1st, 2nd, 3rd ... rename; the same commit then lands in another process."""
    alice.create_repo(REPO)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILL_AT), str(root)], capture_output=True, text=True, check=True
    )
    # two blobs, two trees, the commit, the branch: six renames, and the seventh child lives
    assert done.stdout.split() == ["1", "2", "3", "4", "5", "6", "done"]
    assert fsck(root) == "0 "
    history = alice.list_repo_commits(REPO)
    assert len(history) == 1 + 6 + 1, "a killed commit landed, or an unharmed one did not"
    assert [path.name for path in (root / "models/alice/model.git").rglob("*.lock")] == ["hub.lock"]


def test_sigterm_stops_the_server_in_good_order(root: Path) -> None:
    with server_process(root) as (process, api):
        api.create_repo(REPO)
        process.terminate()
        assert process.wait(timeout=5) == 0
