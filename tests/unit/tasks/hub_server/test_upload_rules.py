"""Which files of an upload are large files, and what deleting a folder takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd as Add
from huggingface_hub import HfApi
from huggingface_hub.errors import EntryNotFoundError

REPO = "alice/model"


def upload(api: HfApi, folder: Path, contents: dict[str, str]) -> set[str]:
    """Upload a folder and return the files that the repository has then."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    api.upload_folder(repo_id=REPO, folder_path=folder)
    return set(api.list_repo_files(REPO)) - {".gitattributes"}


def test_suffix_size_and_content_decide_which_files_are_large(
    alice: HfApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.hub_server.routes_uploads.REGULAR_BYTES", 1000)
    alice.create_repo(REPO)
    large = {"weights.bin", "f/weights.SAFETENSORS", "binary.txt", "long.csv"}
    regular = {"a.txt", "bin", "rows.csv"}
    contents = dict.fromkeys(large | regular, "x") | {"binary.txt": "a\0b", "long.csv": "x" * 1001}
    assert upload(alice, tmp_path / "files", contents) == large | regular
    assert {entry.path for entry in alice.list_repo_tree(REPO, recursive=True) if getattr(entry, "lfs", None)} == large


@pytest.mark.parametrize("path", ["none", "a.txt"])
def test_deleting_a_missing_folder_fails(alice: HfApi, path: str) -> None:
    alice.create_repo(REPO)
    head = alice.create_commit(REPO, [Add("a.txt", b"a"), Add("f/b.txt", b"b")], commit_message="files").oid
    with pytest.raises(EntryNotFoundError, match=f"A folder with this name doesn't exist: {path}"):
        alice.delete_folder(path, REPO)
    assert alice.model_info(REPO).sha == head
    alice.delete_file("f", REPO)  # as on the Hub, this deletes a folder, too
    assert alice.list_repo_files(REPO) == [".gitattributes", "a.txt"]
