"""A new objective is one file and one recipe: that of docs/objectives.md goes through all six stages, with no edit elsewhere."""

from __future__ import annotations

import json
import re

from tests.support.project import ROOT, item

PAGE = (ROOT / "docs/objectives.md").read_text(encoding="utf-8")
OBJECTIVE = "\n\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
SECTION, LINE = re.findall(r"^```yaml\n(.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL)


def test_one_file_and_one_recipe_are_enough(project) -> None:
    recipe = (project.root / "params/tiny.yaml").read_text()
    for old, new in {
        "objective: {name: causal_lm, text_column: text}": SECTION,
        "model_type: llama": "model_type: bert",
        "    num_key_value_heads: 2\n    tie_word_embeddings: true\n": "",
        "tests/tiny": "tests/reversal",
        "max_steps: 20": "max_steps: 60",
        "eval_steps: 10": "eval_steps: 60\n  best_metric: token_accuracy",
    }.items():
        assert old in recipe
        recipe = recipe.replace(old, new)
    (project.root / "trainer/objectives/reversal.py").write_text(OBJECTIVE)
    (project.root / "params/reversal.yaml").write_text(recipe)
    project.edit("recipes.yaml", item("tiny"), f"{item('tiny')}  {LINE}\n")
    project.run("git", "add", ".")
    project.run("git", "commit", "-qm", "a new objective")

    assert (
        project.run("python", "-m", "tasks", "check", "params/reversal.yaml")
        == "check: params/reversal.yaml is sound\n"
    )
    project.stages("params/reversal.yaml")
    project.run("python", "-m", "tasks", "report", "params/reversal.yaml")
    new = ("python", "-m", "tasks", "new", "more", "--data", "data/sentences.csv", "--model", "new", "--yes")
    assert "reversal has no `advice`, from which" in project.run(*new, "--objective", "reversal", ok=False)

    report = json.loads((project.root / "runs/reversal/evaluation/metrics.json").read_text())
    assert report["model"]["loss"] < 0.8 * report["untrained"]["loss"]
    assert json.loads((project.root / "runs/reversal/release/receipt.json").read_text())["status"] == "published"
    assert "nll" in project.run("python", "-m", "tasks", "trace", "params/reversal.yaml", "--row", "3")
    changed = project.run("git", "status", "--porcelain", "params", "trainer", "tasks", "flows")
    assert changed == ""
