"""What is to be published: the files of a folder by content, checked, and under an id of their own.

A published model is loaded on machines of others. So a release holds regular files only, none of which runs code when
it is loaded, and no text with something like a secret in it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils._validators import validate_repo_id

from params.errors import ModelError, RecipeError
from tasks.digests import weights_digest
from tasks.publishing.secrets import find_secrets

RECEIPT: Final = "evergreen-receipt.json"
"""Says inside the commit what it is: its id, its files and where they come from."""

_PICKLES = frozenset({".bin", ".ckpt", ".h5", ".joblib", ".keras", ".npy", ".npz", ".pickle", ".pkl", ".pt", ".pth"})
_PROGRAMS = {".bat", ".cmd", ".class", ".dll", ".dylib", ".egg", ".exe", ".jar", ".js", ".ps1", ".sh", ".so", ".wasm"}
_CODE = frozenset({".ipynb", ".py", ".pyc", ".pyd", ".pyo", ".pyw", ".pyz", ".whl", *_PROGRAMS})
_STARTS = {
    "holds a pickle or an archive": re.compile(rb"\x80[\x02-\x05]|PK\x03\x04|PK\x05\x06"),
    "holds an archive, into which nobody has looked": re.compile(
        rb"\x1f\x8b|BZh[1-9]|\xfd7zXZ\0|7z\xbc\xaf|\x28\xb5\x2f\xfd|Rar!|(?s:.{257})ustar"
    ),
    "is a program": re.compile(rb"\x7fELF|MZ\x90\0|#!\s*/|[\xce\xcf]\xfa\xed\xfe|\xca\xfe\xba\xbe|\0asm"),
}
"""Pickle protocols 2 to 5 and the zip that torch.save writes; other archives; what an operating system runs."""


@dataclass(frozen=True)
class ReleaseFile:
    """A file of a release, by content."""

    path: str
    size: int
    sha256: str
    git_sha1: str
    """What git, and so the Hub, calls the content of a file that is not a large one."""
    source: Path | bytes = field(repr=False)


@dataclass(frozen=True)
class Release:
    """What is to be published: the whole tree of the commit, and its name."""

    repo_id: str
    private: bool
    tag: str
    publish_id: str
    """SHA-256 over the files, the repository and the provenance; the same release has the same id on any day."""
    files: tuple[ReleaseFile, ...]
    """In order of path, the receipt included."""

    @property
    def weights(self) -> str | None:
        """The digest of its weights; None for a release without any."""
        return weights_digest({file.path: file.sha256 for file in self.files})


def plan_release(
    folder: Path, *, repo_id: str, tag: str | None, private: bool, provenance: Mapping[str, object]
) -> Release:
    """Collect the files of a folder and give the release its id.

    Args:
        folder: holds regular files only; nothing of it may run code when it is loaded, or give a secret away.
        repo_id: `namespace/name`.
        tag: None stands for `release-` and the first 12 digits of the id.
        private: whether a repository that does not exist yet is made private; one that exists must then be private.
        provenance: what the release was made from, as JSON values; becomes part of the receipt and of the id.

    Raises:
        RecipeError: for a repo_id that cannot be one.
        ModelError: for a folder that may not be published, with all of its problems.
    """
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise RecipeError("repo_id", str(error), "write it as namespace/name") from None
    if repo_id.count("/") != 1:
        raise RecipeError("repo_id", f"{repo_id!r} names no namespace", "write it as namespace/name")
    problems: list[str] = []
    files = list(_collect(folder, problems))
    if not files and not problems:
        problems.append("there is no file in it")
    body = {
        "schema": 1,
        "repo": repo_id,
        "provenance": dict(provenance),
        "files": [{"path": file.path, "size": file.size, "sha256": file.sha256} for file in files],
    }
    publish_id = hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()
    receipt = json.dumps({"publish_id": publish_id, **body}, sort_keys=True, indent=1).encode() + b"\n"
    problems += find_secrets(RECEIPT, receipt)
    if problems:
        what = "cannot be published:" + "".join(f"\n    {problem}" for problem in problems)
        raise ModelError(str(folder), what, "remove or replace these; weights belong into .safetensors")
    tree = sorted([*files, _release_file(RECEIPT, receipt)], key=lambda file: file.path)
    return Release(repo_id, private, tag or f"release-{publish_id[:12]}", publish_id, tuple(tree))


def _collect(folder: Path, problems: list[str]) -> Iterator[ReleaseFile]:
    """The files in order of path; what may not be published goes to `problems`."""
    for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix()):
        name = path.relative_to(folder).as_posix()
        if find_secrets("", name.encode(errors="surrogateescape")):
            problems.append("the name of a file holds something like a secret")
        elif path.is_symlink():
            problems.append(f"{name}: is a symbolic link")
        elif any(part.startswith(".") for part in Path(name).parts):
            problems.append(f"{name}: is hidden; such files often hold settings or secrets")
        elif path.is_dir():
            continue
        elif not path.is_file():
            problems.append(f"{name}: is not a regular file")
        elif name == RECEIPT:
            problems.append(f"{name}: is written by the publication itself")
        elif path.suffix.lower() in _PICKLES:
            problems.append(f"{name}: is of a format that can hold pickles, which run code when they are loaded")
        elif path.suffix.lower() in _CODE:
            problems.append(f"{name}: is code")
        else:
            found = _find_content_problems(name, path)
            problems += found
            if not found:
                yield _release_file(name, path)


def _find_content_problems(name: str, path: Path) -> list[str]:
    with path.open("rb") as file:
        start = file.read(512)
    for what, pattern in _STARTS.items():
        if pattern.match(start):
            return [f"{name}: {what}, whatever its name says"]
    problems = find_secrets(name, path)
    file_name = Path(name).name
    if file_name.endswith("config.json"):
        try:
            config = json.loads(path.read_bytes())
        except ValueError as error:
            return [*problems, f"{name}: is not JSON: {error}"]
        is_ours = file_name == "config.json"  # an adapter's config may have the key, with nothing in it
        if isinstance(config, dict) and ("auto_map" in config if is_ours else config.get("auto_map")):
            problems.append(f"{name}: has auto_map, which makes its users run code of the repository")
    return problems


def _release_file(name: str, source: Path | bytes) -> ReleaseFile:
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    sha256 = hashlib.sha256()
    git_sha1 = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    for block in _blocks(source):
        sha256.update(block)
        git_sha1.update(block)
    return ReleaseFile(name, size, sha256.hexdigest(), git_sha1.hexdigest(), source)


def _blocks(source: Path | bytes) -> Iterator[bytes]:
    if isinstance(source, bytes):
        yield source
        return
    with source.open("rb") as file:
        while block := file.read(1 << 20):
            yield block
