"""Validation of names on the local Hub: users, repositories, branches, tags and files.

Every name that becomes part of a path on disk or in git is checked here. A name must not lead out of the repository,
be `.git` to git or to any file system, be ambiguous (a branch that looks like a commit), or hide a page of the Hub.
"""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Literal

from dulwich.index import validate_path, validate_path_element_hfs, validate_path_element_ntfs
from dulwich.refs import Ref, check_ref_format

from tasks.hub_server.errors import HubError

RefKind = Literal["heads", "tags"]
COMMIT_ID = re.compile(r"[0-9a-f]{7,40}")

_NAME = re.compile(r"(?!.*(?:\.\.|--))(?!.*\.git$)[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_RESERVED_NAMESPACES = frozenset({"api", "datasets", "kernels", "models", "spaces", "uploads"})
_PATH_BYTES = 1024
_PART_BYTES = 255
"""Maximum length of a file name on Linux; branches and tags are files in `refs`."""


def is_valid_repository_name(name: str) -> bool:
    """Whether `name` is valid for a repository."""
    return bool(_NAME.fullmatch(name))


def is_valid_namespace(name: str) -> bool:
    """Whether `name` is valid for a user or a team, whose repositories are at `/<name>/...`."""
    return is_valid_repository_name(name) and name.lower() not in _RESERVED_NAMESPACES


def to_full_ref(kind: RefKind, name: str) -> Ref:
    """Return the full name of a branch (`heads`) or tag: `refs/<kind>/<name>`.

    HubError 400 if git does not accept the name, or if it looks like a commit id or a full name.
    """
    short = name.removeprefix(f"refs/{kind}/")
    full = f"refs/{kind}/{short}".encode()
    ref = Ref(full)
    if not is_valid_ref(full) or short.startswith(("-", "refs/")) or re.fullmatch(r"[0-9a-f]{40}", short):
        raise HubError(400, f"Invalid reference name: {name!r}")
    return ref


def pull_request_ref(number: int) -> Ref:
    """Return the full name of a pull request's branch."""
    return Ref(f"refs/pr/{number}".encode())


def pull_request_number(revision: str) -> int | None:
    """Return the number of the pull request whose branch `revision` is; None if it is another revision."""
    match = re.fullmatch(r"refs/pr/([1-9][0-9]{0,17})", revision)
    return int(match[1]) if match else None


def is_valid_ref(ref: bytes) -> bool:
    """Whether git and the file system accept this full name of a branch or tag."""
    is_short = len(ref) <= _PATH_BYTES and all(len(part) <= _PART_BYTES - len(".lock") for part in ref.split(b"/"))
    return is_short and check_ref_format(Ref(ref))


def normalize_repo_path(path: str) -> str:
    """Return the path of a file without a trailing slash. HubError 400 if something could resolve it elsewhere."""
    found = path.removesuffix("/")
    encoded = found.encode()
    is_valid = all(validate_path(encoded, check) for check in (validate_path_element_ntfs, validate_path_element_hfs))
    has_bad_character = any(ord(char) < 32 or char in "\\\x7f" for char in found)
    is_short = len(encoded) <= _PATH_BYTES and all(len(part) <= _PART_BYTES for part in encoded.split(b"/"))
    if has_bad_character or not is_short or not is_valid:
        raise HubError(400, f"Invalid path in the repository: {path!r}")
    return found


def file_above(path: str, files: Set[str]) -> str | None:
    """Return the file among `files` that is also a folder above `path`; None without one."""
    parent = path.rpartition("/")[0]
    while parent and parent not in files:
        parent = parent.rpartition("/")[0]
    return parent or None
