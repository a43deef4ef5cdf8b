"""docs/examples.md cannot drift: it has every text example of transformers, and each of its recipes is sound for the row beside it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from params.schema import ObjectiveChoice
from tasks.diagnostics.check import find_recipe_problems
from tasks.recipes.loading import read_yaml_document
from tests.contract.test_training_page import lines
from tests.support import tiny
from tests.support.project import ROOT
from tests.support.settings_check import check_settings_in_this_process
from trainer import objectives

PAGE = (ROOT / "docs/examples.md").read_text(encoding="utf-8")
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| run_")]
EXAMPLES = {
    *("run_clm", "run_mlm", "run_glue", "run_classification", "run_ner"),
    *("run_qa", "run_swag", "run_summarization", "run_translation"),
}
"""The text examples in examples/pytorch of transformers 5."""


def test_the_list_is_whole() -> None:
    assert {re.match(r"run_\w+", example)[0] for example, *_ in ROWS} == EXAMPLES  # type: ignore[index]
    assert sum(line.startswith("|") for line in PAGE.splitlines()) == len(ROWS) + 2, "every line of the table is read"


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_recipe_is_sound_for_its_row(row: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, written, recipe_lines = row
    values: dict[str, Any] = json.loads(written.strip("`"))
    changes = lines(recipe_lines)
    section = changes["objective"]
    objective = objectives.build_objective(ObjectiveChoice.model_validate(section))
    assert set(objective.columns()) <= set(values)
    assert objectives.why_row_unusable(objective, values) is None
    assert objective.text(values).strip()

    content = tiny.recipe({"data.source": {"kind": "files", "train": "rows.jsonl"}})
    content["objective"] = section
    if objective.pipeline_tag != "text-generation":
        content["model"] = tiny.TARGETS["model"] if objective.has_target_text else tiny.CLASSES["model"]
    content["training"] |= {
        key.removeprefix("training."): value for key, value in changes.items() if key != "objective"
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps(values) + "\n")
    monkeypatch.chdir(tmp_path)
    check_settings_in_this_process(monkeypatch)
    assert find_recipe_problems(read_yaml_document(tiny.write(tmp_path / "row.yaml", content))) == []
