"""The rows of a rehearsal, and the arithmetic of its estimate."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from params import Recipe
from params.sections.data import RowsFromFiles
from tasks.diagnostics import rehearse
from tasks.diagnostics.few_rows import RehearsalRows, deal_rows, read_split
from tasks.ingestion.batches import to_readable_batch
from tasks.ingestion.row_choice import RowChoice
from tasks.ingestion.source import open_source
from tasks.report.formatting import format_duration
from tasks.tokenization.report import SplitStatistics, TokenizationReport
from tests.support import tiny
from trainer.reporting.step_clock import ProcessMeasurements


def rows_of(labels: list[str]) -> RehearsalRows:
    pool = [{"text": f"text {i}" + "!" * (i % 7), "label": label} for i, label in enumerate(labels)]
    return RehearsalRows(pool, len(pool), is_whole=True, schema=pa.Table.from_pylist(pool).schema)


def classifier(**changes: Any) -> Recipe:
    return Recipe.model_validate(tiny.recipe(changes, **tiny.CLASSES))


def test_usual_rows_are_of_all_parts_of_a_sorted_file() -> None:
    rows = rows_of([f"label {i // 50}" for i in range(2501)])
    found = Counter(row["label"] for row in rows.usual(1000))
    assert found.total() == 1000
    assert len(found) >= 50
    assert min(found[f"label {i}"] for i in range(50)) >= 19
    assert rows.usual(9999) == rows.pool
    assert [row["text"].count("!") for row in sorted(rows.pool, key=lambda row: len(str(row)))[-3:]] == [6, 6, 6]


def test_training_sees_each_label_of_the_held_out_rows() -> None:
    rows = rows_of(["usual"] * 99 + ["rare"])
    test = rows_of(["usual", "rare", "unheard"] * 5)
    tables = deal_rows(classifier(), rows.usual(100), {"train": rows, "test": test})
    labels = {split: set(table["label"].to_pylist()) for split, table in tables.items()}
    assert labels == {"train": {"usual", "rare"}, "validation": {"usual"}, "test": {"usual", "rare"}}
    assert sum(len(tables[split]) for split in ("train", "validation")) == 100
    assert set(tables["train"]["text"].to_pylist()).isdisjoint(tables["validation"]["text"].to_pylist())


def test_few_rows_have_every_label_of_many_and_bad_rows_have_none() -> None:
    """The longest rows may all have one label, or no span, with which nothing could be trained."""
    rows = rows_of(["usual"] * 99 + ["rare"])
    table = deal_rows(classifier(), rows.pool[:20], {"train": rows})["train"]
    assert set(table["label"].to_pylist()) == {"usual", "rare"}
    spans: list[Any] = [[], None, [{"label": "who", "start": 0, "end": 4}], "no list", [{"start": 0, "end": 4}]]
    pool = [{"text": f"text {i}", "spans": one} for i, one in enumerate(spans)]
    schema = pa.Table.from_pylist(pool[:3]).schema
    tagger = Recipe.model_validate(tiny.recipe({}, **tiny.TAGS))
    found = deal_rows(tagger, pool[:2], {"train": RehearsalRows(pool, 5, is_whole=True, schema=schema)})
    assert [row["text"] for row in found["train"].to_pylist()] == ["text 2", "text 0", "text 1"]


def passed(*, rows: int, train_s: float, steps_s: list[float], cpu_s: float) -> rehearse._Pass:
    counts = {"tokens": 1, "longest": 1, "mean_length": 1, "learned_tokens": 1, "truncated_rows": 0, "unused_rows": 0}
    splits = {s: SplitStatistics(rows=100, sequences=100, **counts) for s in ("train", "validation", "test")}
    seconds = {"ingest": 1.0, "validate": 2.0, "tokenize": 3.0, "train": train_s, "evaluate": 5.0, "publish": 6.0}
    clock = ProcessMeasurements(
        steps_s=steps_s,
        steps_cpu_s=[cpu_s] * len(steps_s),
        threads=2,
        eval_rows_per_s=[1.0, 50.0],
        memory_bytes=2**30,
        gpu_memory_bytes=0,
    )
    report = TokenizationReport(vocab_size=300, max_length=32, characters_per_token=3, splits=splits)
    return rehearse._Pass(rows, seconds, clock, report, quarantined=0, disk_bytes=1000)


def test_the_estimate_is_steps_times_their_time_and_what_comes_on_top() -> None:
    recipe = classifier(**{"training.max_steps": 100, "training.eval_steps": 25})
    usual = passed(rows=200, train_s=30.0, steps_s=[9.0, 9.0, 0.5, 1.5], cpu_s=1.0)
    hardest = passed(rows=50, train_s=9.0, steps_s=[9.0, 9.0], cpu_s=9.0)
    rows = {"train": rows_of(["a"] * 2000)}
    start_s = 30.0 - 20.0 - 2 * 100 / 50.0
    train_s = start_s + 100 * 1.0 + 5 * 100 / 50.0
    assert usual.slowdown == pytest.approx(2.0)
    time, basis, *_ = rehearse._estimate(recipe, rows, usual, hardest, has_champion=True)
    assert f", train {format_duration(train_s)}, " in time
    assert f"validate {format_duration(2.0 + 2.0 * 9)}, " in time
    assert f"evaluate {format_duration(5.0 + 3 * 100 / 50.0)}, " in time
    assert "100 steps); without other programs at most" in time
    assert basis == "the time follows from 2 steps of 1.0 s and evaluations of 50 rows/s"


def test_rows_of_a_rehearsal_are_those_that_the_objective_reads(tmp_path: Path) -> None:
    kinds: dict[str, Any] = {"answer": "string", "whole": "string", "version": "label"}
    (tmp_path / "a.csv").write_text(
        "answer,whole,version,price\n" + "".join(f"{i}.50,{i},3.10,0.50\n" for i in range(700))
    )
    written = [
        {"calls": [{"a": {}}] if i % 2 else [{"b": None}], "mixed": i if i < 600 else f"{i}"} for i in range(700)
    ]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in written))
    found = {}
    for name in ("a.csv", "b.jsonl"):
        keys = RowsFromFiles(kind="files", train=name)
        opened = RowChoice.of("source", keys), open_source(keys, tmp_path), {"train": "train"}
        rows = read_split([opened], "train", kinds)
        pq.write_table(
            rows.table(rows.usual(700)), tmp_path / "rows.parquet"
        )  # as a rehearsal does, which ingests that
        source = open_source(RowsFromFiles(kind="files", train="rows.parquet"), tmp_path)
        found[name] = [row for batch in source.batches("train") for row in to_readable_batch(batch)[1]]
    assert found["a.csv"] == [
        {"answer": f"{i}.50", "whole": f"{i}", "version": "3.10", "price": 0.5} for i in range(700)
    ]
    assert found["b.jsonl"] == [row | {"mixed": str(row["mixed"])} for row in written]


def test_texts_that_say_numbers_are_left_to_the_stages_of_the_rehearsal(tmp_path: Path) -> None:
    """They set n/a aside, as those of the real run do."""
    (tmp_path / "rows.csv").write_text("text,score\na,1.50\nb,n/a\nc,\n")
    keys = RowsFromFiles(kind="files", train="rows.csv")
    opened = RowChoice.of("source", keys), open_source(keys, tmp_path), {"train": "train"}
    found = read_split([opened], "train", {"text": "string", "score": "number"})
    assert found.table(found.pool)["score"].to_pylist() == ["1.50", "n/a", ""]


def test_rows_that_are_not_taken_need_no_time(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,lang\n" + "".join(f"t{i},{'en' if i % 4 else 'de'}\n" for i in range(2000)))
    for more, total in (({}, 2000), ({"where": {"lang": "de"}}, 500), ({"max_rows": 300}, 300)):
        keys = RowsFromFiles(kind="files", train="a.csv", **more)
        opened = RowChoice.of("source", keys), open_source(keys, tmp_path), {"train": "train"}
        assert read_split([opened], "train", {}).total == total


def test_what_a_rehearsal_leaves_out_is_said() -> None:
    usual = passed(rows=50, train_s=9.0, steps_s=[9.0, 9.0], cpu_s=9.0)
    assert list(rehearse._remarks(classifier(), usual)) == []
    source = {"kind": "files", "train": "a.csv"}
    sources = {"base": source, "feedback": source | {"weight": 2.0}}
    changes: dict[str, Any] = {"model.start": "champion", "evaluation.suites": [{"name": "a", "source": "b.csv"}]}
    recipe = tiny.recipe(changes, **tiny.CLASSES) | {"data": {"sources": sources, "corrections": "c.csv"}}
    (line,) = rehearse._remarks(Recipe.model_validate(recipe), usual)
    assert line.endswith(": data.corrections, evaluation.suites, model.start, weights of data.sources")
