"""A new objective is one file and one recipe: each goes through all six stages, `new`, `try`, `check`, report and card, with no edit elsewhere."""

from __future__ import annotations

import ast
import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import HfApi
from safetensors.numpy import load_file

from params import ModelError
from params.foundation.artifacts import Artifacts
from tasks.evaluation.report import Blessing, EvaluationDetails
from tasks.hub_server.server import LocalHub
from tasks.inference.command import try_model
from tasks.inference.tried_model import AnswerOptions
from tasks.recipes.loading import load
from tasks.stages import read_report, save_report
from tasks.tokenization.stage import tokenize
from tests.support import new_objectives, releases, tiny
from tests.support.project import ROOT, item
from tests.support.validation import run_validation
from trainer import job

PAGE = (ROOT / "docs/objectives.md").read_text(encoding="utf-8")
OBJECTIVE = "\n\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
SECTION, LINE = re.findall(r"^```yaml\n(.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL)
TOKEN = "hf_" + "1" * 40
CHECK = ("python", "-m", "tasks", "check")


def write_recipe(project, name: str, changes: dict[str, str]) -> str:
    """The project's tiny recipe for an encoder, so changed; its path."""
    recipe = (project.root / "params/tiny.yaml").read_text()
    encoder = {
        "model_type: llama": "model_type: bert",
        "    num_key_value_heads: 2\n    tie_word_embeddings: true\n": "",
    }
    for old, new in {**encoder, "tests/tiny": f"tests/{name}", **changes}.items():
        assert old in recipe
        recipe = recipe.replace(old, new)
    (project.root / f"params/{name}.yaml").write_text(recipe)
    return f"params/{name}.yaml"


def commit(project) -> None:
    project.run("git", "add", ".")
    project.run("git", "commit", "-qm", "a new objective")


def changed(project) -> str:
    return project.run("git", "status", "--porcelain", "params", "trainer", "tasks", "flows")


def test_one_file_and_one_recipe_are_enough(project) -> None:
    tones = {"well done": "kind", "thank you": "kind", "not again": "angry", "go away": "angry"}
    lines = [f"{text} {number},{tone}" for number in range(75) for text, tone in tones.items()]
    (project.root / "data/tones.csv").write_text("\n".join(["text,tone", *lines, ""]))
    recipe = write_recipe(
        project,
        "tone",
        {
            "data/sentences.csv": "data/tones.csv",
            "objective: {name: causal_lm, text_column: text}": SECTION,
            "max_steps: 20": "max_steps: 60",
            "eval_steps: 10": "eval_steps: 60\n  best_metric: accuracy",
        },
    )
    (project.root / "trainer/objectives/tone.py").write_text(OBJECTIVE)
    project.edit("recipes.yaml", item("tiny"), f"{item('tiny')}  {LINE}\n")
    commit(project)

    assert project.run(*CHECK, recipe) == f"check: {recipe} is sound\n"
    project.stages(recipe)
    project.run("python", "-m", "tasks", "report", recipe)
    new = ("python", "-m", "tasks", "new", "more", "--data", "data/tones.csv", "--model", "new", "--yes")
    assert "tone has no `advice`, from which" in project.run(*new, "--objective", "tone", ok=False)

    report = json.loads((project.root / "runs/tone/evaluation/metrics.json").read_text())
    assert report["model"]["accuracy"] > report["untrained"]["accuracy"]
    assert json.loads((project.root / "runs/tone/release/receipt.json").read_text())["status"] == "published"
    assert "nll" in project.run("python", "-m", "tasks", "trace", recipe, "--row", "3")
    assert changed(project) == ""


def test_objective_of_the_page_has_at_most_ten_members() -> None:
    """Options apart, it says no more than its columns are called."""
    (tone,) = (node for node in ast.parse(OBJECTIVE).body if isinstance(node, ast.ClassDef) and node.name == "Tone")
    members = [node for node in tone.body if isinstance(node, ast.Assign | ast.AnnAssign | ast.FunctionDef)]
    assert 0 < len(members) <= 10


WORDS = {"food": ["bread", "soup", "tea"], "travel": ["train", "road"], "weather": ["rain", "snow", "wind"]}


def topics(chance: random.Random, i: int) -> list[dict[str, Any]]:
    """A text that has a word of each of its topics; some have none."""
    own = [topic for topic in WORDS if chance.random() < 0.4]
    words = " and ".join(chance.choice(WORDS[topic]) for topic in own) or "nothing"
    return [{"text": f"{words}, said number {i}", "topics": own}]


def similarity(chance: random.Random, i: int) -> list[dict[str, Any]]:
    """Two texts, the more alike the more words they share."""
    words = [chance.choice(own) for own in WORDS.values()]
    same = chance.randrange(4)
    other = words[:same] + [chance.choice(["king", "cat", "bird"]) for _ in words[same:]]
    return [{"first": f"{' '.join(words)} {i}", "second": " ".join(other), "similarity": same / 3}]


def ranking(chance: random.Random, i: int) -> list[dict[str, Any]]:
    """A query and four documents, the first of which is about it."""
    words = ["bread", "soup", "tea", "train", "road", "rain", "snow", "wind"]
    query = chance.choice(words)
    documents = [query, *chance.sample([word for word in words if word != query], 3)]
    return [
        {"query": f"{query} {i}?", "document": _document(word, query), "relevant": int(word == query)}
        for word in documents
    ]


def _document(word: str, query: str) -> str:
    return f"all about {word}" if word == query else f"nothing but {word}"


CASES: dict[str, dict[str, Any]] = {
    "topics": {
        "rows": topics,
        "count": 500,
        "metric": "micro_f1",
        "new": ("--text", "text", "--label", "topics"),
        "try": ("some bread and a train", "food"),
    },
    "similarity": {
        "rows": similarity,
        "count": 400,
        "metric": "rank_correlation",
        "new": ("--prompt", "first", "--completion", "second", "--label", "similarity"),
        "try": ("bread", None),  # one text is not what the model compares
    },
    "first_relevant": {
        "rows": ranking,
        "count": 200,
        "metric": "reciprocal_rank",
        "new": ("--prompt", "query", "--completion", "document", "--label", "relevant"),
        "try": ("bread 1?: a text about the bread", "LABEL_0"),
    },
}


def write_rows(path: Path, name: str) -> None:
    chance = random.Random(5)
    rows = [row for i in range(CASES[name]["count"]) for row in CASES[name]["rows"](chance, i)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def put(project, name: str, **changes: str) -> str:
    """Put the one file of a new objective into the project, with rows, recipe and item; the recipe's path."""
    shutil.copy(new_objectives.FOLDER / f"{name}.py", project.root / f"trainer/objectives/{name}.py")
    line = f"{name}: {{data: data/{name}.jsonl, objective: trainer/objectives/{name}.py, base: trainer/rewards.py, code: trainer/losses.py}}"
    project.edit("recipes.yaml", item("tiny"), f"{item('tiny')}  {line}\n")
    return write_recipe(
        project,
        name,
        {
            "data/sentences.csv": f"data/{name}.jsonl",
            "{name: causal_lm, text_column: text}": f"{{name: {name}}}",
            **changes,
        },
    )


@pytest.mark.parametrize("name", [pytest.param("topics", marks=pytest.mark.slow), "similarity", "first_relevant"])
def test_other_labels_texts_and_metrics_are_judged_and_published(name, tmp_path, monkeypatch, capsys) -> None:
    """As below, in this process and without a training; what is learned is the same loss."""
    case, chance = CASES[name], random.Random(5)
    monkeypatch.setattr(job, "run_identity", lambda *_: {})  # of files in trainer/objectives/
    monkeypatch.chdir(tmp_path)
    counts = {"train": 200, "validation": 10, "test": 60}
    splits = {split: [row for i in range(n) for row in case["rows"](chance, i)] for split, n in counts.items()}
    content = tiny.recipe({"publish.repo_id": f"tests/{name}"}, objective={"name": name}, model=tiny.CLASSES["model"])
    with new_objectives.known():
        recipe = load(tiny.write(tmp_path / "params/tiny.yaml", content))
        artifacts = Artifacts("tiny", tmp_path)
        columns = {split: {key: [row[key] for row in rows] for key in rows[0]} for split, rows in splits.items()}
        tiny.write_splits(artifacts.raw, columns, group_by=["query"] if name == "first_relevant" else [])
        save_report(releases.SOURCE, artifacts.report("ingest"))
        run_validation(artifacts, objective=recipe.objective)
        tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
        releases.learn(artifacts, recipe, 80, rows=64)
        report = releases.evaluate(artifacts, recipe)
        assert report.verdict == "publish", read_report(artifacts, Blessing).reasons
        assert report.model[case["metric"]] > report.untrained[case["metric"]]
        (gain,) = (one for one in read_report(artifacts, EvaluationDetails).comparisons if one.metric == case["metric"])
        assert gain.low > 0
        assert (gain.rows, gain.groups) == ((240, 60) if name == "first_relevant" else (60, None))
        assert releases.publish(artifacts, recipe).status == "published"
        if case["try"][1] is None:
            with pytest.raises(ModelError, match="there is no way to try it"):
                try_model("tiny", [case["try"][0]], against=None, options=AnswerOptions())
        else:
            try_model("tiny", [case["try"][0]], against=None, options=AnswerOptions())
            assert case["try"][1] in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_other_labels_texts_and_metrics_need_one_file(project, name, tmp_path) -> None:
    case = CASES[name]
    write_rows(project.root / f"data/{name}.jsonl", name)
    groups = {"{validation: 0.1, test: 0.1}": "{validation: 0.15, test: 0.2}"}
    if name == "first_relevant":
        groups = {key: f"{value}\n  group_by: [query]" for key, value in groups.items()}
    recipe = put(
        project,
        name,
        **groups,
        **{"max_steps: 20": "max_steps: 80", "eval_steps: 10": f"eval_steps: 40\n  best_metric: {case['metric']}"},
    )
    commit(project)

    assert project.run(*CHECK, recipe) == f"check: {recipe} is sound\n"
    project.stages(recipe)
    evaluated = json.loads((project.root / f"runs/{name}/evaluation/metrics.json").read_text())
    details = json.loads((project.root / f"runs/{name}/evaluation/details.json").read_text())
    assert evaluated["model"][case["metric"]] > evaluated["untrained"][case["metric"]]
    (gain,) = (one for one in details["comparisons"] if one["metric"] == case["metric"])
    assert gain["low"] > 0
    assert (gain["groups"] is None) is (name != "first_relevant")
    if name == "first_relevant":
        assert gain["rows"] == 4 * gain["groups"]
    assert json.loads((project.root / f"runs/{name}/release/receipt.json").read_text())["status"] == "published"
    assert "label of the sequence" in project.run("python", "-m", "tasks", "trace", recipe, "--row", "3")

    project.run("python", "-m", "tasks", "report", recipe)
    assert case["metric"] in (project.root / f"runs/{name}/report.html").read_text()
    with LocalHub(project.root / ".hub", tokens={TOKEN: "tests"}) as hub:
        api = HfApi(endpoint=hub.endpoint, token=TOKEN)
        card = Path(api.hf_hub_download(f"tests/{name}", "README.md", local_dir=tmp_path)).read_text()
    assert f"`{case['metric']}`" in card
    said = project.run_and_report("python", "-m", "tasks", "try", recipe, case["try"][0])[1]
    assert (case["try"][1] or "there is no way to try it") in said
    new = ("python", "-m", "tasks", "new", "more", "--data", f"data/{name}.jsonl", "--model", "new", "--yes")
    project.run(*new, "--objective", name, *case["new"])
    assert f"name: {name}" in (project.root / "params/more.yaml").read_text()
    project.run("python", "-m", "tasks", "remove", "more", "--yes")
    assert changed(project) == ""


@pytest.mark.slow
def test_whole_global_batch_does_not_depend_on_the_number_of_processes(project) -> None:
    chance, weights = random.Random(5), []
    lines = [f"{' '.join(chance.choice(own) for own in WORDS.values())} {i}" for i in range(120)]
    rows = [
        json.dumps({"first": line, "second": f"what about the {line.split()[0]} {line.split()[-1]}"}) for line in lines
    ]
    (project.root / "data/contrast.jsonl").write_text("\n".join(rows))
    plain = {
        "logging_steps: 5": "logging_steps: 5\n  best_metric: cosine\n  optimizer: sgd",
        "max_steps: 20": "max_steps: 5",
    }
    dropout = "    hidden_size: 32\n    hidden_dropout_prob: 0.0\n    attention_probs_dropout_prob: 0.0\n"
    recipe = put(project, "contrast", **plain, **{"    hidden_size: 32\n": dropout})
    project.stages(recipe, ["ingest", "validate", "tokenize"])
    for launch in ("num_processes: 1, micro_batch_size: 8", "num_processes: 2, micro_batch_size: 2"):
        project.edit(
            recipe,
            re.search(r"num_processes: \d, micro_batch_size: \d", (project.root / recipe).read_text())[0],
            launch,
        )
        shutil.rmtree(project.root / ".scratch/contrast", ignore_errors=True)
        project.stages(recipe, ["train"])
        weights.append(load_file(project.root / "runs/contrast/model/model.safetensors"))
    for name, value in weights[0].items():
        np.testing.assert_allclose(weights[1][name], value, rtol=0, atol=1e-5)
