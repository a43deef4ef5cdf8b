"""The versions of the code and the libraries that train a model."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sysconfig
from pathlib import Path

from params import Recipe
from trainer.identity import code_named_by_recipe

_LIBRARIES = ("torch", "transformers", "accelerate", "tokenizers", "datasets")
_CODE = ("params", "trainer", "tasks", ":(exclude,glob)params/*.yaml")
"""Where the project's code is. Recipes are no code: a release records the text of its recipe."""


def git_commit_with_dirty_mark(root: Path, recipe: Recipe) -> str | None:
    """Return the commit that is checked out at `root`; None outside of git.

    `+` is appended if the commit does not hold the code as it is now: the project's, or a file that the recipe names, or one that
    such a file imports. Such a file counts even if git ignores it or it is outside of the repository, unless it belongs to an
    installed package.
    """
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return None
    status = ("status", "--porcelain", "--untracked-files=all")
    files = code_named_by_recipe(recipe.model_dump(mode="json")).values()
    named = [str(path.resolve()) for path in files if not _is_installed(path)]
    is_clean = _git(root, *status, "--", *_CODE) == ""
    if named:
        is_clean = is_clean and _git(root, "--literal-pathspecs", *status, "--ignored", "--", *named) == ""
    return commit if is_clean else f"{commit}+"


def training_library_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that decide the weights."""
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in _LIBRARIES}}


def installed_version(package: str) -> str:
    """Return the version of a package, or `none` if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _is_installed(path: Path) -> bool:
    folders = {"site-packages", "dist-packages"}
    return not folders.isdisjoint(path.parts) or path.is_relative_to(sysconfig.get_path("stdlib"))


def _git(root: Path, *arguments: str) -> str | None:
    """Return what git prints; None if it fails, as it does for a path outside of the repository."""
    command = ["git", "-C", str(root), *arguments]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None
