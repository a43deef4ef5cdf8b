"""A branch on a git remote: read files at its head, and add a commit to it if nobody else has added one meanwhile.

The checkout is not touched: not its files, its index or its HEAD. All that is left of it in the repository are objects and
references below refs/evergreen.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from params import RecipeError, RemoteRefusedError, TransientError
from trainer.runtime.lifetime import signal_process_group

_ANSWER_S = 300.0  # how long a remote may take for one request
_LATER: Final = "run it again when the remote answers: the work is kept"
_NAME, _EMAIL = "Evergreen", "evergreen@localhost"
"""Who commits, unless git's configuration says it."""
_REFUSED = re.compile(
    r"not appear to be a git repo|not a git repo|not found|denied|authenticat|could not read (username|password)|credential"
    r"|error: 40[134]|host key verification|read.only|not allowed|not granted|unauthorized|forbidden|dubious ownership"
    r"|unsupported|unable to find remote helper|no such remote",
    re.IGNORECASE,
)
"""What git says when another try would end in the same way. All else may pass: networks fail in many words."""
_LFS: Final = b"version https://git-lfs.github.com/spec/"
"""How a file begins that git has in the place of one in git-lfs."""
_MOVED = re.compile(r"fetch first|non-fast-forward|stale info|cannot lock ref|failed to update ref|remote failure")
"""Why a push is not accepted when another one came first, or may have."""


class BranchMovedError(Exception):
    """The branch is not where it was: read its head again."""


@dataclass(frozen=True)
class RemoteGitBranch:
    """A branch on a remote of the git repository in the working directory."""

    remote: str  # the remote's name in git's configuration, such as `origin`
    name: str  # the branch's name there, such as `main`
    user: str  # who asks, such as a recipe; two users of one repository do not get into each other's way

    def __str__(self) -> str:
        return f"{self.remote}/{self.name}"

    def fetch(self) -> str:
        """Return the commit at the branch's head, after fetching it.

        Raises:
            RemoteRefusedError: there is no such remote or branch, or no access to it.
            TransientError: the remote does not answer.
        """
        fetched = self._reference("fetched")
        options = "--quiet --no-tags --no-write-fetch-head --recurse-submodules=no --no-auto-gc --refmap="
        self._git("fetch", *options.split(), self.remote, f"+refs/heads/{self.name}:{fetched}", verb="read")
        return self._line("rev-parse", fetched)

    def read(self, commit: str, path: str) -> bytes | None:
        """Return the content of a file of the project in a commit; None if it is not there; a TransientError if git cannot say it."""
        place = f"{commit}:{self.folder}{path}"
        if self._git("rev-parse", "--quiet", "--verify", place).returncode == 1:
            return None
        done = self._git("cat-file", "blob", place, verb="read")
        if done.stdout.startswith(_LFS):
            fix = f"`git lfs untrack {path}`, `git add .gitattributes`, `git add --renormalize {path}`, commit and push"
            raise RecipeError(f"{path} on {self}", "is in git-lfs, where no run can be recorded", fix)
        return done.stdout

    def commit(self, parent: str, files: Mapping[str, bytes], message: str) -> str:
        """Make a commit of files of the project on top of `parent`, and return it."""
        blobs = {path: self._line("hash-object", "-w", "--stdin", given=content) for path, content in files.items()}
        entries = "".join(f"100644 {blob}\t{self.folder}{path}\0" for path, blob in blobs.items())
        with tempfile.TemporaryDirectory() as folder:
            index = {"GIT_INDEX_FILE": str(Path(folder, "index"))}
            self._line("read-tree", parent, environment=index)
            self._line("update-index", "--add", "-z", "--index-info", given=os.fsencode(entries), environment=index)
            tree = self._line("write-tree", environment=index)
        return self._line("commit-tree", tree, "-p", parent, given=message.encode(), environment=self._committer)

    def push(self, commit: str, *, dry_run: bool = False) -> None:
        """Make `commit` the branch's head, if its parent still is; with `dry_run`, only ask whether this worker may push.

        Raises:
            BranchMovedError: its parent is not the head any more, or it is unclear whether the push has arrived.
            RemoteRefusedError: the branch is protected, or there is no access to it.
            TransientError: the remote does not answer.
        """
        options = ["--porcelain", "--no-follow-tags", "--recurse-submodules=no", *(["--dry-run"] if dry_run else [])]
        done = self._git("push", *options, self.remote, f"{commit}:refs/heads/{self.name}")
        if done.returncode == 0:
            return
        rejected = re.search(r"^!\t[^\t]*\t(.*)$", done.stdout.decode(errors="replace"), re.MULTILINE)
        if rejected is None:
            raise self._error(done, "push to")
        if _MOVED.search(rejected[1]) or self.fetch() != self._line("rev-parse", f"{commit}^"):
            raise BranchMovedError(rejected[1])
        said = [line.partition("remote:")[2].strip() for line in _lines(done.stderr) if line.startswith("remote:")]
        what = "; ".join([f"refused the commit: {rejected[1]}", *filter(None, said)])
        raise RemoteRefusedError(str(self), what, "let this worker push to the branch, or record on another one")

    def remember(self, commit: str) -> None:
        """Note that `commit` of the branch has what exists locally."""
        self._line("update-ref", self._reference("recorded"), commit)

    def known(self, head: str) -> list[str]:
        """Return commits of the branch that may have what exists locally: the one remembered, and where HEAD has left the branch."""
        places = (self._reference("recorded"), "HEAD")
        found = [self._git("merge-base", one, head).stdout.decode().strip() for one in places]
        return [commit for commit in found if commit]

    def _reference(self, kind: str) -> str:
        return f"refs/evergreen/{self.user}/{self.remote}/{kind}/{self.name}"

    def address(self) -> str:
        """Return the address of the remote as git's configuration has it, with a password if there is one in it."""
        return self._line("remote", "get-url", self.remote)

    @cached_property
    def folder(self) -> str:
        """Where in the repository the working directory is, with a slash at the end; empty for its root."""
        return os.fsdecode(self._git("rev-parse", "--show-prefix", verb="work with").stdout.removesuffix(b"\n"))

    @cached_property
    def _committer(self) -> dict[str, str]:
        chosen: dict[str, str] = {}
        for variable, key, default in (("NAME", "user.name", _NAME), ("EMAIL", "user.email", _EMAIL)):
            value = self._git("config", key).stdout.decode().strip() or default
            chosen |= {f"GIT_{role}_{variable}": value for role in ("AUTHOR", "COMMITTER")}
        return {name: value for name, value in chosen.items() if not os.environ.get(name)}

    def _line(self, *command: str, given: bytes = b"", environment: Mapping[str, str] | None = None) -> str:
        return self._git(*command, given=given, environment=environment, verb="work with").stdout.decode().strip()

    def _git(
        self, *command: str, given: bytes = b"", environment: Mapping[str, str] | None = None, verb: str = ""
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command of git; that it fails is an error if `verb` says what it does to the branch."""
        # In a session of its own it has no terminal to ask for a password.
        own = {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", **(environment or {})}
        try:
            process = subprocess.Popen(
                ["git", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **own},
                start_new_session=True,
            )
        except FileNotFoundError:
            raise RemoteRefusedError("git", "is not installed", "install git on this worker") from None
        with process:
            try:
                output, errors = process.communicate(given, _ANSWER_S)
            except BaseException as error:  # it took too long, or the flow is stopped
                signal_process_group(process, signal.SIGKILL)
                if isinstance(error, subprocess.TimeoutExpired):
                    what = f"git {command[0]}: no answer in {_ANSWER_S:g} s"
                    raise TransientError(str(self), what, _LATER) from None
                raise
        done = subprocess.CompletedProcess(command, process.returncode, output, errors)
        if verb and done.returncode:
            raise self._error(done, verb)
        return done

    def _error(self, done: subprocess.CompletedProcess[bytes], verb: str) -> RemoteRefusedError | TransientError:
        """Return the error for what git says, which names a remote by its address without the password."""
        said = "; ".join(_lines(done.stderr))
        if re.search("couldn't find remote ref", said):
            fix = f"make it first: git push {self.remote} HEAD:refs/heads/{self.name}"
            return RemoteRefusedError(str(self), f"{self.remote} has no branch {self.name}", fix)
        what = f"cannot {verb} the branch: {said or f'git exited with {done.returncode}'}"
        if done.returncode >= 0 and _REFUSED.search(said):
            fix = "check the remote with `git remote -v`, and this worker's access to it"
            return RemoteRefusedError(str(self), what, fix)
        return TransientError(str(self), what, _LATER)


def _lines(text: bytes) -> list[str]:
    return [line.strip() for line in text.decode(errors="replace").splitlines() if line.strip()]
