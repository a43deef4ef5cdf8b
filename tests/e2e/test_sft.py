"""Supervised fine-tuning through all six stages: conversations, and adapters on packed pairs."""

from __future__ import annotations

import json
import random

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

ANSWERS = {"France": "Paris", "Italy": "Rome", "Japan": "Tokyo", "Egypt": "Cairo"}
TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"


def conversations(rows: int):
    chance = random.Random(2)
    for i in range(rows):
        turns = []
        for country in chance.sample(sorted(ANSWERS), chance.randint(1, 3)):
            turns += [("user", f"Capital of {country}? ({i})"), ("assistant", ANSWERS[country])]
        yield {"messages": [{"role": role, "content": content} for role, content in turns]}


def pairs(rows: int):
    chance = random.Random(3)
    for i in range(rows):
        country = chance.choice(sorted(ANSWERS))
        yield {"prompt": f"Capital of {country}, question {i}:", "completion": f" {ANSWERS[country]}"}


def prepare(project, name: str, rows, changes: dict[str, str]) -> None:
    """A recipe of such a name, on such rows, made of the tiny one."""
    lines = [json.dumps(row) for row in rows]
    (project.root / f"data/{name}.jsonl").write_text("\n".join(lines))
    recipe = (project.root / "params/tiny.yaml").read_text()
    usual = {
        "data/sentences.csv": f"data/{name}.jsonl",
        "max_length: 32": "max_length: 128",
        "max_steps: 20": "max_steps: 60",
        "eval_steps: 10": "eval_steps: 30",
        "save_steps: 5": "save_steps: 30",
        "tests/tiny": f"tests/{name}",
    }
    for old, new in (usual | changes).items():
        assert old in recipe
        recipe = recipe.replace(old, new)
    (project.root / f"params/{name}.yaml").write_text(recipe)


def run(project, name: str):
    """Run the stages; return the metrics, the published model and its tokenizer, as transformers loads them."""
    project.stages(f"params/{name}.yaml")
    folder = project.root / f"runs/{name}"
    assert json.loads((folder / "release/receipt.json").read_text())["status"] == "published"
    model = AutoModelForCausalLM.from_pretrained(folder / "model", use_safetensors=True)
    return project.json(f"runs/{name}/evaluation/metrics.json"), model, AutoTokenizer.from_pretrained(folder / "model")


def answer(model, tokenizer, ids) -> str:
    """What the model says next, until it ends by itself."""
    said = model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
    assert said[-1] == tokenizer.eos_token_id, "it learned where to end"
    return tokenizer.decode(said[:-1])


@pytest.mark.slow  # tests/e2e/test_published_models.py publishes one in short
def test_from_conversations_to_a_published_assistant(project) -> None:
    bad = [{"messages": [{"role": "user", "content": "Anyone there?"}]}]
    prepare(
        project,
        "capitals",
        [*conversations(300), *bad],
        {
            "{name: causal_lm, text_column: text}": (
                f"{{name: sft, messages_column: messages, chat_template: {json.dumps(TEMPLATE)}}}"
            )
        },
    )
    metrics, model, tokenizer = run(project, "capitals")
    assert project.json("runs/capitals/validated/validation.json")["quarantined"] == 1
    assert metrics["model"]["loss"] < metrics["untrained"]["loss"] / 5
    assert metrics["model"]["token_accuracy"] > 0.9
    assert tokenizer.chat_template == TEMPLATE, "whoever loads the model renders as it was taught"
    asked = [{"role": "user", "content": "Capital of Japan? (7)"}]
    ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    assert answer(model, tokenizer, ids).strip() == "Tokyo"

    row = project.run("python", "-m", "tasks", "trace", "params/capitals.yaml", "--row", "17")
    assert " * " in row
    assert "nll: " in row


@pytest.mark.slow  # tests/e2e/test_published_models.py publishes one in short
def test_from_pairs_to_a_published_model_by_packing_and_adapters(project) -> None:
    prepare(
        project,
        "pairs",
        pairs(300),
        {
            "{name: causal_lm, text_column: text}": "{name: sft, packing: true}",
            "model:\n": "model:\n  lora: {r: 16, alpha: 64}\n",
            "hidden_size: 32": "hidden_size: 32\n    initializer_range: 0.2",  # or its frozen head could say nothing clearly
        },
    )
    metrics, model, _ = run(project, "pairs")
    statistics = project.json("runs/pairs/tokens/statistics.json")["splits"]
    assert statistics["train"]["sequences"] < statistics["train"]["rows"] / 3
    assert statistics["test"]["sequences"] == statistics["test"]["rows"], "evaluation is never packed"
    assert metrics["model"]["loss"] < metrics["untrained"]["loss"] / 2
    assert metrics["model"]["token_accuracy"] > 0.5 > metrics["untrained"]["token_accuracy"]
    assert not [name for name in model.state_dict() if "lora" in name], "adapters are merged"
