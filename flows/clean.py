"""`evergreen clean`: show what nothing needs any more, and delete it.

- in .scratch, runs that a later run of their recipe has superseded, damaged checkpoints, and the runs of `verify-resume`
- objects in DVC's cache that no reference of git, no worktree, no experiment and none of the last releases uses
- objects of the local Hub that no branch, tag or pull request leads to

What a release or an unfinished run needs stays. What it is not sure of, it keeps, and says so. Nothing is deleted while a stage,
an experiment or a flow runs.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import typer
from jinja2.filters import do_filesizeformat

from flows.dvc_project import cache as dvc_cache
from flows.dvc_project.locks import remove_dead_lock_owners
from flows.dvc_project.remote import read_cache_folder
from params import HubRefusedError, TransientError
from params.foundation.artifacts import Artifacts
from params.foundation.file_lock import hold_file_lock
from tasks.hub_client.connection import LOCAL_FOLDER
from tasks.hub_server.store import RepositoryStore
from tasks.recipes.loading import load
from tasks.releases.data_of_releases import fetch_release_data_hashes
from tasks.training.run_folders import list_superseded_run_folders

logger = logging.getLogger(__name__)


class DeletableItem(NamedTuple):
    """Something that can be deleted: the folder that it is in, without links, what it is, and its bytes."""

    folder: Path
    what: str
    size: int
    delete: Callable[[], object]


def delete_unneeded_if_confirmed(*, releases: int, unfinished: bool, yes: bool, shared_cache: bool = False) -> None:
    """Show what nothing needs, ask, and delete it.

    Args:
        shared_cache: whether only clones of this project use DVC's cache, although it is outside of the project or shared.
        releases: how many of the last releases in each repository keep their data in DVC's cache; 0: none, and no Hub is asked.
        unfinished: whether to delete the newest run of each recipe, too.
        yes: do not ask.
    """
    needed = _needed_by_releases(releases, shared_cache=shared_cache)
    found = list(_unneeded(needed, unfinished=unfinished))
    for one in found:
        print(f"{do_filesizeformat(one.size, binary=True):>10}  {one.what}")
    folders = ", ".join(dict.fromkeys(str(one.folder) for one in found))
    total = f"{do_filesizeformat(sum(one.size for one in found), binary=True)} in {folders}"
    if not found:
        print("There is nothing to delete.")
    elif not yes and not sys.stdin.isatty():
        print(f"Nothing was deleted. To delete {total}, add --yes.")
    elif yes or typer.confirm(f"Delete {total}?"):
        with _no_stage_runs():
            for one in _unneeded(needed, unfinished=unfinished):  # again, because a stage may have run since
                one.delete()
        print(f"Deleted {total}.")


def _needed_by_releases(last: int, *, shared_cache: bool) -> set[str] | None:
    """Return the hashes of the data of the last releases; None if DVC's cache must be left alone, after saying why."""
    if not Path(".dvc").is_dir():
        return None
    folder, shared = dvc_cache.cache_folder_and_sharing()
    if shared and not shared_cache:
        print(f"DVC's cache {folder} is left alone, because other projects may use it: {shared}.")
        print("  if only clones of this project use it: `git fetch`, then add --shared-cache")
        return None
    if not last:
        return set()
    places = dict.fromkeys(dvc_cache.find_published_hub_repositories(), True)
    for publish in (load(recipe.recipe_path).publish for recipe in _recipes()):
        places.setdefault((publish.repo_id, publish.endpoint), False)
    try:
        hashes = (fetch_release_data_hashes(*place, last=last, must_exist=must) for place, must in places.items())
        return set().union(*hashes)
    except (HubRefusedError, TransientError) as error:
        print(f"DVC's cache {folder} is left alone, because it is unknown what releases need: {error}")
        return None


def _unneeded(needed: set[str] | None, *, unfinished: bool) -> Iterator[DeletableItem]:
    for recipe in _recipes():
        runs = list_superseded_run_folders(recipe, keep=0 if unfinished else 1)
        damaged = [path for path in recipe.checkpoints.glob("*/broken-*") if path.parent not in runs]
        whys = {"superseded run": runs, "damaged checkpoint": damaged, "of `verify-resume`": [recipe.verify_resume]}
        whys |= {"last state of a finished run": [recipe.finished_run]} if unfinished else {}
        for why, folders in whys.items():
            for folder in filter(Path.exists, folders):
                size = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
                delete = partial(shutil.rmtree, folder, ignore_errors=True)
                yield DeletableItem(recipe.scratch.parent.resolve(), f"{folder}: {why}", size, delete)
    if needed is not None and (size := dvc_cache.measure_or_delete_unused_objects(needed)):
        cache, _ = dvc_cache.cache_folder_and_sharing()
        what = f"{cache}: objects that nothing in git and no recent release uses"
        yield DeletableItem(cache, what, size, partial(dvc_cache.measure_or_delete_unused_objects, needed, remove=True))
    hub, place = RepositoryStore(Path(LOCAL_FOLDER)), Path(LOCAL_FOLDER).resolve()
    if size := hub.prune(remove=False):
        what = f"{place}: objects that no branch, tag or pull request leads to"
        yield DeletableItem(place, what, size, partial(hub.prune, remove=True))


def _recipes() -> list[Artifacts]:
    return [Artifacts(path.stem) for path in sorted(Path("params").glob("*.yaml"))]


@contextlib.contextmanager
def _no_stage_runs() -> Iterator[None]:
    """Hold the locks of every recipe."""
    with contextlib.ExitStack() as held:
        for recipe in _recipes():
            for path in (recipe.flow_lock, recipe.train_lock, recipe.mirror_lock, recipe.verify_resume_lock):
                held.enter_context(hold_file_lock(path, f"a command of {recipe.recipe}"))
        cache = (Path(".dvc").is_dir() and read_cache_folder()) or Path(".dvc/cache")
        for path in cache.glob("evergreen/*/*/unfinished-runs/*.lock"):
            held.enter_context(hold_file_lock(path, f"a run in another clone, {path.stem},"))
        remove_dead_lock_owners(logger)
        dvc_cache.refuse_running_experiment()
        owners = Path(".dvc/tmp/rwlock")
        if owners.exists() and any(json.loads(owners.read_text(encoding="utf-8")).values()):
            raise TransientError(str(owners), "DVC runs a stage", "wait until it ends, or stop it")
        yield
