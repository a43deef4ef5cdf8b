"""What counts as in use, whatever git's settings are and wherever git keeps it. What is not found here, `clean` deletes."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from flows.dvc_project import cache as references
from params import EvergreenError


def git(*command: str, given: str = "") -> str:
    return subprocess.run(["git", *command], check=True, capture_output=True, text=True, input=given).stdout.strip()


def write(content: str, path: str = "data.dvc") -> str:
    """Write a .dvc file, and return the hash in it."""
    md5 = hashlib.md5(content.encode()).hexdigest() + ".dir"
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(f"outs:\n- md5: {md5}\n  path: data\n")
    return md5


def write_log(repo_id: str) -> None:
    path = Path("runs/gone/release/log.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{"event":"published","repo_id":"{repo_id}","endpoint":"local"}}\n')


@pytest.fixture
def old(tmp_path, monkeypatch) -> str:
    """A repository; the hash that only its branch `old` has."""
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "t")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "t@example.org")
    monkeypatch.chdir(tmp_path)
    git("init", "-q", "-b", "main")
    found = write("old")
    write_log("me/old")
    commit()
    git("branch", "old")
    write("new")
    git("rm", "-qrf", "runs")
    commit()
    return found


def commit() -> str:
    git("add", "-A", "-f")
    git("commit", "-qm", "t")
    return git("rev-parse", "HEAD")


SETTINGS = [
    "grep.lineNumber=true",
    "grep.column=true",
    "grep.fullName=true",
    "grep.patternType=fixed",
    "grep.fallbackToNoIndex=true",
    "submodule.recurse=true",
    "color.ui=always",
    "color.grep=always",
    "core.quotePath=true",
    "log.showSignature=true",
    "log.showRoot=false",
    "core.sparseCheckout=true",
    "alias.cat-file=version",
    "alias.ls-files=version",
    "status.showUntrackedFiles=no",
    "core.pager=false",
]


def test_no_setting_of_git_hides_what_is_in_use(old):
    before = references.find_referenced_hashes()
    for setting in SETTINGS:
        git("config", *setting.split("="))
    assert references.find_referenced_hashes() == before > {old}
    assert references.find_published_hub_repositories() == {("me/old", "local")}


@pytest.mark.parametrize(
    "attributes", ["-diff", "binary", "diff=none -text", "export-ignore", "working-tree-encoding=UTF-16"]
)
def test_no_attribute_hides_what_is_in_use(old, attributes):
    Path(".git/info/attributes").write_text(f"* {attributes}\n")
    assert old in references.find_referenced_hashes()
    assert references.find_published_hub_repositories() == {("me/old", "local")}


@pytest.mark.parametrize(
    "variable",
    [
        "GIT_DIR",
        "GIT_INDEX_FILE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_NAMESPACE",
        "GIT_TRACE",
        "GIT_LITERAL_PATHSPECS",
        "GIT_WORK_TREE",
    ],
)
def test_no_variable_of_git_hides_what_is_in_use(old, monkeypatch, tmp_path_factory, variable):
    staged = write("staged")
    git("add", "-A")
    write("here")
    folder = tmp_path_factory.mktemp("elsewhere")
    git("init", "-q", "--bare", str(folder / "other"))
    monkeypatch.setenv(variable, {"GIT_DIR": str(folder / "other")}.get(variable, "1"))
    assert references.find_referenced_hashes() >= {old, staged}


def test_all_parts_of_stashes_are_in_use(old):
    kept = {}
    for name in ("older", "newest"):
        kept[f"{name}, staged"] = write(f"{name}, staged")
        git("add", "-A")
        kept[f"{name}, edited"] = write(f"{name}, edited")
        kept[f"{name}, untracked"] = write(f"{name}, untracked", "new.dvc")
        git("stash", "-q", "-u")
    git("update-ref", "--create-reflog", "refs/exps/celery/failed", "stash@{1}")
    git("update-ref", "refs/exps/celery/failed", "main")
    git("stash", "drop", "-q", "stash@{1}")
    found = references.find_referenced_hashes()
    assert [name for name, md5 in kept.items() if md5 not in found] == []


@pytest.mark.parametrize("state", ["here", "gone", "own reference", "odd name"])
def test_what_another_worktree_has_is_in_use(old, state, tmp_path_factory, monkeypatch):
    here, folder = Path.cwd(), tmp_path_factory.mktemp("other") / ("ä\n b" if state == "odd name" else "worktree")
    git("worktree", "add", "-q", "--detach", str(folder))
    monkeypatch.chdir(folder)
    staged = write("staged")
    git("add", "-A")
    edited = write("edited", 'sub "ö"/\n new.dvc')
    committed = write("committed", "committed.dvc")
    if state == "own reference":
        git("update-ref", "refs/worktree/mine", commit())
        git("reset", "-q", "--hard", "main")
    monkeypatch.chdir(here)
    if state == "gone":
        folder.rename(folder.with_name("moved"))
    needed = {staged} if state == "gone" else {staged, edited, committed}
    assert needed | {old} <= references.find_referenced_hashes()
    git("checkout", "-q", "--detach")
    monkeypatch.chdir(folder.with_name("moved") if state == "gone" else folder)
    if state != "gone":
        assert needed | {old, write("main's", str(here / "main.dvc"))} <= references.find_referenced_hashes()


def test_what_odd_references_lead_to_is_in_use(old):
    kept = {}
    for name in ("tag of a tag", "tag of a tree", "tag of a blob", "replaced", "autostash", "same folder, other name"):
        git("checkout", "-q", "--detach", "main")
        kept[name] = write(name, "x/folder/odd ü\n.dvc")
        made = commit()
        if name == "autostash":
            Path(".git/rebase-merge").mkdir()
            Path(".git/rebase-merge/autostash").write_text(f"{made}\n")
        elif name == "replaced":
            git("update-ref", "refs/kept/replaced", made)
            git("replace", made, "main")
        elif name == "tag of a tree":
            git("tag", "-a", "-m", "t", "tree", f"{made}^{{tree}}")
        elif name == "tag of a blob":
            git("tag", "-a", "-m", "t", "blob", f"{made}:x/folder/odd ü\n.dvc")
        else:
            git("tag", "-a", "-m", "t", "inner", made)
            git("tag", "-a", "-m", "t", f"outer{len(kept)}", "inner")
            git("tag", "-d", "inner")
    git("checkout", "-qf", "main")
    found = references.find_referenced_hashes()
    assert [name for name, md5 in kept.items() if md5 not in found] == []


def refused(*command: str) -> None:
    """Run a command of git that stops at a conflict."""
    assert subprocess.run(["git", *command], check=False, capture_output=True).returncode


def edit(path: str, content: str) -> str:
    Path(path).write_text(f"{content}\n")
    return commit()


@pytest.mark.parametrize("operation", ["cherry-pick", "revert", "am", "bisect", "rebase", "reset"])
def test_what_giving_up_goes_back_to_is_in_use(old, operation):
    edit("f", "1")
    git("checkout", "-q", "--detach")
    mine = write("mine")
    undone = commit()
    git("checkout", "-q", "-b", "other")
    write("other")
    commit()
    edit("f", "2")
    git("checkout", "-q", "--detach", undone)
    edit("f", "3")
    match operation:
        case "cherry-pick":
            refused("cherry-pick", "other~1", "other")
        case "revert":
            refused("revert", "--no-edit", undone, "main")
        case "am":
            refused("am", *git("format-patch", "-2", "-o", ".git/patches", "other").splitlines())
        case "bisect":
            git("bisect", "start", "main", "main~2")
        case "rebase":
            refused("rebase", "other")
        case _:
            git("reset", "-q", "--hard", "main")
    assert mine not in Path("data.dvc").read_text()
    assert mine in references.find_referenced_hashes()


@pytest.mark.parametrize("kind", ["separate", "submodule"])
def test_main_worktree_is_looked_at_or_asked_for(old, kind, tmp_path_factory, monkeypatch):
    here, folder = Path.cwd(), tmp_path_factory.mktemp("other")
    monkeypatch.chdir(folder)
    if kind == "separate":
        git("clone", "-q", "--separate-git-dir", "kept", str(here), "project")
    else:
        git("init", "-q")
        git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(here), "project")
    monkeypatch.chdir("project")
    git("worktree", "add", "-q", "--detach", str(folder / "linked"))
    edited = write("edited")
    assert edited in references.find_referenced_hashes()
    monkeypatch.chdir(folder / "linked")
    if kind == "submodule":
        assert edited in references.find_referenced_hashes()
    else:
        with pytest.raises(EvergreenError, match=r"kept: does not say where its main worktree is"):
            references.find_referenced_hashes()


ENCRYPTED = {
    "git-crypt": b"\0GITCRYPT\0abc",
    "base64": b"U2FsdGVkX19mZm9vYmFyYmF6\nb3V0cw==\n",
    "bytes": bytes(range(128, 256)) + b"\nouts:\n{}\n",
    "armour": b"-----BEGIN PGP MESSAGE-----\nVersion: GnuPG v2\n\nhQEMA\n-----END PGP MESSAGE-----\n",
    "values": b"outs:\n- md5: ENC[AES256_GCM,data:abc,type:str]\n  path: data\n",
}


@pytest.mark.parametrize("content", ENCRYPTED.values(), ids=ENCRYPTED)
def test_encrypted_files_are_an_error(old, content):
    Path("secret.dvc").write_bytes(content)
    commit()
    git("branch", "encrypted")
    git("rm", "-q", "secret.dvc")
    git("commit", "-qm", "t")
    with pytest.raises(EvergreenError, match="is encrypted, a link or otherwise"):
        references.find_referenced_hashes()


def test_encrypted_log_is_an_error(old):
    write_log("me/new")
    Path("runs/gone/release/log.jsonl").write_bytes(ENCRYPTED["base64"])
    with pytest.raises(EvergreenError, match="is encrypted"):
        references.find_published_hub_repositories()


@pytest.mark.parametrize("before", ['{"event":"publi', '{"event":"published","reasons":["a\u2028b"],"repo_id":"me/cut'])
def test_a_damaged_line_of_a_log_hides_no_repository(old, before):
    write_log("me/new")
    log = Path("runs/gone/release/log.jsonl")
    log.write_text(
        before + log.read_text().replace('"repo_id"', '"reasons":["one\u2028two"],"repo_id"'), encoding="utf-8"
    )
    assert ("me/new", "local") in references.find_published_hub_repositories()


def test_link_in_a_commit_is_an_error(old):
    Path("dvc.lock").symlink_to("locks/real.yaml")
    commit()
    with pytest.raises(EvergreenError, match="is encrypted, a link"):
        references.find_referenced_hashes()


def test_files_in_git_lfs_are_read_or_named(old):
    found = write("in lfs", "lfs.dvc")
    content = Path("lfs.dvc").read_bytes()
    oid = hashlib.sha256(content).hexdigest()
    Path("lfs.dvc").write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {len(content)}\n")
    commit()
    with pytest.raises(EvergreenError, match="is not in this clone but in git-lfs"):
        references.find_referenced_hashes()
    kept = Path(".git/lfs/objects", oid[:2], oid[2:4], oid)
    kept.parent.mkdir(parents=True)
    kept.write_bytes(content)
    assert {old, found} <= references.find_referenced_hashes()


@pytest.mark.parametrize("damage", ["object", "reference", "head", "encrypted", "repository"])
def test_what_git_cannot_say_is_an_error(old, damage):
    blob = git("rev-parse", "old:data.dvc")
    if damage == "object":
        Path(".git/objects", blob[:2], blob[2:]).unlink()
    elif damage == "reference":
        Path(".git/refs/heads/old").write_text("damaged\n")
    elif damage == "head":
        Path(".git/HEAD").write_text(f"{'1' * 40}\n")
    elif damage == "encrypted":
        Path("secret.dvc").write_bytes(b"\0GITCRYPT\0abc")
    else:
        Path("sub").mkdir()
        os.chdir("sub")
        Path("../.git/HEAD").unlink()
    with pytest.raises(EvergreenError, match="what is in use"):
        references.find_referenced_hashes()


def test_folder_that_cannot_be_read_is_an_error(old, monkeypatch):
    def walk(_, *, onerror):
        onerror(PermissionError(13, "Permission denied", "private"))
        return iter(())

    monkeypatch.setattr("flows.dvc_project.cache.os.walk", walk)
    with pytest.raises(EvergreenError, match="private: cannot be read: Permission denied"):
        references.find_referenced_hashes()
