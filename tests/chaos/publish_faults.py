"""Many schedules of failures under which a release must land exactly once.

A schedule follows from its seed: what is released over what, which requests fail and how, who commits in between, how many
publishers run at the same time and when they are killed. Publishers are processes, which are started until one finishes.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.hf_api import RepoFile

from params.foundation.errors import EvergreenError, StaleBlessingError
from tasks.hub_client import time_limits
from tasks.hub_client.repository import HubRepository, RetryPolicy, tree_weights_digest
from tasks.publishing.exactly_once import publish_release
from tasks.publishing.release_plan import ANY_WEIGHTS, ReleasePlan, plan_release
from tests.support.faulty_hub import STRANGER, Fault, FaultyHub, make_client_quick

SEED = int(os.environ.get("EVERGREEN_CHAOS_SEED", "1"))
PUBLISHES = int(os.environ.get("EVERGREEN_CHAOS_PUBLISHES", "9"))
TOKEN = "token-of-alice"
_ROUNDS = 15
_ANSWER_TIMEOUT_S = 0.3
_REQUESTS = {
    "GET .*/refs": 1,
    "GET .*/commits/": 1,
    "GET .*/tree/": 1,
    "POST .*/repos/create": 1,
    "POST .*/preupload/": 1,
    "POST .*/objects/batch": 1,
    "PUT /uploads/": 2,
    "POST .*/commit/": 6,
    "POST .*/tag/": 3,
    "": 2,
}
"""Patterns of requests that can fail, and their weights in the choice."""
_WAITS = ({}, {}, {"retry-after": "0"}, {"retry-after": "2"}, {"retry-after": "31536000"})
_STALE = StaleBlessingError.__name__


@dataclass(frozen=True)
class Interruption:
    """A fault at a request, and what happens at that moment."""

    request: str
    kind: str
    status: int
    headers: dict[str, str]
    event: str
    """`stranger`: someone commits another file; `rival`: someone commits other weights; `kill`: the publishers are killed;
    empty: nothing."""


@dataclass(frozen=True)
class Schedule:
    """What happens while a release is published."""

    seed: int
    is_first: bool
    """Whether the repository is empty; otherwise it holds an earlier release."""
    is_compared: bool
    """Whether the release may only replace the weights that were there before."""
    publishers: int
    interruptions: tuple[Interruption, ...]
    kills_s: tuple[float | None, ...]
    """When each publisher is killed, in seconds after its start; None for never."""

    @property
    def name(self) -> str:
        """Name of the repository, which is part of no other name."""
        return f"chaos-{self.seed}-x"

    @property
    def repo_id(self) -> str:
        return f"alice/{self.name}"


def schedule(seed: int) -> Schedule:
    """Return the schedule of a seed."""
    rng = random.Random(seed)
    interruptions = []
    for _ in range(rng.randrange(0, 6)):
        event = rng.choice(["", "", "", "", "stranger", "stranger", "rival", "kill"])
        kinds = ["before", "before", "after", "lost", "cut", "silent", "mute"]
        interruptions.append(
            Interruption(
                request=rng.choices(list(_REQUESTS), list(_REQUESTS.values()))[0],
                kind=rng.choice([*kinds, "none", "none"] if event else kinds),
                status=rng.choice([408, 409, 412, 429, 429, 500, 502, 503, 504]),
                headers=rng.choice(_WAITS),
                event=event,
            )
        )
    return Schedule(
        seed=seed,
        is_first=rng.random() < 0.4,
        is_compared=rng.random() < 0.6,
        publishers=rng.choice([1, 1, 2]),
        interruptions=tuple(interruptions),
        kills_s=tuple(rng.choice([None, None, rng.uniform(0.0, 0.3)]) for _ in range(rng.randrange(0, 4))),
    )


def write_model(folder: Path, rng: random.Random) -> None:
    """Write small files, and large ones that are uploaded in one piece or in parts."""
    (folder / "sub").mkdir(parents=True)
    (folder / "README.md").write_text(f"---\nlicense: mit\n---\n# Model {rng.random()}\n")
    (folder / "config.json").write_text(json.dumps({"number": rng.random()}))
    for number in range(rng.randrange(1, 4)):
        (folder / f"sub/{rng.randrange(10)}-{number}.txt").write_text("x" * rng.randrange(100))
    (folder / "model.safetensors").write_bytes(rng.randbytes(rng.randrange(1000, 3 << 16)))
    if rng.random() < 0.3:
        (folder / "sub/more.safetensors").write_bytes(rng.randbytes(rng.randrange(1000, 1 << 16)))


def plan(schedule: Schedule, folder: Path) -> ReleasePlan:
    """Return the release of a folder."""
    return plan_release(folder, repo_id=schedule.repo_id, private=False, made_from={"seed": schedule.seed})


def run_publisher(schedule: Schedule, folder: Path, endpoint: str, replaces: str | None, outcome: Path) -> None:
    """Publish in a process of its own; write `outcome` unless the process is killed."""
    make_client_quick()
    time_limits._ANSWER_TIMEOUT_S = _ANSWER_TIMEOUT_S
    api = HfApi(endpoint=endpoint, token=TOKEN, headers={"x-schedule": schedule.name})
    retries = RetryPolicy(attempts=6, sleep=lambda wait_s: time.sleep(min(wait_s, 0.01)))
    repository = HubRepository(api, schedule.repo_id, timeout_s=10, retries=retries)
    try:
        done = publish_release(repository, replace(plan(schedule, folder), replaces=replaces))
    except EvergreenError as error:
        outcome.write_text(json.dumps({"error": type(error).__name__, "what": str(error)}))
        os._exit(error.exit_code)
    outcome.write_text(json.dumps({"commit": done.commit, "how": done.how}))


class Campaign:
    """Runs schedules, one after the other."""

    def __init__(self, hub: FaultyHub, root: Path) -> None:
        self.hub, self.root = hub, root
        self.stranger = HfApi(endpoint=hub.endpoint, token=TOKEN, headers=STRANGER)
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["pytest", "tests.chaos.publish_faults"])
        self.running: list[BaseProcess] = []
        self.foreign = 0
        self.tally: Counter[str] = Counter()

    def run(self, schedule: Schedule) -> None:
        """Publish under a schedule, publish once more without faults, and check what is in the repository."""
        folder = self.root / schedule.name
        rng = random.Random(schedule.seed)
        write_model(folder / "before", rng)
        write_model(folder / "model", rng)
        before = None if schedule.is_first else plan(schedule, folder / "before")
        if before is not None:
            publish_release(HubRepository(self.stranger, schedule.repo_id), before)
        elif any(interruption.event for interruption in schedule.interruptions):
            self.stranger.create_repo(schedule.repo_id)
        release = plan(schedule, folder / "model")
        replaces = (before.weights if before else None) if schedule.is_compared else ANY_WEIGHTS
        self.hub.faults[:] = [self._fault(schedule, interruption) for interruption in schedule.interruptions]
        try:
            outcomes = self._run_until_finished(schedule, folder, replaces)
            self.tally["faults met"] += sum(fault.times == 0 for fault in self.hub.faults)
        finally:
            self.hub.faults.clear()
        outcomes += self._run_publishers(schedule, folder, replaces, 1, [])
        self._check(schedule, before, release, replaces, outcomes)

    def _run_until_finished(self, schedule: Schedule, folder: Path, replaces: str | None) -> list[dict[str, str]]:
        kills, outcomes = list(schedule.kills_s), []
        for _ in range(_ROUNDS):
            count = schedule.publishers
            found = self._run_publishers(schedule, folder, replaces, count, kills[:count])
            kills = kills[count:]
            outcomes += found
            if all("commit" in outcome or outcome.get("error") == _STALE for outcome in found):
                return outcomes
        raise AssertionError(f"no publisher has finished in {_ROUNDS} rounds: {outcomes}")

    def _run_publishers(
        self, schedule: Schedule, folder: Path, replaces: str | None, count: int, kills_s: list[float | None]
    ) -> list[dict[str, str]]:
        """Run `count` publishers at the same time, and return the outcome of each; empty for a killed one."""
        paths = [folder / f"outcome-{number}.json" for number in range(count)]
        for path in paths:
            path.unlink(missing_ok=True)
        self.running = [
            self.context.Process(
                target=run_publisher, args=(schedule, folder / "model", self.hub.endpoint, replaces, path)
            )
            for path in paths
        ]
        for process in self.running:
            process.start()
        timers = [
            threading.Timer(kill_s, process.kill)
            for process, kill_s in zip(self.running, kills_s, strict=False)
            if kill_s is not None
        ]
        for timer in timers:
            timer.start()
        for process in self.running:
            process.join(60)
        for timer in timers:
            timer.cancel()
            timer.join()
        codes = [process.exitcode for process in self.running]
        self.tally["killed"] += codes.count(-9)
        self.tally["publishers"] += count
        assert set(codes) <= {0, -9, os.EX_TEMPFAIL}, (codes, [path.read_text() for path in paths if path.exists()])
        return [json.loads(path.read_text()) if code != -9 else {} for path, code in zip(paths, codes, strict=True)]

    def _fault(self, schedule: Schedule, interruption: Interruption) -> Fault:
        actions = {"": lambda: None, "kill": self._kill}
        actions["stranger"] = lambda: self._commit(schedule, f"other-{self.foreign}", "by a stranger")
        actions["rival"] = lambda: self._commit(schedule, "model.safetensors", "by a rival")
        match = f"^(?=.*{schedule.name}).*{interruption.request}"
        return Fault(
            match, interruption.kind, interruption.status, interruption.headers, action=actions[interruption.event]
        )

    def _kill(self) -> None:
        for process in self.running:
            process.kill()

    def _commit(self, schedule: Schedule, path: str, title: str) -> None:
        self.foreign += 1
        content = random.Random(self.foreign).randbytes(100)
        with contextlib.suppress(OSError, RuntimeError):  # the commit itself may fail
            self.stranger.create_commit(
                schedule.repo_id, [CommitOperationAdd(path, content)], commit_message=title, commit_description=path
            )

    def _check(
        self,
        schedule: Schedule,
        before: ReleasePlan | None,
        release: ReleasePlan,
        replaces: str | None,
        outcomes: list[dict[str, str]],
    ) -> None:
        commits = list(self.stranger.list_repo_commits(schedule.repo_id))[::-1]
        trees = [self._tree(schedule, commit.commit_id) for commit in commits]
        ours = [n for n, commit in enumerate(commits) if f"Publish-Id: {release.publish_id}" in commit.message]
        rivals = [n for n, commit in enumerate(commits) if commit.title == "by a rival"]
        reported = {outcome["commit"] for outcome in outcomes if "commit" in outcome}
        tags = {tag.name: tag.target_commit for tag in self.stranger.list_repo_refs(schedule.repo_id).tags}
        if before is not None:
            assert tags.pop(before.tag) == commits[1].commit_id
        if any(outcome.get("error") == _STALE for outcome in outcomes):
            assert schedule.is_compared, "refused without a comparison"
            assert rivals, "the weights did not change"
            assert (ours, tags, reported) == ([], {}, set()), "it was refused, but it landed"
            self.tally["stale"] += 1
        else:
            assert len(ours) == 1, f"{len(ours)} commits"
            assert tags == {release.tag: commits[ours[0]].commit_id}
            assert reported == set(tags.values())
            if schedule.is_compared:
                assert tree_weights_digest(trees[ours[0] - 1]) == replaces, (
                    "it replaced other weights than those it was compared with"
                )
            self.tally["landed"] += 1
        expected: dict[str, tuple[str, ...]] = {}
        for commit, tree in zip(commits, trees, strict=True):
            found = {path: _content(file) for path, file in tree.items() if path != ".gitattributes"}
            plans = {f"Publish {plan.tag}": plan for plan in (before, release) if plan is not None}
            if commit.title in plans:
                expected = {file.path: (file.sha256, file.git_sha1) for file in plans[commit.title].files}
            elif commit.title in ("by a stranger", "by a rival"):
                expected = expected | {commit.message.strip(): (found[commit.message.strip()],)}
                self.tally["foreign commits"] += 1
            else:
                assert commit is commits[0], f"an unknown commit: {commit.title}"
            assert found.keys() == expected.keys(), commit.title
            assert all(found[path] in expected[path] for path in found), commit.title

    def _tree(self, schedule: Schedule, commit: str) -> Mapping[str, RepoFile]:
        entries = self.stranger.list_repo_tree(schedule.repo_id, recursive=True, revision=commit)
        return {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}


def _content(file: RepoFile) -> str:
    return file.lfs.sha256 if file.lfs else file.blob_id
