"""DVC's cache: what neither the project nor a release uses, deleted by DVC.

The command `dvc gc` keeps what git has committed. The hashes of a release are in its own record, and perhaps nowhere else.
A cache that other projects may use is never emptied: nobody knows what they need.

What the project can go back to is read from the texts of all dvc.lock and .dvc files, and of all logs of receipts, instead of asking
DVC, which does not know all references of git, other worktrees and what a removed recipe has left in dvc.lock, and which fails if
one of many versions of dvc.yaml is not valid. These are git's objects themselves, not what commands such as `git grep` show of them,
which settings and attributes change. Whatever cannot be understood is an error: what is left out would be taken for unused.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import psutil

from flows.dvc_project.stage import open_dvc_repository
from params import EvergreenError, TransientError

Endings: TypeAlias = tuple[str, ...]  # of the paths of the files that are looked for
_MD5: Final = re.compile(r"[0-9a-f]{32}(\.dir)?")
_LOCK: Final = re.compile(
    r"\A(?![\s\S]*^[ -]*md5: (?!['\"]?[0-9a-f]{32}))[\s\S]*^[ -]*(schema|stages|outs|deps|cmd):", re.MULTILINE
)
"""What each dvc.lock and .dvc file has: a key that DVC writes, and no MD5 hash that is none."""
_LOG: Final = re.compile(r"\{[^{}\n]*\}")
_PUBLISHED: Final = re.compile(
    r'"event":"(?:published|proposed|kept|rollback)".*?"repo_id":"([^"]*)","endpoint":"([^"]*)"'
)
"""An event of a repository that has releases, in the log of releases. It is searched for: a kill may have cut a line short."""
_EXPERIMENTS: Final = Path(".dvc/tmp/exps")
"""Where DVC runs queued experiments, each in a copy of the project that uses the same cache."""
_KEPT_VARIABLES: Final = ("GIT_CONFIG_", "GIT_EXEC_PATH", "GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM")
"""The only variables of git that count: the others lead to another repository or index, or change what is printed."""
_OBJECT: Final = re.compile(rb"[0-9a-f]{40}|[0-9a-f]{64}")
_NAME: Final = re.compile(rb"\b[0-9a-f]{7,64}\b")  # what may be the name of a commit, also a short one
_NOT_NAMING: Final = {"objects", "refs", "packed-refs", "index", "logs", "lfs", "modules"}
"""What in git's folder is read otherwise, or names no commits to go back to; submodules have their own."""
_STASHES: Final = (b"refs/stash", b"refs/exps/")
"""References whose logs have more stashes: git's own, and those of DVC's queues."""
_NO_TEXT: Final = re.compile("[\0\ud800-\udfff]")
_POINTER: Final = re.compile(rb"version https://git-lfs\.github\.com/spec/v1\n(?:.*\n)*?oid sha256:([0-9a-f]{64})\n")


def cache_folder_and_sharing() -> tuple[Path, str | None]:
    """Return the folder of the cache, and why other projects may use it; None if it is this project's alone."""
    with open_dvc_repository("DVC's cache") as repo:
        root, cache = Path(repo.root_dir).resolve(), Path(repo.cache.local_cache_dir).resolve()
        if not cache.is_relative_to(root):
            return cache, "it is outside of the project"
        return cache, "`cache.shared` says so" if repo.config["cache"].get("shared") else None


def measure_or_delete_unused_objects(needed: Collection[str], *, remove: bool = False) -> int:
    """Return the bytes of the objects that are not in use; with `remove`, delete them.

    In use are the objects that the project has or can go back to (`find_referenced_hashes`), and those in `needed` (MD5 hashes).
    """
    from dvc_data.hashfile.gc import gc

    with open_dvc_repository("DVC's cache") as repo, repo.lock:  # without this lock, no stage can add an object
        cache = repo.cache.local
        used = {info for infos in repo.used_objs(force=True).values() for info in infos}
        used |= set(_with_files(cache, {*needed, *find_referenced_hashes()}))
        hashes = {info.value for info in used}
        freed = sum(Path(cache.oid_to_path(found)).stat().st_size for found in cache.all() if found not in hashes)
        if remove:
            gc(cache, used)
        return freed


def _with_files(cache: Any, hashes: Collection[str]) -> Iterator[Any]:
    """Yield DVC's objects for the hashes and, where one is of a folder in the cache, for the files in it."""
    from dvc_data.hashfile import load
    from dvc_data.hashfile.hash_info import HashInfo
    from dvc_data.hashfile.tree import Tree
    from dvc_objects.errors import ObjectFormatError

    for value in hashes:
        info = HashInfo("md5", value)
        yield info
        if info.isdir:
            with contextlib.suppress(FileNotFoundError, ObjectFormatError):
                folder = load(cache, info)
                assert isinstance(folder, Tree)
                yield from (file for _, _, file in folder)


def find_referenced_hashes() -> set[str]:
    """Return every MD5 hash in a dvc.lock or a .dvc file that git, DVC or a person may go back to.

    These are the files here, in other worktrees, in queued experiments, in the indexes of all worktrees, and those in the
    commit of every reference (branches of remotes, tags, stashes, saved experiments, records of runs) and of every file of git.

    Raises:
        EvergreenError: git, a folder or a file cannot be read, or a file is not of this form; an encrypted one is not.
    """
    return {found[0] for text in _texts(("dvc.lock", ".dvc"), _LOCK) for found in _MD5.finditer(text)}


def find_published_hub_repositories() -> set[tuple[str, str]]:
    """Return where the logs of receipts say that a model was published: the repository's id, and the Hub.

    The logs are those of all recipes, also removed ones, in the same places as for `find_referenced_hashes`.
    """
    texts = _texts(("release/log.jsonl", "unrecorded/log.jsonl"), _LOG)
    return {(found[1], found[2]) for text in texts for found in _PUBLISHED.finditer(text)}


def refuse_running_experiment() -> None:
    """Fail while DVC runs an experiment in a copy of the project, whose locks are not the project's."""
    for path in _EXPERIMENTS.rglob("run/*/*.json"):
        about = json.loads(path.read_text(encoding="utf-8"))
        if about.get("returncode") is None and psutil.pid_exists(about["pid"]):
            raise TransientError(str(path), f"an experiment runs as process {about['pid']}", "wait until it ends")


def _texts(endings: Endings, form: re.Pattern[str]) -> Iterator[str]:
    """Yield the text of each file with such a path, in which `form` must be found."""
    done = _run("rev-parse", "--git-common-dir")
    if done.returncode and b"not a git repository" in done.stderr:
        folders = [os.environ.get("GIT_DIR"), *(place / ".git" for place in (Path.cwd(), *Path.cwd().parents))]
        if not any(folder and Path(folder).exists() for folder in folders):
            yield from (_text(content, where, form, Path()) for where, content in _files(Path(), endings))
            return
    common = Path.cwd() / os.fsdecode(_git("rev-parse", "--git-common-dir").removesuffix(b"\n"))  # of all worktrees
    yield from (_text(content, where, form, common) for where, content in _contents(common, endings))


def _contents(common: Path, endings: Endings) -> Iterator[tuple[str, bytes]]:
    """Yield where a file is, or nothing for a file whose name git does not know, and its content."""
    for folder in sorted(_worktree_folders(common)):
        yield from _files(folder, endings)
    linked = sorted(path for path in common.glob("worktrees/*") if path.is_dir())
    tips, stashes, blobs = set[bytes](), _named(common), set[bytes]()
    for repository in (common, *linked):
        blobs |= _blobs_of_index(repository, endings)
        referenced, stashed = _tips_and_stashes(repository)
        tips |= referenced
        stashes |= stashed
    tips |= stashes | _other_parents(stashes)
    for name, kind in _objects(tips, b"^{}"):
        if kind == b"blob":
            yield "", _git("cat-file", "blob", name.decode())
        elif kind in {b"commit", b"tree"}:
            blobs |= _listed(_git("ls-tree", "-r", "-z", "--full-tree", name.decode()), endings)
        else:
            raise _unknown(name + b": " + kind)
    for blob in sorted(blobs):
        yield f"git's object {blob.decode()}", _git("cat-file", "blob", blob.decode())


def _worktree_folders(common: Path) -> set[Path]:
    """Return the folders of all worktrees, also of those that are not there any more."""
    folders = {Path(os.fsdecode(_git("rev-parse", "--show-toplevel").removesuffix(b"\n"))), *_main_worktree(common)}
    for place in common.glob("worktrees/*/gitdir"):
        folders.add(Path(place.parent, os.fsdecode(place.read_bytes().removesuffix(b"\n"))).parent)
    return folders


def _blobs_of_index(repository: Path, endings: Endings) -> set[bytes]:
    if not (repository / "index").exists():  # it does also for a worktree whose folder is not there
        return set()
    command = ("ls-files", "--stage", "-z", "--full-name", "--no-recurse-submodules")
    return _listed(_git(f"--git-dir={repository}", "--work-tree=.", *command), endings)


def _tips_and_stashes(repository: Path) -> tuple[set[bytes], set[bytes]]:
    """Return what the references of a repository name, and the stashes of those that hold some."""
    git = f"--git-dir={repository}"
    references = _run(git, "show-ref", "--head")
    if references.returncode > 1 or b"broken" in references.stderr:  # 1: there is none
        raise _unknown(references.stderr)
    tips, stashes = set(), set()
    for line in references.stdout.splitlines():
        tip, name = line.split(b" ", 1)
        tips.add(tip)
        if name.startswith(_STASHES):
            stashes |= {tip, *_git(git, "rev-list", "--walk-reflogs", os.fsdecode(name)).split()}
    return tips, stashes


def _other_parents(stashes: Collection[bytes]) -> set[bytes]:
    """Return the parents of stashes but the first: the index, and the files that git did not know."""
    if not stashes:
        return set()
    with_parents = _git("rev-list", "--no-walk", "--parents", "--stdin", given=b"\n".join(stashes))
    return {parent for line in with_parents.splitlines() for parent in line.split()[2:]}


def _main_worktree(common: Path) -> Iterator[Path]:
    """Yield the folder of the worktree that is not linked; a bare repository has none."""
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


def _files(folder: Path, endings: Endings, left_out: Collection[str] = (".git",)) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of files, whether git knows them or not, and in the experiments that DVC has queued."""

    def stop(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # the worktree is gone, or a file since it was listed
            what = f"cannot be read: {error.strerror}"
            raise EvergreenError(str(error.filename), what, "allow reading it, or remove it")

    for path, names, files in os.walk(folder, onerror=stop):
        names[:] = [name for name in names if name not in left_out and (name != "cache" or Path(path).name != ".dvc")]
        for name in files:  # often a million, so that no Path is made of each
            if name in left_out or not f"{path}/{name}".endswith(endings):
                continue
            file = Path(path, name)
            if file.is_file():
                try:
                    yield str(file), file.read_bytes()
                except OSError as error:
                    stop(error)


def _named(common: Path) -> set[bytes]:
    """Return the commits that any file of git names: git may go back to them if a merge, a bisection or the like is given up."""
    names = {name for _, content in _files(common, ("",), _NOT_NAMING) for name in _NAME.findall(content)}
    # ^0: of all objects with a short name, the commit
    return {name for name, kind in _objects(names, b"^0") if kind == b"commit"}


def _objects(names: Iterable[bytes], suffix: bytes) -> list[tuple[bytes, bytes]]:
    """Return name and kind of the objects that names with a suffix stand for, each once; or a name, and what is wrong with it."""
    given = b"".join(name + suffix + b"\n" for name in names)
    lines = _git("cat-file", "--batch-check=%(objectname) %(objecttype)", given=given).splitlines()
    return sorted({(name, kind) for name, _, kind in (line.partition(b" ") for line in lines)})


def _listed(entries: bytes, endings: Endings) -> set[bytes]:
    found = set()
    for entry in entries.split(b"\0")[:-1]:
        about, tab, name = entry.partition(b"\t")
        if not tab or not (blob := _OBJECT.search(about)):
            raise _unknown(entry)
        if not about.startswith(b"160000") and os.fsdecode(name).endswith(endings):  # no submodule
            found.add(blob[0])
    return found


def _text(content: bytes, where: str, form: re.Pattern[str], common: Path) -> str:
    if pointer := _POINTER.match(content):
        oid = pointer[1].decode()
        kept = common / "lfs/objects" / oid[:2] / oid[2:4] / oid
        if not kept.is_file():
            what = "is not in this clone but in git-lfs, so it is unknown what is in use"
            raise EvergreenError(where, what, "git lfs fetch --all")
        content = kept.read_bytes()
    text = content.decode(errors="surrogateescape")
    if where and text.strip() and (_NO_TEXT.search(text) or not form.search(text)):
        what = "is encrypted, a link or otherwise not what was written, so it is unknown what is in use"
        raise EvergreenError(where, what, "keep it in git as DVC or Evergreen wrote it; nothing was deleted")
    return text


def _git(*command: str, given: bytes = b"") -> bytes:
    done = _run(*command, given=given)
    if done.returncode:
        raise _unknown(done.stderr)
    return done.stdout


def _run(*command: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    def counts(name: str) -> bool:
        return not name.startswith("GIT_") or name.startswith(_KEPT_VARIABLES)

    own = {**{name: value for name, value in os.environ.items() if counts(name)}, "LC_ALL": "C"}
    try:
        git = ["git", "--no-replace-objects", *command]
        return subprocess.run(git, input=given, capture_output=True, env=own, check=False)
    except FileNotFoundError:
        raise EvergreenError("git", "is not installed, so it is unknown what is in use", "install git") from None


def _unknown(said: bytes) -> EvergreenError:
    what = said.decode(errors="replace").strip()
    return EvergreenError("git", f"cannot say what is in use: {what}", "correct what it names; nothing was deleted")
