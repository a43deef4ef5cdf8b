"""Each objective through all six stages: rows in, a published model out that has learned what they show."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from tests.support import preferences
from tests.support.project import STAGES, Project
from tests.support.sample_data import cases, data_set

WORDS = {
    "weather": ["rain", "sun", "wind", "snow"],
    "food": ["bread", "soup", "rice", "tea"],
    "travel": ["train", "road"],
}
NAMES, DAYS = ["Anna", "Bo", "Chris", "Dora", "Émile"], ["Monday", "Friday", "next week", "May 3rd"]
CAPITALS = {"France": "Paris", "Italy": "Rome", "Japan": "Tokyo", "Egypt": "Cairo"}
DIGITS = ["zero", "one", "two", "three", "four"]
TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"

Rows = Iterator[dict[str, Any]]
Checks = Callable[[Project, Mapping[str, Any]], None]


def questions(count: int) -> Rows:
    chance = random.Random(5)
    for i in range(count):
        topic = chance.choice(sorted(WORDS))
        yield {"question": f"what about the {chance.choice(WORDS[topic])} in place {i}?", "topic": topic}


def answers(count: int) -> Rows:
    """Questions with the answer somewhere in a context of several windows, or without; one answer is not where it says."""
    chance = random.Random(5)
    for i in range(count):
        city, before, behind = chance.choice(sorted(CAPITALS.values())), chance.randrange(9), chance.randrange(9)
        is_there = chance.random() < 0.7
        context = f"{'so ' * before}page {i}{f' capital {city}' if is_there else ''}{' and' * behind}"
        starts = [context.index(city)] if is_there else []
        if i == 3:
            context, starts = f"capital {city}", [3]
        found = [city] * len(starts)
        yield {"question": "capital?", "context": context, "answers": {"text": found, "answer_start": starts}}


def choices(count: int) -> Rows:
    chance = random.Random(5)
    for i in range(count):
        right = chance.randrange(3)
        own = {name: f"{'this' if n == right else 'no'} {chance.choice(WORDS['food'])}" for n, name in enumerate("abc")}
        yield {"said": f"number {i}", **own, "label": "abc"[right].upper()}


def topic_sets(count: int) -> Rows:
    """Texts that have a word of each of their topics, some of none; and one whose topic has no name."""
    chance = random.Random(5)
    for i in range(count):
        own = [topic for topic in WORDS if chance.random() < 0.4]
        words = " and ".join(chance.choice(WORDS[topic]) for topic in own) or "nothing"
        yield {"text": f"{words}, said number {i}", "cats": {topic: float(topic in own) for topic in WORDS}}
    yield {"text": "bread and sun", "cats": {"food": 7.0, "weather": 1.0, "travel": 0.0}}


def requests(count: int) -> Rows:
    """Requests whose spans follow from the words around them; one of them cannot be used."""
    chance = random.Random(5)
    for i in range(count):
        name, day = chance.choice(NAMES), chance.choice(DAYS)
        text = chance.choice(
            [f"table {i} for {name} on {day}, please", f"it is {name} about {day} at {i}", f"hello {i}?"]
        )
        spans = [
            {"label": label, "start": text.index(words), "end": text.index(words) + len(words)}
            for label, words in (("day", day), ("name", name))
            if words in text
        ]
        overlap = [{"label": "day", "start": 0, "end": 4}, {"label": "name", "start": 2, "end": 5}]
        yield {"text": text, "spans": overlap if i == 3 else spans}


def conversations(count: int) -> Rows:
    """Conversations about capitals, and one without an answer."""
    chance = random.Random(2)
    for i in range(count):
        turns = []
        for country in chance.sample(sorted(CAPITALS), chance.randint(1, 3)):
            turns += [("user", f"Capital of {country}? ({i})"), ("assistant", CAPITALS[country])]
        yield {"messages": [{"role": role, "content": content} for role, content in turns]}
    yield {"messages": [{"role": "user", "content": "Anyone there?"}]}


def completions(count: int) -> Rows:
    chance = random.Random(3)
    for i in range(count):
        country = chance.choice(sorted(CAPITALS))
        yield {"prompt": f"Capital of {country}, question {i}:", "completion": f" {CAPITALS[country]}"}


def neighbours(count: int) -> Rows:
    """Questions, with the capital that answers them."""
    chance = random.Random(3)
    for i in range(count):
        country = chance.choice(sorted(CAPITALS))
        yield {"query": f"Capital of {country}? ({i})", "answer": CAPITALS[country]}


def polite(count: int) -> Rows:
    """Pairs of answers, and one of equal ones."""
    columns = preferences.pairs(count)
    for i, values in enumerate(zip(*columns.values(), strict=True)):
        row = dict(zip(columns, values, strict=True))
        prompt = f"{i}: {row['prompt']}"  # else some rows are equal, and leave the train split
        yield row | {"prompt": prompt} | ({"rejected": row["chosen"]} if i == 17 else {})


def feedback(count: int) -> Rows:
    """Single answers, of which people liked the polite ones; somebody did not say what he means."""
    columns = preferences.feedback(count)
    for i, values in enumerate(zip(*columns.values(), strict=True)):
        row = dict(zip(columns, values, strict=True))
        yield row | {"liked": "maybe" if i == 17 else "good" if row["liked"] else "bad"}


def digits(count: int) -> Rows:
    """Prompts that ask for a digit; a number beside it makes each row another one."""
    chance = random.Random(5)
    for i in range(count):
        yield {"number": i, "digit": str(chance.randrange(10))}


def documents(count: int) -> Rows:
    """Queries with four documents each, of which one is a whole answer and one a part of it."""
    chance, grades = random.Random(5), {"all about": 2, "something about": 1, "not": 0, "hardly": 0}
    for i in range(count):
        word = chance.choice(WORDS["food"])
        for how in chance.sample(list(grades), 4):
            yield {"query": f"{word}? ({i})", "document": f"{how} {word}", "relevance": grades[how]}


def related(count: int) -> Rows:
    """Pairs of texts, and a number in the hundreds that follows from what each is about."""
    chance, topics = random.Random(5), sorted(WORDS)
    for i in range(count):
        one, other = chance.randrange(3), chance.randrange(3)
        texts = (chance.choice(WORDS[topics[topic]]) for topic in (one, other))
        yield {
            "one": f"the {next(texts)} is {i}",
            "other": f"some {next(texts)}",
            "related": 200.25 + 100 * one + 40 * other,
        }


@dataclass(frozen=True)
class Journey:
    """What goes in, and what must come out."""

    rows: Rows
    changes: Mapping[str, Any]
    """Of the tiny recipe."""
    learned: Mapping[str, tuple[float, float]]
    """For each metric: the untrained model is below the first, the trained one above the second."""
    traced: Mapping[int, list[str]] = field(default_factory=dict)
    """What `evergreen trace` says of rows, by their number."""
    loss: float = math.inf
    """The trained model's loss is below this share of the untrained one's."""
    quarantined: int = 0
    also: Checks = lambda project, metrics: None


def steps(count: int, evaluations: int = 2, **training: Any) -> dict[str, Any]:
    given = {"max_steps": count, "eval_steps": count // evaluations, **training}
    return {f"training.{key}": value for key, value in given.items()}


def topics(project: Project, metrics: Mapping[str, Any]) -> None:
    config = project.json("runs/topics/model/config.json")
    assert config["id2label"] == {"0": "food", "1": "travel", "2": "weather"}


def in_units(project: Project, metrics: Mapping[str, Any]) -> None:
    answer = pipeline("text-classification", model=str(project.root / "runs/relatedness/model"))
    least, most = (
        answer({"text": f"the {one} is 7", "text_pair": f"some {other}"}, function_to_apply="none")["score"]
        for one, other in (("soup", "rice"), ("rain", "snow"))
    )
    assert 150 < least < 300 < most < 530, "the rows have 200.25 and 480.25"


def thresholds(project: Project, metrics: Mapping[str, Any]) -> None:
    """The release says which labels reach their thresholds; the report has a curve of each."""
    config = project.json("runs/sets/model/config.json")
    assert config["problem_type"] == "multi_label_classification"
    assert list(config["label_thresholds"]) == ["food", "travel", "weather"]
    labels = project.json("runs/sets/evaluation/details.json")["labels"]
    assert {one["label"] for one in labels["curves"]} == set(WORDS)
    assert min(one["f1"] for one in labels["results"]) > 0.8
    assert "predicted, by the threshold of each label: " in project.run("python", "-m", "tasks", "try", "sets", "bread")


def spans(project: Project, metrics: Mapping[str, Any]) -> None:
    model = metrics["model"]
    assert 2 / (1 / model["precision"] + 1 / model["recall"]) == pytest.approx(model["f1"])
    config = project.json("runs/spans/model/config.json")
    assert config["id2label"] == {"0": "O", "1": "B-day", "2": "I-day", "3": "B-name", "4": "I-name"}
    lines = (project.root / "data/spans.jsonl").read_text(encoding="utf-8").splitlines()
    found = 0
    for row in range(4, 8):
        shown, written = trace(project, "spans", row), json.loads(lines[row])
        for span in written["spans"]:
            assert f"* B-{span['label']} " in shown
            words = written["text"][span["start"] : span["end"]]
            found += f"{span['label']}: {span['start']} to {span['end']}, {words!r}" in shown
    assert found >= 4


def filled(project: Project, metrics: Mapping[str, Any]) -> None:
    fill = pipeline("fill-mask", model=str(project.root / "runs/masks/model"))
    said = fill(f"the capital of Japan{fill.tokenizer.mask_token} Tokyo, says book 7")
    assert len({one["token_str"] for one in said}) == 5


def assistant(project: Project, metrics: Mapping[str, Any]) -> None:
    folder = project.root / "runs/assistant/model"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template == TEMPLATE, "whoever loads the model renders as it was taught"
    asked = [{"role": "user", "content": "Capital of Japan? (7)"}]
    ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    said = model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
    assert said[-1] == tokenizer.eos_token_id, "it learned where to end"
    assert tokenizer.decode(said[:-1]).strip() == "Tokyo"


def packed(project: Project, metrics: Mapping[str, Any]) -> None:
    statistics = project.json("runs/adapters/tokens/statistics.json")["splits"]
    assert statistics["train"]["sequences"] < statistics["train"]["rows"] / 3
    assert statistics["test"]["sequences"] == statistics["test"]["rows"], "evaluation is never packed"
    model = AutoModelForCausalLM.from_pretrained(project.root / "runs/adapters/model")
    assert not [name for name in model.state_dict() if "lora" in name], "adapters are merged"


def preferred(project: Project, metrics: Mapping[str, Any]) -> None:
    untrained = metrics["untrained"]
    of_equal_models = (math.log(2), 0.5, 0.0)
    found = (untrained["loss"], untrained["reward_accuracy"], untrained["reward_margin"])
    assert found == pytest.approx(of_equal_models, rel=1e-12)


def scored(project: Project, metrics: Mapping[str, Any]) -> None:
    """As anybody reads a reward model."""
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(project.root / "runs/scores/model")
    assert (model.config.num_labels, model.config.problem_type) == (1, "regression")
    tried = project.run("python", "-m", "tasks", "try", "scores", "What comes after 10? It is 11, thank you.")
    assert re.search(r"^reward +-?\d+\.\d+$", tried, re.MULTILINE)


def rewarded(project: Project, metrics: Mapping[str, Any]) -> None:
    rewards = [line["reward"] for line in history(project, "rewards") if "reward" in line]
    assert rewards[0] < 0.1
    assert rewards[-1] > 0.7
    validation = (project.root / "runs/rewards/history/validation.csv").read_text().splitlines()
    assert len(validation) == 4, "a head, and the evaluations at 0, 60 and 120"


def rounds(project: Project, metrics: Mapping[str, Any]) -> None:
    found = [line for line in history(project, "rounds") if "round" in line]
    assert [line["round"] for line in found] == list(range(25))
    assert found[0]["round_selected"] < 0.1
    assert found[-1]["round_selected"] > 0.7
    assert all(line["round_selected"] == line["round_reward"] for line in found), "here a reward is 0 or 1"


def vectors(project: Project, metrics: Mapping[str, Any]) -> None:
    """sentence-transformers loads what is published, and finds the right answer."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(project.root / "runs/neighbours/model"))
    found = model.similarity(model.encode(["Capital of Japan? (7)"]), model.encode(sorted(CAPITALS.values())))
    assert sorted(CAPITALS.values())[int(found.argmax())] == "Tokyo"


BERT = {
    "model_type": "bert",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
T5 = {"model_type": "t5", "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0}
ASKED = {
    "training.global_batch_size": 16,
    "training.learning_rate": 5e-3,
    "training.lr_scheduler": "constant",
    "training.logging_steps": 10,
    "training.best_metric": "reward",
    "launch.micro_batch_size": 16,
}
DIGIT = {
    "prompt": "{number}, say {digit}:",  # no two rows are equal
    "reference_columns": ["digit"],
    "rewards": [{"name": "trainer.rewards:numeric_answer", "arguments": {"column": "digit"}}],
    "num_generations": 16,
    "max_new_tokens": 1,
}
JOURNEYS = {
    "topics": Journey(
        questions(600),
        {
            "objective": {"name": "sequence_classification", "text_column": "question", "label_column": "topic"},
            "model.config": BERT,
            **steps(60, 3, logging_steps=20, best_metric="accuracy", group_by_length=True),
        },
        learned={"accuracy": (0.7, 0.9)},
        loss=1 / 2,
        traced={17: ["label", "question: what about the"]},
        also=topics,
    ),
    "sets": Journey(
        topic_sets(600),
        {
            "objective": {"name": "multi_label_classification", "labels_column": "cats"},
            "model.config": BERT,
            **steps(90, 3, logging_steps=30, group_by_length=True),
        },
        learned={"micro_f1": (0.7, 0.85), "macro_f1": (0.7, 0.85)},
        loss=1 / 2,
        traced={17: ["label of the sequence: food: ", "cats: "], 600: ["of its cats, 7.0 says neither yes nor no"]},
        quarantined=1,
        also=thresholds,
    ),
    "spans": Journey(
        requests(600),
        {
            "objective": {"name": "token_classification"},
            "model.config": BERT,
            "tokenization.max_length": 24,
            **steps(120, 3, logging_steps=20, best_metric="f1", group_by_length=True),
        },
        learned={"f1": (0.3, 0.8)},
        traced={3: ["row_is_usable(): 'name' from 2 to 5 overlaps the span before it"]},
        quarantined=1,
        also=spans,
    ),
    "masks": Journey(
        (
            {"text": f"the capital of {country} is {city}, says book {i}"}
            for i in range(150)
            for country, city in CAPITALS.items()
        ),
        {
            "objective": {"name": "masked_lm", "whole_words": True},
            "model.config": BERT,
            **steps(150, 3, logging_steps=50),
        },
        learned={"token_accuracy": (0.05, 0.1)},
        loss=0.9,
        traced={17: [" * ", "nll: "]},
        also=filled,
    ),
    "answers": Journey(
        answers(500),
        {
            "objective": {"name": "question_answering", "stride": 8},
            "model.config": BERT,
            "tokenization.max_length": 32,
            **steps(200, 2, logging_steps=50, learning_rate=3e-3, best_metric="f1", group_by_length=True),
        },
        learned={"f1": (0.5, 0.7), "exact_match": (0.5, 0.6)},
        loss=0.7,
        traced={3: ["is not at character 3 of the context, but at 8"], 17: ["exact_match: ", "answer  (of the model)"]},
        quarantined=1,
    ),
    "choices": Journey(
        choices(500),
        {
            "objective": {"name": "multiple_choice", "context_column": "said", "choices_column": "{a} {b} {c}"},
            "model.config": BERT,
            **steps(100, 2, logging_steps=50, learning_rate=3e-3, best_metric="accuracy", group_by_length=True),
        },
        learned={"accuracy": (0.8, 0.9)},
        loss=1 / 2,
        traced={17: ["label of the sequence", "correct: "]},
    ),
    "relatedness": Journey(
        related(600),
        {
            "objective": {
                "name": "regression",
                "text_column": "one",
                "text_pair_column": "other",
                "label_column": "related",
            },
            "model.config": BERT,
            "tokenization.max_length": 24,
            **steps(150, 3, logging_steps=50, learning_rate=3e-3, group_by_length=True),
        },
        learned={"spearman": (0.5, 0.8), "pearson": (0.5, 0.8)},
        loss=1 / 2,
        traced={17: ["related: ", "answer  (of the model)\n  related: "]},
        also=in_units,
    ),
    "documents": Journey(
        documents(250),
        {
            "objective": {"name": "ranking", "loss": "lambda"},
            "data.group_by": ["query"],
            "model.config": BERT,
            "tokenization.max_length": 24,
            **steps(150, 3, logging_steps=50, learning_rate=3e-3, best_metric="ndcg_at_10"),
        },
        learned={"ndcg_at_10": (0.8, 0.95), "mrr_at_10": (0.8, 0.95)},
        traced={17: ["relevance: ", "answer  (of the model)\n  relevance: "]},
    ),
    "pairs": Journey(
        ({"say": f"row {i} {w}", "write": f"{w} {w}"} for i in range(120) for w in DIGITS),
        {
            "objective": {
                "name": "seq2seq",
                "input_column": "say",
                "target_column": "write",
                "max_target_length": 8,
                "max_new_tokens": 8,
            },
            "model.config": T5,
            **steps(150, 3, logging_steps=50, best_metric="rougeL"),
        },
        learned={"exact_match": (1e-9, 0.8), "rouge2": (1.0, 0.8)},
        loss=1 / 2,
        traced={7: ["target:", "answer  (of the model)\n  two two"]},
    ),
    "assistant": Journey(
        conversations(300),
        {
            "objective": {"name": "sft", "messages_column": "messages", "chat_template": TEMPLATE},
            "tokenization.max_length": 128,
            **steps(60, save_steps=30),
        },
        learned={"token_accuracy": (0.9, 0.9)},
        loss=1 / 5,
        traced={17: [" * ", "nll: "]},
        quarantined=1,
        also=assistant,
    ),
    "adapters": Journey(
        completions(300),
        {
            "objective": {"name": "sft", "packing": True},
            "tokenization.max_length": 128,
            "model.lora": {"r": 16, "alpha": 64},
            "model.config.initializer_range": 0.2,  # or its frozen head could say nothing clearly
            **steps(60, save_steps=30),
        },
        learned={"token_accuracy": (0.5, 0.5)},
        loss=1 / 2,
        also=packed,
    ),
    "preferences": Journey(
        polite(300),
        {
            "objective": {"name": "dpo", "beta": 0.2},
            "tokenization.max_length": 64,
            **steps(20, learning_rate=3e-3, best_metric="reward_margin"),
        },
        learned={"reward_accuracy": (0.6, 0.9), "reward_margin": (0.1, 0.5)},
        traced={17: ["same text"], 18: ["rejected_input_ids: (1,", "chosen_reward: "]},
        quarantined=1,
        also=preferred,
    ),
    "neighbours": Journey(
        neighbours(300),
        {
            "objective": {"name": "embedding", "anchor_column": "query", "positive_column": "answer"},
            "model.config": BERT,
            **steps(40, best_metric="ndcg_at_10"),
        },
        learned={"ndcg_at_10": (0.9, 0.95), "recall_at_1": (0.6, 0.9)},
        traced={17: ["positive_input_ids: (1,", "cosine: "]},
        also=vectors,
    ),
    "scores": Journey(
        polite(300),
        {
            "objective": {"name": "reward"},
            "tokenization.max_length": 64,
            "evaluation.gate.metric": "loss",  # by chance, a random model may have all of these pairs in the right order
            **steps(20, learning_rate=3e-3, best_metric="reward_margin"),
        },
        learned={"reward_margin": (1.0, 1.5)},
        loss=1 / 2,
        traced={17: ["same text"], 18: ["rejected_input_ids: (", "chosen_reward: "]},
        quarantined=1,
        also=scored,
    ),
    "feedback": Journey(
        feedback(300),
        {
            "objective": {"name": "kto", "beta": 0.2},
            "tokenization.max_length": 64,
            **steps(20, learning_rate=3e-3, best_metric="roc_auc"),
        },
        learned={"roc_auc": (0.6, 0.9), "reward_margin": (0.1, 0.3)},
        traced={17: ["'maybe' says neither"], 18: ["liked: ", "reward: "]},
        quarantined=1,
    ),
    "rewards": Journey(
        digits(400),
        {"objective": {"name": "grpo", "steps_per_generation": 2, **DIGIT}, **ASKED, **steps(120, save_steps=45)},
        learned={"reward": (0.2, 0.8)},
        traced={17: ["digit: ", "reward: "]},
        also=rewarded,
    ),
    "rounds": Journey(
        digits(400),
        {"objective": {"name": "iterative_sft", "steps_per_round": 4, **DIGIT}, **ASKED, **steps(100, save_steps=30)},
        learned={"reward": (0.2, 0.8)},
        traced={17: ["reward: "]},
        also=rounds,
    ),
}


def history(project: Project, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (project.root / f"runs/{name}/history/metrics.jsonl").read_text().splitlines()]


def trace(project: Project, name: str, row: int) -> str:
    return project.run("python", "-m", "tasks", "trace", f"params/{name}.yaml", "--row", str(row))


@pytest.mark.slow  # tests/e2e/test_published_models.py publishes them in short, and the tutorial is such a journey
@pytest.mark.parametrize("name", JOURNEYS)
def test_from_rows_to_a_published_model(project: Project, name: str) -> None:
    journey = JOURNEYS[name]
    recipe = project.recipe(name, {"data.source.train": project.rows(name, journey.rows), **journey.changes})

    project.stages(recipe)

    metrics = project.json(f"runs/{name}/evaluation/metrics.json")
    for metric, (untrained, trained) in journey.learned.items():
        assert metrics["untrained"][metric] < untrained, metric
        assert metrics["model"][metric] > trained, metric
    if journey.loss < math.inf:
        assert metrics["model"]["loss"] < journey.loss * metrics["untrained"]["loss"]
    assert project.json(f"runs/{name}/validated/validation.json")["quarantined"] == journey.quarantined
    receipt = project.json(f"runs/{name}/release/receipt.json")
    assert (receipt["status"], receipt["repo_id"]) == ("published", f"tests/{name}")
    for row, said in journey.traced.items():
        shown = trace(project, name, row)
        assert [text for text in said if text not in shown] == [], shown
    journey.also(project, metrics)


@pytest.mark.parametrize(("name", "kind"), cases("gsm8k", slow=["gsm8k"]))
def test_rewards_on_questions(project: Project, name: str, kind: str, tmp_path) -> None:
    """A model that has never read cannot solve them: it is shown that the questions go through, and are judged."""
    changes = {
        "data.source.train": str(data_set(name, kind, tmp_path) / "test.jsonl"),
        "objective": {
            "name": "grpo",
            "prompt": "{question}\nAnswer:",
            "rewards": [
                "trainer.rewards:numeric_answer",
                {"name": "trainer.rewards:matches", "arguments": {"pattern": "[0-9]"}},
            ],
            "reward_weights": [1.0, 0.1],
            "num_generations": 4,
            "max_new_tokens": 8,
        },
        "tokenization.max_length": 128,
        **ASKED,
        **steps(4, 1, logging_steps=1),
    }
    project.stages(project.recipe("gsm8k", changes), STAGES[:5])
    assert 0 <= project.json("runs/gsm8k/evaluation/metrics.json")["model"]["reward"] <= 1.1
    assert any(line.get("reward_std", 0) > 0 for line in history(project, "gsm8k")), "some completions have a digit"
