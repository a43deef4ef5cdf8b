"""Workers that share nothing but a git remote, a DVC remote and a Hub."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub.constants
import pytest
from huggingface_hub import HfApi

from tasks.hub_server.server import LocalHub
from tests.support.faulty_hub import Fault, FaultyHub
from tests.support.project import Project, copy_project, write_sentences

TOKEN = "hf_tokenoftests"
RECORD = ("--record", "origin/main")


class Shared:
    """What the workers share."""

    def __init__(self, folder: Path, prefect_home: Path, api: HfApi) -> None:
        self.folder = folder
        self.prefect_home = prefect_home
        self.api = api
        self.workers: list[Project] = []

    @property
    def git(self) -> Path:
        return self.folder / "git"

    def worker(self, name: str) -> Project:
        """A new worker, with a clone of the project and a cache of its own."""
        made = Project(self.folder / name, self.prefect_home)
        made.environment |= {"HF_ENDPOINT": self.api.endpoint, "HF_TOKEN": TOKEN}
        self.workers.append(made)
        if self.git.exists():
            made.root.mkdir()
            made.run("git", "clone", "-q", str(self.git), ".")
        return made

    def add_rows(self, rows: int, seed: int = 0) -> None:
        """The author pushes new rows."""
        author = self.workers[0]
        author.run("git", "pull", "-q", "origin", "main")
        write_sentences(author.root / "data/sentences.csv", rows, seed)
        author.run("git", "commit", "-q", "-am", "new rows")
        author.run("git", "push", "-q", "origin", "main")

    @contextmanager
    def in_trouble(self, trouble: str, hub: FaultyHub) -> Iterator[None]:
        """While it lasts, the remote that `trouble` names does not work; another word is no trouble of theirs."""
        storage, hook = self.folder / "storage", self.git / "hooks/pre-receive"
        away, whole_hub = storage.with_name("away"), hub.root.with_name("whole-hub")
        if trouble == "git refuses":
            hook.write_text("#!/bin/sh\nexit 1\n")
            hook.chmod(0o755)
        elif trouble == "DVC remote away" and storage.exists():
            storage.rename(away)
            storage.touch()  # else DVC would make an empty one
        elif trouble == "DVC remote not mounted":
            storage.rename(away)
            storage.mkdir()  # the place where the share would be
        elif trouble == "DVC remote full":
            fill_share(storage)
        elif trouble == "Hub empty":
            hub.root.rename(whole_hub)
            hub.root.mkdir()
        elif trouble == "Hub away":
            hub.faults.append(Fault(".", "before", times=10**9))
        try:
            yield
        finally:
            hook.unlink(missing_ok=True)
            hub.faults.clear()
            if whole_hub.exists():
                published = list(hub.root.glob("*/*/*.git"))
                shutil.rmtree(hub.root)
                whole_hub.rename(hub.root)
                assert not published, "to a Hub that has nothing of what the log names"
            if storage.is_mount():
                free_share(storage)
            if away.exists():
                storage.rmdir() if storage.is_dir() else storage.unlink()
                away.rename(storage)

    def commits(self) -> list[str]:
        """The first lines of main's commits, the newest first."""
        return Project(self.git, self.prefect_home).run("git", "log", "--format=%s", "main").splitlines()


def fill_share(share: Path) -> None:
    """Put a disk of its own in the place of a folder, with what is in that, and no byte free."""
    size = sum(path.stat().st_size + 8192 for path in share.rglob("*")) + (1 << 20)
    copy = Path(shutil.copytree(share, share.with_name("share-copy")))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(share)], check=True)
    shutil.copytree(copy, share, dirs_exist_ok=True)
    shutil.rmtree(copy)
    with (share / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(bytes(4096))


def free_share(share: Path) -> None:
    """The folder without that disk, with all that got onto it."""
    (share / "ballast").unlink()
    copy = Path(shutil.copytree(share, share.with_name("share-copy")))
    subprocess.run(["umount", str(share)], check=True)
    shutil.copytree(copy, share, dirs_exist_ok=True)
    shutil.rmtree(copy)


@contextmanager
def sharing(
    folder: Path, prefect_home: Path, hub: LocalHub, prepare: Callable[[Project], None] = lambda _: None
) -> Iterator[Shared]:
    """The three remotes, with the project of a first worker, the author, who has prepared it."""
    with pytest.MonkeyPatch.context() as patched, hub:
        patched.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        made = Shared(folder, prefect_home, HfApi(endpoint=hub.endpoint, token=TOKEN))
        try:
            author = made.worker("author")
            copy_project(author.root)
            author.run("git", "init", "-q", "-b", "main")
            (folder / "storage/files/md5").mkdir(parents=True)  # a new remote
            author.run("dvc", "remote", "add", "-q", "-d", "storage", str(folder / "storage"))
            prepare(author)
            author.run("git", "add", "-A")
            author.run("git", "commit", "-q", "-m", "the project")
            author.run("git", "clone", "-q", "--bare", ".", str(made.git))
            author.run("git", "remote", "add", "origin", str(made.git))
            yield made
        finally:
            for worker in made.workers:
                worker.end()


def write_deployment(path: Path, shared: Shared) -> None:
    """Activate the deployment that prefect.yaml shows as a comment, for the recipe tiny; $CACHE is a worker's cache."""
    text = path.read_text(encoding="utf-8")
    start = text.index("#  - <<: *retrain")
    end = text.index("# Yours:")
    shown = "\n".join(line.removeprefix("#") for line in text[start:end].splitlines() if "access_token" not in line)
    for old, new in (
        ("default-anywhere", "tiny-anywhere"),
        ("recipe: default", "recipe: tiny"),
        ("https://git.example.org/team/models.git", shared.git.as_uri()),
        ("dvc config --local cache.dir /var/lib/evergreen/cache", """sh -c 'dvc config --local cache.dir "$CACHE"'"""),
    ):
        assert old in shown
        shown = shown.replace(old, new)
    path.write_text(f"{text[:start]}\n{shown}\n{text[end:]}", encoding="utf-8")
