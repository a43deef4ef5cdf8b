"""Token classification through all six stages: rows with spans in, a published model out that finds them."""

from __future__ import annotations

import json
import random

import pytest

NAMES, DAYS = ["Anna", "Bo", "Chris", "Dora", "Émile"], ["Monday", "Friday", "next week", "May 3rd"]


def write_requests(path, rows: int) -> None:
    """Requests whose spans follow from the words around them; one of them cannot be used."""
    chance, lines = random.Random(5), []
    for i in range(rows):
        name, day = chance.choice(NAMES), chance.choice(DAYS)
        text = chance.choice(
            [f"table {i} for {name} on {day}, please", f"it is {name} about {day} at {i}", f"hello {i}?"]
        )
        spans = [
            {"label": label, "start": text.index(words), "end": text.index(words) + len(words)}
            for label, words in (("day", day), ("name", name))
            if words in text
        ]
        lines.append({"text": text, "spans": spans})
    lines[3]["spans"] = [{"label": "day", "start": 0, "end": 4}, {"label": "name", "start": 2, "end": 5}]
    path.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines), encoding="utf-8")


@pytest.mark.slow
def test_from_rows_with_spans_to_a_published_model(project) -> None:
    write_requests(project.root / "data" / "requests.jsonl", 600)
    recipe = (project.root / "params/tiny.yaml").read_text()
    for old, new in {
        "data/sentences.csv": "data/requests.jsonl",
        "{name: causal_lm, text_column: text}": "{name: token_classification}",
        "model_type: llama": "model_type: bert",
        "    num_key_value_heads: 2\n    tie_word_embeddings: true\n": "",
        "max_length: 32": "max_length: 24",
        "max_steps: 20": "max_steps: 120",
        "eval_steps: 10": "eval_steps: 40",
        "logging_steps: 5": "logging_steps: 20\n  best_metric: f1\n  group_by_length: true",
        "tests/tiny": "tests/requests",
    }.items():
        assert old in recipe
        recipe = recipe.replace(old, new)
    (project.root / "params/requests.yaml").write_text(recipe)

    project.stages("params/requests.yaml")

    assert project.json("runs/requests/validated/validation.json")["quarantined"] == 1
    metrics = project.json("runs/requests/evaluation/metrics.json")
    assert metrics["model"]["f1"] > 0.8
    assert metrics["untrained"]["f1"] < 0.3
    assert 2 / (1 / metrics["model"]["precision"] + 1 / metrics["model"]["recall"]) == pytest.approx(
        metrics["model"]["f1"]
    )
    config = project.json("runs/requests/model/config.json")
    assert config["id2label"] == {"0": "O", "1": "B-day", "2": "I-day", "3": "B-name", "4": "I-name"}
    receipt = project.json("runs/requests/release/receipt.json")
    assert (receipt["status"], receipt["repo_id"]) == ("published", "tests/requests")

    def trace(row: int) -> str:
        return project.run("python", "-m", "tasks", "trace", "params/requests.yaml", "--row", str(row))

    assert "row_is_usable(): 'name' from 2 to 5 overlaps the span before it" in trace(3)
    lines = (project.root / "data" / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    found = 0
    for row in range(4, 8):
        shown, written = trace(row), json.loads(lines[row])
        for span in written["spans"]:
            assert f"* B-{span['label']} " in shown
            words = written["text"][span["start"] : span["end"]]
            found += f"{span['label']}: {span['start']} to {span['end']}, {words!r}" in shown
    assert found >= 4
