"""`new` writes a recipe that is sound, says the same again, and leaves nothing behind when it fails; `remove` undoes it."""

from __future__ import annotations

import csv
import json
import random
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from params import DataError, EvergreenError, RecipeError, StorageError
from params.dvc_files import read_recipes_yaml_item
from params.foundation.artifacts import Artifacts
from tasks.commands import main
from tasks.diagnostics.check import check
from tasks.recipes.loading import load
from tasks.scaffold import new as new_module
from tasks.scaffold.commands import new as new_command
from tasks.scaffold.look import read_source_sample
from tasks.scaffold.new import create_recipe
from tasks.scaffold.project import remove_recipe
from tasks.scaffold.request import NewRecipeRequest
from tests.support.pretrained import write_model
from tests.support.project import ROOT, write_lists_of_recipes
from tests.support.sample_data import Kind, cases, data_set
from tests.support.settings_check import check_settings_in_this_process

DATA_SETS = {
    "banking77": ("bert", "sequence_classification"),
    "restaurant8k": ("bert", "token_classification"),
    "gsm8k": ("new", "sft"),
    "gsm8k-preferences": ("llama", "dpo"),
    "gsm8k-feedback": ("llama", "kto"),
    "tinyshakespeare": (None, "causal_lm"),
}
LABELS = {"weather": ["rain", "sun"], "food": ["bread", "soup"], "travel": ["train", "road"]}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a project without a recipe of its own, with a model and rows."""
    monkeypatch.chdir(tmp_path)
    for name in ("HF_ENDPOINT", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    check_settings_in_this_process(monkeypatch)
    write_lists_of_recipes(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small model of each kind."""
    folder = tmp_path_factory.mktemp("models")
    for model_type in ("bert", "llama", "t5"):
        write_model(folder / model_type, model_type)
    return folder


def write_questions(path: Path, rows: int = 300) -> None:
    chance = random.Random(5)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["question", "topic"])
        for i in range(rows):
            label = chance.choice(sorted(LABELS))
            writer.writerow([f"what about the {chance.choice(LABELS[label])} in place {i}?", label])


def write_json(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def make(name: str = "topics", **request: Any) -> None:
    create_recipe(NewRecipeRequest(name, **request))


def files(root: Path) -> dict[str, str]:
    """The content of what `new` may change."""
    paths = [*root.glob("params/*"), root / "recipes.yaml", root / "prefect.yaml"]
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def test_evaluations_that_encode_a_corpus_are_fewer(project: Path, models: Path) -> None:
    rows = "".join(f"what is number {i}?,number {i} is {i}\n" for i in range(2_000))
    (project / "data/pairs.csv").write_text("question,answer\n" + rows, encoding="utf-8")
    documents = "".join(json.dumps({"answer": f"document {i}"}) + "\n" for i in range(4_000))
    (project / "data/documents.jsonl").write_text(documents, encoding="utf-8")
    found = {}
    for name, corpus in (("pairs", None), ("search", "data/documents.jsonl")):
        make(name, data="data/pairs.csv", model=str(models / "bert"), objective="embedding", corpus=corpus)
        training = load(project / f"params/{name}.yaml").training
        steps = training.epochs * (2_000 * 0.7 // training.global_batch_size)
        found[name] = round(steps / training.eval_steps)
    assert found["pairs"] > 12
    assert found["search"] == 3  # one in each epoch


def test_a_recipe_with_reasons(project: Path, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_questions(project / "data/questions.csv")
    before = files(project)
    make(data="data/questions.csv", model=str(models / "bert"))
    said = capsys.readouterr().out
    for line in (
        "Wrote params/topics.yaml, its item in recipes.yaml",
        "question: what about the",
        "evergreen rehearse topics",
        "evergreen run topics",
    ):
        assert line in said
    recipe = load(project / "params/topics.yaml")
    assert recipe.objective.options == {"text_column": "question", "label_column": "topic"}
    assert recipe.training.best_metric == "accuracy"
    assert recipe.publish.repo_id == "evergreen/topics"
    assert f"base: {models / 'bert'}\n    code: " in (project / "recipes.yaml").read_text()
    text = (project / "params/topics.yaml").read_text(encoding="utf-8")
    for key in (
        "max_length",
        "label_column",
        "epochs",
        "global_batch_size",
        "learning_rate",
        "eval_steps",
        "max_quarantined",
    ):
        line = next(i for i, line in enumerate(text.splitlines()) if line.strip().startswith(f"{key}:"))
        assert "#" in "".join(text.splitlines()[line - 1 : line + 1]), key
    assert max(map(len, text.splitlines())) <= 120 + len(str(models))
    assert "covers" in text
    assert "3 labels, from" in text
    steps = recipe.training.epochs * (300 * 0.8 // recipe.training.global_batch_size)
    assert 15 <= steps / recipe.training.eval_steps <= 25

    capsys.readouterr()
    written = files(project)
    make(data="data/questions.csv", model=str(models / "bert"))
    assert files(project) == written
    assert "Nothing to do" in capsys.readouterr().out

    remove_recipe("topics", yes=True)
    assert files(project) == before


SMALL: dict[str, tuple[list[dict[str, Any]], str | None, str]] = {
    "sft": (
        [{"question": f"How much is {i} plus 1?", "answer": f" It is {i + 1}, I think."} for i in range(120)],
        "llama",
        "sft",
    ),
    "chat": (
        [
            {"messages": [{"role": "user", "content": f"Say {i}."}, {"role": "assistant", "content": f"{i}!"}]}
            for i in range(120)
        ],
        "llama",
        "sft",
    ),
    "preferences": (
        [{"prompt": f"Say {i}.", "chosen": f"Here it is: {i}", "rejected": f"I do not say {i}"} for i in range(120)],
        "llama",
        "dpo",
    ),
    "translation": (
        [{"source": f"number {i}, please", "target": f"die Zahl {i} bitte"} for i in range(120)],
        "t5",
        "seq2seq",
    ),
    "spans": (
        [
            {"text": f"a table for {10 + i} people", "spans": [{"label": "n", "start": 12, "end": 14}]}
            for i in range(80)
        ],
        "bert",
        "token_classification",
    ),
    "questions with answers": (
        [
            {
                "id": f"q{i}",
                "question": f"Who is number {i}?",
                "context": f"Number {i} is Ada.",
                "answers": {"text": ["Ada"] * (i % 2), "answer_start": [len(f"Number {i} is ")] * (i % 2)},
            }
            for i in range(120)
        ],
        "bert",
        "question_answering",
    ),
    "endings": (
        [
            {
                "sent1": f"It is number {i}.",
                "sent2": "It",
                **{f"ending{n}": f"is {n + i}" for n in range(4)},
                "label": i % 4,
            }
            for i in range(120)
        ],
        "bert",
        "multiple_choice",
    ),
    "texts for an encoder": (
        [{"text": f"This is the text with the number {i}, and it goes on." * 4} for i in range(120)],
        "bert",
        "masked_lm",
    ),
    "plain text": (
        [{"text": f"This is the text with the number {i}, and it goes on." * 4} for i in range(120)],
        None,
        "causal_lm",
    ),
    "pairs with a score": (
        [
            {"sentence1": f"the place {i}", "sentence2": f"place {i % 7}", "score": round(i % 7 / 3, 3)}
            for i in range(120)
        ],
        "bert",
        "regression",
    ),
    "numbers as labels": (
        [{"text": f"a text about {i}", "label": i % 3} for i in range(120)],
        "llama",
        "sequence_classification",
    ),
}


@pytest.mark.parametrize("form", SMALL)
def test_each_objective_gets_a_sound_recipe(form: str, project: Path, models: Path) -> None:
    rows, model, objective = SMALL[form]
    write_json(project / "data/rows.jsonl", rows)
    make(data="data/rows.jsonl", model=model and str(models / model))
    recipe = load(project / "params/topics.yaml")
    assert recipe.objective.name == objective
    check(project / "params/topics.yaml")


def test_keys_of_messages_that_nothing_reads_are_said(
    project: Path, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may mark what must not be learned; so the marks that are read are named."""
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"Say {i}.", "mood": "good"},
                {"role": "assistant", "content": f"{i}!", "loss": True, "learn": "no"},
            ]
        }
        for i in range(60)
    ]
    write_json(project / "data/rows.jsonl", rows)
    make(data="data/rows.jsonl", model=str(models / "llama"))
    said = " ".join(capsys.readouterr().out.split())
    assert "neither the chat template nor Evergreen reads" in said
    for key in ("mood", "learn"):
        assert f"`{key}` of 60 messages" in said
    assert "`loss` of" not in said
    assert "`train`" in said


def test_rows_with_a_dash_for_no_label_are_set_aside_by_a_check(project: Path, models: Path) -> None:
    rows = [{"text": f"a text about {i}", "label": "-" if i % 30 == 0 else ("yes", "no")[i % 2]} for i in range(240)]
    write_json(project / "data/rows.jsonl", rows)
    make(data="data/rows.jsonl", model=str(models / "bert"))
    recipe = load(project / "params/topics.yaml")
    (check_of_labels,) = recipe.validation.expectations
    assert check_of_labels.model_dump(exclude_unset=True, mode="json") == {
        "type": "expect_column_values_to_not_be_in_set",
        "column": "label",
        "value_set": ["-"],
    }


def test_the_row_that_is_shown_ends_with_how_many_lines_are_left_out(
    project: Path, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row of several texts has no label to show behind that."""
    rows = [
        {"anchor": f"what is thing {i} of them all", "positive": f"a thing, {i}", "negatives": ["no"] * (1 + i % 2)}
        for i in range(60)
    ]
    write_json(project / "data/rows.jsonl", rows)
    make(data="data/rows.jsonl", model=str(models / "bert"))
    row, _, _ = capsys.readouterr().out.partition("\n\nNext:")
    assert row.endswith(" lines more")


def test_rows_of_a_database(project: Path, models: Path) -> None:
    with sqlite3.connect(project / "data/rows.db") as database:
        database.execute("CREATE TABLE questions (id INTEGER, question TEXT, topic TEXT)")
        rows = [(i, f"what about the place {i}?", f"topic {i % 3}") for i in range(200)]
        database.executemany("INSERT INTO questions VALUES (?, ?, ?)", rows)
    query = "SELECT question, topic FROM questions WHERE topic <> 'none' ORDER BY id"
    make(data="sqlite:///data/rows.db", query=query, model=str(models / "bert"))
    source = load(project / "params/topics.yaml").data.source
    assert source.model_dump(exclude_unset=True) == {"kind": "sql", "url": "sqlite:///data/rows.db", "query": query}
    assert read_recipes_yaml_item(Artifacts("topics", project))["data"] == "data/rows.db"


def test_the_feedback_table_of_the_page_gets_a_sound_recipe(project: Path, models: Path) -> None:
    page = (ROOT / "docs/own-data.md").read_text(encoding="utf-8")
    (query,) = re.findall(r'--query "(SELECT [^"]*FROM feedback[^"]*)"', page)
    with sqlite3.connect(project / "feedback.db") as database:
        database.execute("CREATE TABLE feedback (id, day, prompt, completion, liked, model)")
        rows = ((i, f"What about {i}?", f"About {i}, a lot.", i % 3 > 0) for i in range(150))
        database.executemany("INSERT INTO feedback VALUES (?1, date('now'), ?2, ?3, ?4, 'm')", rows)
        database.execute("UPDATE feedback SET liked = NULL WHERE id < 10")
        database.execute("UPDATE feedback SET day = date('now', '-40 day') WHERE id >= 140")
    make(data="sqlite:///feedback.db", query=query, model=str(models / "llama"))
    check(project / "params/topics.yaml")
    recipe = load(project / "params/topics.yaml")
    expected = {"prompt_column": "prompt", "completion_column": "completion", "label_column": "liked"}
    assert (recipe.objective.name, recipe.objective.options) == ("kto", expected)
    assert len(read_source_sample(recipe.data.source).rows["train"]) == 130


def test_pairs_give_a_reward_model_where_somebody_asks_for_it(project: Path, models: Path) -> None:
    """With texts that are longer than the positions of a new model, which are cut."""
    rows = [
        {"prompt": f"Tell me of {i}", "chosen": f"{i} " * (600 if i < 3 else 5), "rejected": f"no {i}"}
        for i in range(120)
    ]
    write_json(project / "data/rows.jsonl", rows)
    for name, model in {"new": "new", "bert": str(models / "bert"), "llama": str(models / "llama")}.items():
        make(f"{name}-scores", data="data/rows.jsonl", model=model, objective="reward")
        recipe = load(project / f"params/{name}-scores.yaml")
        check(project / f"params/{name}-scores.yaml")
        assert recipe.objective.name == "reward"
        assert recipe.tokenization.max_length <= 2048


def test_rows_that_are_judged_together_stay_together_though_none_repeats_yet(
    project: Path, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_json(project / "data/rows.jsonl", [{"anchor": f"who is {i}", "positive": f"{i} is it"} for i in range(120)])
    make(data="data/rows.jsonl", model=str(models / "bert"))
    assert load(project / "params/topics.yaml").data.group_by == ["anchor"]
    assert "several splits" not in caplog.text


def test_repeated_and_messy_rows_show_in_the_recipe(project: Path, models: Path) -> None:
    rows = [{"text": f"text {i % 100}", "label": f"label {i % 2}", "group": i % 7} for i in range(200)]
    write_json(project / "data/rows.jsonl", [*rows, {"text": "", "label": "label 0", "group": 1}])
    make(data="data/rows.jsonl", model=str(models / "bert"), columns={"label": "label"})
    recipe = load(project / "params/topics.yaml")
    assert recipe.data.group_by == ["text"]
    assert recipe.validation.expectations == []
    text = (project / "params/topics.yaml").read_text(encoding="utf-8")
    assert "1 of 201 rows will be set aside: an empty `text`" in text
    assert "100 training rows repeat a text; they are kept" in text


def test_cells_that_are_no_numbers_are_named(project: Path, models: Path) -> None:
    path = project / "data/rows.csv"
    cells = ["n/a", "1,5", "", *(f"{i % 9 / 2}" for i in range(197))]
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["text", "stars"], *([f"a text about {i}", own] for i, own in enumerate(cells))])
    make(data="data/rows.csv", model=str(models / "bert"), columns={"score": "stars"})
    text = (project / "params/topics.yaml").read_text(encoding="utf-8")
    assert load(project / "params/topics.yaml").objective.name == "regression"
    assert "2 of 200 rows will be set aside: `stars` is no number" in text
    assert "1 of 200 rows will be set aside: no `stars`" in text


@pytest.mark.parametrize(
    ("flag", "data", "score", "fix"),
    [
        ("--score", ["data/rows.csv"], ["price", "stars"], "write `label_column: [price, stars]` into"),
        (
            "--data",
            ["data/rows.csv", "data/more.csv"],
            None,
            "give --data data/rows.csv alone, and then write the others",
        ),
    ],
)
def test_what_is_there_twice_is_not_dropped_in_silence(
    project: Path, flag: str, data: list[str], score: list[str] | None, fix: str
) -> None:
    with pytest.raises(RecipeError, match=f"{flag}: is there 2 times") as error:
        new_command("topics", data=data, score=score)
    assert fix in error.value.fix
    assert not (project / "params/topics.yaml").exists()


MANY_BAD = [{"text": f"a text about {i}" if i % 3 else "", "label": f"label {i % 2}"} for i in range(120)]


def test_more_bad_rows_than_usual_are_set_aside_only_if_somebody_allows_it(
    project: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_json(project / "data/rows.jsonl", MANY_BAD)
    arguments = {"data": "data/rows.jsonl", "model": str(models / "bert")}
    with pytest.raises(
        RecipeError, match=r"40 of 120 rows would be set aside\. 40: an empty `text` .row 1 of train, "
    ) as error:
        make(**arguments)
    assert "--max-quarantined 0.37" in error.value.fix
    assert not (project / "params/topics.yaml").exists()
    with pytest.raises(RecipeError, match="40 of 120 rows"):
        make(**arguments, max_quarantined=0.2, may_ask=True)
    monkeypatch.setattr("typer.confirm", lambda question: question == "Learn from the other 80?")
    make("asked", **arguments, may_ask=True)
    assert load(project / "params/asked.yaml").validation.max_quarantined == 0.67
    make("allowed", **arguments, max_quarantined=0.37)
    assert load(project / "params/allowed.yaml").validation.max_quarantined == 0.37


@pytest.mark.parametrize(("bad", "value"), [(0, 0.01), (2, 0.04), (5, 0.05)])
def test_few_bad_rows_are_set_aside_without_a_question(bad: int, value: float, project: Path, models: Path) -> None:
    rows = [{"text": f"a text about {i}" if i >= bad else "", "label": f"label {i % 2}"} for i in range(100)]
    write_json(project / "data/rows.jsonl", rows)
    make(data="data/rows.jsonl", model=str(models / "bert"))
    assert load(project / "params/topics.yaml").validation.max_quarantined == value


def test_own_data_says_the_shares_that_recipes_have(project: Path, models: Path) -> None:
    page = " ".join((ROOT / "docs/own-data.md").read_text(encoding="utf-8").split())
    said = re.search(r"twice the share of bad rows in the sample, at least (\d+) % and at most (\d+) %", page)
    assert said
    least, most = (int(number) / 100 for number in said.groups())
    for bad, value in ((0, least), (2, 0.04), (4, most)):
        name = f"bad{bad}"
        rows = [{"text": f"a text about {i}" if i >= bad else "", "label": f"label {i % 2}"} for i in range(100)]
        write_json(project / f"data/{name}.jsonl", rows)
        make(name, data=f"data/{name}.jsonl", model=str(models / "bert"))
        (line,) = re.findall(r"max_quarantined: (\S+)  # (.*)", (project / f"params/{name}.yaml").read_text())
        assert float(line[0]) == value
        assert line[1].startswith(f"{bad}.0 % of the sample" if bad else "none in the sample")


def test_a_prompt_of_several_columns(project: Path, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"instruction": f"Do {i % 3}.", "input": f"Number {i}" if i % 2 else "", "output": f"It is {i}"}
        for i in range(120)
    ]
    write_json(project / "data/rows.jsonl", rows)
    make(data="data/rows.jsonl", model=str(models / "llama"))
    recipe = load(project / "params/topics.yaml")
    assert recipe.objective.options["prompt_column"] == "{instruction}\n\n{input}"
    assert recipe.objective.options["separator"] == "\n\n"
    assert recipe.data.group_by == []  # "Do 0." alone is a sixth of the rows
    said = capsys.readouterr().out
    assert "prompt: columns '{instruction}\\n\\n{input}'" in said
    assert "does not read" not in said
    check(project / "params/topics.yaml")


def test_rows_that_are_cut_or_have_nothing_to_learn_are_counted(
    project: Path, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = [{"from": name, "value": f"Say {i}."} for i, name in enumerate(("human", "gpt", "human"))]
    long = [{**turns[0], "value": "word " * 400}, turns[1]]
    # Without {% generation %}, the first message of a conversation answers nothing.
    rows = [long if not i else turns[1:] if i < 4 else turns[: 2 + (i < 10)] for i in range(300)]
    write_json(project / "data/rows.jsonl", [{"conversations": row} for row in rows])
    make(data="data/rows.jsonl", model=str(models / "llama"))
    said, recipe = capsys.readouterr().out, (project / "params/topics.yaml").read_text(encoding="utf-8")
    length = load(project / "params/topics.yaml").tokenization.max_length
    for note in (
        "9 conversations do not end with the assistant",
        "3 of 300 rows have no token to learn, so training leaves them out",
        f"max_length {length} covers 99.7 % of the rows; the longest has ",
    ):
        assert f"note: {note}" in said
        assert f"- {note}" in recipe
    assert "; 1 of 297 are cut" in said


def test_a_text_that_would_fill_a_split_is_no_group(project: Path, models: Path) -> None:
    rows = [{"text": "yes" if i % 2 else f"text {i}", "label": f"label {i % 3}"} for i in range(200)]
    write_json(project / "data/rows.jsonl", rows)
    make(data="data/rows.jsonl", model=str(models / "bert"), columns={"text": "text"})
    assert load(project / "params/topics.yaml").data.group_by == []
    text = (project / "params/topics.yaml").read_text(encoding="utf-8")
    assert "# 99 rows repeat a text, one of them so often that it would fill a split" in text


FORGETS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content if loop.last else m.content.split('</think>')[-1] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
MARKED = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content if loop.last else m.content.split('</think>')[-1] }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.mark.parametrize("template", [FORGETS, MARKED])
def test_a_template_that_drops_thoughts_gives_a_sequence_for_each_answer(
    project: Path, models: Path, tmp_path: Path, template: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>b</think>c"}]
    write_json(project / "data/rows.jsonl", [{"messages": [*said, *said]} for _ in range(60)])
    model = shutil.copytree(models / "llama", tmp_path / "thinker")
    (model / "chat_template.jinja").write_text(template)
    make(data="data/rows.jsonl", model=str(model))
    assert "60 of 60 conversations are a sequence for each answer" in " ".join(capsys.readouterr().out.split())


def test_a_template_that_changes_what_was_said_is_named_and_the_advice_helps(
    project: Path, models: Path, tmp_path: Path
) -> None:
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>b</think>c"}]
    write_json(project / "data/rows.jsonl", [{"messages": [*said, *said]} for _ in range(60)])
    model = shutil.copytree(models / "llama", tmp_path / "counter")
    (model / "chat_template.jinja").write_text("{{ messages | length }}" + FORGETS)
    with pytest.raises(DataError, match=r"none can be learned from: .* renders the messages before message") as error:
        make(data="data/rows.jsonl", model=str(model))
    assert "{% generation %}" in error.value.fix
    (model / "chat_template.jinja").write_text("{{ messages | length }}" + MARKED)
    make(data="data/rows.jsonl", model=str(model))


def test_conversations_that_the_template_does_not_write_whole_are_counted(
    project: Path, models: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says it, whichever tools are called in which messages; the lengths are those of the other rows."""
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    call = {"role": "assistant", "content": "c" * 500, "tool_calls": [{"name": "add", "arguments": "{}"}]}
    rows = [[*said, said[0], call] if i % 4 == 1 else [said[0], call] if i % 4 == 2 else said for i in range(80)]
    write_json(project / "data/rows.jsonl", [{"messages": own} for own in rows])
    model = shutil.copytree(models / "llama", tmp_path / "toolless")
    (model / "chat_template.jinja").write_text(FORGETS)
    make(data="data/rows.jsonl", model=str(model), max_quarantined=0.6)
    recipe = (project / "params/topics.yaml").read_text(encoding="utf-8")
    assert recipe.count("will be set aside") == 1
    assert "40 of 80 rows will be set aside: for example, the chat template does not write the call of the" in recipe
    assert load(project / "params/topics.yaml").tokenization.max_length < 100


CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def test_marks_of_a_template_that_are_split_are_proposed_as_tokens(project: Path, models: Path, tmp_path: Path) -> None:
    write_json(project / "data/rows.jsonl", SMALL["chat"][0])
    model = shutil.copytree(models / "llama", tmp_path / "chatml")
    (model / "chat_template.jinja").write_text(
        CHATML + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    make("split", data="data/rows.jsonl", model=str(model))
    recipe = project / "params/split.yaml"
    text = recipe.read_text()
    line = '# added_tokens: ["<|im_start|>", "<|im_end|>"]'
    assert text.count(line) == 1
    recipe.write_text(text.replace(line, line[2:]))
    check(recipe)
    choice = load(recipe).tokenization.tokenizer
    assert choice.added_tokens == ["<|im_start|>", "<|im_end|>"]  # type: ignore[union-attr]
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_special_tokens({"additional_special_tokens": choice.added_tokens})  # type: ignore[union-attr]
    tokenizer.save_pretrained(model)
    make("whole", data="data/rows.jsonl", model=str(model))
    assert "added_tokens" not in (project / "params/whole.yaml").read_text()


def test_a_model_that_cannot_pack_batches_by_length(project: Path, tmp_path: Path) -> None:
    write_json(project / "data/rows.jsonl", SMALL["sft"][0])
    make(data="data/rows.jsonl", model=str(write_model(tmp_path / "opt", "opt")))
    recipe = load(project / "params/topics.yaml")
    assert recipe.objective.options["packing"] is False
    assert recipe.training.group_by_length


def test_a_failed_check_leaves_nothing(project: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_questions(project / "data/questions.csv")
    before = files(project)

    def fail(path: Path) -> None:
        assert path.is_file()
        assert "topics" in (project / "recipes.yaml").read_text()
        raise RecipeError(str(path), "is wrong", "correct it")

    monkeypatch.setattr(new_module, "check", fail)
    with pytest.raises(RecipeError, match="is wrong"):
        make(data="data/questions.csv", model=str(models / "bert"))
    assert files(project) == before


def test_without_room_on_the_disk_it_leaves_nothing(
    project: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_questions(project / "data/questions.csv")
    before, write = files(project), new_module.write_text_atomically

    def write_once(path: Path, text: str) -> None:
        monkeypatch.setattr(new_module, "write_text_atomically", fail)
        write(path, text)

    def fail(path: Path, text: str) -> None:
        raise StorageError(str(path), "cannot be written: no space", "free space")

    monkeypatch.setattr(new_module, "write_text_atomically", write_once)
    with pytest.raises(StorageError):
        make(data="data/questions.csv", model=str(models / "bert"))
    assert files(project) == before


def test_what_is_missing_is_added_and_what_differs_is_never_overwritten(
    project: Path, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_questions(project / "data/questions.csv")
    arguments = {"data": "data/questions.csv", "model": str(models / "bert")}
    make(**arguments)
    written = files(project)
    shutil.copy(ROOT / "prefect.yaml", project / "prefect.yaml")
    capsys.readouterr()
    make(**arguments)
    assert files(project) == written
    assert "Wrote its deployment in prefect.yaml" in capsys.readouterr().out
    for file, old, new_ in (
        ("params/topics.yaml", "epochs: ", "epochs: 1"),
        ("recipes.yaml", "    data: data/questions.csv", "    data: data"),
        ("prefect.yaml", "0 3 * * *", "0 5 * * *"),
    ):
        before, _, after = written[file].rpartition(old)
        (project / file).write_text(before + new_ + after, encoding="utf-8")
        edited = files(project)
        with pytest.raises(RecipeError, match="evergreen remove topics"):
            make(**arguments)
        assert files(project) == edited
        (project / file).write_text(written[file], encoding="utf-8")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no model": ({"data": "data/questions.csv"}, "--model: is needed"),
    "a name": ({"name": "a b", "data": "data/questions.csv"}, "is no name"),
    "a schedule": ({"data": "data/questions.csv", "schedule": "daily"}, "is not five fields"),
    "a repository": ({"data": "data/questions.csv", "repo_id": "topics"}, "it has no owner"),
    "an empty file": ({"data": "data/empty.csv", "model": "new"}, "the file is empty"),
    "one label": (
        {"data": "data/one.csv", "model": "new", "objective": "sequence_classification", "columns": {"label": "topic"}},
        "every row has the label",
    ),
    "one label, without flags": ({"data": "data/one.csv", "model": "new"}, "every row has the label"),
    "too few rows": ({"data": "data/few.csv", "model": "new"}, "."),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_a_recipe_is_an_error_and_writes_nothing(case: str, project: Path) -> None:
    write_questions(project / "data/questions.csv")
    (project / "data/empty.csv").write_text("")
    (project / "data/one.csv").write_text("question,topic\n" + "what is it?,a\nwho is it?,a\nis it so?,a\n" * 9)
    (project / "data/few.csv").write_text("question,topic\nwhat is it?,a\n")
    before = files(project)
    arguments, what = WRONG[case]
    with pytest.raises(EvergreenError, match=what):
        make(**arguments)
    assert files(project) == before


def test_outside_of_a_project_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(RecipeError, match="run this in the root of the project"):
        make(data="rows.csv")
    with pytest.raises(RecipeError, match="run this in the root of the project"):
        remove_recipe("topics", yes=True)


def test_remove_asks_and_keeps_what_runs_left(project: Path, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_questions(project / "data/questions.csv")
    make(data="data/questions.csv", model=str(models / "bert"))
    before = files(project)
    (project / "runs/topics/release").mkdir(parents=True)
    remove_recipe("topics", yes=False)
    assert files(project) == before
    assert "add --yes" in capsys.readouterr().out
    remove_recipe("topics", yes=True)
    said = capsys.readouterr().out
    assert "Kept: runs/topics" in said
    assert (project / "runs/topics/release").is_dir()
    assert "prefect deployment delete retrain/topics" in said
    with pytest.raises(RecipeError, match="no recipe, item or deployment has this name"):
        remove_recipe("topics", yes=True)


@pytest.mark.parametrize("file", ["recipes.yaml", "prefect.yaml"])
def test_lists_that_are_not_text_are_named(file: str, project: Path, models: Path) -> None:
    write_questions(project / "data/questions.csv")
    (project / file).write_bytes(b"# caf\xe9\n" + (project / file).read_bytes())
    before = (project / file).read_bytes()
    for edit in (
        lambda: make(data="data/questions.csv", model=str(models / "bert")),
        lambda: remove_recipe("topics", yes=True),
    ):
        with pytest.raises(RecipeError, match=f"{file}: cannot be read.*\n  fix: save it as a text file in UTF-8"):
            edit()
    assert (project / file).read_bytes() == before
    assert not (project / "params/topics.yaml").exists()


@pytest.mark.parametrize("name", ["a" * 300, "../docs/important", "/etc/x", "a/b", "..", "", "a b", "topics.yaml/../x"])
def test_remove_takes_no_path(name: str, project: Path) -> None:
    (project / "docs").mkdir()
    (project / "docs/important.yaml").touch()
    before = files(project)
    with pytest.raises(RecipeError, match="is no name"):
        remove_recipe(name, yes=True)
    assert files(project) == before
    assert (project / "docs/important.yaml").exists()


def test_labels_and_columns_of_any_characters(
    project: Path, models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end no line of the recipe and control no terminal."""
    labels = ["a\nseed: 666", "b\x85seed: 667 # '\"", "c\u2028seed: 668", "\x1b[2J\x07\u202egone"]
    column = "to: '\"pic #\n\x1b[1m"
    write_json(
        project / "data/it's: #1.jsonl",
        [{"question": f"\x1b]0;title\x07 what is {i}?", column: labels[i % 4]} for i in range(160)],
    )
    model = ["--model", str(models / "bert"), "--label", column, "--yes"]
    assert main(["new", "topics", "--data", "data/it's: #1.jsonl", *model]) == 0
    said = capsys.readouterr()
    assert "\\u001b]0;title\\u0007 what is" in said.out
    assert not {"\x1b", "\x07", "\x85", "\u202e"} & {*said.out, *said.err}
    recipe = load(project / "params/topics.yaml")
    assert recipe.seed == 17
    assert recipe.objective.options["label_column"] == column
    assert [one.column for one in recipe.evaluation.slices] == [column]
    assert read_recipes_yaml_item(Artifacts("topics"))["data"] == "data/it's: #1.jsonl"


@pytest.mark.parametrize(("name", "kind"), cases(*DATA_SETS, slow={*DATA_SETS} - {"banking77", "gsm8k-preferences"}))
def test_data_sets(
    name: str, kind: Kind, project: Path, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model, objective = DATA_SETS[name]
    shutil.copytree(data_set(name, kind, tmp_path_factory.mktemp("data")), project / "data" / name)
    make(name, data=f"data/{name}", model=str(models / model) if model in ("bert", "llama") else model)
    recipe = load(project / "params" / f"{name}.yaml")
    assert recipe.objective.name == objective
    has_test = any((project / "data" / name).glob("test.*"))
    assert (recipe.data.source.patterns.get("test") is not None) == has_test  # type: ignore[union-attr]


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_of_rows_to_set_aside_that_is_none_is_refused(project: Path, share: float) -> None:
    write_questions(project / "data/questions.csv")
    with pytest.raises(RecipeError, match="is no share of the rows") as error:
        make(data="data/questions.csv", model="new", max_quarantined=share)
    assert error.value.where == "--max-quarantined"


def test_a_title_that_is_not_read_is_named_with_the_flag_that_reads_it(
    project: Path, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [f"a text that says much about the number {i} and about what is near to it" for i in range(80)]
    rows = [{"text": text, "title": f"on {i}", "topic": ("odd", "even")[i % 2]} for i, text in enumerate(texts)]
    write_json(project / "data/titles.jsonl", rows)
    request = NewRecipeRequest("titles", "data/titles.jsonl", model=str(models / "bert"))
    create_recipe(request)
    assert "does not read: title; --text-pair names a second text" in capsys.readouterr().out
