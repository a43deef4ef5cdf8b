"""The texts of all files of some names that a git repository still has: in what its references lead to, its indexes and worktrees.

It reads git's objects themselves, not what commands such as `git grep` show of them, which settings and attributes change. Whatever
it does not understand is an error: what it leaves out would be taken for unused.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import Final

from params import EvergreenError

Wanted = Callable[[str], bool]

_HASH: Final = re.compile(rb"[0-9a-f]{40}|[0-9a-f]{64}")
_KEPT_VARIABLES: Final = ("GIT_CONFIG_", "GIT_EXEC_PATH", "GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM")
"""The only variables of git that count: the others lead to another repository or index, or change what is printed."""
_NAME: Final = re.compile(rb"\b[0-9a-f]{7,64}\b")
"""What may be the name of a commit, also a short one."""
_NOT_NAMING: Final = {"objects", "refs", "packed-refs", "index", "logs", "lfs", "modules"}
"""What in git's folder is read otherwise, or names no commits to go back to; submodules have their own."""
_STASHES: Final = (b"refs/stash", b"refs/exps/")
"""References whose logs have more stashes: git's own, and those of DVC's queues."""
_NO_TEXT: Final = re.compile("[\0\ud800-\udfff]")
_POINTER: Final = re.compile(rb"version https://git-lfs\.github\.com/spec/v1\n(?:.*\n)*?oid sha256:([0-9a-f]{64})\n")


def find_matching_texts(wanted: Wanted, form: re.Pattern[str]) -> Iterator[str]:
    """Yield the text of each file whose path ends in a name that is wanted, and in which `form` is found.

    Raises:
        EvergreenError: git, a folder or a file cannot be read, or a file is not of this form; an encrypted one is not.
    """
    common = _common_folder()
    for where, content in _files(Path(), wanted) if common is None else _contents(wanted, common):
        yield _text(content, where, form, common)


def _contents(wanted: Wanted, common: Path) -> Iterator[tuple[str, bytes]]:
    """Yield where a wanted file is, or nothing for a file whose name git does not know, and its content."""
    linked = sorted(path for path in common.glob("worktrees/*") if path.is_dir())
    folders = {Path(os.fsdecode(_git("rev-parse", "--show-toplevel").removesuffix(b"\n"))), *_main_worktree(common)}
    for place in (path / "gitdir" for path in linked):
        if place.is_file():
            folders.add(
                Path(place.parent, place.read_bytes().removesuffix(b"\n").decode(errors="surrogateescape")).parent
            )
    for folder in sorted(folders):
        yield from _files(folder, wanted)
    blobs = {blob for folder in (common, *linked) for blob in _in_index(folder, wanted)}
    tips, stashes = _tips([common, *linked])
    stashes |= _named(common)
    # The other parents of a stash are its index, and the files that git did not know.
    with_parents = _git("rev-list", "--no-walk", "--parents", "--stdin", given=b"\n".join(stashes)) if stashes else b""
    tips |= stashes | {parent for line in with_parents.splitlines() for parent in line.split()[2:]}
    for name, kind in _objects(tips, b"^{}"):
        if kind == b"blob":
            yield "", _git("cat-file", "blob", name.decode())
        elif kind in {b"commit", b"tree"}:
            blobs |= set(_listed(_git("ls-tree", "-r", "-z", "--full-tree", name.decode()), wanted))
        else:
            raise _unknown(name + b": " + kind)
    for blob in sorted(blobs):
        yield f"git's object {blob.decode()}", _git("cat-file", "blob", blob.decode())


def _objects(names: Iterable[bytes], suffix: bytes) -> list[tuple[bytes, bytes]]:
    """Return name and kind of the objects that names with a suffix stand for, each once; or a name, and what is wrong with it."""
    given = b"".join(name + suffix + b"\n" for name in names)
    lines = _git("cat-file", "--batch-check=%(objectname) %(objecttype)", given=given).splitlines()
    return sorted({(name, kind) for name, _, kind in (line.partition(b" ") for line in lines)})


def _common_folder() -> Path | None:
    """Return the folder of the repository, which all of its worktrees share; None if the project is not in git."""
    done = _run("rev-parse", "--git-common-dir")
    here = Path.cwd()
    if done.returncode and b"not a git repository" in done.stderr:
        folders = [os.environ.get("GIT_DIR"), *(folder / ".git" for folder in (here, *here.parents))]
        if not any(folder and Path(folder).exists() for folder in folders):
            return None
    return here / os.fsdecode(_checked(done).removesuffix(b"\n"))


def _main_worktree(common: Path) -> Iterator[Path]:
    """Yield the folder of the worktree that is not linked; a bare repository has none.

    Raises:
        EvergreenError: git does not know it, and it is not the one here.
    """
    about = f"--git-dir={common}"
    if own := _run(about, "config", "core.worktree").stdout.removesuffix(b"\n"):
        yield common / os.fsdecode(own)
    elif common.name == ".git":
        yield common.parent
    elif _run(about, "config", "--type=bool", "core.bare").stdout != b"true\n":
        here = Path.cwd() / os.fsdecode(_git("rev-parse", "--git-dir").removesuffix(b"\n"))
        if not here.samefile(common):
            what = "does not say where its main worktree is, so it is unknown what is in use"
            raise EvergreenError(str(common), what, "run this command there; nothing was deleted")


def _files(folder: Path, wanted: Wanted, left_out: Container[str] = (".git",)) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of files, whether git knows them or not, and in the experiments that DVC has queued."""

    def stop(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # the worktree is gone, or a file since it was listed
            raise EvergreenError(
                str(error.filename), f"cannot be read: {error.strerror}", "allow reading it, or remove it"
            )

    for path, names, files in os.walk(folder, onerror=stop):
        names[:] = [name for name in names if name not in left_out and (name != "cache" or Path(path).name != ".dvc")]
        for name in files:  # often a million, so that no Path is made of each
            if name not in left_out and wanted(f"{path}/{name}") and (file := Path(path, name)).is_file():
                try:
                    content = file.read_bytes()
                except OSError as error:
                    stop(error)
                else:
                    yield str(file), content


def _named(common: Path) -> set[bytes]:
    """Return the commits that any file of git names: git may go back to them if a merge, a bisection or the like is given up."""
    names = {name for _, content in _files(common, lambda _: True, _NOT_NAMING) for name in _NAME.findall(content)}
    # ^0: of all objects with a short name, the commit
    return {name for name, kind in _objects(names, b"^0") if kind == b"commit"}


def _tips(repositories: Iterable[Path]) -> tuple[set[bytes], set[bytes]]:
    """Return all objects that a reference or a HEAD names; and the stashes, also older ones."""
    tips, stashes = set(), set()
    for repository in repositories:
        git = f"--git-dir={repository}"
        head = _run(git, "rev-parse", "--quiet", "--verify", "HEAD")
        if head.returncode != 1:  # no commit yet
            tips.add(_checked(head).rstrip())
        references = _run(git, "for-each-ref", "--format=%(objectname) %(refname)")
        if b"broken" in references.stderr:
            raise _unknown(references.stderr)
        for tip, name in (line.split(b" ", 1) for line in _checked(references).splitlines()):
            tips.add(tip)
            if name.startswith(_STASHES):
                stashes |= {tip, *_git(git, "rev-list", "--walk-reflogs", os.fsdecode(name)).split()}
    return tips, stashes


def _in_index(repository: Path, wanted: Wanted) -> Iterator[bytes]:
    """Yield the blobs in the index of a worktree, also one whose folder is not there."""
    if (repository / "index").exists():
        command = ("ls-files", "--stage", "-z", "--full-name", "--no-recurse-submodules")
        yield from _listed(_git(f"--git-dir={repository}", "--work-tree=.", *command), wanted)


def _listed(entries: bytes, wanted: Wanted) -> Iterator[bytes]:
    """Yield the wanted blobs that git lists, in a tree or an index."""
    for entry in entries.split(b"\0")[:-1]:
        about, tab, name = entry.partition(b"\t")
        if not tab or not (blob := _HASH.search(about)):
            raise _unknown(entry)
        if not about.startswith(b"160000") and wanted(os.fsdecode(name)):  # no submodule
            yield blob[0]


def _text(content: bytes, where: str, form: re.Pattern[str], common: Path | None) -> str:
    """Return a file as text, also one that git-lfs keeps.

    Raises:
        EvergreenError: the text is not of this form, or is not on this machine.
    """
    if common and (pointer := _POINTER.match(content)):
        oid = pointer[1].decode()
        kept = common / "lfs/objects" / oid[:2] / oid[2:4] / oid
        if not kept.is_file():
            raise EvergreenError(
                where, "is not in this clone but in git-lfs, so it is unknown what is in use", "git lfs fetch --all"
            )
        content = kept.read_bytes()
    text = content.decode(errors="surrogateescape")
    if where and text.strip() and (_NO_TEXT.search(text) or not form.search(text)):
        what = "is encrypted, a link or otherwise not what was written, so it is unknown what is in use"
        raise EvergreenError(where, what, "keep it in git as DVC or Evergreen wrote it; nothing was deleted")
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
            ["git", "--no-replace-objects", *command],
            input=given,
            capture_output=True,
            env={**own, "LC_ALL": "C"},
            check=False,
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
