"""`trace` shows what each stage of a real, tiny run makes of one row."""

from __future__ import annotations

import csv
import os
import re
import shutil
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from params import DataError
from params.foundation.artifacts import SPLITS, Artifacts
from params.foundation.stages import STAGES
from tasks.commands import main
from tasks.diagnostics.trace import _loss_lines, _shortened, trace_sections
from tasks.recipes.loading import load
from tasks.shards.split_rows import SplitRows
from tasks.stage_run import run_stage
from tasks.tokenization.stage import tokenize
from tests.support import forked, tiny
from tests.support.project import ROOT
from trainer import objectives
from trainer.data import tokens
from trainer.model import network

EMPTY = 5


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with a recipe and rows, the sixth of them without a text."""
    root = tmp_path_factory.mktemp("traced")
    changes = {"training.max_steps": 3, "training.eval_steps": 3, "training.save_steps": 3}
    changes |= {"data.split": {"validation": 0.1, "test": 0.1}, "validation.max_quarantined": 0.1}
    path = tiny.write(root / "params" / "tiny.yaml", tiny.recipe(changes))
    (root / "data").mkdir()
    with (root / "data" / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "number"])
        writer.writerows(["" if i == EMPTY else text, i] for i, text in enumerate(tiny.sentences(150)))
    return path


def traced(project, row_id):
    """Return the sections by the first word of their title; the lines begin with the title."""
    found: dict[str, list[str]] = {}
    for title, lines in trace_sections(Artifacts("tiny"), load(project), row_id):
        found.setdefault(re.split(r"  |$", title)[0], []).extend([title, *lines])
    return found


@pytest.fixture
def inside(project, monkeypatch):
    monkeypatch.chdir(project.parents[1])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def finished(project, inside):
    with forked.ranks():
        for stage in STAGES[: STAGES.index("evaluate")]:
            if not Artifacts("tiny").report(stage).exists():
                run_stage(stage, project)
    return project


def row_of(number):
    """Return the row_id and the split of the row with this `number`."""
    for split in SPLITS:
        for row in SplitRows(Artifacts("tiny").raw / split).rows():
            if str(row["number"]) == str(number):
                return row["row_id"], split
    raise AssertionError(number)


def test_stages_that_have_not_run_are_named(project, inside, capsys):
    assert main(["trace", "params/tiny.yaml", "--row", "0"]) == os.EX_DATAERR
    assert "run `evergreen ingest" in capsys.readouterr().err
    for stage, title, missing in [
        ("ingest", "checks", "validate has not run"),
        ("validate", "tokens", "tokenize has not run"),
        ("tokenize", "loss", "train has not run"),
    ]:
        if not Artifacts("tiny").report(stage).exists():
            run_stage(stage, project)
        row_id, _ = row_of(7)
        found = traced(project, row_id)
        assert list(found)[-1] == title
        assert found[title][-1] == missing


def test_row_is_shown_in_every_stage(finished):
    text = tiny.sentences(150)[7]
    row_id, split = row_of(7)
    found = traced(finished, row_id)
    assert list(found) == ["raw", "checks", "text", "tokens", "batch", "loss", "score"]
    assert found["raw"] == [f"raw  ({split} split)", f"row_id: {row_id}", f"text: {text}", "number: 7"]
    assert found["checks"][1:] == ["passed"]
    assert found["text"][1:] == [text]

    artifacts = Artifacts("tiny")
    tokenizer = tokens.read_tokenizer(artifacts.tokens)
    ids = [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
    windows = [ids[at : at + 32] for at in range(0, len(ids), 32)]
    lines = [line.split(maxsplit=3) for line in found["tokens"] if not line.startswith("tokens")]
    assert [int(line[1]) for line in lines] == ids
    assert {line[2] for line in lines} == {"*"}, "every token has a loss"
    assert "".join(eval(line[3]) for line in lines) == text + tokenizer.eos_token
    longest = max(map(len, windows))
    assert found["batch"][1:] == [
        f"{name}: ({len(windows)}, {longest}) int64" for name in ("input_ids", "attention_mask", "labels")
    ]


def test_losses_of_the_tokens_sum_to_the_score(finished):
    row_id, _ = row_of(7)
    found = traced(finished, row_id)
    losses = [float(line.split()[0]) for line in found["loss"] if not line.startswith("loss")]
    nll = [float(line.split()[1]) for line in found["score"] if line.startswith("nll: ")]
    counted = [int(line.split()[1]) for line in found["score"] if line.startswith("tokens: ")]
    assert len(losses) == sum(counted)
    assert sum(losses) == pytest.approx(sum(nll), abs=1e-3)

    objective = objectives.build_objective(load(finished).objective)
    model = network.load_trained_model(Artifacts("tiny").model, objective.model_class()).eval()
    tokenizer = tokens.read_tokenizer(Artifacts("tiny").tokens)
    ids = torch.tensor([[*tokenizer(tiny.sentences(150)[7])["input_ids"], tokenizer.eos_token_id][:32]])
    with torch.no_grad():
        loss = model(ids, labels=ids).loss * (ids.shape[1] - 1)
    assert nll[0] == pytest.approx(float(loss), rel=1e-4)


def test_quarantined_row_has_its_reasons(finished):
    found = traced(finished, row_of(EMPTY)[0])
    assert list(found) == ["raw", "checks"]
    assert found["checks"][1] == "set aside:"
    assert "text" in found["checks"][2]


def test_unknown_row_is_an_error_with_the_range(finished, capsys):
    with pytest.raises(DataError, match="there is no row 150") as caught:
        traced(finished, 150)
    assert caught.value.fix == "use a row_id from 0 to 149; rows that were left out have none"
    assert main(["trace", "params/tiny.yaml", "--row", "-1"]) == os.EX_DATAERR
    assert main(["trace", "params/tiny.yaml", "--row", "150"]) == os.EX_DATAERR
    assert "Traceback" not in capsys.readouterr().err


def test_command_prints_the_sections(finished, capsys):
    row_id, split = row_of(7)
    assert main(["trace", "params/tiny.yaml", "--row", str(row_id)]) == 0
    out = capsys.readouterr().out
    assert f"\nraw  ({split} split)\n  row_id: {row_id}\n" in out
    assert "\nscore\n  nll: " in out


def test_label_is_shown_with_its_sequence(tmp_path, monkeypatch):
    content = tiny.recipe(**tiny.CLASSES)
    artifacts, recipe = tiny.tokenized(tmp_path, content, {"train": 20, "validation": 5, "test": 5})
    test_rows = SplitRows(artifacts.rows / "test").table()
    pq.write_table(test_rows, artifacts.validated / "quarantine.parquet")  # without the traced row
    shutil.copytree(artifacts.rows, artifacts.raw)
    found = dict(trace_sections(artifacts, recipe, 3))
    (tokens_title,) = [title for title in found if title.startswith("tokens")]
    assert re.fullmatch(r"label of the sequence: \d \(\w+\)", found[tokens_title][-1])
    assert not any("*" in line.split(maxsplit=3)[2] for line in found[tokens_title][:-1])
    assert found["loss"] == ["train has not run"]


def test_a_row_does_not_control_the_terminal(inside, project, capsys, tmp_path, monkeypatch):
    shutil.copytree(project.parents[1], tmp_path / "odd", ignore=shutil.ignore_patterns("runs", ".scratch"))
    monkeypatch.chdir(tmp_path / "odd")
    rows = [["\x1b[2J\x1b]0;title\x07 \u202e" + text, i] for i, text in enumerate(tiny.sentences(150))]
    with open("data/rows.csv", "w", newline="") as file:  # noqa: PTH123
        csv.writer(file).writerows([["text", "number"], *rows])
    assert [main([stage, "tiny"]) for stage in ("ingest", "validate", "tokenize")] == [os.EX_OK] * 3
    capsys.readouterr()
    assert main(["trace", "tiny", "--row", "7"]) == os.EX_OK
    said = capsys.readouterr().out
    assert "text: \\u001b[2J\\u001b]0;title\\u0007 \\u202e" in said
    assert not {"\x1b", "\x07", "\u202e"} & {*said}


def test_of_many_tokens_the_first_and_those_that_are_learned_are_shown() -> None:
    lines = [str(i) for i in range(100)]
    assert _shortened(lines[:10], 10, learned=9) == lines[:10]
    assert _shortened(lines, 10) == [*lines[:10], "... 90 more"]
    assert _shortened(lines, 10, learned=8) == [*lines[:10], "... 90 more"]
    assert _shortened(lines, 10, learned=50) == [*lines[:5], "... 42 more", *lines[47:52], "... 48 more"]
    assert _shortened(lines, 10, learned=98) == [*lines[:5], "... 90 more", *lines[95:]]


def test_losses_of_numbers_are_numbered_where_the_state_has_no_labels() -> None:
    encoder: Any = SimpleNamespace(state={})
    assert _loss_lines(encoder, {"labels": [0.5, 1.0]}, torch.tensor([0.1, 0.2])) == ["   0.1000 0", "   0.2000 1"]


def test_a_row_without_a_token_to_learn_says_so(tmp_path):
    content = tiny.recipe(
        {"tokenization.max_length": 8}, objective={"name": "sft", "prompt_column": "text", "completion_column": "label"}
    )
    artifacts = Artifacts("tiny", tmp_path)
    recipe = load(tiny.write(tmp_path / "params" / "tiny.yaml", content))
    rows = {"text": ["a", "word " * 20], "label": ["b", "c"]}
    tiny.write_rows(artifacts, train=rows, validation=rows, test=rows)
    tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    pq.write_table(SplitRows(artifacts.rows / "test").table(), artifacts.validated / "quarantine.parquet")
    shutil.copytree(artifacts.rows, artifacts.raw)
    found = [*trace_sections(artifacts, recipe, 1)]
    assert found[-1][0] == "tokens"
    assert "gives no sequence: its first 8 tokens hold nothing to learn" in found[-1][1][0]


def test_a_corrected_row_is_traced_as_it_is_learned(tmp_path, monkeypatch):
    changes = {"data.split": {"validation": 0.1, "test": 0.1}, "data.corrections": "data/corrections.csv"}
    path = tiny.write(tmp_path / "params" / "tiny.yaml", tiny.recipe(changes, **tiny.CLASSES))
    (tmp_path / "data").mkdir()
    texts = tiny.sentences(60)
    lines = [f'"{text}",{"ab"[i % 2]}' for i, text in enumerate(texts)]
    (tmp_path / "data" / "rows.csv").write_text("\n".join(["text,label", *lines]))
    (tmp_path / "data" / "corrections.csv").write_text(f'text,label\n"{texts[0]}",b\n')
    monkeypatch.chdir(tmp_path)
    for stage in ("ingest", "validate", "tokenize"):
        run_stage(stage, path)
    found = traced(path, 0)
    assert "label: a" in found["raw"]
    assert found["checks"] == ["checks", "passed", "corrected: label: b"]
    assert found["tokens"][-1] == "label of the sequence: 1 (b)"
