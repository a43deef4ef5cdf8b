"""The plan of a release: the files of a folder, checked and identified by their content.

Others load a published model on their machines. So a release holds regular files only, none of which runs code when it is
loaded, and nothing that looks like a secret.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from params.foundation.errors import ModelError
from tasks.digests import weights_digest
from tasks.hub_client.release_file import RELEASE_FILE, ReleasedFile, release_id, release_record_bytes, release_tag
from tasks.publishing.secrets import find_secrets

ANY_WEIGHTS: Final = "any"
"""For `ReleasePlan.replaces`: whatever main holds."""
_PICKLES = frozenset({".bin", ".ckpt", ".h5", ".joblib", ".keras", ".npy", ".npz", ".pickle", ".pkl", ".pt", ".pth"})
_PROGRAMS = {".bat", ".cmd", ".class", ".dll", ".dylib", ".egg", ".exe", ".jar", ".js", ".ps1", ".sh", ".so", ".wasm"}
_CODE = frozenset({".ipynb", ".py", ".pyc", ".pyd", ".pyo", ".pyw", ".pyz", ".whl", *_PROGRAMS})
_STARTS = {
    "holds a pickle or an archive": re.compile(rb"\x80[\x02-\x05]|PK\x03\x04|PK\x05\x06"),
    "holds an archive, which is not searched": re.compile(
        rb"\x1f\x8b|BZh[1-9]|\xfd7zXZ\0|7z\xbc\xaf|\x28\xb5\x2f\xfd|Rar!|(?s:.{257})ustar"
    ),
    "is a program": re.compile(rb"\x7fELF|MZ\x90\0|#!\s*/|[\xce\xcf]\xfa\xed\xfe|\xca\xfe\xba\xbe|\0asm"),
}
"""First bytes of pickle protocols 2 to 5 and of the zip that torch.save writes; of other archives; of programs."""


@dataclass(frozen=True)
class ReleasePlan:
    """What is to be published, where, in whose place, and why: a dry run says it, others send it directly or propose it."""

    repo_id: str
    private: bool
    tag: str
    publish_id: str
    """SHA-256 over the files, the repository and `made_from`: the same release always has the same id."""
    files: tuple[ReleasedFile, ...]
    """Sorted by path, RELEASE_FILE included."""
    folder: Path
    """Has all of them but RELEASE_FILE."""
    record: bytes
    """The content of RELEASE_FILE."""
    replaces: str | None = ANY_WEIGHTS
    """Digest of the weights that main must hold for the release to land; None: it must hold none."""
    reasons: tuple[str, ...] = ()
    description: str = ""
    """In Markdown, for the person who is asked to approve it."""
    forms: frozenset[str] = frozenset()
    """Digests of the model in all forms; who has rejected one of them has rejected the model."""

    @property
    def weights(self) -> str | None:
        """The digest of its weights; None if it has none."""
        return weights_digest({file.path: file.sha256 for file in self.files})


@dataclass(frozen=True)
class ReleaseOutcome:
    """What became of a release."""

    status: Literal["dry-run", "published", "proposed", "rejected"]
    commit: str | None = None
    """In main's history. If main was moved back by hand, the tag stays at an earlier commit with the same files."""
    how: str = ""
    """`committed`, or how an earlier publication of it was found."""
    pull_request: int | None = None
    """That waits for a person, or that one has closed."""
    note: str = ""
    """What the receipt says beside the reasons of the release."""


def plan_release(folder: Path, *, repo_id: str, private: bool, made_from: Mapping[str, object]) -> ReleasePlan:
    """Collect the files of a folder and compute the id of the release.

    Args:
        folder: regular files only; none may run code when it is loaded, or hold a secret.
        repo_id: `namespace/name`.
        private: whether the repository must be private; it is created so if it does not exist.
        made_from: what the model was made from, as JSON values; part of RELEASE_FILE and of the id.

    Raises:
        ModelError: the folder may not be published; the error lists all problems.
    """
    paths = sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix())
    names = {path: path.relative_to(folder).as_posix() for path in paths}
    problems = [problem for path, name in names.items() for problem in _problems(name, path)]
    sources = {} if problems else {name: path for path, name in names.items() if path.is_file()}
    if not sources and not problems:
        problems.append("there is no file in it")
    files = [_release_file(name, path) for name, path in sources.items()]
    body = {"schema": 3, "repo": repo_id, "made_from": dict(made_from), "files": [file.model_dump() for file in files]}
    publish_id, record = release_id(body), release_record_bytes(body)
    problems += find_secrets(RELEASE_FILE, record)
    if problems:
        what = "cannot be published:" + "".join(f"\n    {problem}" for problem in problems)
        raise ModelError(str(folder), what, "remove or replace these files; save weights as .safetensors")
    files = sorted([*files, _release_file(RELEASE_FILE, record)], key=lambda file: file.path)
    return ReleasePlan(repo_id, private, release_tag(publish_id), publish_id, tuple(files), folder, record)


def _problems(name: str, path: Path) -> list[str]:
    """Return why what is there may not be published."""
    if fault := _fault_of_name(name, path):
        return [fault]
    if not path.is_file():
        return []
    with path.open("rb") as file:
        start = file.read(512)
    for what, pattern in _STARTS.items():
        if pattern.match(start):
            return [f"{name}: {what}, whatever its name says"]
    return [*find_secrets(name, path), *_faults_of_config(name, path)]


def _fault_of_name(name: str, path: Path) -> str | None:
    """Return what its name and its kind say against it; the first counts."""
    suffix, is_file = path.suffix.lower(), path.is_file()
    faults = {
        "the name of a file holds something like a secret": find_secrets("", name.encode(errors="surrogateescape")),
        f"{name}: is a symbolic link": path.is_symlink(),
        f"{name}: is hidden; such files often hold settings or secrets": "/." in f"/{name}",
        f"{name}: is not a regular file": not is_file and not path.is_dir(),
        f"{name}: is written by the publish stage itself": is_file and name == RELEASE_FILE,
        f"{name}: is in a format that can hold pickles, which run code when they are loaded": is_file
        and suffix in _PICKLES,
        f"{name}: is code": is_file and suffix in _CODE,
    }
    return next((fault for fault, is_there in faults.items() if is_there), None)


def _faults_of_config(name: str, path: Path) -> list[str]:
    """Return why a configuration may not be published; nothing of another file."""
    if not path.name.endswith("config.json"):
        return []
    try:
        config = json.loads(path.read_bytes())
    except ValueError as error:
        return [f"{name}: is not JSON: {error}"]
    if not isinstance(config, dict):
        return []
    # an adapter's config may have the key with an empty value
    names_code = "auto_map" in config if path.name == "config.json" else config.get("auto_map")
    return [f"{name}: has auto_map, which makes users run code of the repository"] if names_code else []


def _release_file(name: str, source: Path | bytes) -> ReleasedFile:
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    sha256 = hashlib.sha256()
    git_sha1 = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
        while block := file.read(1 << 20):
            sha256.update(block)
            git_sha1.update(block)
    return ReleasedFile(path=name, size=size, sha256=sha256.hexdigest(), git_sha1=git_sha1.hexdigest())
