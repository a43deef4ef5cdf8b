"""A temporary clone of the project, in which a release is made again: its code, its recipe, the files that this names, its rows.

This project is not changed. Files that the recipe names and git does not have (data, a base model) are links to this project.
The recipe must be in git or in this project: a recipe can name code, and one that only the Hub has is not run unseen. Nor is a
commit that only the Hub names (`tasks.releases.reviewed`). The rows,
and the model of another recipe that it starts from, come from DVC, which runs as a command: the release's record of dvc.lock
names them, the project's cache and remotes may hold them.
"""

from __future__ import annotations

import contextlib
import glob
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from ruamel.yaml import YAML

from params import DataError, ModelError, RecipeError, TransientError
from params.dvc_files import RECIPES
from params.foundation import command_result
from params.foundation.artifacts import SPLITS, Artifacts, translate_disk_errors
from params.schema import AdapterForm, Recipe
from params.sections.data import RowsFromHubDataset
from tasks.hub_client.release_file import Sha256
from tasks.ingestion.links import LINKED_PROJECT
from tasks.ingestion.report import revisions_by_source
from tasks.publishing.provenance import FILE
from tasks.recipes.loading import load
from tasks.releases.reviewed import refuse_unreviewed_commit
from trainer.data import shards
from trainer.runtime.lifetime import stop_process_group
from trainer.start import ReleaseReference

logger = logging.getLogger(__name__)
_TOOL_TIMEOUT_S = 3600.0
"""For a command of git or DVC, which may copy and download."""
_GRACE_S = 20.0
"""Between SIGTERM and SIGKILL to a stage."""
_GIT_PLACES = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX"})


class RecordedRecipe(pydantic.BaseModel):
    """The recipe of a release."""

    name: Annotated[str, pydantic.Field(pattern=r"^[A-Za-z0-9][\w.-]*$")]
    text: str
    dvc_item: dict[str, str] | None


class RecordedData(pydantic.BaseModel):
    """The rows of a release, by hash."""

    revision: str
    sha256: dict[str, Sha256]


class ProvenanceRecord(pydantic.BaseModel):
    """The part of `evergreen-provenance.json` that is needed here. It comes from a Hub, so all of it is checked."""

    schema_: Annotated[Literal[1], pydantic.Field(alias="schema")]
    recipe: RecordedRecipe
    run: str
    start: ReleaseReference | None = None
    git_commit: str | None
    versions: dict[str, str]
    data: RecordedData
    dvc_lock: dict[str, Any] | None
    adapter: AdapterForm = "merged"
    weights: dict[str, Sha256]


@dataclass(frozen=True)
class ReproducibleRelease:
    """A release on a Hub with the record of how it was made."""

    where: str
    """Repository and commit."""
    record: ProvenanceRecord
    weights: Mapping[str, str]
    """SHA-256 of the files of weights that the Hub holds now, by path."""


@dataclass(frozen=True)
class ProjectClone:
    """The project at the commit of a release."""

    folder: Path
    """Temporary; the project's absolute path is repeated inside, so that a path such as `../rows` has a counterpart."""
    project: Path
    """The project's root inside of it."""
    original: Path
    """The root of this project."""

    def stage(self, name: str, recipe: str) -> None:
        """Run a stage with the clone's code; it logs to our standard output."""
        logger.info("reproduce: %s", name)
        result = Artifacts(recipe, self.project).command_result
        path = os.pathsep.join(filter(None, [str(self.project), os.environ.get("PYTHONPATH")]))
        # DVC_STAGE: as under DVC, the stage dies with this process.
        own = {**command_result.preallocate_result_file(result), "DVC_STAGE": name, "PYTHONPATH": path}
        own[LINKED_PROJECT] = str(self.original)
        with subprocess.Popen(
            [sys.executable, "-m", "tasks", name, f"params/{recipe}.yaml"],
            cwd=self.project,
            env=_environment() | own,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                _, output = process.communicate()
            finally:
                stop_process_group(process, _GRACE_S)
        if process.returncode:
            raise command_result.error_of_failed_command(
                name, process.returncode, output, command_result.read_result_file(result)
            )

    def dvc(self, *arguments: str, at: Path | None = None) -> str:
        """Run DVC in the clone or in another folder, and return its output."""
        quiet = {"DVC_SITE_CACHE_DIR": str(self.folder / "dvc"), "DVC_NO_ANALYTICS": "1"}
        unwrapped = {"COLUMNS": "10000"}  # DVC breaks lines at the width of the terminal, even URLs
        return _run("DVC", [sys.executable, "-m", "dvc", *arguments], at or self.project, quiet | unwrapped)


@contextlib.contextmanager
def clone_project_in_block(
    root: Path, commit: str, release: ReproducibleRelease, *, keep: bool, trusted: Collection[str] = ()
) -> Iterator[ProjectClone]:
    """Clone the project at `commit`, and remove the clone at the end. Commits in `trusted` need to be in no branch.

    Raises:
        ModelError: the project is not in a git repository, its repository does not have the commit, or no branch of the project does.
        StorageError: no temporary folder can be created.
    """

    def git(problem: str, *arguments: str) -> str:
        try:
            return _run("git", ["git", "--no-replace-objects", *arguments], root.absolute(), {}).strip()
        except TransientError as error:
            raise ModelError(release.where, f"{problem}: {error.what}", "run this in a clone of the project") from None

    top = Path(git("this is not a git repository", "rev-parse", "--show-toplevel"))
    inside = git("this is not a git repository", "rev-parse", "--show-prefix")
    unknown = f"its commit {commit} is not in this repository; `git fetch --all` may bring it"
    git(unknown, "cat-file", "-e", f"{commit}^{{commit}}")
    if commit not in trusted:
        refuse_unreviewed_commit(partial(git, "it is unknown which branches have its commit"), commit, release.where)
    with translate_disk_errors(Path(tempfile.gettempdir())):
        folder = Path(tempfile.mkdtemp(prefix="evergreen-reproduce-")).resolve()
    target = folder / top.relative_to(top.anchor)
    try:
        git("it cannot be cloned", "clone", "--quiet", "--shared", "--no-checkout", str(top), str(target))
        git("it cannot be checked out", "-C", str(target), "checkout", "--quiet", "--detach", commit)
        yield ProjectClone(folder, target / inside, top / inside)
    finally:
        if keep:
            logger.info("reproduce: the clone stays in %s", folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def write_recipe_and_link_files(clone: ProjectClone, path: Path, release: ReproducibleRelease) -> None:
    """Write the release's recipe to `path`, and link the files that it names into the clone."""
    recipe = release.record.recipe
    own = clone.original / "params" / path.name
    if not any(p.is_file() and p.read_text(encoding="utf-8") == recipe.text for p in (path, own)):
        what = f"neither commit {release.record.git_commit} nor this project has its recipe"
        fix = f"a recipe can name code to run: read it in {FILE}, and save it as params/{path.name} if you trust it"
        raise RecipeError(release.where, what, fix)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(recipe.text, encoding="utf-8")
    loaded = load(path)
    # Neither uploads nor an earlier checkpoint belong to this training; the weights do not depend on these keys.
    settings = {("launch", "mirror"): "none", ("training", "resume"): "auto"}
    content: Any = YAML(typ="safe").load(recipe.text)
    if _set_keys(content, settings | _revisions_of_sources(loaded, release.record.data.revision)):
        YAML(typ="safe").dump(content, path)
    for name in (*_strings(loaded.model_dump(mode="json")), (recipe.dvc_item or {}).get("data", "")):
        _link(clone, name, own_run=Path("runs", recipe.name))


def _revisions_of_sources(recipe: Recipe, revision: str) -> dict[tuple[str, ...], str]:
    """Return the keys that pin the datasets of a Hub to the commits that were read: their branches have moved since."""
    revisions, found = revisions_by_source(revision), dict[tuple[str, ...], str]()
    for key, source in recipe.data.row_sources.items():
        commit = revisions.get(key.partition(".")[2], "")
        if isinstance(source, RowsFromHubDataset) and re.fullmatch("[0-9a-f]{40}", commit):
            found["data", *key.split("."), "revision"] = commit
    return found


def _set_keys(content: Any, settings: Mapping[tuple[str, ...], str]) -> bool:
    """Set keys of a recipe, but only those that it has: its code may not know others. Return whether one was another before."""
    is_changed = False
    for (*sections, key), value in settings.items():
        section = content
        for name in sections:
            section = section.get(name) or {}
        if section.get(key, value) != value:
            section[key], is_changed = value, True
    return is_changed


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value.removeprefix("sqlite:///")
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(inner)


def _link(clone: ProjectClone, name: str, *, own_run: Path) -> None:
    """If a text of the recipe names files of this project that the clone lacks, link them into the clone.

    Not what a stage could write to: the project itself, its hidden folders, the recipe's own run.
    """
    if not name or len(name) > 1000 or "\n" in name or Path(name).is_absolute():
        return
    is_pattern = glob.has_magic(name) and not (clone.original / name).exists()
    for found in glob.glob(name, root_dir=clone.original, recursive=True) if is_pattern else [name]:  # noqa: PTH207
        source = Path(os.path.normpath(clone.original / found))
        target = Path(os.path.normpath(clone.project / found))
        if not source.exists() or os.path.lexists(target) or not target.is_relative_to(clone.folder):
            continue
        if not _may_be_written(Path(os.path.relpath(source, clone.original)), own_run):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source.resolve())


def _may_be_written(path: Path, own_run: Path) -> bool:
    """Whether a stage could write to a path, which is relative to the project."""
    if all(part == ".." for part in path.parts):  # the project itself, or a folder around it
        return True
    is_hidden = path.parts[0] != ".." and path.parts[0].startswith(".")
    return is_hidden or own_run.is_relative_to(path) or path.is_relative_to(own_run)


def restore_or_link_models(clone: ProjectClone, release: ReproducibleRelease) -> None:
    """Bring the models of other recipes that the recipe reads: from DVC by the recorded lock, else from this project."""
    for key in ("base", "code"):
        _restore_or_link_model(clone, release, (release.record.recipe.dvc_item or {}).get(key, "").rstrip("/"))


def _restore_or_link_model(clone: ProjectClone, release: ReproducibleRelease, path: str) -> None:
    if not (maker := Artifacts.of_model(path)):
        return
    here, target = clone.original / path, clone.project / path
    is_link = target.is_symlink()  # to this project's, which may have been trained since
    if (target.exists() and not is_link) or not target.parent.resolve().is_relative_to(clone.folder):
        return  # it is in git, or the recipe names a folder around it
    target.unlink(missing_ok=True)
    if _fetch(clone, release, f"train@{release.record.recipe.name}", "deps", maker=f"train@{maker.recipe}", path=path):
        logger.info("reproduce: the model %s is in DVC's cache", path)
        return
    if not here.is_dir():
        what = f"it reads {path}, which is neither in this project nor in DVC's cache or remotes"
        fix = f"bring the folder as it was at commit {release.record.git_commit}: `dvc pull train@{maker.recipe}` there"
        raise ModelError(release.where, what, fix)
    logger.warning("reproduce: DVC does not have %s: taking this project's, which may have been trained since", path)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    target.symlink_to(here.resolve())


def restore_or_ingest_rows(clone: ProjectClone, made: Artifacts, release: ReproducibleRelease) -> None:
    """Bring the rows of the release into the clone: from DVC by the recorded lock, else by running ingest."""
    stage, rows, recorded = f"ingest@{made.recipe}", f"runs/{made.recipe}/raw", release.record.data

    def changes() -> list[str]:
        found = []
        for split in SPLITS:
            folder, then = made.raw / split, recorded.sha256.get(split, "missing")
            now = shards.folder_sha256(folder) if folder.is_dir() else "missing"
            if now != then:
                found.append(f"{split} was {then[:12]} and is {now[:12]}")
        return found

    if _fetch(clone, release, stage, "outs", maker=stage, path=rows) and not changes():
        logger.info("reproduce: the rows are in DVC's cache")
        return
    logger.info("reproduce: DVC does not have the rows: running ingest")
    shutil.rmtree(made.raw, ignore_errors=True)
    clone.stage("ingest", made.recipe)
    if changed := changes():
        what = f"the source no longer gives the rows of the release: {'; '.join(changed)}"
        fix = f"restore revision {recorded.revision} of the source, or the rows in DVC's cache or remote"
        raise DataError(release.where, what, fix)


def _fetch(clone: ProjectClone, release: ReproducibleRelease, stage: str, kind: str, *, maker: str, path: str) -> bool:
    """Whether DVC has restored an output of the stage `maker` in the clone, from the project's cache or remotes.

    The record of `stage` in dvc.lock has its hash, among its `outs` or `deps`.
    """
    entry = ((release.record.dvc_lock or {}).get("stages") or {}).get(stage) or {}
    md5 = next((str(one.get("md5")) for one in entry.get(kind) or () if one.get("path") == path), "")
    settings, original = clone.project / ".dvc", clone.original
    if not re.fullmatch(r"[0-9a-f]{32}(\.dir)?", md5) or not settings.is_dir() or not (original / ".dvc").is_dir():
        return False
    lock = {"schema": "2.0", "stages": {maker: {"cmd": "", "outs": [{"path": path, "hash": "md5", "md5": md5}]}}}
    (clone.project / "dvc.lock").write_text(json.dumps(lock), encoding="utf-8")
    _add_item(clone.project, release.record.recipe)
    for name in ("config", "config.local"):
        if (original / ".dvc" / name).is_file():
            shutil.copy(original / ".dvc" / name, settings / name)
    try:
        return _check_out_or_pull(clone, path)
    except TransientError as error:
        logger.info("reproduce: %s", error.what)
        return False


def _check_out_or_pull(clone: ProjectClone, path: str) -> bool:
    """Restore what the clone's dvc.lock records at a path; False without a remote, TransientError where DVC fails."""
    clone.dvc("config", "--local", "cache.dir", clone.dvc("cache", "dir", at=clone.original).strip())
    with contextlib.suppress(TransientError):
        clone.dvc("checkout", "--quiet", path)
        return True
    remotes = [line.split() for line in clone.dvc("remote", "list", at=clone.original).splitlines() if line.strip()]
    for name, url, *_ in remotes:  # a URL relative to .dvc would lead elsewhere in the clone
        clone.dvc("remote", "modify", "--local", name, "url", url)
    if remotes:
        clone.dvc("pull", "--quiet", path)
    return bool(remotes)


def _add_item(project: Path, recipe: RecordedRecipe) -> None:
    """Add the recipe to those of DVC if it was not committed there; at first, the list was in dvc.yaml."""
    path = project / RECIPES if (project / RECIPES).is_file() else project / "dvc.yaml"
    content: Any = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    recipes = content["recipes"] if path.name == RECIPES.name else content["vars"][0]["recipes"]
    if recipe.dvc_item and recipe.name not in recipes:
        recipes[recipe.name] = recipe.dvc_item
        YAML(typ="safe").dump(content, path)


def _environment() -> dict[str, str]:
    """Return our environment without what would lead git or Python elsewhere."""
    return {k: v for k, v in os.environ.items() if k not in _GIT_PLACES and k != "PYTHONSAFEPATH"}


def _run(name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Run a tool, and return its output; TransientError if it fails."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**_environment(), **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TOOL_TIMEOUT_S,
            check=False,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise TransientError(name, f"did not end: {error}", f"install {name} if it is not, or try again") from None
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise TransientError(name, f"{name} failed: {reason[:1000]}", f"fix what {name} reports")
    return done.stdout
