"""How files get a second name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from params.foundation.artifacts import link_or_copy


def test_second_name_takes_no_space(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"rows")
    link_or_copy(tmp_path / "one", tmp_path / "two")
    assert (tmp_path / "two").samefile(tmp_path / "one")


def test_file_is_copied_where_it_cannot_be_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")  # as on a file system without hard links

    (tmp_path / "one").write_bytes(b"rows")
    os.utime(tmp_path / "one", (1, 1))
    monkeypatch.setattr("os.link", refuse)
    link_or_copy(tmp_path / "one", tmp_path / "two")
    assert (tmp_path / "two").read_bytes() == b"rows"
    assert (tmp_path / "two").stat().st_mtime == 1
    assert not (tmp_path / "two").samefile(tmp_path / "one")


def test_file_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        link_or_copy(tmp_path / "one", tmp_path / "two")
    assert not (tmp_path / "two").exists()
