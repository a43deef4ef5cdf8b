"""Rows as well-known data sets have them, with their own names and types: what `new` proposes, or which question it asks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from params import RecipeError
from tasks.scaffold.model_facts import ModelKind
from tasks.scaffold.proposal import choose_objective_and_columns
from tasks.scaffold.request import NewRecipeRequest
from tests.unit.tasks.scaffold.test_usual_rows import CHOICES, OTHERS, TEXTS, TWICE, proposed, sample

ROWS = len(TEXTS)
IDS = list(range(ROWS))
MORE = [f"one more text about {i} things" for i in IDS]
TITLES = [f"title {i}" for i in IDS]
FRACTIONS = [round(i / 12, 2) for i in IDS]
HASHES = [f"{7919 * i + 4096:016x}" for i in IDS]


def cycle(*values: Any) -> list[Any]:
    return [values[i % len(values)] for i in IDS]


def conversations(answers: list[str]) -> list[Any]:
    roles = ("user", "assistant")
    pairs = zip(TEXTS, answers, strict=True)
    return [[{"role": role, "content": text} for role, text in zip(roles, pair, strict=True)] for pair in pairs]


def turns(role: str, texts: list[str]) -> list[Any]:
    return [[{"role": role, "content": text}] for text in texts]


def answers(empty: int) -> list[Any]:
    """Where each answer is; none in every `empty`th row."""
    found = [{"text": ["text"], "answer_start": [2]}, {"text": [], "answer_start": []}]
    return [found[bool(empty) and i % empty == 0] for i in IDS]


ENDINGS = {f"ending{n}": [f"end {n} of {i}" for i in IDS] for n in range(4)}
TOXIC = ("toxic", "severe_toxic", "obscene", "threat", "insult", "identity_hate")
ONE_LABEL: dict[str, tuple[dict[str, list[Any]], dict[str, str]]] = {
    "GLUE CoLA, SST-2": ({"sentence": TEXTS, "label": cycle(1, 0), "idx": IDS}, {"text": "sentence", "label": "label"}),
    "GLUE MRPC, RTE, WNLI": (
        {"sentence1": TEXTS, "sentence2": OTHERS, "label": cycle(1, 0), "idx": IDS},
        {"text": "sentence1", "text-pair": "sentence2", "label": "label"},
    ),
    "GLUE QQP": (
        {"question1": TEXTS, "question2": OTHERS, "label": cycle(1, 0), "idx": IDS},
        {"text": "question1", "text-pair": "question2", "label": "label"},
    ),
    "Quora's own file": (
        {"qid1": IDS, "qid2": IDS[::-1], "question1": TEXTS, "question2": OTHERS, "is_duplicate": cycle(0, 1)},
        {"text": "question1", "text-pair": "question2", "label": "is_duplicate"},
    ),
    "GLUE MNLI, XNLI": (
        {"premise": TEXTS, "hypothesis": OTHERS, "label": cycle(1, 0, 2), "idx": IDS},
        {"text": "premise", "text-pair": "hypothesis", "label": "label"},
    ),
    "GLUE QNLI": (
        {"question": TEXTS, "sentence": OTHERS, "label": cycle(1, 0), "idx": IDS},
        {"text": "question", "text-pair": "sentence", "label": "label"},
    ),
    "SNLI's own file": (
        {
            "gold_label": cycle("neutral", "entailment", "contradiction"),
            "sentence1": TEXTS,
            "sentence2": OTHERS,
            "pairID": [f"{i}.jpg#1r1n" for i in IDS],
        },
        {"text": "sentence1", "text-pair": "sentence2", "label": "gold_label"},
    ),
    "ANLI": (
        {"uid": HASHES, "premise": TEXTS, "hypothesis": OTHERS, "label": cycle(0, 1, 2), "reason": MORE},
        {"text": "premise", "text-pair": "hypothesis", "label": "label"},
    ),
    "FEVER": (
        {"id": IDS, "claim": TEXTS, "evidence": OTHERS, "label": cycle("SUPPORTS", "REFUTES", "NOT ENOUGH INFO")},
        {"text": "claim", "text-pair": "evidence", "label": "label"},
    ),
    "BoolQ": (
        {"question": TEXTS, "passage": OTHERS, "answer": cycle(True, False)},
        {"text": "question", "text-pair": "passage", "label": "answer"},
    ),
    "IMDB, AG News, Emotion, TweetEval": (
        {"text": TEXTS, "label": cycle(0, 1, 2)},
        {"text": "text", "label": "label"},
    ),
    "Banking77": (
        {"text": TEXTS, "category": cycle("card_arrival", "lost_card")},
        {"text": "text", "label": "category"},
    ),
    "CLINC150": ({"text": TEXTS, "intent": cycle(*range(15))}, {"text": "text", "label": "intent"}),
    "DBpedia, Amazon polarity": (
        {"label": cycle(0, 1), "title": TITLES, "content": TEXTS},
        {"text": "content", "label": "label"},
    ),
    "Amazon reviews, whole stars": (
        {"review_body": TEXTS, "stars": cycle(1, 2, 3, 4, 5)},
        {"text": "review_body", "label": "stars"},
    ),
    "SUBJ": (
        {"text": TEXTS, "label": cycle(0, 1), "label_text": cycle("objective", "subjective")},
        {"text": "text", "label": "label"},
    ),
}
PAIR = {"text": "sentence1", "text-pair": "sentence2", "score": "score"}
OTHER: dict[str, tuple[str, ModelKind, dict[str, list[Any]], dict[str, str]]] = {
    "GLUE STS-B": (
        "regression",
        "encoder",
        {"sentence1": TEXTS, "sentence2": OTHERS, "label": FRACTIONS, "idx": IDS},
        {**PAIR, "score": "label"},
    ),
    "STS-B": ("regression", "encoder", {"sentence1": TEXTS, "sentence2": OTHERS, "score": FRACTIONS}, PAIR),
    "STS-B, in quotes": (
        "regression",
        "encoder",
        {"sentence1": TEXTS, "sentence2": OTHERS, "score": [*map(str, FRACTIONS)]},
        PAIR,
    ),
    "few different numbers in quotes": (
        "regression",
        "encoder",
        {"text": TEXTS, "rating": cycle(".5", "1.", "2.5")},
        {"text": "text", "score": "rating"},
    ),
    "half stars, some of them missing": (
        "regression",
        "encoder",
        {"text": TEXTS, "stars": cycle("1", "1.5", "2", "4.5", "n.a.")},
        {"text": "text", "score": "stars"},
    ),
    "NLI triplets": (
        "embedding",
        "encoder",
        {"anchor": TEXTS, "positive": OTHERS, "negative": MORE},
        {"prompt": "anchor", "completion": "positive", "rejected": "negative"},
    ),
    "MS MARCO triplets": (
        "embedding",
        "encoder",
        {"query": TEXTS, "positive": OTHERS, "negative": MORE},
        {"prompt": "query", "completion": "positive", "rejected": "negative"},
    ),
    "Natural Questions, GooAQ": (
        "embedding",
        "encoder",
        {"query": TEXTS, "answer": OTHERS},
        {"prompt": "query", "completion": "answer"},
    ),
    "TREC": (
        "ranking",
        "encoder",
        {"query": TWICE, "document": OTHERS, "relevance": cycle(0, 1, 2)},
        {"prompt": "query", "completion": "document", "score": "relevance"},
    ),
    "toxic comments": (
        "multi_label_classification",
        "encoder",
        {"id": HASHES, "comment_text": TEXTS, **{name: cycle(*[0] * n, 1) for n, name in enumerate(TOXIC, 1)}},
        {"text": "comment_text", "labels": " ".join(f"{{{name}}}" for name in TOXIC)},
    ),
    "GoEmotions": (
        "multi_label_classification",
        "encoder",
        {"text": TEXTS, "labels": cycle([1], [1, 5], [2]), "id": HASHES},
        {"text": "text", "labels": "labels"},
    ),
    "SQuAD": (
        "question_answering",
        "encoder",
        {"id": HASHES, "title": cycle("Notre_Dame", "Warsaw"), "context": OTHERS, "question": TEXTS}
        | {"answers": answers(0)},
        {"question": "question", "context": "context", "answers": "answers"},
    ),
    "SQuAD 2.0": (
        "question_answering",
        "encoder",
        {"id": HASHES, "title": cycle("Notre_Dame", "Warsaw"), "context": OTHERS, "question": TEXTS}
        | {"answers": answers(3)},
        {"question": "question", "context": "context", "answers": "answers"},
    ),
    "SWAG": (
        "multiple_choice",
        "encoder",
        {
            "video-id": [f"anetv_{i}" for i in IDS],
            "startphrase": TEXTS,
            "sent1": OTHERS,
            "sent2": [f"He {i}" for i in IDS],
            "gold-source": cycle("gold", "gen"),
            **ENDINGS,
            "label": cycle(0, 1, 2, 3),
        },
        {"context": "sent1", "question": "sent2", "choices": " ".join(f"{{{name}}}" for name in ENDINGS)}
        | {"label": "label"},
    ),
    "HellaSwag": (
        "multiple_choice",
        "encoder",
        {
            "ind": IDS,
            "activity_label": cycle("Roof", "Fishing"),
            "ctx": TEXTS,
            "endings": CHOICES,
            "label": cycle("0", "1", "2"),
        },
        {"context": "ctx", "choices": "endings", "label": "label"},
    ),
    "PIQA": (
        "multiple_choice",
        "encoder",
        {"goal": TEXTS, "sol1": MORE, "sol2": OTHERS, "label": cycle(0, 1)},
        {"context": "goal", "choices": "{sol1} {sol2}", "label": "label"},
    ),
    "UltraFeedback": (
        "dpo",
        "decoder",
        {
            "prompt": TEXTS,
            "prompt_id": HASHES,
            "chosen": conversations(OTHERS),
            "rejected": conversations(MORE),
            "score_chosen": [one + 4 for one in FRACTIONS],
            "score_rejected": FRACTIONS,
        },
        {"chosen": "chosen", "rejected": "rejected"},
    ),
    "HH-RLHF": (
        "dpo",
        "decoder",
        {
            name: [f"\n\nHuman: {q}\n\nAssistant: {a}" for q, a in zip(TEXTS, own, strict=True)]
            for name, own in (("chosen", OTHERS), ("rejected", MORE))
        },
        {"chosen": "chosen", "rejected": "rejected"},
    ),
    "KTO's mix": (
        "kto",
        "decoder",
        {"prompt": turns("user", TEXTS), "completion": turns("assistant", OTHERS), "label": cycle(True, False)},
        {"prompt": "prompt", "completion": "completion", "liked": "label"},
    ),
    "thumbs of a feedback table": (
        "kto",
        "decoder",
        {"question": TEXTS, "answer": OTHERS, "feedback": cycle("up", "down")},
        {"prompt": "question", "completion": "answer", "liked": "feedback"},
    ),
    "Alpaca": (
        "sft",
        "decoder",
        {"instruction": TEXTS, "input": cycle("", *OTHERS[:20]), "output": MORE},
        {"prompt": "{instruction}\n\n{input}", "completion": "output"},
    ),
    "Alpaca for seq2seq": (
        "seq2seq",
        "encoder-decoder",
        {"instruction": TEXTS, "input": cycle("", *OTHERS[:20]), "output": MORE},
        {"prompt": "{instruction}\n\n{input}", "completion": "output"},
    ),
    "an input in JSON": (
        "sft",
        "decoder",
        {"instruction": TEXTS, "input": [json.dumps({"rows": i}) for i in IDS], "output": MORE},
        {"prompt": "{instruction}\n\n{input}", "completion": "output"},
    ),
    "an input and a context": (
        "sft",
        "decoder",
        {"instruction": TEXTS, "input": OTHERS, "context": MORE, "output": [f"answer {text}" for text in TEXTS]},
        {"prompt": "{instruction}\n\n{input}\n\n{context}", "completion": "output"},
    ),
    "UltraChat": (
        "sft",
        "decoder",
        {"prompt": TEXTS, "prompt_id": HASHES, "messages": conversations(OTHERS)},
        {"messages": "messages"},
    ),
    "GSM8K": (
        "sft",
        "decoder",
        {"question": TEXTS, "answer": OTHERS},
        {"prompt": "question", "completion": "answer"},
    ),
    "XSum": (
        "seq2seq",
        "encoder-decoder",
        {"document": TEXTS, "summary": OTHERS, "id": [str(30_000_000 + 7 * i) for i in IDS]},
        {"prompt": "document", "completion": "summary"},
    ),
    "CNN/DailyMail": (
        "seq2seq",
        "encoder-decoder",
        {"article": TEXTS, "highlights": OTHERS, "id": HASHES},
        {"prompt": "article", "completion": "highlights"},
    ),
    "SAMSum": (
        "seq2seq",
        "encoder-decoder",
        {"id": HASHES, "dialogue": TEXTS, "summary": OTHERS},
        {"prompt": "dialogue", "completion": "summary"},
    ),
    "WikiText": ("causal_lm", "decoder", {"text": TEXTS}, {"text": "text"}),
    "WikiText, masked": ("masked_lm", "encoder", {"text": TEXTS}, {"text": "text"}),
}


@pytest.mark.parametrize("name", ONE_LABEL)
def test_rows_with_one_label(name: str) -> None:
    rows, columns = ONE_LABEL[name]
    assert proposed(rows) == ("sequence_classification", columns)


@pytest.mark.parametrize("name", OTHER)
def test_rows_of_other_objectives(name: str) -> None:
    objective, kind, rows, columns = OTHER[name]
    assert proposed(rows, kind) == (objective, columns)


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("first", ["anchor", "query"])
def test_a_positive_is_no_answer_to_its_anchor(first: str, kind: ModelKind) -> None:
    rows = {first: TEXTS, "positive": OTHERS}
    with pytest.raises(RecipeError, match=f"for embedding, which does not work with this {kind} model"):
        proposed(rows, kind)
    flags = {"prompt": first, "completion": "positive"}
    named = choose_objective_and_columns(NewRecipeRequest("x", "", columns=flags), sample(rows), kind)
    assert (named.objective, named.columns) == ("sft" if kind == "decoder" else "seq2seq", flags)


LEFT_OUT: dict[str, tuple[ModelKind, dict[str, list[Any]], str, dict[str, str]]] = {
    "words among stars": (
        "encoder",
        {"text": TEXTS, "stars": cycle("1", "2", "3", "4", "5", "n/a")},
        r"`stars` has numbers, and n/a, which would be a class",
        {"score": "stars"},
    ),
    "words among stars, as classes": (
        "encoder",
        {"text": TEXTS, "stars": cycle("1", "2", "3", "4", "5", "n/a")},
        r"for classes add --label stars",
        {"label": "stars"},
    ),
    "a second text with another name": (
        "encoder",
        {"text": TEXTS, "reference": OTHERS, "label": cycle(0, 1)},
        r"`reference` holds texts, too, and would not be read",
        {"text": "text", "text-pair": "reference"},
    ),
    "a second text that is not meant": (
        "encoder",
        {"text": TEXTS, "reference": OTHERS, "label": cycle(0, 1)},
        r"or --text text to read that one alone",
        {"text": "text"},
    ),
    "two texts without usual names": (
        "encoder",
        {"query": TWICE, "product_title": OTHERS, "esci_label": cycle(*"ESCI")},
        r"of two that belong together, name the other one with --text-pair",
        {"text": "query", "text-pair": "product_title"},
    ),
    "an input for an embedding": (
        "encoder",
        {"instruction": TEXTS, "input": OTHERS, "output": MORE},
        r"`input` \(text\) may belong to `instruction`, and would not be read",
        {"prompt": "instruction"},
    ),
    "an input of numbers": (
        "decoder",
        {"instruction": TEXTS, "input": FRACTIONS, "output": MORE},
        r"`input` \(numbers\) may belong to `instruction`, and would not be read",
        {"prompt": "instruction"},
    ),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_nobody_has_said_is_asked_and_the_flags_of_the_question_answer_it(name: str) -> None:
    kind, rows, question, flags = LEFT_OUT[name]
    with pytest.raises(RecipeError, match=question) as error:
        proposed(rows, kind)
    told = f"{error.value.what} {error.value.fix}"
    assert all(f"--{flag} {column}" in told or f"--{flag}" in question for flag, column in flags.items())
    found = choose_objective_and_columns(NewRecipeRequest("x", "", columns=flags), sample(rows), kind)
    assert found.columns.items() >= flags.items()
