"""Several sources: columns, filters, most rows, weights and splits, and that each keeps its own shards."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from params import DataError, EvergreenError, RecipeError
from params.foundation.artifacts import SPLITS, Artifacts
from params.schema import Launch
from params.sections.data import Data
from tasks.diagnostics.source_checks import find_missing_columns
from tasks.ingestion.report import IngestReport
from tasks.ingestion.stage import ingest
from tasks.recipes.loading import parse, read_yaml_document
from tasks.shards.split_rows import SplitRows
from tests.support import tiny
from trainer.data.shards import Manifest

BASE = [{"text": f"base {i}", "label": "ab"[i % 2]} for i in range(120)]
FEEDBACK = "\n".join(
    ["title,body,intent,lang", *(f"t{i},b{i},{'ab'[i % 2]},{'en' if i % 3 else 'de'}" for i in range(60))]
)
MAPPED = {"text": "{title}: {body}", "label": "intent"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tasks.ingestion.parts.PART_ROWS", 50)
    write(tmp_path / "base.jsonl", BASE)
    (tmp_path / "feedback.csv").write_text(FEEDBACK)
    return tmp_path


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(
    root: Path, *, feedback: dict[str, Any] | None = None, base: dict[str, Any] | None = None, **data: Any
) -> IngestReport:
    sources = {
        "base": {"kind": "files", "train": "base.jsonl", **(base or {})},
        "feedback": {"kind": "files", "train": "feedback.csv", "columns": MAPPED, **(feedback or {})},
    }
    made = Data.model_validate({"sources": sources, "split": {"test": 0.2, "validation": 0.2}} | data)
    return ingest(Artifacts("x", root), data=made, seed=17, launch=Launch(micro_batch_size=1, data_workers=1))


def rows_of(root: Path, *splits: str) -> list[dict[str, Any]]:
    return [row for split in splits or SPLITS for row in SplitRows(root / "runs/x/raw" / split).rows()]


def files(root: Path, start: str) -> dict[str, bytes]:
    raw = root / "runs/x/raw"
    return {str(p.relative_to(raw)): p.read_bytes() for p in raw.rglob(f"{start}*.parquet")}


def test_rows_have_the_names_of_the_recipe_and_their_source(project: Path) -> None:
    report = run(project, feedback={"where": {"lang": ["en"]}})
    rows = rows_of(project)
    assert {(r["source"], r["text"], r["label"]) for r in rows} == {
        *(("base", row["text"], row["label"]) for row in BASE),
        *(("feedback", f"t{i}: b{i}", "ab"[i % 2]) for i in range(60) if i % 3),
    }
    assert report.left_out == {"not of data.where": 20}
    assert {name: sum(own.values()) for name, own in report.sources.items()} == {"base": 120, "feedback": 40}
    assert len({row["row_id"] for row in rows}) == len(rows)


def test_a_split_follows_from_the_content_whatever_the_source(project: Path) -> None:
    run(project)
    of_text = {row["text"]: split for split in SPLITS for row in rows_of(project, split) if row["source"] == "base"}
    write(project / "feedback.jsonl", BASE)
    run(project, feedback={"train": "feedback.jsonl", "columns": {}})
    for split in SPLITS:
        assert all(of_text[row["text"]] == split for row in rows_of(project, split) if row["source"] == "feedback")


def test_rows_that_come_to_one_source_leave_the_shards_of_the_others(project: Path) -> None:
    run(project)
    before = files(project, "feedback-")
    assert len(before) > 3
    write(project / "base.jsonl", BASE + [{"text": f"new {i}", "label": "a"} for i in range(70)])
    run(project)
    assert files(project, "feedback-") == before
    assert len({row["row_id"] for row in rows_of(project)}) == 250


def test_the_same_rows_stay_with_max_rows_as_others_come(project: Path) -> None:
    run(project, base={"max_rows": 60})
    kept = {row["text"] for row in rows_of(project) if row["source"] == "base"}
    splits = {split: sum(row["source"] == "base" for row in rows_of(project, split)) for split in SPLITS}
    assert len(kept) == 60
    assert min(splits.values()) > 0  # the hash that chooses is not that of the split
    write(project / "base.jsonl", [{"text": "one more", "label": "a"}, *BASE])
    report = run(project, base={"max_rows": 60})
    assert len(kept & {row["text"] for row in rows_of(project) if row["source"] == "base"}) >= 59
    assert report.left_out == {"more than max_rows": 61}


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_source_feeds_only_its_splits(project: Path, split: str) -> None:
    report = run(project, feedback={"splits": [split], "weight": 2.5})
    assert report.sources["feedback"] == {"train": 0, "validation": 0, "test": 0} | {split: 60}
    shards = Manifest.read(project / "runs/x/raw" / split).shards
    assert {(shard.source, shard.weight) for shard in shards if shard.source != "base"} == {("feedback", 2.5)}


def test_a_source_without_training_rows_is_shared_between_held_out_splits(project: Path) -> None:
    report = run(project, feedback={"splits": ["validation", "test"]})
    own = report.sources["feedback"]
    assert own["train"] == 0
    assert min(own["validation"], own["test"]) > 10


def takes_even(row: dict[str, Any]) -> bool:
    return int(row["title"][1:]) % 2 == 0


def test_a_function_chooses_rows(project: Path) -> None:
    run(project, feedback={"where": f"{__name__}:takes_even"})
    assert sum(row["source"] == "feedback" for row in rows_of(project)) == 30


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": {"text": "boddy"}}, r"data.sources.feedback.columns.text: the rows have no column `boddy`.*mean `body`"),
        ({"columns": {"text": "{title"}}, "data.sources.feedback.columns.text: '{title' is no template"),
        ({"columns": {"body": "title"}}, r"columns.body: the source has a column `body` of its own.*other_body: body"),
        ({"columns": {"source": "lang"}}, "has a column `source`.*data.sources.feedback.columns"),
        ({"train": "nothing.csv"}, "data.sources.feedback.train: nothing.csv: no file matches"),
        ({"where": f"{__name__}:fails"}, r"feedback.csv.*`.*:fails` \(data.sources.feedback.where\) raised KeyError"),
    ],
)  # fmt: skip
def test_an_error_of_a_source_names_its_key(project: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(EvergreenError, match=f"(?s){message}"):
        run(project, feedback=changes)


def fails(row: dict[str, Any]) -> bool:
    return bool(row["missing"])


@pytest.mark.parametrize(
    ("wanted", "found"),
    [(1, 4), (1.0, 4), ("1", 1), (True, 3), ("true", 1), (None, 0), ("", 1), ('say "hi"', 1), ([1, "x\\"], 5)],
)
def test_texts_of_a_file_without_types_say_numbers_and_truth(project: Path, wanted: Any, found: int) -> None:
    cells = ["1", "1.0", "01", " 1 ", "True", "TRUE", "true", '"say ""hi"""', "x\\", ""]
    text = "".join(f"t{i},{cell},a\n" for i, cell in enumerate(cells))
    (project / "feedback.csv").write_text(f"text,grade,label\n{text}")
    report = run(project, feedback={"columns": {}, "where": {"grade": wanted}})
    assert sum(report.sources["feedback"].values()) == found


def test_a_part_of_a_source_may_lack_columns_that_others_have(project: Path) -> None:
    rows = [{"body": f"b{i}", "label": "a"} | ({"title": f"t{i}", "who": i} if i < 60 else {}) for i in range(200)]
    write(project / "feedback.jsonl", rows)
    changed = {"train": "feedback.jsonl", "columns": {"text": "{title}: {body}", "reader": "who"}}
    run(project, feedback=changed)
    found = {row["text"]: row["reader"] for row in rows_of(project) if row["source"] == "feedback"}
    assert (found["t7: b7"], found[": b150"]) == (7, None)
    with pytest.raises(RecipeError, match=r"(?s)feedback.columns.text: the rows have no column `titel`.*mean `title`"):
        run(project, feedback=changed | {"columns": {"text": "{titel}: {body}"}})
    with pytest.raises(RecipeError, match=r"feedback.where: the rows have no column `whom`"):
        run(project, feedback=changed | {"where": {"whom": None}})


def test_a_column_gets_two_names_and_a_template_without_text_is_no_text(project: Path) -> None:
    write(project / "feedback.jsonl", [{"body": None if i % 2 else f"b{i}", "label": "a"} for i in range(60)])
    run(project, feedback={"train": "feedback.jsonl", "columns": {"text": "Q: {body}", "a": "body", "b": "body"}})
    found = {(row["text"], row["a"], row["b"]) for row in rows_of(project) if row["source"] == "feedback"}
    assert found == {(None, None, None), *((f"Q: b{i}", f"b{i}", f"b{i}") for i in range(0, 60, 2))}


def test_the_order_of_the_sources_in_the_recipe_changes_nothing(project: Path) -> None:
    """DVC compares recipes without looking at the order of keys."""
    report = run(project)
    keys = {"kind": "files", "train": "base.jsonl"}
    other = {"feedback": {"kind": "files", "train": "feedback.csv", "columns": MAPPED}, "base": keys}
    assert run(project, sources=other) == report


def test_a_source_without_rows_gives_none(project: Path) -> None:
    (project / "feedback.csv").write_text("title,body,intent,lang\n")
    assert run(project, feedback={"max_rows": 5}).sources["feedback"] == {"train": 0, "validation": 0, "test": 0}


def test_a_filter_that_leaves_nothing_says_so(project: Path) -> None:
    with pytest.raises(DataError, match=r"120 not of data.where"):
        run(project, base={"where": {"label": "c"}}, feedback={"splits": ["test"]})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"source": {"kind": "files", "train": "a.csv"}, "sources": {"a": {"kind": "files", "train": "a.csv"}}}, "exactly one"),
        ({"sources": {}}, "`sources` is empty"),
        ({"sources": {"A b": {"kind": "files", "train": "a.csv"}}}, "cannot name a source"),
        ({"source": {"kind": "files", "train": "a.csv", "weight": 2.0}}, "say how several sources differ"),
        ({"sources": {"a": {"kind": "files", "train": "a.csv", "test": "b.csv", "splits": ["train"]}}}, "has test rows"),
        ({"sources": {"a": {"kind": "files", "train": "a.csv", "splits": ["train", "test"]}}}, "no source may feed the validation split"),
        ({"sources": {"a": {"kind": "files", "train": "a.csv", "weight": 1001}}}, "less than or equal to 1000"),
        ({"source": {"kind": "files", "train": "a.csv", "columns": {"row_id": "id"}}}, "no column can be called 'row_id'"),
        ({"sources": {"a": {"kind": "files", "train": "a.csv", "wher": {}}}}, r"data.sources.a.wher: no such key.*`where`"),
        ({"source": {"kind": "files", "train": "a.csv"}, "split": {"by": "time"}, "time_column": "t"}, "`validation: 7d`"),
        ({"source": {"kind": "files", "train": "a.csv"}, "window": "90 days"}, "no span of time"),
        ({"source": {"kind": "files", "train": "a.csv"}, "window": "90d"}, "name its column as `time_column`"),
    ],
)  # fmt: skip
def test_keys_that_do_not_fit_together(tmp_path: Path, data: dict[str, Any], message: str) -> None:
    path = tiny.write(tmp_path / "params/tiny.yaml", tiny.recipe() | {"data": data})
    recipe, problems = parse(read_yaml_document(path))
    assert recipe is None
    (problem,) = problems
    assert re.search(message, str(problem))


def test_check_names_the_source_that_lacks_a_column(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    content = tiny.recipe(**tiny.CLASSES)
    content["data"] = {
        "sources": {
            name: {"kind": "files", "train": file}
            for name, file in (("base", "base.jsonl"), ("feedback", "feedback.csv"))
        }
    }
    content["evaluation"] = {"slices": ["source", "lang"]}
    recipe, problems = parse(read_yaml_document(tiny.write(project / "params/tiny.yaml", content)))
    assert recipe, problems
    found = [str(one) for one in find_missing_columns(recipe.objective, recipe.data, recipe.evaluation)]
    assert [text.partition(";")[0] for text in found] == [
        f"objective: data.sources.feedback has no column `{name}`" for name in ("text", "label")
    ]


def test_stratify_refuses_sources_with_other_splits(project: Path) -> None:
    write(project / "held-out.jsonl", BASE[:10])
    with pytest.raises(RecipeError, match=r"data.split.stratify: some sources have held-out rows"):
        run(project, base={"test": "held-out.jsonl"}, split={"stratify": "label", "test": 0.2, "validation": 0.2})
    run(project, split={"stratify": "label", "test": 0.2, "validation": 0.2})


def test_corrections_wait_for_the_first_answer(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`review --take` makes the file; a path that is no pattern, and a pattern of rows, are wrong if nothing is there."""
    ingest_with = partial(run, project, corrections="people/**/*.csv")
    assert "corrections" not in ingest_with().data_sha256
    assert "data.corrections: no file matches people/**/*.csv yet, so no label is corrected" in caplog.text
    assert not (project / "runs/x/raw/corrections").exists()
    (project / "people").mkdir()
    (project / "people/review.csv").write_text("text,label\nbase 1,a\n")
    caplog.clear()
    assert "corrections" in ingest_with().data_sha256
    assert "no file matches" not in caplog.text
    with pytest.raises(DataError, match=r"data.corrections.train: people/none.csv: no file matches"):
        run(project, corrections="people/none.csv")
    with pytest.raises(DataError, match=r"data.corpus.train: people/\*.none: no file matches"):
        run(project, corpus="people/*.none")
