"""Names on the local Hub: of users, repositories, branches, tags and files; and which of them are refused.

Every name that becomes a part of a path on the disk or in git passes through here. What a name must not do: leave the
repository, be read by git or by another file system as `.git`, stand for another kind of thing (a branch that looks
like a commit), or take the place of one of the Hub's own pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from dulwich.refs import Ref, check_ref_format

from tasks.hub_server.refusals import RefusedError

RefKind = Literal["heads", "tags"]
COMMIT_ID = re.compile(r"[0-9a-f]{7,40}")

_NAME = re.compile(r"(?!.*(?:\.\.|--))(?!.*\.git$)[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_RESERVED_NAMESPACES = frozenset({"api", "datasets", "kernels", "models", "spaces", "uploads"})
_PATH_BYTES = 1024
_PART_BYTES = 255
"""What Linux allows for a name in a folder; also for a branch or tag, which is a file in `refs`."""

_UNSEEN = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
"""Characters that HFS+ ignores in names: `.g<one of them>it` is `.git` there."""


def is_valid_name(name: str) -> bool:
    """Whether `name` may be that of a repository."""
    return bool(_NAME.fullmatch(name))


def is_valid_namespace(name: str) -> bool:
    """Whether `name` may be that of a user or a team, whose repositories are at `/<name>/...`."""
    return is_valid_name(name) and name.lower() not in _RESERVED_NAMESPACES


def reference(kind: RefKind, name: str) -> Ref:
    """The full name of a branch (`heads`) or tag.

    Raises:
        RefusedError: 400 for a name that git does not take, or that could be a commit's.
    """
    full = f"refs/{kind}/{name.removeprefix(f'refs/{kind}/')}".encode()
    ref = Ref(full)
    if not is_storable(full) or name.startswith("-") or re.fullmatch(r"[0-9a-f]{40}", name):
        raise RefusedError(400, f"Invalid reference name: {name!r}")
    return ref


def is_storable(ref: bytes) -> bool:
    """Whether git and the file system take this full name of a reference."""
    is_short = len(ref) <= _PATH_BYTES and all(len(part) <= _PART_BYTES - len(".lock") for part in ref.split(b"/"))
    return is_short and check_ref_format(Ref(ref))


def checked_path(path: str) -> str:
    """The path of a file without a trailing slash.

    Raises:
        RefusedError: 400 for one that git or a file system could read as another place.
    """
    parts = path.removesuffix("/").split("/")
    odd = any(ord(char) < 32 or char in "\\\x7f" for char in path)
    if odd or len(path.encode()) > _PATH_BYTES or any(map(_is_refused_part, parts)):
        raise RefusedError(400, f"Invalid path in the repository: {path!r}")
    return "/".join(parts)


def _is_refused_part(part: str) -> bool:
    plain = _UNSEEN.sub("", part).rstrip(". ").lower()  # NTFS drops dots and spaces at the end
    return plain in ("", ".git", "git~1") or len(part.encode()) > _PART_BYTES


def refuse_file_as_folder(files: Iterable[str]) -> None:
    """Let no file stand where another file's folder must be.

    Raises:
        RefusedError: 400.
    """
    names = set(files)
    for path in names:
        parent = path.rpartition("/")[0]
        while parent:
            if parent in names:
                raise RefusedError(400, f"{parent!r} cannot be a file and the folder of {path!r}")
            parent = parent.rpartition("/")[0]
