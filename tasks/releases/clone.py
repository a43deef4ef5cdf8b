"""A temporary clone of the project, in which a release is made again: its code, its recipe, and the files that this names.

This project is not changed. Files that the recipe names and git does not have (data, a base model) are links to this project.
The recipe must be in git or in this project: a recipe can name code, and one that only the Hub has is not run unseen.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from ruamel.yaml import YAML

from params import ModelError, RecipeError, TransientError, load
from params.foundation import command_result
from params.foundation.artifacts import Artifacts, storage_errors
from params.schema import AdapterForm, HubDataset
from tasks.publishing.provenance import FILE
from trainer.runtime.lifetime import stop_group

logger = logging.getLogger(__name__)
_TOOL_TIMEOUT_S = 3600.0
"""For a command of git or DVC, which may copy and download."""
_GRACE_S = 20.0
"""Between SIGTERM and SIGKILL to a stage."""
_GIT_PLACES = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX"})

Sha256 = Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{64}$")]


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
class Clone:
    """The project at the commit of a release."""

    folder: Path
    """Temporary; the project's absolute path is repeated inside, so that a path such as `../rows` has a counterpart."""
    project: Path
    """The project's root inside of it."""
    original: Path
    """The root of this project."""

    def stage(self, name: str, recipe: str) -> None:
        """Run a stage with the clone's code; it logs to our standard output.

        Raises:
            EvergreenError: the stage's own error.
        """
        logger.info("reproduce: %s", name)
        command = [sys.executable, "-m", "tasks", name, f"params/{recipe}.yaml"]
        result_path = Artifacts(recipe, self.project).command_result
        # DVC_STAGE: as under DVC, the stage dies with this process.
        environment = {**_environment(), **command_result.reserve_result_file(result_path), "DVC_STAGE": name}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(self.project), os.environ.get("PYTHONPATH")]))
        process = subprocess.Popen(
            command,
            cwd=self.project,
            env=environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            _, output = process.communicate()
        finally:
            stop_group(process, _GRACE_S)
            if process.stderr is not None:
                process.stderr.close()
        if process.returncode:
            raise command_result.error_from_result(name, process.returncode, output, command_result.read(result_path))

    def dvc(self, *arguments: str, at: Path | None = None) -> str:
        """Run DVC in the clone or in another folder, and return its output.

        Raises:
            TransientError: it failed.
        """
        unwrapped = {"COLUMNS": "10000"}  # DVC breaks lines at the width of the terminal, even URLs
        quiet = {"DVC_SITE_CACHE_DIR": str(self.folder / "dvc"), "DVC_NO_ANALYTICS": "1"}
        environment = {**_environment(), **quiet, **unwrapped}
        return _output([sys.executable, "-m", "dvc", *arguments], at or self.project, environment, "DVC")


@contextlib.contextmanager
def cloned(root: Path, commit: str, release: ReproducibleRelease, *, keep: bool) -> Iterator[Clone]:
    """Clone the project at `commit`, and remove the clone at the end.

    Raises:
        ModelError: the project is not in a git repository, or its repository does not have the commit.
        StorageError: no temporary folder can be created.
    """

    def git(*arguments: str, problem: str) -> str:
        try:
            return _output(["git", *arguments], root.absolute(), _environment(), "git")
        except TransientError as error:
            raise ModelError(release.where, f"{problem}: {error.what}", "run this in a clone of the project") from None

    top = Path(git("rev-parse", "--show-toplevel", problem="this is not a git repository").strip())
    inside = git("rev-parse", "--show-prefix", problem="this is not a git repository").strip()
    unknown = f"its commit {commit} is not in this repository; `git fetch --all` may bring it"
    git("cat-file", "-e", f"{commit}^{{commit}}", problem=unknown)
    with _folder(keep=keep) as folder:
        target = folder / top.relative_to(top.anchor)
        git("clone", "--quiet", "--shared", "--no-checkout", str(top), str(target), problem="it cannot be cloned")
        git("-C", str(target), "checkout", "--quiet", "--detach", commit, problem="it cannot be checked out")
        yield Clone(folder, target / inside, top / inside)


@contextlib.contextmanager
def _folder(*, keep: bool) -> Iterator[Path]:
    with storage_errors(Path(tempfile.gettempdir())):
        folder = Path(tempfile.mkdtemp(prefix="evergreen-reproduce-")).resolve()
    try:
        yield folder
    finally:
        if keep:
            logger.info("reproduce: the clone stays in %s", folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def write_recipe(clone: Clone, path: Path, release: ReproducibleRelease) -> None:
    """Write the release's recipe to `path`, and link the files that it names into the clone.

    Raises:
        RecipeError: neither git nor this project has this recipe.
    """
    recipe = release.record.recipe
    own = clone.original / "params" / path.name
    if not any(p.is_file() and p.read_text(encoding="utf-8") == recipe.text for p in (path, own)):
        what = f"neither commit {release.record.git_commit} nor this project has its recipe"
        fix = f"a recipe can name code to run: read it in {FILE}, and save it as params/{path.name} if you trust it"
        raise RecipeError(release.where, what, fix)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(recipe.text, encoding="utf-8")
    loaded = load(path)
    content, source = loaded.model_dump(mode="json"), loaded.data.source
    # Neither uploads nor an earlier checkpoint belong to this training; the weights do not depend on these keys.
    changes: dict[tuple[str, ...], str] = {("launch", "mirror"): "none", ("training", "resume"): "auto"}
    revision = release.record.data.revision
    if isinstance(source, HubDataset) and re.fullmatch("[0-9a-f]{40}", revision):
        changes["data", "source", "revision"] = revision  # a branch has moved since
    _change(path, changes)
    for name in (*_strings(content), (recipe.dvc_item or {}).get("data", "")):
        _link(clone, name, own_run=Path("runs", recipe.name))


def _change(path: Path, settings: Mapping[tuple[str, ...], str]) -> None:
    """Set the keys that the recipe has; do not write the file if nothing changes."""
    content: Any = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    is_changed = False
    for (*sections, key), value in settings.items():
        section = content
        for name in sections:
            section = section.get(name) or {}
        if section.get(key, value) != value:
            section[key] = value
            is_changed = True
    if is_changed:
        with path.open("w", encoding="utf-8") as file:
            YAML(typ="safe").dump(content, file)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value.removeprefix("sqlite:///")
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(inner)


def _link(clone: Clone, name: str, *, own_run: Path) -> None:
    """If a text of the recipe names files of this project that the clone lacks, link them into the clone."""
    if not name or len(name) > 1000 or "\n" in name or Path(name).is_absolute():
        return
    is_pattern = glob.has_magic(name) and not (clone.original / name).exists()
    for found in glob.glob(name, root_dir=clone.original, recursive=True) if is_pattern else [name]:  # noqa: PTH207
        source = Path(os.path.normpath(clone.original / found))
        target = Path(os.path.normpath(clone.project / found))
        is_missing = not os.path.lexists(target) and target.is_relative_to(clone.folder)
        if source.exists() and is_missing and not _is_written(source, clone.original, own_run):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source.resolve())


def _is_written(source: Path, project: Path, own_run: Path) -> bool:
    """Return whether a stage could write there: to the project itself, its hidden folders, the recipe's own run."""
    if not source.is_relative_to(project):
        return project.is_relative_to(source)
    inside = source.relative_to(project)
    is_hidden = not inside.parts or inside.parts[0].startswith(".")
    return is_hidden or own_run.is_relative_to(inside) or inside.is_relative_to(own_run)


def _environment() -> dict[str, str]:
    """Return our environment without what would lead git or Python elsewhere."""
    return {k: v for k, v in os.environ.items() if k not in _GIT_PLACES and k != "PYTHONSAFEPATH"}


def _output(command: Sequence[str], folder: Path, environment: Mapping[str, str], name: str) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TOOL_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise TransientError(name, "is not installed", "install it") from None
    except subprocess.TimeoutExpired:
        raise TransientError(name, f"did not end within {_TOOL_TIMEOUT_S:.0f} s", "try again") from None
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise TransientError(name, f"{name} failed: {reason[:1000]}", f"fix what {name} reports")
    return done.stdout
