"""Which files of an upload are left out, and which are large files: `.gitignore` and `.gitattributes` count."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd as Add
from huggingface_hub import HfApi
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

REPO = "alice/model"
IGNORE = "# a comment\n*.log\n!keep.log\nbuild/\n/only-here.txt\n**/cache/*.tmp\n"
IGNORED = {"x.log", "f/y.log", "build/out.txt", "only-here.txt", "f/cache/a.tmp"}
KEPT = {"keep.log", "f/only-here.txt", "a.txt", "f/cache/a.txt"}


def upload(api: HfApi, folder: Path, contents: dict[str, str]) -> set[str]:
    """Upload a folder and return the files that the repository has then."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    api.upload_folder(repo_id=REPO, folder_path=folder)
    return set(api.list_repo_files(REPO)) - {".gitattributes", ".gitignore"}


@pytest.mark.parametrize("comes", ["before", "with the files"])
def test_ignored_files_are_left_out(alice: HfApi, tmp_path: Path, comes: str) -> None:
    alice.create_repo(REPO)
    contents = dict.fromkeys(IGNORED | KEPT, "x")
    if comes == "before":
        alice.upload_file(repo_id=REPO, path_in_repo=".gitignore", path_or_fileobj=IGNORE.encode())
    else:
        alice.upload_file(repo_id=REPO, path_in_repo=".gitignore", path_or_fileobj=b"a.txt\n")
        contents[".gitignore"] = IGNORE
    assert upload(alice, tmp_path, contents) == KEPT


def test_attributes_decide_which_files_are_large(alice: HfApi, tmp_path: Path) -> None:
    alice.create_repo(REPO)
    attributes = Path(alice.hf_hub_download(REPO, ".gitattributes", cache_dir=tmp_path / "cache")).read_text()
    attributes += "*.csv filter=lfs diff=lfs merge=lfs -text\nlogs/** filter=lfs\n*.model -filter\n"
    alice.upload_file(repo_id=REPO, path_in_repo=".gitattributes", path_or_fileobj=attributes.encode())
    large = {"rows.csv", "f/rows.csv", "logs/deep/a.txt", "weights.bin", "binary.txt"}
    regular = {"a.txt", "vocabulary.model", "csv"}
    contents = dict.fromkeys(large | regular, "x") | {"binary.txt": "a\0b"}
    assert upload(alice, tmp_path / "files", contents) == large | regular
    assert {entry.path for entry in alice.list_repo_tree(REPO, recursive=True) if getattr(entry, "lfs", None)} == large


@pytest.mark.parametrize("name", [".gitignore", ".gitattributes"])
@pytest.mark.parametrize("content", ["*a*a*a*a*a*b", "x\n" * (33 << 10)])
def test_rules_that_cost_too_much_are_refused(alice: HfApi, name: str, content: str) -> None:
    alice.create_repo(REPO)
    with pytest.raises(HfHubHTTPError, match=rf"\{name} has|in \{name} has more than 4 wildcards") as raised:
        alice.create_commit(REPO, [Add(name, content.encode())], commit_message="rules")
    assert raised.value.response.status_code == 400


@pytest.mark.parametrize("path", ["none", "a.txt"])
def test_deleting_a_missing_folder_fails(alice: HfApi, path: str) -> None:
    alice.create_repo(REPO)
    head = alice.create_commit(REPO, [Add("a.txt", b"a"), Add("f/b.txt", b"b")], commit_message="files").oid
    with pytest.raises(EntryNotFoundError, match=f"A folder with this name doesn't exist: {path}"):
        alice.delete_folder(path, REPO)
    assert alice.model_info(REPO).sha == head
    alice.delete_file("f", REPO)  # as on the Hub, this deletes a folder, too
    assert alice.list_repo_files(REPO) == [".gitattributes", "a.txt"]
