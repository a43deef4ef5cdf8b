"""The local Hub after kills and races: `git fsck` finds no error, and it keeps serving."""

from __future__ import annotations

import hashlib
import itertools
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

from tasks.hub_server.server import LocalHub
from tests.support import forked
from tests.support.project import ROOT, wait_for
from tests.unit.tasks.hub_server.contract import lfs_batch

REPO = "alice/model"
SERVE = """
    import sys
    from pathlib import Path
    from tasks.hub_server.server import LocalHub
    with LocalHub(Path(sys.argv[1]), tokens={"token-of-alice": "alice"}) as hub:
        print(hub.endpoint, flush=True)
        hub.serve_forever()
"""


@contextmanager
def server_process(root: Path) -> Iterator[tuple[subprocess.Popen[str], HfApi]]:
    process = subprocess.Popen(
        [forked.python(), "-c", textwrap.dedent(SERVE), str(root)], stdout=subprocess.PIPE, text=True
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
    """Start calls at the same time, each in its own thread. Return their results; for an error its HTTP status."""
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


def propose(api: HfApi, name: str, content: bytes) -> int:
    made = api.create_commit(REPO, [CommitOperationAdd(name, content)], commit_message=name, create_pr=True)
    assert made.pr_num
    return made.pr_num


def merge(api: HfApi, number: int) -> object:
    api.merge_pull_request(REPO, number)
    return 200


def test_two_processes_merge_in_turn(root: Path) -> None:
    """Where pull requests change the same file, one is merged, and each is merged once."""
    with server_process(root) as (_, one), server_process(root) as (_, two):
        one.create_repo(REPO)
        for turn in range(3):
            history = len(one.list_repo_commits(REPO))
            first, second = (propose(api, "same.txt", b"%d %d" % (turn, n)) for n, api in enumerate((one, two)))
            outcomes = at_once([partial(merge, api, number) for api in (one, two) for number in (first, second)])
            assert sorted(map(str, outcomes)) == ["200", "409", "409", "409"]
            statuses = {number: two.get_discussion_details(REPO, number).status for number in (first, second)}
            assert sorted(statuses.values()) == ["merged", "open"]
            head = one.list_repo_commits(REPO)[0]
            assert len(one.list_repo_commits(REPO)) == history + 1
            merged = next(number for number, status in statuses.items() if status == "merged")
            assert head.title == f"same.txt (#{merged})"
            assert two.get_discussion_details(REPO, merged).merge_commit_oid == head.commit_id
    assert fsck(root) == "0 "


def test_two_processes_number_pull_requests(root: Path) -> None:
    with server_process(root) as (_, one), server_process(root) as (_, two):
        one.create_repo(REPO)
        numbers = at_once([partial(propose, api, f"{n}.txt", b"x") for n, api in enumerate([one, two] * 4)])
        assert sorted(map(int, map(str, numbers))) == list(range(1, 9))
        assert {found.num for found in two.get_repo_discussions(REPO)} == set(range(1, 9))


def commit_until_killed(endpoint: str, folder: str, landed: list[str]) -> None:
    """Commit without a pause, and record the commits that were confirmed."""
    with httpx2.Client(headers={"Authorization": "Bearer token-of-alice"}) as client:
        for number in itertools.count():
            file = {"path": f"{folder}/{number}.txt", "content": "x" * 2000 + f"{folder} {number}"}
            body = [{"key": "header", "value": {"summary": "s"}}, {"key": "file", "value": file}]
            try:
                answer = client.post(
                    f"{endpoint}/api/models/{REPO}/commit/main", content="\n".join(map(json.dumps, body))
                )
                landed.append(answer.json()["commitOid"])
            except httpx2.TransportError:
                return


def test_kill_in_the_middle_of_commits(root: Path) -> None:
    """Clients commit as fast as they can; the server is killed, checked and started again."""
    with LocalHub(root, tokens={"token-of-alice": "alice"}) as hub:
        HfApi(endpoint=hub.endpoint, token="token-of-alice").create_repo(REPO)
    landed: list[str] = []
    for kill in range(4):
        with server_process(root) as (process, api), ThreadPoolExecutor(3) as threads:
            before = len(landed)
            for writer in range(3):
                threads.submit(commit_until_killed, api.endpoint, f"{kill}/{writer}", landed)
            wait_for(lambda: len(landed) >= before + 5, "commits to land")  # noqa: B023 (called at once)
            time.sleep(0.037 * kill)
            process.send_signal(signal.SIGKILL)
        # git fsck reports a lock file that dulwich was just writing. It is no damage; the next commit deletes it.
        assert [line for line in fsck(root).splitlines() if not line.endswith(".lock")] in ([], ["0 "])
    with server_process(root) as (_, api):
        history = [entry.commit_id for entry in api.list_repo_commits(REPO)]
        assert set(landed) <= set(history), "a confirmed commit is missing"
        put(api, "after.txt", b"alive")
        assert api.file_exists(REPO, "after.txt")
    assert fsck(root) == "0 "


STRIDES = {"create": 29, "commit": 31, "tag": 11, "untag": 7, "delete": 23}
STRIDES |= {"propose": 19, "extend": 17, "merge": 9, "close": 7}  # a merge has 9 between moving main and its end
STRIDES |= {"hide": 19, "rename": 3}
"""The quick test tries every n-th of about 1,200 writes, since each takes a third of a second."""
TELLING = {"commit", "merge", "delete"}
"""What `make test` tries; the others write in the same ways."""


def kill_at_writes(operation: str, folder: Path, stride: int) -> tuple[int, int]:
    program = [sys.executable, "-m", "tests.unit.tasks.hub_server.kills", operation, str(folder), str(stride)]
    done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    places, landed = map(int, done.stdout.split())
    return places, landed


@pytest.mark.parametrize(
    ("operation", "stride"),
    [pytest.param(name, n, marks=() if name in TELLING else pytest.mark.slow) for name, n in STRIDES.items()],
)
def test_kill_before_some_writes(operation: str, stride: int, tmp_path: Path) -> None:
    places, landed = kill_at_writes(operation, tmp_path, stride)
    assert places > stride
    assert 0 <= landed < places


@pytest.mark.slow
@pytest.mark.parametrize("operation", STRIDES)
def test_kill_before_every_write(operation: str, tmp_path: Path) -> None:
    places, _ = kill_at_writes(operation, tmp_path, 1)
    assert places > (20 if operation != "rename" else 6)


def test_repository_deleted_during_commits(root: Path) -> None:
    """Commits and uploads to a repository that is being deleted get a 404 and leave nothing behind."""
    with server_process(root) as (_, one), server_process(root) as (_, two):
        for turn in range(3):
            one.create_repo(REPO)

            content = b"x" * 100 + bytes([turn])
            writers = [partial(put_many, api, content) for api in (one, two)]
            outcomes = at_once([*writers, partial(delete_soon, two)])
            assert set(outcomes) <= {200, 404}, outcomes
            assert [path.name for path in (root / "models/alice").iterdir()] == []


def test_repository_deleted_during_an_upload(alice: HfApi, hub: LocalHub, root: Path) -> None:
    alice.create_repo(REPO)
    content = b"x" * 1000
    (answer,) = lfs_batch(hub.endpoint, REPO, (hashlib.sha256(content).hexdigest(), len(content)))

    def blocks() -> Iterator[bytes]:
        yield content[:500]
        incoming = root / "models/alice/model.git/lfs/incoming"
        wait_for(lambda: incoming.exists() and list(incoming.iterdir()), "the server to write", 10)
        alice.delete_repo(REPO)
        yield content[500:]

    upload = httpx2.put(answer["actions"]["upload"]["href"], content=blocks())
    assert (upload.status_code, upload.headers["x-error-code"]) == (404, "RepoNotFound")
    assert [path.name for path in (root / "models/alice").iterdir()] == []


def put_many(api: HfApi, content: bytes) -> object:
    try:
        for number in range(30):
            put(api, f"{number}.safetensors", content + bytes([number]))
    except RuntimeError as error:  # the client wraps the HTTP error of an upload
        if isinstance(error.__cause__, HfHubHTTPError):
            raise error.__cause__ from None
        raise
    return 200


def delete_soon(api: HfApi) -> object:
    time.sleep(0.15)
    api.delete_repo(REPO)
    return 200


def test_sigterm_stops_the_server_cleanly(root: Path) -> None:
    with server_process(root) as (process, api):
        api.create_repo(REPO)
        process.terminate()
        assert process.wait(timeout=5) == 0
