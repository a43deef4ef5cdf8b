"""Each command that a message names for a file is run on ten files of its kind, and no value is another one then."""

from __future__ import annotations

import csv
import io
import json
import lzma
import random
import re
import shlex
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from params import DataError
from tasks.commands import main
from tasks.scaffold.file_heads import EXCEL_SUFFIXES, OTHER_FORMATS
from tasks.scaffold.look import read_source_sample
from tasks.scaffold.request import NewRecipeRequest
from tasks.scaffold.sources import find_source
from tests.support.project import ROOT as PROJECT

FILES = range(10)
Rows = list[tuple[str, ...]]
LABELS = ("007", "NA", "null", "1_0", "-", "3.10", "None", "#1")
TEXTS = (
    'It\u2019s "late"',
    "a; b",
    "a, b",
    "caf\u00e9 \u20ac5",
    " lead",
    "end ",
    "=1+1",
    "a|b",
    "'x'",
    "\\n",
    "NaN",
    'he said ""no""',
)


def rows_of(seed: int, *more: str) -> Rows:
    """Return rows of a text and a label."""
    chance = random.Random(seed)
    return [(f"{chance.choice([*TEXTS, *more])} {chance.randrange(9)}?", chance.choice(LABELS)) for _ in range(30)]


def as_csv(rows: Rows, delimiter: str = ",", header: tuple[str, ...] = ("text", "label")) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter).writerows([header, *rows] if header else rows)
    return text.getvalue().encode()


def joined(rows: Rows, delimiter: str, header: str = "") -> bytes:
    return (header + "".join(delimiter.join(row) + "\n" for row in rows)).encode()


def arrow_stream(rows: Rows) -> bytes:
    sink = io.BytesIO()
    table = arrow_table(rows)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def arrow_file(rows: Rows) -> bytes:
    sink = io.BytesIO()
    feather.write_feather(arrow_table(rows), sink)
    return sink.getvalue()


def arrow_table(rows: Rows) -> pa.Table:
    return pa.table({"text": [text for text, _ in rows], "label": [label for _, label in rows]})


def archive(rows: Rows) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as file:
        file.writestr("in/rows.csv", as_csv(rows))
    return sink.getvalue()


def json_lines(rows: Rows) -> str:
    return "".join(json.dumps({"text": text, "label": label}, ensure_ascii=False) + "\n" for text, label in rows)


def raw_controls(rows: Rows) -> bytes:
    return json_lines(rows).replace("\\\\n", "\n").replace("\\\\t", "\t").encode()


def without_quotes(rows: Rows) -> Rows:
    return [(text.replace('"', ""), label) for text, label in rows]


def between_quotes(rows: Rows) -> Rows:
    """Let every fifth text begin with a quote, and the next one end with one."""
    marks = {0: '"{}', 1: '{}"'}
    return [(marks.get(i % 5, "{}").format(text), label) for i, (text, label) in enumerate(without_quotes(rows))]


def numbered(rows: Rows) -> Rows:
    return [(str(i), *row) for i, row in enumerate(rows)]


def labels_first(rows: Rows) -> Rows:
    return [(label, text) for text, label in rows]


Kind = tuple[str, Callable[[Rows], bytes], Callable[[Rows], Rows]]
"""The name of a file, what it has of some rows, and the rows that it should have then."""


def same(rows: Rows) -> Rows:
    return rows


KINDS: dict[str, Kind] = {
    "no header": ("rows.csv", lambda rows: as_csv(rows, header=()), same),
    "no header, bars": (
        "rows.csv",
        lambda rows: as_csv([(text.replace(",", "").replace(";", ""), label) for text, label in rows], "|", ()),
        lambda rows: [(text.replace(",", "").replace(";", ""), label) for text, label in rows],
    ),
    "no header, in a folder": ("it's here/rows.tsv", lambda rows: as_csv(rows, "\t", ()), same),
    "no header, bare quotes": ("rows.tsv", lambda rows: joined(rows, "\t"), same),
    "an index": ("rows.csv", lambda rows: as_csv(numbered(rows), header=("", "text", "label")), numbered),
    "labels without a name": ("rows.tsv", lambda rows: as_csv(labels_first(rows), "\t", ("", "text")), labels_first),
    "quotes that are characters": (
        "rows.tsv",
        lambda rows: joined(between_quotes(rows), "\t", "text\tlabel\n"),
        between_quotes,
    ),
    "bare quotes in CSV": (
        "rows.csv",
        lambda rows: joined(
            [(f'"{i}" {text}'.replace(",", " "), label) for i, (text, label) in enumerate(rows)], ",", "text,label\n"
        ),
        lambda rows: [(f'"{i}" {text}'.replace(",", " "), label) for i, (text, label) in enumerate(rows)],
    ),
    "Windows": ("rows.csv", lambda rows: as_csv(rows).decode().encode("cp1252"), same),
    "Windows, JSON": ("rows.jsonl", lambda rows: json_lines(rows).encode("cp1252"), same),
    "UTF-16LE without a mark": ("rows.csv", lambda rows: as_csv(rows).decode().encode("utf-16le"), same),
    "UTF-16BE without a mark": ("rows.jsonl", lambda rows: json_lines(rows).encode("utf-16be"), same),
    "control characters": (
        "rows.jsonl",
        raw_controls,
        lambda rows: [(text.replace("\\n", "\n"), label) for text, label in rows],
    ),
    ".arrow": ("rows.arrow", arrow_stream, same),
    ".arrow as a file": ("rows.arrow", arrow_file, same),
    ".feather": ("rows.feather", arrow_file, same),
    ".xz": ("rows.csv.xz", lambda rows: lzma.compress(as_csv(rows)), same),
    ".zip": ("rows.zip", archive, same),
}


def sample(path: Path, root: Path) -> Rows:
    """Return the rows as `new` reads them, numbers as they are written."""
    read = read_source_sample(find_source(NewRecipeRequest("x", str(path.relative_to(root))), root).source, root)
    pairs = zip(read.rows["train"], read.written["train"], strict=True)
    return [tuple(str(own) for own in (row | texts).values()) for row, texts in pairs]


def run_named(fix: str) -> str:
    """Run the first command that a fix names, and return what was printed."""
    if named := re.search(r"evergreen (convert .*?)(?=;|$)", fix):
        assert main(shlex.split(named[1])) == 0
        return named[1]
    command = fix.split(": ", 1)[1]
    if command.startswith("python -m zipfile "):
        zipfile.main(shlex.split(command)[3:])
    else:
        subprocess.run(["sh", "-c", command], check=True)
    return command


def converted(path: Path, root: Path) -> tuple[Path, list[str]]:
    """Return the file that the named commands make of one that is refused, and the commands."""
    commands = list[str]()
    while True:
        before = {one for one in path.parent.rglob("*") if one.is_file()}
        try:
            sample(path, root)
        except DataError as error:
            commands.append(run_named(error.fix))
        else:
            return path, commands
        (path,) = {one for one in path.parent.rglob("*") if one.is_file()} - before


@pytest.mark.parametrize("kind", KINDS)
def test_no_value_is_another_one_after_the_named_command(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, write, wanted = KINDS[kind]
    for seed in FILES:
        path, rows = tmp_path / str(seed) / name, rows_of(seed)
        path.parent.mkdir(parents=True)
        path.write_bytes(write(rows))
        clean, commands = converted(path, tmp_path)
        assert commands, "it is read as it is"
        assert sample(clean, tmp_path) == wanted(rows)
        said = capsys.readouterr().out
        assert said.count("0 values changed") == sum(command.startswith("convert") for command in commands)


class _Altered:
    """A file that is written with one letter less than it gets, as a fault would do it."""

    def __init__(self, file: Any) -> None:
        self._file, self._is_whole = file, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Altered:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, text: str) -> int:
        new, count = re.subn("e", "", text, count=1) if self._is_whole else (text, 0)
        self._is_whole &= not count
        self._file.write(new)
        return len(text)


def alter(patch: pytest.MonkeyPatch) -> None:
    """Let whatever `convert` writes lack a letter, or have its rows in another order."""
    open_path, write_table = Path.open, pq.write_table

    def open_altered(path: Path, mode: str = "r", *arguments: Any, **more: Any) -> Any:
        file = open_path(path, mode, *arguments, **more)
        return _Altered(file) if mode == "w" else file

    patch.setattr(Path, "open", open_altered)
    patch.setattr(pq, "write_table", lambda table, to: write_table(table.take([*range(len(table))][::-1]), to))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in (".xz", ".zip")])
def test_a_new_file_with_another_value_is_not_kept(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, write, _ = KINDS[kind]
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(write(rows_of(3, "here")))
    with pytest.raises(DataError) as caught:
        sample(path, tmp_path)
    (command,) = re.findall(r"evergreen (convert .*?)(?=;|$)", caught.value.fix)[:1]
    with monkeypatch.context() as patch:
        alter(patch)
        assert main(shlex.split(command)) != 0
    assert "would be another one in the new file" in capsys.readouterr().err
    assert [one for one in tmp_path.rglob("*") if one.is_file()] == [path]
    assert main(shlex.split(command)) == 0


@pytest.mark.parametrize("beside", [False, True], ids=["nothing else", "lists and unlabelled texts"])
@pytest.mark.parametrize("splits", [("",), ("train/", "test/")], ids=["", "train and test"])
def test_a_folder_of_a_folder_for_each_class_is_a_classification(
    splits: tuple[str, ...],
    beside: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also if there is more beside these folders, as in IMDB's archive: addresses, scores, and texts that nobody has read."""
    monkeypatch.chdir(tmp_path)
    others = ["imdbEr.txt", f"{splits[0]}urls_pos.txt", f"{splits[0]}unsup/1.txt", f"{splits[0]}unsup/2.txt"]
    for name in others if beside else ():
        Path("films", name).parent.mkdir(parents=True, exist_ok=True)
        Path("films", name).write_text("1\n2\n")
    for split in splits:
        for i in range(20):
            path = Path(f"films/{split}{('pos', 'neg')[i % 2]}/{i}.txt")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f'Film "{i}",\n\n{split} is it.\n')
    with pytest.raises(DataError, match="a folder of texts for each of neg, pos, which may be classes") as caught:
        find_source(NewRecipeRequest("x", "films"))
    for command in re.findall(r"evergreen (convert \S+ \S+?)(?:;| &&)", caught.value.fix):
        assert main(command.split()) == 0
    assert ("left out: 2 texts" in capsys.readouterr().out) is beside
    with monkeypatch.context() as patch:
        alter(patch)
        assert main(["convert", f"films/{splits[0]}".rstrip("/"), "altered.jsonl"]) != 0
    assert "would be another one in the new file" in capsys.readouterr().err
    assert not Path("altered.jsonl").exists()
    flags = shlex.split(caught.value.fix.partition("then give ")[2].partition(";")[0])
    given = dict(zip(flags[::2], flags[1::2], strict=True))
    found = find_source(NewRecipeRequest("x", given["--data"], test=given.get("--test", ""))).source
    rows = read_source_sample(found).rows
    assert [len(own) for own in rows.values()] == [20] * len(splits)
    assert {(row["label"], row["text"]) for row in rows["train"]} >= {("neg", f'Film "1",\n\n{splits[0]} is it.\n')}
    assert find_source(NewRecipeRequest("x", "films/**/*.txt")).keys["text_unit"] in ("file", "paragraph")


@pytest.mark.parametrize("has_splits", [False, True])
def test_a_data_set_that_datasets_has_saved_is_read(
    has_splits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

    monkeypatch.chdir(tmp_path)
    names = Features(text=Value("string"), label=ClassLabel(names=["bad", "good"]))
    own = Dataset.from_dict({"text": [f"text {i}" for i in range(20)], "label": [0, 1] * 10}, features=names)
    (DatasetDict(train=own, test=own) if has_splits else own).save_to_disk("saved")
    with pytest.raises(DataError, match="as `datasets` saves it") as caught:
        find_source(NewRecipeRequest("x", "saved"))
    command, _, given = caught.value.fix.partition(": evergreen ")[2].partition("; then give --data ")
    assert main(shlex.split(command)) == 0
    rows = read_source_sample(find_source(NewRecipeRequest("x", *shlex.split(given))).source).rows
    assert {split: len(found) for split, found in rows.items()} == dict.fromkeys(
        ["train", "test"][: 1 + has_splits], 20
    )
    assert rows["train"][1] == {"text": "text 1", "label": "good"}


def test_every_command_that_a_message_names_is_run_above() -> None:
    """All of them are made by `convert_command`, or stand in `OTHER_FORMATS`; those of rows of another form: test_forms."""
    code = "".join(path.read_text() for path in (PROJECT / "tasks").rglob("*.py"))
    options = {*re.findall(r"convert_command\([^\n]*?(--[a-z-]+)", code)}
    assert options == {"--header", "--quotes", "--encoding", "--escape-controls"}
    without_command = {".pkl", ".xls", *EXCEL_SUFFIXES}  # a workbook has tests of its own
    assert set(OTHER_FORMATS) - without_command <= {Path(name).suffix for name, _, _ in KINDS.values()}
    assert not any(" -" in OTHER_FORMATS[suffix] for suffix in without_command)
    for path in (PROJECT / "tasks/ingestion/encodings.py", *(PROJECT / "tasks/ingestion/formats").glob("*.py")):
        assert not re.search("python -|iconv|xz -", path.read_text())
