"""What is said of a sample of rows is what ingest and validate do to them: a sample cannot disagree with the stages."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from params.foundation.artifacts import SPLITS, Artifacts
from params.schema import ObjectiveChoice
from params.sections.data import Data, RowsFromFiles
from tasks.ingestion.stage import ingest
from tasks.scaffold.look import read_source_sample
from tasks.shards.split_rows import SplitRows
from tasks.validation.row_judge import RowJudge
from tests.support.validation import ONE_PROCESS, quarantine_reasons, run_validation
from trainer import objectives

TEXTS = ["", " ", "\t", None]
SPANS = [{"label": "a", "start": 0, "end": 4}]
OBJECTIVES: dict[str, tuple[ObjectiveChoice, dict[str, list[Any]]]] = {
    "labels": (
        ObjectiveChoice(name="sequence_classification"),
        {"text": TEXTS, "label": ["a", "b", "a", "b", "", " ", None]},
    ),
    "classes": (ObjectiveChoice(name="sequence_classification"), {"text": TEXTS, "label": [0, 1, 0, 1, None]}),
    "labels of two types": (
        ObjectiveChoice(name="sequence_classification"),
        {"text": TEXTS, "label": [1, "1", "b", None]},
    ),
    "numbers": (ObjectiveChoice(name="regression"), {"text": TEXTS, "label": [1, 2.5, -3, None]}),
    "numbers as text": (
        ObjectiveChoice(name="regression"),
        {"text": TEXTS, "label": ["1", "2.50", " 3 ", "n/a", "1,5", "", " ", None]},
    ),
    "spans": (
        ObjectiveChoice(name="token_classification"),
        {"text": TEXTS, "spans": [SPANS, [], None, [*SPANS, *SPANS], [{"label": "a", "start": 2, "end": 900}]]},
    ),
    "running text": (ObjectiveChoice(name="causal_lm"), {"text": [*TEXTS, 7]}),
}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text("\n".join(map(json.dumps, rows)))


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
@pytest.mark.parametrize("case", OBJECTIVES)
def test_a_sample_is_judged_as_the_stages_judge_its_rows(
    case: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (case, suffix) in {("spans", ".csv"), ("labels of two types", ".parquet"), ("running text", ".parquet")}:
        pytest.skip("such a file holds no such values")
    choice, values = OBJECTIVES[case]
    monkeypatch.chdir(tmp_path)
    chance, number = random.Random(case), 0
    for split, count in (("train", 80), ("validation", 12), ("test", 12)):
        rows = []
        for _ in range(count):
            number += 1
            row = {"id": f"row {number}"} | {name: chance.choice(own) for name, own in values.items()}
            if chance.random() < 0.8:
                row["text"] = f"text {number}"
            rows.append(row)
        write_rows(Path(f"{split}{suffix}"), rows)
    files = {split: f"{split}{suffix}" for split in SPLITS}
    method = objectives.build_objective(choice)

    sample = read_source_sample(RowsFromFiles(kind="files", **files)).reading(method.columns())
    judge, empty = RowJudge(method), dict.fromkeys(method.columns())
    judged = {
        row["id"]: reason
        for rows in sample.rows.values()
        for row in rows
        if (reason := judge.why_set_aside(empty | row))
    }

    artifacts = Artifacts("trial", tmp_path)
    data = Data.model_validate({"source": {"kind": "files", **files}})
    ingest(artifacts, data=data, seed=1, launch=ONE_PROCESS)
    run_validation(artifacts, objective=choice)
    raw = {split: SplitRows(artifacts.raw / split).reading(method.columns()) for split in SPLITS}
    by_id = {(split, row["row_id"]): row for split, rows in raw.items() for row in rows.rows()}
    aside = {by_id[own]["id"]: reasons for own, reasons in quarantine_reasons(artifacts).items()}
    assert judged.keys() == aside.keys(), {one: judged.get(one) or aside[one] for one in judged.keys() ^ aside.keys()}
    assert len(judged) > 5

    read = {row["id"]: row for rows in sample.rows.values() for row in rows}
    for row in by_id.values():
        own = read[row["id"]]
        if row["id"] not in judged:
            assert {name: own.get(name) for name in values} == {name: row.get(name) for name in values}
