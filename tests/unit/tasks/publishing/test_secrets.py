"""The search for secrets before publishing: known patterns, and the tokens in use."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub.constants
import pytest

from params.foundation.errors import ModelError
from tasks.publishing import secrets
from tests.support.publications import plan

SECRET = "hf_" + "a1B2" * 10
IN_USE = "token.of-a-mirror_77"


@pytest.mark.parametrize("place", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "file", "login"])
@pytest.mark.parametrize("path", ["README.md", "model.safetensors", "sub/utf-16.txt"])
def test_token_in_use_is_found(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, path: str
) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_STORED_TOKENS_PATH", str(tmp_path / "stored"))
    with (folder / path).open("ab") as file:
        file.write(f"\n{IN_USE}!".encode("utf-16-le" if "16" in path else "utf-8"))
    plan(folder)
    if place == "file":
        (tmp_path / "token").write_text(f"{IN_USE}\n")
    elif place == "login":
        (tmp_path / "stored").write_text(f"[mine]\nhf_token = {IN_USE}\n")
    else:
        monkeypatch.setenv(place, f" {IN_USE}\n")
    with pytest.raises(ModelError, match=f"{path}:[0-9]+: holds the token that this machine uses") as raised:
        plan(folder)
    assert IN_USE not in str(raised.value)


def test_secret_across_blocks_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "BLOCK_BYTES", 4096)
    monkeypatch.setenv("HF_TOKEN", IN_USE)
    for start in (4080, 8192 - 30, 3 * 4096 - 1):
        (folder / "notes.txt").write_bytes(b"\n" * start + SECRET.encode() + b"\n" * 5000)
        with pytest.raises(ModelError, match=f"notes.txt:{start + 1}: holds something like a Hugging Face token"):
            plan(folder)
    (folder / "notes.txt").unlink()
    (folder / "model.safetensors").write_bytes(bytes(4 * 4096 - 5) + IN_USE.encode())
    with pytest.raises(ModelError, match=r"model\.safetensors:1: holds the token"):
        plan(folder)


def test_secret_in_a_file_name_is_found_and_hidden(folder: Path) -> None:
    (folder / f"{SECRET}.txt").write_text("x")
    with pytest.raises(ModelError, match="the name of a file holds") as raised:
        plan(folder)
    assert SECRET not in str(raised.value)


def test_secret_in_the_provenance_is_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match="something like a Hugging Face token"):
        plan(folder, made_from={"command": f"--token {SECRET}"})
