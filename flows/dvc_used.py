"""What the repository still refers to, in the words of dvc.lock and .dvc files: data, and the models that were published from it.

It reads texts instead of asking DVC, which does not know all references of git, other worktrees and what a removed recipe has
left in dvc.lock, and which fails if one of many versions of dvc.yaml is not valid.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from params import EvergreenError, TransientError

_HASH: Final = r"[0-9a-f]{32}(\.dir)?"
_PUBLISHED: Final = r'"event":"(published|proposed|kept|rollback)".*"repo_id":"[^"]*","endpoint":"[^"]*"'
_PLACE: Final = re.compile(r'"repo_id":"([^"]*)","endpoint":"([^"]*)"')
_EXPERIMENTS: Final = Path(".dvc/tmp/exps")
"""Where DVC runs queued experiments, each in a copy of the project that uses the same cache."""
_COMMITS_AT_ONCE: Final = 1000


def hashes() -> set[str]:
    """Return every MD5 hash in a dvc.lock or a .dvc file that git, DVC or a person may go back to.

    These are the files here, in git's index, in other worktrees and in queued experiments, and those in the commit of every
    reference: branches of remotes, tags, stashes, saved experiments, records of runs.

    Raises:
        EvergreenError: git cannot say it.
    """
    found = _search(_HASH, "dvc.lock", "*.dvc")
    for path in (Path("dvc.lock"), *_EXPERIMENTS.rglob("dvc.lock"), *_EXPERIMENTS.rglob("*.dvc")):
        if path.is_file():
            found += [match[0] for match in re.finditer(_HASH, path.read_text(encoding="utf-8", errors="replace"))]
    return set(found)


def publications() -> set[tuple[str, str]]:
    """Return where the logs of receipts say that a model was published: the repository's id, and the Hub.

    The logs are those of all recipes, also removed ones, in the same places as for `hashes`.

    Raises:
        EvergreenError: git cannot say it.
    """
    found = _search(_PUBLISHED, "release/log.jsonl")
    for path in (*Path("runs").glob("*/release/log.jsonl"), *Path(".scratch").glob("*/unrecorded/log.jsonl")):
        found += [match[0] for match in re.finditer(_PUBLISHED, path.read_text(encoding="utf-8", errors="replace"))]
    return {match.groups() for line in found if (match := _PLACE.search(line))}  # type: ignore[misc]


def refuse_running_experiment() -> None:
    """Fail while DVC runs an experiment in a copy of the project, whose locks are not the project's.

    Raises:
        TransientError: names the process.
    """
    for path in _EXPERIMENTS.rglob("run/*/*.json"):
        about = json.loads(path.read_text(encoding="utf-8"))
        if about.get("returncode") is None and psutil.pid_exists(about["pid"]):
            raise TransientError(str(path), f"an experiment runs as process {about['pid']}", "wait until it ends")


def _search(pattern: str, *names: str) -> list[str]:
    """Return what matches in the files of these names: in all commits that a reference leads to, in the index and worktrees."""
    if not _git("rev-parse", "--git-dir", absent_ok=True):
        return []
    worktrees = [
        line.partition(" ")[2] for line in _git("worktree", "list", "--porcelain") if line.startswith("worktree ")
    ]
    grep = ("grep", "--no-color", "-hoE", "-e", pattern)
    paths = ["--", *(f":(top)*{name}" for name in names)]
    found = _git(*grep, "--cached", *paths)
    for folder in filter(lambda path: Path(path).is_dir(), worktrees):
        found += _git("-C", folder, *grep, "--untracked", "--no-exclude-standard", *paths)
    commits = iter(sorted(set(_commits())))
    while some := list(itertools.islice(commits, _COMMITS_AT_ONCE)):
        found += _git(*grep, *some, *paths)
    return found


def _commits() -> Iterator[str]:
    """Yield the commits of all references, of stashes below the newest, and of the HEADs of worktrees."""
    references = _git("for-each-ref", "--format=%(refname) %(objecttype) %(objectname) %(*objecttype) %(*objectname)")
    for name, *objects in map(str.split, references):
        yield from (commit for kind, commit in zip(objects[::2], objects[1::2], strict=True) if kind == "commit")
        if name.endswith("stash"):  # git's, and those of DVC's queues: only the log of the reference has the older ones
            yield from _git("rev-list", "--walk-reflogs", name)
    heads = _git("worktree", "list", "--porcelain")
    yield from (line.split()[1] for line in heads if line.startswith("HEAD ") and line.strip("HEAD 0"))


def _git(*command: str, absent_ok: bool = False) -> list[str]:
    try:
        done = subprocess.run(
            ["git", *command],
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except FileNotFoundError:
        raise EvergreenError("git", "is not installed, so it is unknown what is in use", "install git") from None
    nothing_found = done.returncode == 1 and "grep" in command and not done.stderr
    if done.returncode and not nothing_found:
        if absent_ok and not Path(".git").exists() and "not a git repository" in done.stderr:
            return []
        raise EvergreenError("git", f"cannot say what is in use: {done.stderr.strip()}", "correct what it names")
    return done.stdout.splitlines()
