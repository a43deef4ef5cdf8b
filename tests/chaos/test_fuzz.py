"""Odd recipes and odd rows end in a result or in an error that a user can read, and no row is lost.

`make test` tries 40, `make chaos` 2,000. EVERGREEN_CHAOS_EXAMPLES sets their number, EVERGREEN_CHAOS_SEED their
choice. hypothesis prints the smallest example that fails.
"""

from __future__ import annotations

import contextlib
import copy
import csv
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from params import EvergreenError
from params.foundation.artifacts import SPLITS, Artifacts
from params.schema import Launch, ObjectiveChoice
from params.sections.data import Data
from params.sections.rows import Expectation, Validation
from tasks.diagnostics.check import check
from tasks.ingestion.stage import ingest
from tasks.shards.split_rows import SplitRows
from tasks.validation.stage import validate
from tests.support import prompts, tiny
from tests.support.project import ROOT
from tests.support.settings_check import check_settings_in_this_process

EXAMPLES = int(os.environ.get("EVERGREEN_CHAOS_EXAMPLES", "40"))
SEED = int(os.environ.get("EVERGREEN_CHAOS_SEED", "1"))
RECIPES = [
    YAML(typ="safe").load((ROOT / "params" / "default.yaml").read_text(encoding="utf-8"))
    | {"data": {"source": {"kind": "files", "train": "data/rows.csv"}}},
    *(tiny.recipe(**sections) for sections in ({}, tiny.CLASSES, tiny.TAGS, tiny.TARGETS)),
    prompts.recipe(prompts.GRPO),
]
KEYS = [
    "kind",
    "name",
    "train",
    "function",
    "arguments",
    "config",
    "lerning_rate",
    "metrics",
    "slices",
    "type",
    "path",
    "url",
    "query",
]
STRINGS = [
    "", " ", "a/b", "os:system", "tasks.recipes.loading:read_yaml_document", "tests.support.own_code:nothing", "../..", "data/*.csv", "data", "local",
    "http://", "http://[", "https://h:x", "1e-4", "null", "files", "hub", "sql", "function", "sqlite:///data.db", "${NO}", "0" * 40,
    "select 1", "[unclosed", "\x00", "\u202egnp", "\U0001f600", "x" * 300, "2020-01-01", "accuracy", "llama",
]  # fmt: skip
SNIPPETS = [
    "&a ", "*a", "<<: *a\n", "!!python/object/apply:os.system [false]", "!x ", "\t", "\x00", "\ufeff", "- ", ": ", "? ", "{", "]",
    "|", "---\n", "...\n", "%YAML 1.1\n", "\u2028", "#", "'", '"', "0x", ".inf", "!!set {a, b}", "!!binary aGk=", "12:30:45",
]  # fmt: skip
TEXT = st.text(max_size=12)
ANY_TEXT = st.text(st.characters(codec=None, categories=None), max_size=12)
"""Text that may hold halves of surrogate pairs."""


def _nested(leaves: st.SearchStrategy[Any], text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=6
    )


NUMBERS = st.sampled_from([0, -1, 2**31, 2**63, 2**64, 10**30, 1e308, 1e-320]) | st.integers() | st.floats()
RECIPE_VALUES = _nested(
    st.none() | st.booleans() | NUMBERS | st.sampled_from(STRINGS) | TEXT, st.sampled_from(KEYS) | TEXT
)
ROW_VALUES = _nested(st.none() | st.booleans() | NUMBERS | ANY_TEXT, ANY_TEXT)

fuzz = settings(
    max_examples=EXAMPLES // 2, deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=False
)
pytestmark = pytest.mark.timeout(120 + 2 * EXAMPLES)


@contextlib.contextmanager
def only_errors_for_users() -> Iterator[None]:
    try:
        yield
    except EvergreenError as error:
        str(error).encode()  # it can be printed


def places(node: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key and index of a recipe."""
    for name, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield (*at, name)
        yield from places(value, (*at, name))


@st.composite
def recipes(draw: Callable[..., Any]) -> bytes:
    """A real recipe with some changes, as the content of a file."""
    content = copy.deepcopy(draw(st.sampled_from(RECIPES)))
    for _ in range(draw(st.integers(0, 3))):
        *parents, last = draw(st.sampled_from(list(places(content)) or [("seed",)]))
        node = content
        for part in parents:
            node = node[part]
        match draw(st.sampled_from(["replace", "replace", "add", "delete", "wrap"])):
            case "replace":
                node[last] = draw(RECIPE_VALUES)
            case "add" if isinstance(node, dict):
                node[draw(st.sampled_from(KEYS) | st.integers() | TEXT)] = draw(RECIPE_VALUES)
            case "wrap":
                node[last] = [node[last]]
            case _:
                node.pop(last, None) if isinstance(node, dict) else node.pop(last)
    file = io.BytesIO()
    YAML(typ="safe").dump(content, file)
    text = file.getvalue()
    for snippet in draw(st.lists(st.sampled_from(SNIPPETS).map(str.encode) | st.binary(max_size=3), max_size=2)):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + snippet + text[at:]
    return text


def rows() -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(
        st.dictionaries(st.sampled_from(["text", "label", "row_id", "split", "x"]) | ANY_TEXT, ROW_VALUES, max_size=3),
        max_size=4,
    )


def column() -> st.SearchStrategy[pa.Array]:
    """A Parquet column of a type that is rarely used."""
    types = [
        pa.string_view(), pa.large_string(), pa.binary(), pa.binary(3), pa.float16(), pa.decimal128(38, 3), pa.date32(),
        pa.date64(), pa.time32("s"), pa.time64("ns"), pa.timestamp("s"), pa.timestamp("ns", "Mars/Base"),
        pa.timestamp("us", "+99:00"), pa.duration("ns"), pa.uint64(), pa.null(), pa.list_(pa.int8()),
        pa.struct([("a", pa.binary())]), pa.map_(pa.string(), pa.int8()), pa.dictionary(pa.int8(), pa.string()),
    ]  # fmt: skip
    return st.sampled_from(types).flatmap(
        lambda kind: st.lists(st.integers(-(2**63), 2**64), max_size=3).map(lambda v: _array(kind, v))
    )


def _array(kind: pa.DataType, numbers: list[int]) -> pa.Array:
    """Numbers as values of a type: those that the type cannot hold are null."""
    return pa.concat_arrays([pa.nulls(0, kind), *(_value(kind, number) for number in numbers)])


def _value(kind: pa.DataType, number: int) -> pa.Array:
    value: Any = str(number) if "string" in str(kind) else number
    if pa.types.is_list(kind):
        value = [number % 100]
    elif pa.types.is_map(kind):
        value = [(str(number), number % 100), (str(number), 1)]
    elif pa.types.is_struct(kind):
        value = {"a": str(number).encode()}
    elif pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        value = b"\xff\x00" + bytes([number % 256])
    try:
        if pa.types.is_temporal(kind):
            return pa.array([value], pa.int64() if kind.bit_width == 64 else pa.int32()).view(kind)
        return pa.array([value], kind)
    except (pa.ArrowNotImplementedError, OverflowError, ValueError, TypeError):
        return pa.nulls(1, kind)


@st.composite
def row_files(draw: Callable[..., Any]) -> tuple[str, bytes, int | None]:
    """A file of 40 good and some odd rows: its suffix, its content, and the number of rows if no bytes were damaged."""
    good = [{"text": f"A sentence of row {i}", "label": "good" if i % 2 else "bad"} for i in range(40)]
    suffix = draw(st.sampled_from(["csv", "jsonl", "parquet"]))
    found = [*good, *draw(rows())]
    if suffix == "jsonl":
        content = b"".join(json.dumps(row).encode() + b"\n" for row in found)
    elif suffix == "csv":
        file = io.StringIO(newline="")
        writer = csv.DictWriter(file, ["text", "label"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows({key: str(value) for key, value in row.items()} for row in found)
        content = file.getvalue().encode("utf-8", "replace")
    else:
        odd = draw(column())
        padded = pa.concat_arrays([odd, pa.nulls(40 - len(odd), odd.type)]) if odd.type != pa.null() else pa.nulls(40)
        buffer = io.BytesIO()
        found = good
        pq.write_table(pa.Table.from_pylist(good).append_column("x", padded), buffer)
        content = buffer.getvalue()
    count: int | None = len(found)
    for damage in draw(
        st.lists(st.binary(min_size=1, max_size=3) | st.sampled_from([b'"', b"\r", b"\x00", b"\xff"]), max_size=1)
    ):
        at = draw(st.integers(0, len(content)))
        content, count = content[:at] + damage + content[at:], None
    return suffix, content, count


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with one CSV file, without tokens."""
    monkeypatch.chdir(tmp_path)
    for name in ("HF_ENDPOINT", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    check_settings_in_this_process(monkeypatch)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.csv").write_text("text,label\na fine text,good\nanother,bad\n")
    return tmp_path


@seed(SEED)
@fuzz
@given(content=recipes())
def test_odd_recipe_is_sound_or_an_error(project: Path, content: bytes) -> None:
    (project / "trial.yaml").write_bytes(content)
    with only_errors_for_users():
        check(project / "trial.yaml")


@seed(SEED)
@fuzz
@given(file=row_files(), objective=st.sampled_from(["causal_lm", "sequence_classification"]))
def test_odd_rows_are_kept_set_aside_or_an_error(
    project: Path, file: tuple[str, bytes, int | None], objective: str
) -> None:
    suffix, content, count = file
    shutil.rmtree(project / "runs", ignore_errors=True)
    (project / f"rows.{suffix}").write_bytes(content)
    artifacts = Artifacts("trial", project)
    source = {"kind": "files", "train": f"rows.{suffix}"}
    columns = {"text_column": "text"} | ({"label_column": "label"} if objective == "sequence_classification" else {})
    unique = Expectation(type="expect_column_values_to_be_unique", column="text")
    with only_errors_for_users():
        read = ingest(
            artifacts,
            data=Data.model_validate({"source": source, "split": {"validation": 0.3, "test": 0.3}}),
            seed=1,
            launch=Launch(micro_batch_size=1),
        )
        assert count in (None, sum(read.rows.values()))
        report = validate(
            artifacts,
            seed=1,
            validation=Validation(expectations=[unique], max_quarantined=0.9),
            objective=ObjectiveChoice.model_validate({"name": objective, **columns}),
            repo_id="tests/tiny",
            endpoint="local",
            launch=Launch(micro_batch_size=1, data_workers=1),
        )
        assert report.rows_in == read.rows
        kept = {split: len(SplitRows(artifacts.rows / split)) for split in SPLITS}
        set_aside = pq.read_metadata(artifacts.validated / "quarantine.parquet").num_rows
        assert report.rows_out == kept
        assert sum(kept.values()) + set_aside == sum(read.rows.values())
