"""Values as they are written, from a file to tokens: nested values, numbers that are text, and rows of another form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from params import DataError, Recipe
from params.foundation.artifacts import SPLITS, Artifacts
from tasks.diagnostics.trace import trace_sections
from tasks.ingestion.stage import ingest
from tasks.shards.split_rows import store_as_json
from tasks.tokenization.stage import tokenize
from tasks.validation.by_key import row_key_bytes
from tasks.validation.stage import validate
from tests.support import tiny
from trainer.data import tokens

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is defined %}{{ m.content }}{% endif %}"
    "{% for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}{{ eos_token }}{% endfor %}"
)
CHAT = {"objective": {"name": "sft", "messages_column": "messages", "chat_template": TEMPLATE}}
CALLS = [{"name": "weather", "arguments": {"town": "town 0"}}, {"name": "add", "arguments": {"right": 4, "left": 1}}]


def run(root: Path, name: str, changes: dict[str, Any] | None = None, **sections: Any) -> tuple[Artifacts, Recipe, Any]:
    """Ingest, validate and tokenize."""
    data = {"source": {"kind": "files", "train": name}, "split": {"test": 0.3, "validation": 0.3}}
    content = tiny.recipe(changes, data=data, **sections)
    recipe, artifacts = Recipe.model_validate(content), Artifacts("r", root)
    ingest(artifacts, data=recipe.data, seed=1, launch=recipe.launch)
    report = validate(
        artifacts,
        seed=1,
        validation=recipe.validation,
        objective=recipe.objective,
        repo_id="a/b",
        endpoint="local",
        launch=recipe.launch,
    )
    tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    return artifacts, recipe, report


def conversation(call: Any, i: int) -> list[dict[str, Any]]:
    question = {"role": "user", "content": f"question {i}"}
    return [question, {"role": "assistant", "content": "I ask.", "tool_calls": [{"function": call}]}]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def texts(artifacts: Artifacts) -> str:
    """All that a model learns from, as text."""
    tokenizer = tokens.read_tokenizer(artifacts.tokens)
    splits = (tokens.read_split(artifacts.tokens, split) for split in SPLITS)
    found = (split[i]["input_ids"] for split in splits for i in range(len(split)))
    return "\n".join(tokenizer.decode(ids) for ids in found)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_calls_of_several_tools_are_rendered_as_they_are_written(tmp_path: Path, suffix: str) -> None:
    rows = [{"messages": conversation(CALLS[i % 2], i)} for i in range(60)]
    write(tmp_path / "rows.jsonl", rows)
    pd.DataFrame(rows).to_parquet(tmp_path / "rows.parquet")  # structs, with a null for each argument of another tool
    artifacts, recipe, _ = run(tmp_path, f"rows.{suffix}", {"tokenization.max_length": 200}, **CHAT)
    text = texts(artifacts)
    assert text.count(json.dumps(CALLS[0])) == 30
    assert text.count(json.dumps(CALLS[1])) == 30
    assert "null" not in text
    traced = dict(trace_sections(artifacts, recipe, 0))
    assert "'arguments': {'town': 'town 0'}}" in next(lines for name, lines in traced.items() if name[:3] == "raw")[1]


FORMS = [
    "text", 7, {"role": "user"}, [], ["text"], [1], [None], [{"role": "user"}],
    [{"role": "assistant", "content": {"a": 1}}], [[{"role": "assistant", "content": "a"}]],
]  # fmt: skip


def test_rows_of_another_form_are_set_aside_and_the_others_go_on(tmp_path: Path) -> None:
    good = [{"messages": conversation(CALLS[0], i), "note": FORMS[i % len(FORMS)]} for i in range(60)]
    write(tmp_path / "rows.jsonl", [*good, *({"messages": form} for form in FORMS)])
    changes = {"validation.max_quarantined": 0.2, "tokenization.max_length": 200}
    artifacts, _, report = run(tmp_path, "rows.jsonl", changes, **CHAT)
    assert (report.quarantined, sum(report.rows_out.values())) == (len(FORMS), 60)
    reasons = pd.read_parquet(artifacts.validated / "quarantine.parquet")["reasons"]
    assert all("row_is_usable" in own[0] for own in reasons), reasons


def test_answers_of_a_table_are_learned_as_they_are_written(tmp_path: Path) -> None:
    lines = [f"What is {i}?,{i}.50,{i}\n" for i in range(60)]
    (tmp_path / "rows.csv").write_text("prompt,completion,whole\n" + "".join(lines))
    artifacts, _, _ = run(tmp_path, "rows.csv", objective={"name": "sft"})
    assert all(f"What is {i}?{i}.50<" in texts(artifacts) for i in range(60))
    artifacts, _, _ = run(tmp_path, "rows.csv", objective={"name": "sft", "completion_column": "whole"})
    assert all(f"What is {i}?{i}<" in texts(artifacts) for i in range(60))


def test_labels_such_as_3_1_and_3_10_stay_apart(tmp_path: Path) -> None:
    lines = [f"text {i},{('3.1', '3.10', '3.2')[i % 3]}\n" for i in range(60)]
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(lines))
    artifacts, _, _ = run(tmp_path, "rows.csv", **tiny.CLASSES)
    assert tokens.read_objective_state(artifacts.tokens)["labels"] == ["3.1", "3.10", "3.2"]


def test_a_number_of_several_types_is_refused_with_the_places(tmp_path: Path) -> None:
    write(tmp_path / "rows.jsonl", [{"text": f"text {i}", "label": i % 3 if i < 30 else [i % 3]} for i in range(60)])
    with pytest.raises(
        DataError, match=r"`label` must hold text or integers, but holds int64 \(rows.jsonl:1\) and list"
    ):
        run(tmp_path, "rows.jsonl", **tiny.CLASSES)


def test_equal_nested_values_have_the_same_key_in_any_order_of_their_keys() -> None:
    column = store_as_json([{"a": 1, "b": [2]}, {"b": [2], "a": 1}, {"a": 1, "b": [3]}, None])
    first, second, other, null = row_key_bytes(pa.table({"x": column}))
    assert first == second
    assert len({first, other, null}) == 3
