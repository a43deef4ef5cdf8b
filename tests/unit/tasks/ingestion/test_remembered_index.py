"""What a look at a file found is taken for the next run only where the bytes are the same, whatever times, sizes and names say."""

from __future__ import annotations

import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from params import InputsChangedError
from tasks.ingestion import file_index
from tasks.ingestion.file_index import FileRowIndex, index_file
from tasks.ingestion.formats import json_files
from tasks.shards.kept_work import write_pickle


@pytest.fixture(autouse=True)
def _changes_are_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_index, "_SETTLED_S", -1.0)


def lines(chance: random.Random, count: int) -> bytes:
    return b"".join(json.dumps({"text": f"row {chance.randrange(10**6):06}"}).encode() + b"\n" for _ in range(count))


def looked_again(path: Path, memory: Path) -> FileRowIndex:
    """Return the index by the memory, which is that of a look without one."""
    found = index_file(path, path.name, memory)
    again = index_file(path, path.name)
    assert [*found.found.places] == [*again.found.places]
    assert found == replace(again, found=again.found._replace(places=found.found.places))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_any_changes_of_a_file_give_the_index_of_its_bytes(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    path, memory, copy = tmp_path / "a.jsonl", tmp_path / "memory", tmp_path / "copy"
    path.write_bytes(lines(chance, 1600))
    shutil.copy2(path, copy)
    for _ in range(20):
        looked_again(path, memory)
        before, content = path.stat(), bytearray(path.read_bytes())
        change = chance.choice(["append", "byte", "cut", "rewrite", "link", "rename", "back", "blank", "torn"])
        if change == "append":
            path.write_bytes(content + lines(chance, chance.randrange(1, 700)))
        elif change == "byte" and content:  # of equal size
            place = chance.randrange(len(content))
            content[place] = ord("7") if chr(content[place]).isdigit() else content[place]
            path.write_bytes(content)
        elif change == "cut":
            path.write_bytes(content[: content.rfind(b"\n", 0, chance.randrange(1, len(content) + 2)) + 1])
        elif change == "rewrite":
            path.write_bytes(lines(chance, content.count(b"\n")))
        elif change == "link":
            (tmp_path / "link").unlink(missing_ok=True)
            os.link(path, tmp_path / "link")
            (tmp_path / "link").write_bytes(lines(chance, 600))
        elif change == "rename":
            (tmp_path / "new").write_bytes(bytes(content).replace(b"1", b"2"))
            (tmp_path / "new").rename(path)
        elif change == "back":
            shutil.copy2(copy, path)
        elif change == "blank":
            path.write_bytes(b"\n" + content)
        else:
            path.write_bytes(content + b'{"text": "no end of line"}')
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_appended_rows_cost_no_look_at_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, memory, chance = tmp_path / "a.jsonl", tmp_path / "no folder yet" / "memory", random.Random(0)
    path.write_bytes(lines(chance, 5000))
    index_file(path, path.name, memory)
    seen: list[int] = []
    whole = json_files.index_json_lines

    def counting(path: Path, known: Any = ()) -> Any:
        seen.append(known[-1].row if known else 0)
        return whole(path, known)

    monkeypatch.setattr(json_files, "index_json_lines", counting)
    assert index_file(path, path.name, memory).rows == 5000
    assert not seen, "nothing has changed"
    with path.open("ab") as file:
        file.write(lines(chance, 50))
    assert index_file(path, path.name, memory).rows == 5050
    assert seen == [4608]


def test_file_that_changes_behind_the_look_at_known_rows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else, kept rows of one version and new rows of another one would be put together."""
    path, memory, chance = tmp_path / "a.jsonl", tmp_path / "memory", random.Random(0)
    path.write_bytes(lines(chance, 5000))
    index_file(path, path.name, memory)
    path.write_bytes(path.read_bytes() + lines(chance, 50))
    count = file_index._RememberedIndex.count_equal

    def count_and_edit(self: Any, path: Path) -> int:
        equal = count(self, path)
        path.write_bytes(lines(chance, 5100))
        return equal

    monkeypatch.setattr(file_index._RememberedIndex, "count_equal", count_and_edit)
    with pytest.raises(InputsChangedError, match="changed while its rows were read"):
        index_file(path, path.name, memory)


def test_each_part_depends_on_what_separates_the_columns(tmp_path: Path) -> None:
    path, keys = tmp_path / "a.csv", []
    for header in ("a,b\n", "a;b\n"):
        path.write_text(header + "".join(f"x{i},y{i};z{i}\n" for i in range(2000)))
        index = index_file(path, path.name)
        keys.append({index.piece(first, 500).key for first in range(0, 2000, 500)})
    assert not keys[0] & keys[1]


class _Gone:
    """A class that later code does not have."""


def test_memory_of_classes_that_are_gone_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, memory = tmp_path / "a.jsonl", tmp_path / "memory"
    path.write_bytes(lines(random.Random(0), 20))
    write_pickle(memory, _Gone())
    monkeypatch.delattr(f"{__name__}._Gone")
    assert looked_again(path, memory).rows == 20


@pytest.mark.parametrize("content", [b"", b"no hash\nno content"])
def test_damaged_memory_is_replaced(tmp_path: Path, content: bytes) -> None:
    path, memory = tmp_path / "a.jsonl", tmp_path / "memory"
    path.write_bytes(lines(random.Random(0), 20))
    memory.write_bytes(content)
    assert looked_again(path, memory).rows == 20
    assert memory.read_bytes() != content


def test_file_that_has_just_changed_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_index, "_SETTLED_S", 3600.0)
    path, memory = tmp_path / "a.jsonl", tmp_path / "memory"
    path.write_bytes(lines(random.Random(0), 20))
    index_file(path, path.name, memory)
    assert not memory.exists()


def test_file_that_changes_meanwhile_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although its size and its time of change are then what they were."""
    path, memory = tmp_path / "a.jsonl", tmp_path / "memory"
    path.write_bytes(lines(random.Random(0), 20))
    look = json_files.index_json_lines

    def look_and_edit(*arguments: Any) -> Any:
        before = path.stat()
        path.write_bytes(lines(random.Random(1), 20))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        return look(*arguments)

    monkeypatch.setattr(json_files, "index_json_lines", look_and_edit)
    index_file(path, path.name, memory)
    assert not memory.exists()


def test_tables_and_columnar_files_are_remembered_as_a_whole(tmp_path: Path) -> None:
    path, memory = tmp_path / "a.csv", tmp_path / "memory"
    path.write_text("text,n\n" + "".join(f"row {i},{i}\n" for i in range(2000)))
    assert looked_again(path, memory) == looked_again(path, memory)
    path.write_text(path.read_text().replace("1999\n", "none\n"))
    layout: Any = looked_again(path, memory).found.layout
    assert layout
    assert layout.columns == {"text": str, "n": str}
