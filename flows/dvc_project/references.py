"""What the repository still refers to, in the words of dvc.lock and .dvc files: data, and the models that were published from it.

It reads texts instead of asking DVC, which does not know all references of git, other worktrees and what a removed recipe has
left in dvc.lock, and which fails if one of many versions of dvc.yaml is not valid.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import psutil

from flows.dvc_project import git_texts
from params import TransientError

_HASH: Final = re.compile(r"[0-9a-f]{32}(\.dir)?")
_PUBLISHED: Final = re.compile(r'"event":"(published|proposed|kept|rollback)".*"repo_id":"[^"]*","endpoint":"[^"]*"')
_LOGS: Final = ("release/log.jsonl", "unrecorded/log.jsonl")
_PLACE: Final = re.compile(r'"repo_id":"([^"]*)","endpoint":"([^"]*)"')
_LOCK: Final = re.compile(
    r"\A(?![\s\S]*^[ -]*md5: (?!['\"]?[0-9a-f]{32}))[\s\S]*^[ -]*(schema|stages|outs|deps|cmd):", re.MULTILINE
)
"""What each dvc.lock and .dvc file has: a key that DVC writes, and no MD5 hash that is none."""
_LOG: Final = re.compile(r"\{[^{}\n]*\}")
_EXPERIMENTS: Final = Path(".dvc/tmp/exps")
"""Where DVC runs queued experiments, each in a copy of the project that uses the same cache."""


def find_referenced_hashes() -> set[str]:
    """Return every MD5 hash in a dvc.lock or a .dvc file that git, DVC or a person may go back to.

    These are the files here, in other worktrees, in queued experiments, in the indexes of all worktrees, and those in the
    commit of every reference (branches of remotes, tags, stashes, saved experiments, records of runs) and of every file of git.

    Raises:
        EvergreenError: git cannot say it.
    """
    found = git_texts.find_matching_texts(lambda path: path.endswith(("dvc.lock", ".dvc")), _LOCK)
    return {match[0] for text in found for match in _HASH.finditer(text)}


def find_published_repositories() -> set[tuple[str, str]]:
    """Return where the logs of receipts say that a model was published: the repository's id, and the Hub.

    The logs are those of all recipes, also removed ones, in the same places as for `find_referenced_hashes`.

    Raises:
        EvergreenError: git cannot say it.
    """
    found = git_texts.find_matching_texts(lambda path: path.endswith(_LOGS), _LOG)
    lines = (match[0] for text in found for match in _PUBLISHED.finditer(text))
    return {match.groups() for line in lines if (match := _PLACE.search(line))}  # type: ignore[misc]


def refuse_running_experiment() -> None:
    """Fail while DVC runs an experiment in a copy of the project, whose locks are not the project's.

    Raises:
        TransientError: names the process.
    """
    for path in _EXPERIMENTS.rglob("run/*/*.json"):
        about = json.loads(path.read_text(encoding="utf-8"))
        if about.get("returncode") is None and psutil.pid_exists(about["pid"]):
            raise TransientError(str(path), f"an experiment runs as process {about['pid']}", "wait until it ends")
