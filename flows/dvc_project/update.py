"""`python -m flows.dvc_project.update <recipe>`: bring the imported files that a recipe reads up to date, if their source has changed.

This is `dvc update`, which downloads again whatever it is asked for, with two differences. What has not changed at its source
is left alone, which takes seconds. And a download that fails leaves the files as they were: DVC removes them first.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from flows.dvc_project.restore import is_stale_or_drop_outdated
from flows.dvc_project.stage import open_dvc_repository, run_action_for_exit_status
from params import DataError, EvergreenError, RecipeError, RemoteRefusedError, TransientError
from params.foundation.artifacts import Artifacts, as_storage_error
from params.sections.data import RowsFromFiles
from tasks.recipes.loading import load
from trainer.runtime.memory import reduce_garbage_collection

_GONE_STATUS: Final = (404, 410)
_REFUSED_STATUS: Final = (401, 403, 407)
_GONE: Final = {"FileNotFoundError", "NotADirectoryError", "NotGitRepository", "RevError"}
_REFUSED: Final = {"PermissionError", "PermissionDenied", "AuthError", "GitAuthError", "HTTPUnauthorized"}
_UNUSABLE: Final = {"ConfigError", "RemoteMissingDepsError", "ImportError", "NoSuchModuleError"}
"""Errors by the names of their classes: each kind of source has its own libraries."""


def update_imported_files(repo: Any, recipe: str) -> None:
    """Bring the imported files that a recipe reads up to date; those that do not exist locally only if the recipe or ingest is stale.

    Raises:
        RecipeError: no import brought a file of the source.
        DataError: what was imported is not there any more.
        RemoteRefusedError: its place refuses access, or cannot be used from here.
        TransientError: its place does not answer, or another process uses the files.
        StorageError: the disk is full.
    """
    from dvc.repo import lock_repo

    stages = find_import_stages_to_refresh(repo, recipe)
    if not stages:
        what = "there is nothing to refresh: no .dvc file of `dvc import`, `import-url` or `import-db` has the source's files"
        fix = "import them, or remove `refresh`: DVC watches the files themselves"
        raise RecipeError.at("data.source.refresh", what, fix)
    names = [stage.addressing for stage in stages]
    for stage in stages:
        # Without the lock, so that a place that takes long to answer does not keep other recipes waiting.
        if _has_changed(stage):
            with lock_repo(repo):
                _update(repo, stage.addressing)
    with lock_repo(repo):
        lacking = [name for name in names if not _collect(repo, name).outs[0].exists]
        readers = (_collect(repo, f"{stage}@{recipe}") for stage in ("resolve", "ingest"))
        if lacking and any(is_stale_or_drop_outdated(repo, stage) for stage in readers):
            for name in lacking:
                _update(repo, name)


def _has_changed(stage: Any) -> bool:
    """Whether there may be something new where files were imported from; a database cannot be asked."""
    dep, (out,) = stage.deps[0], stage.outs
    if stage.is_db_import:
        return True
    with _errors_of(stage):
        status = dep.workspace_status()
        if not status:
            return False
        if stage.is_repo_import:  # the repository has another commit; for what DVC keeps there, it also knows the hash
            dep.update()
            known = dep.fs.info(dep.def_path).get("dvc_info", {}).get("md5")
            return known is None or known != out.hash_info.value
        if "deleted" in status.values():
            dep.fs.info(dep.fs_path)  # raises what is wrong
        return True


def _update(repo: Any, name: str) -> None:
    """Download what a .dvc file imports, unless it turns out to be the same; if that fails, all is as it was."""
    stage, before = _collect(repo, name), _collect(repo, name)
    print(f"update: {name} from {stage.deps[0]}", flush=True)
    if before.outs[0].exists:  # it may be of another version than the .dvc file's, or missing in the cache
        before.save_outs()
        before.commit()
    try:
        with _errors_of(stage):
            stage.update()
            stage.dump()
    except BaseException:
        before.checkout(force=True)
        raise
    is_new = _collect(repo, name).outs[0].hash_info != before.outs[0].hash_info
    print(f"update: {name} has {'new data' if is_new else 'the same data'}", flush=True)


def _collect(repo: Any, name: str) -> Any:
    (stage,) = repo.stage.collect(name)
    return stage


@contextlib.contextmanager
def _errors_of(stage: Any) -> Iterator[None]:
    """Turn the errors of an import, of which each kind of source has its own, into ours."""
    from dvc.lock import LockError

    try:
        yield
    except (EvergreenError, LockError):
        raise
    except Exception as error:
        where = f"{stage.addressing}, imported from {stage.deps[0]}"
        raise as_storage_error(error, stage.repo.root_dir) or _error(where, error) from error


def _error(where: str, error: Exception) -> EvergreenError:
    from dvc.exceptions import DvcException

    causes = list(_causes(error))
    names = {kind.__name__ for cause in causes for kind in type(cause).__mro__}
    answers = {getattr(cause, "status", None) for cause in causes}
    said = next(filter(None, (" ".join(str(cause).split()) for cause in reversed(causes))), type(error).__name__)
    if answers & set(_REFUSED_STATUS) or names & _REFUSED:
        return RemoteRefusedError(where, f"refuses access: {said}", "give this worker access to it")
    if names & _UNUSABLE or type(causes[-1]) is DvcException:
        return RemoteRefusedError(where, f"cannot be used: {said}", "correct DVC's settings, or install what it needs")
    is_answer = not names & {"ClientError", "ConnectionError", "TimeoutError"}
    if answers & set(_GONE_STATUS) or (is_answer and names & _GONE):
        return DataError(where, f"is not there any more: {said}", "import the files from where they are now")
    return TransientError(
        where, f"does not answer: {said}", "run it again when it does: the files here are as they were"
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error:
        yield error
        error = error.__cause__ or error.__context__


def find_import_stages_to_refresh(repo: Any, recipe: str) -> list[Any]:
    """Return DVC's import stages whose files the recipe keeps up to date; empty if the recipe cannot be read."""
    if not (patterns := _refreshed_patterns(recipe)):
        return []
    places = [_place(repo, pattern) for pattern in patterns]
    outs = [(Path(out.fs_path), out.stage) for out in repo.index.outs if out.stage.is_import]
    return [stage for path, stage in outs if any(path.is_relative_to(p) or p.is_relative_to(path) for p in places)]


def find_dvc_files_to_refresh(recipe: str) -> list[str]:
    """Return the paths of the .dvc files of `find_import_stages_to_refresh`."""
    if not _refreshed_patterns(recipe):
        return []
    with open_dvc_repository(recipe) as repo:
        return [stage.relpath for stage in find_import_stages_to_refresh(repo, recipe)]


def _refreshed_patterns(recipe: str) -> list[str]:
    with contextlib.suppress(EvergreenError):
        sources = load(Artifacts(recipe).recipe_path).data.all_sources.values()
        refreshed = (one for one in sources if isinstance(one, RowsFromFiles) and one.refresh)
        return [pattern for source in refreshed for pattern in source.patterns.values()]
    return []


def is_same_import_source(ours: bytes, theirs: bytes) -> bool:
    """Whether two versions of a .dvc file import the same thing, although at different times."""
    from dvc.utils.serialize import YAMLFileCorruptedError, parse_yaml

    def origin(text: bytes) -> Any:
        (dep,) = parse_yaml(text.decode(errors="replace"), "an import")["deps"]
        repo = {key: value for key, value in dep.get("repo", {}).items() if key != "rev_lock"}
        return dep.get("path"), repo, dep.get("db")

    try:
        return bool(origin(ours) == origin(theirs))
    except (YAMLFileCorruptedError, KeyError, TypeError, ValueError, AttributeError):
        return False


def _place(repo: Any, pattern: str) -> Path:
    """The file that a pattern of the recipe names, or the folder in which all that it matches lies."""
    parts = itertools.takewhile(lambda part: not set(part) & set("*?["), Path(pattern).parts)
    return Path(os.path.normpath(Path(repo.root_dir, *parts)))


if __name__ == "__main__":
    reduce_garbage_collection()
    sys.exit(run_action_for_exit_status(update_imported_files, sys.argv[1]))
