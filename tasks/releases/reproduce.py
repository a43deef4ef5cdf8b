"""reproduce: make a published model once more from what its release says of itself, and compare the weights.

    release --provenance--> a temporary clone of the project at its commit: recipe, rows, validate, tokenize, train
            --weights-----> SHA-256 of each file, against those that the clone made

tasks.releases.clone is the clone, tasks.releases.rows what comes into it as data.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Literal

from params import ModelError, RecipeError
from params.artifacts import Artifacts
from tasks.digests import weights_in
from tasks.hub_client.connection import open_hub
from tasks.publishing.provenance import FILE, REBUILT
from tasks.releases.clone import Record, Release, cloned, write_recipe
from tasks.releases.rows import bring_rows
from tasks.stages import Report
from tasks.versions import versions

logger = logging.getLogger(__name__)
_TARGET = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)@([A-Za-z0-9][\w./-]*)")
_HUB_DEADLINE_S = 120.0


class WeightsFile(Report):
    """A file of weights, in the release and as it was made again."""

    path: str
    released: str | None
    """SHA-256; None where the release has no such file."""
    rebuilt: str | None


class Reproduction(Report):
    """How a model that was made again compares with the release."""

    repo_id: str
    commit: str
    """Of the release, on its Hub."""
    rows_from: Literal["cache", "source"]
    """DVC's cache or remote, or the source that was read again."""
    files: tuple[WeightsFile, ...]
    causes: tuple[str, ...]
    """What may have made the difference; empty if there is none."""
    folder: str | None
    """The clone, if it was kept."""

    @property
    def is_equal(self) -> bool:
        """Whether every file of weights has the same bytes."""
        return all(file.released == file.rebuilt for file in self.files)

    def require_equal(self) -> None:
        """Let a difference end the command.

        Raises:
            ModelError: the weights differ.
        """
        if not self.is_equal:
            different = ", ".join(file.path for file in self.files if file.released != file.rebuilt)
            what = f"the rebuilt weights are not those of the release: {different}"
            raise ModelError(f"{self.repo_id}@{self.commit}", what, "; ".join(self.causes))


def reproduce(
    root: Path, target: str, *, endpoint: str, keep: bool = False, timeout_s: float | None = None
) -> Reproduction:
    """Rebuild a release in a temporary clone, and compare its weights.

    Args:
        root: the project, in a git repository that has the release's commit.
        target: `owner/name@revision`; the revision is a tag, a commit or a branch.
        endpoint: the Hub's address, or `local`.
        keep: whether the clone stays, to be looked at.
        timeout_s: seconds that each stage may take; None: as long as it wants.

    Raises:
        RecipeError: `target` is malformed, or the release's recipe is neither in git nor in this project.
        HubRefusedError, TransientError: the Hub does not give the release out.
        ModelError: the release cannot be rebuilt, here or at all.
        DataError: the rows of the release cannot be had any more.
        EvergreenError: a stage failed in the clone as it would here.
    """
    release = _find(root, target, endpoint)
    record, recipe = release.record, release.record.recipe
    commit = record.git_commit
    if commit is None or not re.fullmatch("[0-9a-f]{40}", commit):
        what = "cannot be rebuilt: its code was in no git repository"
        if commit and commit.endswith("+"):
            what = f"cannot be rebuilt: its code was that of commit {commit[:-1]} with changes that were not committed"
        raise ModelError(release.where, what, "commit before training, and publish what comes of it")
    with _end_on_sigterm(), cloned(root, commit, release, keep=keep) as clone:
        path = clone.project / "params" / f"{recipe.name}.yaml"
        write_recipe(clone, path, release)
        made = Artifacts(recipe.name, clone.project)
        rows_from = bring_rows(clone, made, release, timeout_s)
        for stage in REBUILT[1:]:
            clone.stage(stage, recipe.name, timeout_s=timeout_s)
        rebuilt = weights_in(made.model)
        run = json.loads(made.report("train").read_text(encoding="utf-8"))["run"]
        files = tuple(
            WeightsFile(path=name, released=release.weights.get(name), rebuilt=rebuilt.get(name))
            for name in sorted({*release.weights, *rebuilt})
        )
        result = Reproduction(
            repo_id=release.repo_id,
            commit=release.commit,
            rows_from=rows_from,
            files=files,
            causes=tuple(_causes(release, rebuilt, run)) if release.weights != rebuilt else (),
            folder=str(clone.project) if keep else None,
        )
    _say(result)
    return result


def _find(root: Path, target: str, endpoint: str) -> Release:
    """Read the release's provenance, and the hashes of its weights."""
    if not (parsed := _TARGET.fullmatch(target)):
        raise RecipeError(target, "names no release", "write owner/name@revision, with a tag, a commit or `main`")
    repo_id, revision = parsed[1], parsed[2]
    with open_hub(Artifacts("reproduce", root), repo_id=repo_id, endpoint=endpoint) as (api, _):
        from tasks.hub_client.repository import PACE, tree, until_clear

        def look() -> tuple[str, str | None, dict[str, str]]:
            commit = str(api.model_info(repo_id, revision=revision).sha)
            files = tree(api, repo_id, commit)

            def content(name: str) -> bytes:
                with tempfile.TemporaryDirectory() as folder:
                    return Path(api.hf_hub_download(repo_id, name, revision=commit, local_dir=folder)).read_bytes()

            weights = {
                name: file.lfs.sha256 if file.lfs else hashlib.sha256(content(name)).hexdigest()
                for name, file in files.items()
                if name.endswith(".safetensors")
            }
            return commit, content(FILE).decode(errors="replace") if FILE in files else None, weights

        fix = "try again later"
        commit, text, weights = until_clear(api, repo_id, look, fix=fix, deadline_s=_HUB_DEADLINE_S, pace=PACE)
    where = f"{repo_id}@{commit}"
    if text is None or not weights:
        what = f"the revision {revision} holds no {'weights' if text else FILE}, so it is no release that says how it was made"
        raise ModelError(where, what, "name a release that Evergreen has published since it writes that file")
    try:
        record = Record.model_validate_json(text)
    except ValueError as error:
        what = f"{FILE} cannot be read: {' '.join(str(error).split())[:300]}"
        raise ModelError(where, what, "use the version of Evergreen that published it, or a newer one") from None
    logger.info("reproduce: %s, run %s, code %s", where, record.run, record.git_commit)
    return Release(repo_id, commit, record, weights)


@contextlib.contextmanager
def _end_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does, so that clone and stage do not stay behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _causes(release: Release, rebuilt: Mapping[str, str], run: str) -> Iterator[str]:
    """What may have made the weights differ, the likeliest first."""
    record = release.record
    if altered := [name for name, digest in record.weights.items() if release.weights.get(name) != digest]:
        same = " (the rebuilt weights are those that were)" if rebuilt == record.weights else ""
        yield f"the Hub does not hold the weights that were published{same}: {', '.join(altered)}"
    here = versions()
    for name, then in record.versions.items():
        if (now := here.get(name, "none")) != then:
            yield f"{name} was {then} and is {now}"
    if run != record.run:
        yield f"tokens, recipe or code differ from those of then: the run was {record.run} and is {run}"
    yield "another kind of processor, or another number of threads, adds up in another order"


def _say(result: Reproduction) -> None:
    for file in result.files:
        if file.released == file.rebuilt:
            logger.info("reproduce: %s is equal, SHA-256 %s", file.path, file.rebuilt)
        else:
            logger.info("reproduce: %s DIFFERS: released %s, rebuilt %s", file.path, file.released, file.rebuilt)
    for cause in result.causes:
        logger.info("reproduce: possible cause: %s", cause)
    said = "the weights are equal, bit for bit" if result.is_equal else "the weights are not those of the release"
    logger.info("reproduce: %s@%s: %s", result.repo_id, result.commit, said)
