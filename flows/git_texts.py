"""The texts of all files of some names that a git repository still has: in what its references lead to, its indexes and worktrees.

It reads git's objects themselves, not what commands such as `git grep` show of them, which settings and attributes change. Whatever
it does not understand is an error: what it leaves out would be taken for unused.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from params import EvergreenError

Wanted = Callable[[str], bool]

_HASH: Final = re.compile(rb"[0-9a-f]{40}|[0-9a-f]{64}")
_OBJECTS_AT_ONCE: Final = 1000
_KEPT_VARIABLES: Final = ("GIT_CONFIG_", "GIT_EXEC_PATH", "GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM")
"""The only variables of git that count: the others lead to another repository or index, or change what is printed."""
_IN_PROGRESS: Final = ("*_HEAD", "MERGE_AUTOSTASH", "rebase-*/orig-head", "rebase-*/onto", "rebase-*/autostash")
"""Files that name the commits to which git goes back if a merge, a rebase or the like is given up."""
_PAST: Final = {"FETCH_HEAD", "ORIG_HEAD", "REBASE_HEAD"}
_STASHES: Final = ("refs/stash", "refs/exps/")
"""References whose logs have more stashes: git's own, and those of DVC's queues."""
_POINTER: Final = re.compile(rb"version https://git-lfs\.github\.com/spec/v1\n(?:.*\n)*?oid sha256:([0-9a-f]{64})\n")


def texts(wanted: Wanted) -> Iterator[str]:
    """Yield the text of each file whose path ends in a name that is wanted.

    In git's objects only the name itself counts, without folders: the same folder may have several names.

    Raises:
        EvergreenError: git, or a folder, cannot be read.
    """
    common = _common_folder()
    if common is None:
        yield from _in_folder(Path(), wanted, None)
        return
    linked = sorted(path for path in common.glob("worktrees/*") if path.is_dir())
    folders = {Path(os.fsdecode(_git("rev-parse", "--show-toplevel").removesuffix(b"\n")))}
    if common.name == ".git":
        folders.add(common.parent)
    for place in (path / "gitdir" for path in linked):
        if place.is_file():
            folders.add(
                Path(place.parent, place.read_bytes().removesuffix(b"\n").decode(errors="surrogateescape")).parent
            )
    for folder in sorted(folders):
        yield from _in_folder(folder, wanted, common)
    tips, stashes = _tips([common, *linked])
    blobs = {blob for folder in (common, *linked) for blob in _in_index(folder, wanted)}
    yield from _in_objects(tips, stashes, blobs, wanted, common)


def _common_folder() -> Path | None:
    """Return the folder of the repository, which all of its worktrees share; None if the project is not in git."""
    done = _run("rev-parse", "--git-common-dir")
    here = Path.cwd()
    if done.returncode and b"not a git repository" in done.stderr:
        folders = [os.environ.get("GIT_DIR"), *(folder / ".git" for folder in (here, *here.parents))]
        if not any(folder and Path(folder).exists() for folder in folders):
            return None
    return here / os.fsdecode(_checked(done).removesuffix(b"\n"))


def _in_folder(folder: Path, wanted: Wanted, common: Path | None) -> Iterator[str]:
    """Yield the texts of files in a worktree, whether git knows them or not, and in the experiments that DVC has queued."""

    def stop(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # the worktree is gone, or a file since it was listed
            raise EvergreenError(
                str(error.filename), f"cannot be read: {error.strerror}", "allow reading it, or remove it"
            )

    for path, names, files in os.walk(folder, onerror=stop):
        names[:] = [name for name in names if name != ".git" and (name != "cache" or Path(path).name != ".dvc")]
        for name in files:  # often a million, so that no Path is made of each
            if wanted(f"{path}/{name}") and (file := Path(path, name)).is_file():
                try:
                    yield _text(file.read_bytes(), str(file), common)
                except OSError as error:
                    stop(error)


def _tips(repositories: Iterable[Path]) -> tuple[set[bytes], set[bytes]]:
    """Return all objects that a reference, a HEAD or an operation in progress names; and the stashes, also older ones."""
    tips, stashes = set(), set()
    for repository in repositories:
        git = f"--git-dir={repository}"
        head = _run(git, "rev-parse", "--quiet", "--verify", "HEAD")
        if head.returncode != 1:  # no commit yet
            tips.add(_hash(_checked(head).rstrip()))
        references = _run(git, "for-each-ref", "--format=%(objectname) %(refname)")
        if b"broken" in references.stderr:
            raise _unknown(references.stderr)
        for line in _checked(references).splitlines():
            tip, _, name = line.partition(b" ")
            tips.add(_hash(tip))
            if name.startswith(tuple(map(str.encode, _STASHES))):
                stashes |= set(map(_hash, _git(git, "rev-list", "--walk-reflogs", os.fsdecode(name)).split()))
                stashes.add(_hash(tip))
        for path in itertools.chain.from_iterable(map(repository.glob, _IN_PROGRESS)):
            if path.is_file() and path.name not in _PAST:
                stashes |= {_hash(line) for line in path.read_bytes().split()}
    return tips | stashes, stashes


def _in_index(repository: Path, wanted: Wanted) -> Iterator[bytes]:
    """Yield the blobs in the index of a worktree, also one whose folder is not there."""
    if not (repository / "index").exists():
        return
    command = ("ls-files", "--stage", "-z", "--full-name", "--no-recurse-submodules")
    for entry in _git(f"--git-dir={repository}", "--work-tree=.", *command).split(b"\0")[:-1]:
        about, tab, name = entry.partition(b"\t")
        mode, blob, _ = about.split(b" ")
        if not tab:
            raise _unknown(entry)
        if mode != b"160000" and wanted(os.fsdecode(name)):  # no submodule
            yield _hash(blob)


def _in_objects(
    tips: set[bytes], stashes: set[bytes], blobs: set[bytes], wanted: Wanted, common: Path
) -> Iterator[str]:
    """Yield the texts of blobs, and of those that commits, tags and trees lead to, without the commits before them."""
    seen: set[bytes] = set()
    found = tips | blobs
    while names := sorted(found - seen):
        seen |= found
        found, new = set(), iter(names)
        while some := list(itertools.islice(new, _OBJECTS_AT_ONCE)):
            for name, kind, content in _objects(some):
                if kind == b"blob":
                    yield _text(content, f"git's object {name.decode()}", common)
                elif kind == b"tree":
                    found |= set(_in_tree(content, len(name) // 2, wanted))
                else:
                    header = content.partition(b"\n\n")[0]
                    found |= set(map(_hash, re.findall(rb"^(?:tree|object) (.*)$", header, re.MULTILINE)))
                    if name in stashes:  # the index, and the files that git did not know
                        found |= set(map(_hash, re.findall(rb"^parent (.*)$", header, re.MULTILINE)[1:]))


def _in_tree(content: bytes, size: int, wanted: Wanted) -> Iterator[bytes]:
    """Yield the trees in a tree, and the blobs in it whose names are wanted."""
    start = 0
    while start < len(content):
        end = content.index(b"\0", start)
        mode, _, name = content[start:end].partition(b" ")
        start = end + 1 + size
        if mode == b"40000" or (mode != b"160000" and wanted(os.fsdecode(name))):
            yield content[end + 1 : start].hex().encode()


def _objects(names: list[bytes]) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield name, kind and content of objects."""
    out = _git("--no-replace-objects", "cat-file", "--batch", given=b"\n".join(names) + b"\n")
    start = 0
    for name in names:
        end = out.index(b"\n", start)
        about = out[start:end].split(b" ")
        if len(about) != 3 or about[0] != name:
            raise _unknown(out[start:end])
        start = end + 1 + int(about[2])
        yield name, about[1], out[end + 1 : start]
        start += 1


def _text(content: bytes, where: str, common: Path | None) -> str:
    """Return a file as text, also one that git-lfs keeps.

    Raises:
        EvergreenError: the text is encrypted, or is not on this machine.
    """
    if content.startswith(b"\0GITCRYPT\0"):
        raise EvergreenError(where, "is encrypted, so it is unknown what is in use", "do not encrypt what DVC writes")
    if common and (pointer := _POINTER.match(content)):
        oid = pointer[1].decode()
        kept = common / "lfs/objects" / oid[:2] / oid[2:4] / oid
        if not kept.is_file():
            raise EvergreenError(
                where, "is not here but in git-lfs, so it is unknown what is in use", "git lfs fetch --all"
            )
        content = kept.read_bytes()
    return content.decode(errors="replace")


def _hash(text: bytes) -> bytes:
    if not _HASH.fullmatch(text):
        raise _unknown(text)
    return text


def _git(*command: str, given: bytes = b"") -> bytes:
    return _checked(_run(*command, given=given))


def _run(*command: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name.startswith(_KEPT_VARIABLES)
    }
    try:
        return subprocess.run(
            ["git", *command], input=given, capture_output=True, env={**own, "LC_ALL": "C"}, check=False
        )
    except FileNotFoundError:
        raise EvergreenError("git", "is not installed, so it is unknown what is in use", "install git") from None


def _checked(done: subprocess.CompletedProcess[bytes]) -> bytes:
    if done.returncode:
        raise _unknown(done.stderr)
    return done.stdout


def _unknown(said: bytes) -> EvergreenError:
    what = said.decode(errors="replace").strip()
    return EvergreenError("git", f"cannot say what is in use: {what}", "correct what it names; nothing was deleted")
