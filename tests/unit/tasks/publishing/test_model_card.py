"""The model card: its metadata and text, its code snippets and escaping; the provenance of a release."""

from __future__ import annotations

import hashlib
import json
import os
import re
from unittest.mock import Mock

import numpy as np
import pytest
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results
from markdown_it import MarkdownIt
from ruamel.yaml import YAML
from safetensors.numpy import save_file

from params import RecipeError
from tasks.hub_server.server import LocalHub
from tasks.lineage import ancestors
from tasks.publishing.model_card import PICTURES, render_model_card
from tasks.publishing.provenance import collect_provenance
from tests.support import releases, tiny
from tests.unit.tasks.report import example
from trainer.objectives.bases.conversations.tools import read_tools

TOKEN = "hf_tests"
EVIL = "a|b `c` <script>alert(1)</script> [x](https://evil.example) ![y](//evil.example/p) www.evil.example **z**\n---\n# h"
DATASET = re.compile(r"(?:[\w-]+/)?[\w.-]+")
"""The form of dataset.type that the Hub accepts."""


@pytest.fixture
def run(tmp_path):
    """The artifacts of a finished run."""
    artifacts = example.write(tmp_path, text=EVIL)
    artifacts.model.mkdir(parents=True)
    save_file({"weight": np.arange(4.0)}, artifacts.model / "model.safetensors")
    for name in ("config.json", "tokenizer_config.json"):
        (artifacts.model / name).write_text("{}")
    return artifacts


def change(artifacts, changes, **sections):
    tiny.write(artifacts.recipe_path, tiny.recipe(changes, **{**tiny.CLASSES, **sections}))


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def card_of(artifacts, pictures=()):
    candidate = releases.candidate(artifacts)
    return render_model_card(candidate, collect_provenance(artifacts), candidate.blessing.champion, pictures=pictures)


def test_card_metadata_has_metrics_of_model_champion_and_base(run):
    card = ModelCard(card_of(run))
    found = {(r.metric_type, r.metric_name): r for r in card.data.eval_results}
    assert list(found) == [("accuracy", "accuracy"), ("loss", "loss"), ("f1", "macro F1")]
    accuracy = found["accuracy", "accuracy"]
    assert accuracy.metric_value == 0.9
    assert accuracy.metric_args == {
        "rows": 402,
        "interval": {"low": 0.88, "high": 0.92, "confidence": 0.95},
        "champion": 0.87,
        "base": 0.1,
        "gain_over_champion": {"gain": 0.03, "low": 0.011, "high": 0.049, "rows": 400},
        "gain_over_base": {"gain": 0.8, "low": 0.78, "high": 0.82, "rows": 400},
    }
    assert found["f1", "macro F1"].metric_args["average"] == "macro"
    assert (accuracy.task_type, accuracy.dataset_type, accuracy.dataset_split) == (
        "text-classification",
        "tiny",
        "test",
    )
    assert accuracy.dataset_revision == f"sha256:{example.DIGEST}"
    index = eval_results_to_model_index(card.data.model_name, card.data.eval_results)
    name, results = model_index_to_eval_results(index)
    assert (name, results) == ("tiny", card.data.eval_results)
    assert card.data.to_dict()["model-index"] == index
    assert ModelCard(str(card)).data.to_dict() == card.data.to_dict()
    assert (card.data.pipeline_tag, card.data.library_name) == ("text-classification", "transformers")
    assert card.data.metrics == ["accuracy", "f1"]
    assert card.data.tags == ["evergreen", "sequence-classification"]


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with LocalHub(tmp_path_factory.mktemp("hub"), tokens={TOKEN: "tests"}) as running:
        yield running


@pytest.mark.parametrize("licence", ["other", "apache-2.0", "psf-2.0"])
def test_hub_validates_the_card(run, hub, monkeypatch, licence):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.endpoint)
    change(run, {"publish.license": licence})
    card = ModelCard(card_of(run))
    card.validate()
    named = (card.data.license, card.data.license_name)
    assert named == (("other", licence) if licence == "psf-2.0" else (licence, None))
    assert all(DATASET.fullmatch(result.dataset_type) for result in card.data.eval_results)
    with pytest.raises(ValueError, match="license"):
        ModelCard(str(card).replace(f"license: {card.data.license}", "license: 3")).validate()
    with pytest.raises(ValueError, match=r"dataset\.split"):
        ModelCard(str(card).replace("      split: test\n", "      split: 3\n")).validate()


def test_card_names_base_model_and_dataset_of_a_hub(run, monkeypatch):
    monkeypatch.setattr(ancestors, "fetch_if_there", lambda *_: None)  # the base is no release, says a Hub that answers
    plain = ModelCard(card_of(run)).data
    assert (plain.base_model, plain.datasets) == (None, None)
    model = {"pretrained": "google/bert_uncased_L-2_H-128_A-2", "revision": "abc"}
    source = {"kind": "hub", "repo_id": "PolyAI/banking77", "revision": "a" * 40, "train": "train.csv"}
    change(run, {}, model=model, data={"source": source})
    text = card_of(run)
    named = ModelCard(text).data
    assert (named.base_model, named.datasets) == ("google/bert_uncased_L-2_H-128_A-2", ["PolyAI/banking77"])
    assert {result.dataset_type for result in named.eval_results} == {"PolyAI/banking77"}
    assert "Training started from `google/bert_uncased_L-2_H-128_A-2` at revision `abc`." in text
    (run.root / "google" / "bert_uncased_L-2_H-128_A-2").mkdir(parents=True)
    assert ModelCard(card_of(run)).data.base_model is None, "a local folder is not a repository"


def parsed(card):
    """The card's tokens, parsed with raw HTML allowed."""
    body = ModelCard(card).content.split("\n---\n", 1)[1]
    every = MarkdownIt("commonmark", {"html": True}).enable("table").parse(body)
    return every, [inner for token in every for inner in (token, *(token.children or ()))]


def test_card_escapes_text_of_data_and_recipe(run):
    fences = 'license: "mine\n   ```\n   ````\n   # h", repo_id:'  # such lines could end the card's fence
    text = run.recipe_path.read_text().replace("repo_id:", fences)
    assert "\n   ```\n" in text
    run.recipe_path.write_text(text + "# </code> {{ 7 * 7 }} {% raw %}\n# ---\n")
    pictures = ["comparison.png", "curves.png", "slices.png"]
    blocks, every = parsed(card_of(run, pictures))
    assert {t.type for t in every if t.type.startswith("html")} == set()
    targets = {str(t.attrs["href"]) for t in every if t.type == "link_open"}
    assert targets == {"#how-it-was-made", "report.html", "evergreen-provenance.json"}
    assert [t.attrs["src"] for t in every if t.type == "image"] == ["comparison.png", "slices.png", "curves.png"]
    assert [t.content for t in every if t.type == "image"] == [
        PICTURES[p] for p in ("comparison.png", "slices.png", "curves.png")
    ]
    titles = [blocks[i + 1].content for i, t in enumerate(blocks) if t.type == "heading_open"]
    assert titles == [
        "tests/tiny",
        "Use",
        "Metrics",
        "Slices",
        "Changed rows",
        "Training",
        "Data",
        "Lineage",
        "How it was made",
    ]
    recipe = blocks[[t.type for t in blocks].index("fence", len(blocks) - 3)]
    assert (recipe.info, recipe.content) == ("yaml", run.recipe_path.read_text())
    rows = [t for i, t in enumerate(blocks) if t.type == "inline" and blocks[i - 1].type == "td_open"]
    shown = ["".join(c.content for c in row.children) for row in rows]
    assert any(cell.startswith("a|b `c` <script>alert(1)</script> [x](https://evil.example)") for cell in shown)


def test_card_groups_slices_by_column_worst_first(run):
    edit(run.evaluation / "details.json", slices=[example.slice_result(i, "x") for i in reversed(range(12))])
    text = card_of(run)
    shown = re.findall(r"^\| a b gnp .* (\d+) \| (\d+) \| (0\.5\d+) \| (.*) ?\| 0\.5200 \|$", text, re.MULTILINE)
    assert [int(i) for i, *_ in shown] == [3, 5, 7, 9, 11, 0, 2, 4, 6, 8, 10], "by label, then by length"
    assert {ends.strip() for _, rows, _, ends in shown if rows == "40"} == {"0.4000 to 0.9500"}
    assert {ends.strip() for _, rows, _, ends in shown if rows == "7"} == {""}
    edit(run.evaluation / "details.json", slices=[example.slice_result(2 * i, "x") for i in range(20)])
    assert "8 better slices are not listed." in card_of(run)
    edit(run.evaluation / "details.json", slices=[])
    assert "## Slices" not in card_of(run)


def test_card_describes_the_lineage(run):
    text = card_of(run)
    assert f"It replaces `release-cafe`, at commit `{'c' * 40}`" in text
    assert "accuracy` is 0.0300 better than the previous release's on the same 400 rows" in text
    assert "McNemar's test, p = 0.004" in text
    assert "cannot be reproduced exactly" in text, "the code had changes"
    edit(run.report("train"), git_commit="e" * 40)
    edit(run.blessing, champion=None)
    edit(run.report("evaluate"), champion=None)
    edit(run.report("details"), changed=[])
    text = card_of(run)
    assert "This is the first release of the repository." in text
    assert "evergreen reproduce tests/tiny@main" in text
    assert "previous release |" not in text
    edit(run.report("train"), git_commit=None)
    assert "code that is not in git" in card_of(run)


def test_same_run_gives_the_same_card(run):
    first = card_of(run)
    for path in run.root.rglob("*"):
        os.utime(path, (1, 1))
    assert card_of(run) == first


def lock_of(artifacts, training=None):
    """A small dvc.lock, as after train."""
    md5 = training or hashlib.md5(artifacts.report("train").read_bytes()).hexdigest()
    raw, rows, seqs = (
        {"path": f"runs/tiny/{n}", "hash": "md5", "md5": n[0] * 32} for n in ("raw", "validated", "tokens")
    )
    history = {"path": "runs/tiny/history/training.json", "hash": "md5", "md5": md5}
    stages = {
        "ingest@tiny": {"cmd": "x", "outs": [raw]},
        "validate@tiny": {"cmd": "x", "deps": [raw], "outs": [rows]},
        "tokenize@tiny": {"cmd": "x", "outs": [seqs]},
        "train@tiny": {"cmd": "x", "deps": [seqs], "outs": [history]},
        "publish@tiny": {"cmd": "x"},
        "train@other": {"cmd": "x"},
    }
    with (artifacts.root / "dvc.lock").open("w") as file:
        YAML().dump({"schema": "2.0", "stages": stages}, file)


def test_dvc_lock_is_recorded_only_for_the_same_run(run):
    assert collect_provenance(run)["dvc_lock"] is None
    lock_of(run)
    stages = collect_provenance(run)["dvc_lock"]["stages"]
    assert list(stages) == ["ingest@tiny", "validate@tiny", "tokenize@tiny", "train@tiny"]
    assert "| `runs/tiny/raw` | `" + "r" * 32 + "` |" in card_of(run)
    lock_of(run, training="0" * 32)
    assert collect_provenance(run)["dvc_lock"] is None, "the lock is of another training"
    assert "What dvc.lock recorded" not in card_of(run)


def test_provenance_has_recipe_and_hashes_and_no_secrets(run, monkeypatch):
    monkeypatch.setenv("DATABASE_PASSWORD", "correct-horse")
    url = "postgresql://reader:${DATABASE_PASSWORD}@db/x"
    change(run, {}, data={"source": {"kind": "sql", "url": url, "query": "SELECT 1"}})
    record = collect_provenance(run)
    assert json.loads(json.dumps(record)) == record
    assert record["recipe"]["text"] == run.recipe_path.read_text()
    assert record["data"]["sha256"] == dict.fromkeys(("train", "validation", "test"), example.DIGEST)
    file = run.model / "model.safetensors"
    assert record["weights"] == {"model.safetensors": hashlib.sha256(file.read_bytes()).hexdigest()}
    assert (record["run"], record["seed"], record["objective"]["name"]) == (
        "0123456789abcdef",
        3,
        "sequence_classification",
    )
    assert "correct-horse" not in json.dumps(record) + card_of(run)
    assert str(run.root) not in json.dumps(record)


@pytest.mark.parametrize("url", ["postgresql://reader:hunter2@db/x", "https://me:hunter2@hub.example/x"])
def test_recipe_with_a_password_is_refused(run, url):
    change(run, {}, data={"source": {"kind": "sql", "url": url, "query": "SELECT 1"}})
    with pytest.raises(RecipeError, match=r"params/tiny\.yaml:\d+: there is a password") as caught:
        card_of(run)
    assert "hunter2" not in str(caught.value)


def test_card_of_a_private_repository_quotes_changed_rows(run):
    changes = [
        {
            "row_id": i,
            "text": f"text {i} {EVIL}",
            "gain": 2.0 - i,
            "error": 0.5,
            "champion_error": 2.5 - i,
            "notes": {"predicted": "card|lost"},
            "champion_notes": {"predicted": "refund"},
        }
        for i in range(8)
    ]
    edit(run.evaluation / "details.json", changed=[])
    assert "Changed rows" not in card_of(run), "there are none"
    edit(run.evaluation / "details.json", changed=changes)
    change(run, {"publish.private": False})
    assert "text 0" not in card_of(run), "texts of rows must not become public"
    change(run, {"publish.private": True})
    blocks, every = parsed(card_of(run))
    assert {t.type for t in every if t.type.startswith("html")} == set()
    cells = [blocks[i + 1].content for i, t in enumerate(blocks) if t.type == "td_open"]
    rows = [cells[i : i + 3] for i, cell in enumerate(cells) if cell.startswith("text ")]
    assert [row[0].split()[1] for row in rows] == list("01234")
    assert rows[0][1:] == [r"predicted card\|lost, error 0.5000".replace("\\|", "|"), "predicted refund, error 2.5000"]


def test_card_on_a_local_hub_says_where_to_look(run, monkeypatch):
    told = "Not on huggingface.co but on a local Hub: start it with `evergreen hub`, and set `HF_ENDPOINT`"
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    assert card_of(run).count(told) == 1
    monkeypatch.setenv("HF_ENDPOINT", "https://huggingface.co")
    assert told not in card_of(run)


def snippet_of(artifacts, objective, template=""):
    change(artifacts, {}, objective=objective)
    (artifacts.model / "chat_template.jinja").write_text(template)
    if not template:
        (artifacts.model / "chat_template.jinja").unlink()
    return re.search(r"^```python\n(.*?)^```$", card_of(artifacts), re.DOTALL | re.MULTILINE)[1]


def test_snippet_uses_the_thresholds_of_several_labels(run, capsys):
    thresholds = {"a": 0.3, "b": 0.6, "c": 0.1}
    (run.model / "config.json").write_text(json.dumps({"label_thresholds": thresholds}))
    code = snippet_of(run, {"name": "multi_label_classification"})
    assert 'answers = classifier("The text to classify.", truncation=True, top_k=None)' in code
    assert 'if one["score"] >= thresholds[one["label"]]' in code
    answers = [{"label": label, "score": score} for label, score in (("b", 0.5), ("a", 0.4), ("c", 0.1))]
    classifier = Mock(return_value=answers)
    classifier.model.config.label_thresholds = thresholds
    code = code.removeprefix("from transformers import pipeline\n")
    exec(compile(code, "card", "exec"), {"pipeline": lambda *_, **__: classifier})
    assert capsys.readouterr().out == f"{answers[1:]}\n"
    (run.model / "config.json").write_text("{}")
    assert "thresholds" not in snippet_of(run, {"name": "sequence_classification"})


def test_snippet_writes_prompts_as_they_were_learned(run):
    grpo = {"name": "grpo", "prompt": 'Q: {text}\n"A": ', "rewards": ["trainer.rewards:numeric_answer"]}
    assert r"""generator('Q: Once upon a time\n"A": ',""" in snippet_of(run, grpo)
    assert '[{"role": "user", "content": ' in snippet_of(run, grpo | {"chat": True}, template="{{ messages }}")
    assert "role" not in snippet_of(run, grpo, template="{{ messages }}"), "it did not learn conversations"
    dpo = {"name": "dpo", "separator": " => é"}
    assert 'generator("Once upon a time => é",' in snippet_of(run, dpo)
    sft = {"name": "sft", "prompt_column": "Do: {text}\n```{label}\nA:", "separator": " "}
    asked = snippet_of(run, sft)
    assert r"generator('Do: Once upon a time\nA: '," in asked or r'generator("Do: Once upon a time\nA: ",' in asked
    assert r"Do: {text}\n```{label}\nA:" in asked, "as one line, which ends no block"
    compile(asked, "card", "exec")
    seq2seq = {"name": "seq2seq", "prefix": "```\nsum: "}
    snippet = snippet_of(run, seq2seq)
    assert r"tokenizer('```\nsum: The input text.'," in snippet
    for code in (snippet, snippet_of(run, dpo), snippet_of(run, grpo)):
        compile(code, "card", "exec")


def test_snippet_gives_tools_where_they_were_learned(run):
    """It is run: what the pipeline gets is a question and tools in the form that chat templates take."""
    got = []

    def generator(messages, **more):
        got.append((messages, more))
        return [{"generated_text": [{"role": "assistant", "content": "a"}]}]

    columns = {"sft": {"messages_column": "messages"}, "dpo": {"chat": True}, "kto": {"chat": True}}
    for name, own in columns.items():
        for tools in (None, "tools"):
            code = snippet_of(run, {"name": name, **own, "tools_column": tools}, template="{{ tools }}{{ messages }}")
            code = code.removeprefix("from transformers import pipeline\n")
            exec(compile(code, "card", "exec"), {"pipeline": lambda *_, **__: generator})
            messages, more = got.pop()
            assert [message["role"] for message in messages] == ["user"]
            assert ("tools" in more) == bool(tools)
            assert more.get("tools", []) == read_tools(more.get("tools"))
