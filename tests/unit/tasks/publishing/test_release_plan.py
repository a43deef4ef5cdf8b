"""The plan of a release: its id, its digest, and files that may not be published."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from params.foundation.artifacts import Artifacts
from params.foundation.errors import ModelError
from tasks.digests import weight_file_hashes, weights_digest, weights_digest_by_form
from tasks.publishing.release_plan import RELEASE_FILE
from tests.support.publications import REPO, plan


def test_publish_id_follows_the_content(folder: Path, tmp_path: Path) -> None:
    first = plan(folder)
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for file in sorted(folder.rglob("*"), reverse=True):
        if file.is_file():
            (copy / file.relative_to(folder)).parent.mkdir(exist_ok=True)
            (copy / file.relative_to(folder)).write_bytes(file.read_bytes())
    assert plan(copy).publish_id == first.publish_id
    assert plan(copy, tag="v1").publish_id == first.publish_id
    assert first.tag == f"release-{first.publish_id[:12]}"
    assert plan(folder, repo_id="alice/other").publish_id != first.publish_id
    assert plan(folder, made_from={"data": "abd"}).publish_id != first.publish_id
    (folder / "sub/empty.txt").write_bytes(b"x")
    assert plan(folder).publish_id != first.publish_id
    content = json.loads(first.record)
    assert (content["publish_id"], content["repo"], content["made_from"]) == (first.publish_id, REPO, {"data": "abc"})
    assert [file["path"] for file in content["files"]] == sorted(
        ["README.md", "config.json", "model.safetensors", "sub/empty.txt"]
    )


SECRET = "hf_" + "a1B2" * 10


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        (".env", b"A=1", "is hidden"),
        (".cache/x.txt", b"x", "is hidden"),
        ("training_args.bin", b"x", "can hold pickles"),
        ("sub/a.PT", b"x", "can hold pickles"),
        ("optimizer.safetensors", b"\x80\x04\x95rest", "holds a pickle"),
        ("weights.txt", b"PK\x03\x04rest", "holds a pickle or an archive"),
        ("modeling.py", b"import os", "is code"),
        ("notes.txt", b"one\ntwo " + SECRET.encode(), "notes.txt:2: holds something like a Hugging Face token"),
        ("key.txt", b"-----BEGIN RSA PRIVATE KEY-----", "something like a private key"),
        ("config.json", b'{"auto_map": {"AutoModel": "m.M"}}', "has auto_map"),
        ("config.json", b"{", "is not JSON"),
        ("tokenizer_config.json", b'{"auto_map": {"AutoTokenizer": "t.T"}}', "has auto_map"),
        ("weights.txt", b"\x1f\x8b\x08rest", "an archive, which is not searched"),
        ("data.txt", bytes(257) + b"ustar\x0000", "an archive, which is not searched"),
        ("run.txt", b"#!/bin/sh\nrm", "is a program"),
        ("run", b"\x7fELF\x02", "is a program"),
        ("notes.txt", b"x" * 9000 + b" " + SECRET.encode(), "notes.txt:1: holds something like a Hugging Face token"),
        ("notes.txt", b"\n" * 9000 + SECRET.encode() + bytes(9), "notes.txt:9001: holds something like a Hugging"),
        ("a.safetensors", bytes(100) + SECRET.encode(), "a.safetensors:1: holds something like a Hugging Face token"),
        ("notes.txt", f"a\nb {SECRET}".encode("utf-16"), "notes.txt:2: holds something like a Hugging Face token"),
        ("notes.txt", f"a\nb {SECRET}".encode("utf-16-be"), "notes.txt:2: holds something like a Hugging Face token"),
        ("a.txt", b"ASIA" + b"A1" * 8, "something like an AWS key"),
        ("a.txt", b"glpat-" + b"a-" * 10, "something like a GitLab token"),
        ("a.txt", b"postgres://me:hunter2@host/rows", "something like a password in an address"),
        (RELEASE_FILE, b"{}", "is written by the publish stage itself"),
    ],
)
def test_dangerous_files_are_refused(folder: Path, name: str, content: bytes, problem: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    with pytest.raises(ModelError, match=re.escape(problem)) as raised:
        plan(folder)
    assert name.partition("/")[0] in str(raised.value)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("adapter_config.json", b'{"auto_map": null}'),
        ("notes.txt", b"see https://example.org:8080/a@b, mailto:a@b.org, task-" + b"a" * 40 + b", xhf_" + b"a" * 40),
        ("merges.txt", b"#version: 0.2\nMZ a\n"),
        ("more.safetensors", b"\0://\x81\x02:\x83\x04\x85\xa6\x07@a"),
    ],
)
def test_harmless_files_are_accepted(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    assert name in {file.path for file in plan(folder).files}


def test_all_problems_of_a_folder_are_reported(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (folder / "link.txt").symlink_to(folder / "README.md")
    (folder / "linked").symlink_to(tmp_path / "outside")
    (folder / "dangling").symlink_to(tmp_path / "nothing")
    (folder / "a.pkl").write_bytes(b"x")
    with pytest.raises(ModelError) as raised:
        plan(folder)
    message = str(raised.value)
    assert [message.count(f"{name}: is a symbolic link") for name in ("link.txt", "linked", "dangling")] == [1, 1, 1]
    assert "a.pkl" in message
    assert raised.value.where == str(folder)


def test_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="no file"):
        plan(tmp_path / "empty")


def test_weights_digest_covers_only_the_weights(folder: Path, tmp_path: Path) -> None:
    first = plan(folder).weights
    sha256 = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert (
        first
        == hashlib.sha256(f"model.safetensors {sha256}\n".encode()).hexdigest()
        == weights_digest(weight_file_hashes(folder))
    )
    (folder / "config.json").write_text("{}")
    assert plan(folder).weights == first
    (folder / "sub/more.safetensors").write_bytes(b"more")
    both = plan(folder).weights
    assert both == weights_digest(weight_file_hashes(folder)) != first
    assert both == weights_digest(dict(reversed([(file.path, file.sha256) for file in plan(folder).files])))
    (folder / "sub/more.safetensors").rename(folder / "sub/other.safetensors")
    assert plan(folder).weights != both, "the digest includes the name"
    assert weights_digest({"README.md": sha256}) is None
    with pytest.raises(ModelError, match=r"no \.safetensors"):
        weights_digest_by_form(Artifacts("nothing", tmp_path))
