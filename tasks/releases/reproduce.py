"""reproduce: train a published model again from the record in its release, and compare the weights.

    release --evergreen-provenance.json--> a temporary clone of the project at its commit: recipe, rows, validate, tokenize, train
            --weights--------------------> SHA-256 of each file, compared with those from the clone

tasks.releases.clone makes the clone, and brings the rows into it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
import signal
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from params import HubRefusedError, ModelError, RecipeError
from params.foundation.artifacts import Artifacts
from params.foundation.stages import UP_TO_TRAIN
from tasks.digests import WEIGHTS, files_in_release_form, weight_file_hashes, weights_digest
from tasks.hub_client.connection import LOCAL, LOCAL_FOLDER, open_repository
from tasks.publishing.provenance import FILE, MAX_BYTES
from tasks.releases.clone import (
    ProjectClone,
    ProvenanceRecord,
    ReproducibleRelease,
    clone_project_in_block,
    restore_or_ingest_rows,
    restore_or_link_models,
    write_recipe_and_link_files,
)
from tasks.training.versions import installed_version, training_library_versions

logger = logging.getLogger(__name__)
_TARGET = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)@([A-Za-z0-9][\w./-]*)")
_HUB_TIMEOUT_S = 120.0
_MAX_WEIGHTS = 64 << 20
"""Bytes of a file of weights that is not a git-lfs file, of which the Hub tells no SHA-256. Hubs take no larger ones."""


def reproduce(
    root: Path,
    target: str,
    *,
    endpoint: str,
    keep: bool = False,
    chain: bool = False,
    trusted: Collection[str] = (),
) -> None:
    """Make a release again in a temporary clone, and compare its weights.

    Of the releases that it started from, one after the other, the weights are looked for on the Hub; with `chain`, each is made again.
    Only code runs that a branch of the project has, or a commit in `trusted`.

    Raises:
        RecipeError: `target` is malformed, or the release's recipe is neither in git nor in this project.
        HubRefusedError, TransientError: the Hub refuses, or gives no clear answer.
        ModelError: the weights differ, or the release cannot be made again, here or anywhere.
        DataError: the rows of the release no longer exist.
        EvergreenError: a stage failed in the clone.
    """
    release = _read_release(root, target, endpoint)
    parents = _read_parents(root, release, needs_all=chain)
    _make_again(root, release, keep=keep, trusted=trusted)
    for parent in parents if chain else ():
        logger.info("reproduce: the release before it")
        _make_again(root, parent, keep=keep, trusted=trusted)


def _read_parents(root: Path, release: ReproducibleRelease, *, needs_all: bool) -> list[ReproducibleRelease]:
    """Return the release that a release started from, the one that this started from, and so on.

    ModelError if the Hub lacks the first of them or, with `needs_all`, any; a warning otherwise.
    """
    found = list[ReproducibleRelease]()
    while start := release.record.start:
        try:
            parent = _read_release(root, f"{start.repo_id}@{start.commit}", start.endpoint)
            why = "" if weights_digest(parent.weights) == start.weights else "it has other weights now"
        except (HubRefusedError, ModelError) as error:
            why = f"{error.where}: {error.what}"
        if why:
            what = f"it started from {start.name}, commit {start.commit}, which is not there as it was: {why}"
            if needs_all or not found:
                fix = "bring that release back to the Hub: without it the training cannot be repeated"
                raise ModelError(release.where, what, fix)
            logger.warning("reproduce: %s: %s, so it could not be made again itself", release.where, what)
            break
        found.append(parent)
        release = parent
    return found


def _make_again(root: Path, release: ReproducibleRelease, *, keep: bool, trusted: Collection[str]) -> None:
    record, recipe = release.record, release.record.recipe
    commit = record.git_commit
    if commit is None or not re.fullmatch("[0-9a-f]{40}", commit):
        what = "cannot be made again: its code was not in a git repository"
        if commit and commit.endswith("+"):
            what = f"cannot be made again: its code was commit {commit[:-1]} with uncommitted changes"
        raise ModelError(release.where, what, "commit, train again and publish that model")
    with (
        _end_on_sigterm(),
        clone_project_in_block(root, commit, release, keep=keep, trusted=trusted) as clone,
    ):
        write_recipe_and_link_files(clone, clone.project / "params" / f"{recipe.name}.yaml", release)
        made = Artifacts(recipe.name, clone.project)
        restore_or_link_models(clone, release)
        _pin_recorded_start(clone, made, release)
        restore_or_ingest_rows(clone, made, release)
        for stage in UP_TO_TRAIN[1:]:
            clone.stage(stage, recipe.name)
        rebuilt = files_in_release_form(record.adapter, weight_file_hashes(made.model))
        run = json.loads(made.report("train").read_bytes())["run"]  # the code of another commit wrote the rest
    _compare(release, rebuilt, run)


def _pin_recorded_start(clone: ProjectClone, made: Artifacts, release: ReproducibleRelease) -> None:
    """Let the validate stage of the clone pin the release that a release started from, whatever is published now."""
    start = release.record.start
    made.start_to_pin.parent.mkdir(parents=True, exist_ok=True)
    made.start_to_pin.write_text(start.model_dump_json(exclude_defaults=True) if start else "null", encoding="utf-8")
    hub = clone.original / LOCAL_FOLDER
    if start and start.endpoint == LOCAL and hub.exists() and not (clone.project / LOCAL_FOLDER).exists():
        (clone.project / LOCAL_FOLDER).symlink_to(hub.resolve())  # the stages that are run only read it


def _compare(release: ReproducibleRelease, rebuilt: Mapping[str, str], run: str) -> None:
    different = []
    for name in sorted({*release.weights, *rebuilt}):
        then, now = release.weights.get(name), rebuilt.get(name)
        if then == now:
            logger.info("reproduce: %s is equal, SHA-256 %s", name, now)
        else:
            logger.info("reproduce: %s DIFFERS: released %s, rebuilt %s", name, then, now)
            different.append(name)
    if different:
        what = f"the rebuilt weights are not those of the release: {', '.join(different)}"
        raise ModelError(release.where, what, "; ".join(_causes(release, rebuilt, run)))
    logger.info("reproduce: %s: the weights are equal, bit for bit", release.where)


def _read_release(root: Path, target: str, endpoint: str) -> ReproducibleRelease:
    """Read the release's record, and the hashes of its weights."""
    if not (parsed := _TARGET.fullmatch(target)):
        raise RecipeError(target, "names no release", "write owner/name@revision, with a tag, a commit or `main`")
    repo_id, revision = parsed[1], parsed[2]
    with open_repository(Artifacts("reproduce", root), repo_id=repo_id, endpoint=endpoint) as opened:
        repository = replace(opened, timeout_s=_HUB_TIMEOUT_S)

        def look() -> tuple[str, bytes | None, dict[str, str]]:
            commit = str(repository.api.model_info(repo_id, revision=revision).sha)
            weights = {}
            for path, file in repository.tree(commit).items():
                if path.endswith(WEIGHTS):
                    content = b"" if file.lfs else repository.read(commit, path, max_bytes=_MAX_WEIGHTS) or b""
                    weights[path] = file.lfs.sha256 if file.lfs else hashlib.sha256(content).hexdigest()
            return commit, repository.read(commit, FILE, max_bytes=MAX_BYTES), weights

        commit, text, weights = repository.retry_until_clear(look)
    where = f"{repo_id}@{commit}"
    if text is None or not weights:
        what = f"the revision {revision} has no {'weights' if text else FILE}"
        raise ModelError(where, what, "name a release of Evergreen that records how it was made")
    try:
        record = ProvenanceRecord.model_validate_json(text)
    except ValueError as error:
        what = f"{FILE} cannot be read: {' '.join(str(error).split())[:300]}"
        raise ModelError(where, what, "use the version of Evergreen that published it, or a newer one") from None
    logger.info("reproduce: %s, run %s, code %s", where, record.run, record.git_commit)
    return ReproducibleRelease(where, record, weights)


@contextlib.contextmanager
def _end_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end this process like Ctrl-C, so that it stops the stage and removes the clone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _causes(release: ReproducibleRelease, rebuilt: Mapping[str, str], run: str) -> Iterator[str]:
    """Yield what may have made the weights differ, the likeliest first."""
    record = release.record
    if altered := [name for name, digest in record.weights.items() if release.weights.get(name) != digest]:
        same = " (the rebuilt weights are the published ones)" if rebuilt == record.weights else ""
        yield f"the Hub does not hold the weights that were published{same}: {', '.join(altered)}"
    here = training_library_versions()
    for name, then in record.versions.items():
        if (now := here.get(name) or installed_version(name)) != then:
            yield f"{name} was {then} and is {now}"
    if run != record.run:
        yield f"tokens, recipe or code differ: the run was {record.run} and is {run}"
    yield "another kind of processor or number of threads, which adds numbers in another order"
