"""How files get a second name, and what a full disk is called."""

from __future__ import annotations

import errno
import io
import os
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from params.foundation.artifacts import KEPT_FOLDER, Artifacts, as_storage_error, link_or_copy, write_array


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


@pytest.mark.parametrize(("number", "is_storage"), [(errno.ENOSPC, True), (errno.ENOENT, False)])
def test_a_folder_that_cannot_be_copied_is_told_by_the_cause_of_its_files(
    tmp_path: Path, number: int, is_storage: bool
) -> None:
    """As shutil.copytree raises it: a list of files, each with the text of its error."""
    copied = shutil.Error([("a", "b", str(OSError(number, os.strerror(number))))])
    found = as_storage_error(copied, tmp_path / "model")
    assert (found is not None) is is_storage
    if found:
        assert "No space left on device" in found.what


def test_what_must_outlive_a_clone_is_outside_of_it_however_its_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `launch.data_cluster`, a stage names its files from the root of the file system."""
    monkeypatch.setenv(KEPT_FOLDER, str(tmp_path / "kept"))
    monkeypatch.chdir(tmp_path)
    assert Artifacts("a").kept == Artifacts("a", tmp_path).kept == tmp_path / "kept/a"
    assert Artifacts("a", tmp_path / "other").kept == tmp_path / "other/.scratch/a"


@pytest.mark.parametrize(
    "array",
    [
        np.arange(7),
        np.zeros((0, 3), np.float32),
        np.arange(6, dtype=np.float16).reshape(2, 3),
        np.arange(6, dtype=np.uint64).reshape(2, 3)[:, [2, 0, 1]],
        np.arange(12).reshape(3, 4)[:, ::2],
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_arrays_are_written_as_numpy_writes_them(array: np.ndarray, tmp_path: Path) -> None:
    expected = io.BytesIO()
    np.save(expected, np.ascontiguousarray(array))
    write_array(tmp_path / "a.npy", array)
    assert (tmp_path / "a.npy").read_bytes() == expected.getvalue()
    write_array(tmp_path / "values", array, has_header=False)
    assert (tmp_path / "values").read_bytes() == array.tobytes()


@pytest.mark.parametrize("has_header", [True, False])
def test_an_array_is_written_without_a_copy(has_header: bool, tmp_path: Path) -> None:
    array = np.zeros(1 << 21)
    tracemalloc.start()
    write_array(tmp_path / "a.npy", array, has_header=has_header)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < array.nbytes / 8
