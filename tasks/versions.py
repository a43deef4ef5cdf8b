"""The versions of the code and the libraries that train a model."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path

_LIBRARIES = ("torch", "transformers", "accelerate", "tokenizers", "datasets")
_CODE = ("params", "trainer", "tasks")


def git_commit(root: Path) -> str | None:
    """The commit that is checked out at `root`, with `+` appended if the code has uncommitted changes; None outside git."""
    commit = _git(root, "rev-parse", "HEAD")
    if not commit:
        return None
    return commit + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no", "--", *_CODE) else "")


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that decide the weights."""
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in _LIBRARIES}}


def _git(root: Path, *arguments: str) -> str:
    try:
        result = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False, timeout=30
        )
    except FileNotFoundError:
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""
