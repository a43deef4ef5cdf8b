"""Objective and columns that fit the rows: of real data, of rows of every form, and where a person has to choose."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from params import DataError, EvergreenError, RecipeError
from tasks.scaffold.candidates import proposable_objectives
from tasks.scaffold.look import RowSample, read_source_sample
from tasks.scaffold.model_facts import ModelKind
from tasks.scaffold.proposal import (
    ObjectiveProposal,
    best_fitting_objectives,
    choose_objective_and_columns,
)
from tasks.scaffold.request import COLUMN_FLAGS, NewRecipeRequest
from tasks.scaffold.sources import find_source
from tests.support.sample_data import Kind, cases, data_set
from trainer import objectives


def sample(**columns: list[Any]) -> RowSample:
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return RowSample({"train": rows}, {"train": len(rows)})


def proposed(rows: RowSample, kind: ModelKind = "encoder", **request: Any) -> ObjectiveProposal:
    return choose_objective_and_columns(NewRecipeRequest("x", "", **request), rows, kind)


TEXTS = [f"a text about the number {i}" for i in range(60)]
LABELS = [f"label {i % 4}" for i in range(60)]
SCORES = [i / 7 for i in range(60)]
DATA_SETS = {
    "banking77": ("encoder", "sequence_classification", {"text": "text", "label": "category"}),
    "goemotions": ("encoder", "multi_label_classification", {"text": "text", "labels": "labels"}),
    "restaurant8k": ("encoder", "token_classification", {"text": "text", "spans": "spans"}),
    "gsm8k": ("decoder", "sft", {"prompt": "question", "completion": "answer"}),
    "gsm8k-preferences": ("decoder", "dpo", {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}),
    "gsm8k-feedback": ("decoder", "kto", {"prompt": "prompt", "completion": "completion", "liked": "liked"}),
    "tinyshakespeare": ("decoder", "causal_lm", {"text": "text"}),
}


@pytest.mark.parametrize(("name", "data"), cases(*DATA_SETS))
def test_data_sets(name: str, data: Kind, tmp_path: Path) -> None:
    kind, objective, columns = DATA_SETS[name]
    rows = read_source_sample(find_source(NewRecipeRequest("x", str(data_set(name, data, tmp_path))), Path()).source)
    assert proposed(rows, kind) == ObjectiveProposal(objective, columns)  # type: ignore[arg-type]
    if name == "gsm8k":
        assert proposed(rows, "encoder-decoder").objective == "seq2seq"
        assert proposed(rows, "encoder").objective == "embedding"
    if name == "gsm8k-preferences":
        with pytest.raises(RecipeError, match="for dpo, which does not work with this encoder model"):
            proposed(rows, "encoder")


CHAT = [[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]] * 60
SPANS = [[{"label": "who", "start": 0, "end": 1}], []] * 30
FORMS: dict[str, tuple[dict[str, list[Any]], ModelKind, str, dict[str, str]]] = {
    "lists of labels": (
        {"text": TEXTS, "topics": [["a", "b", "c"][: i % 4] for i in range(60)]},
        "encoder",
        "multi_label_classification",
        {"text": "text", "labels": "topics"},
    ),
    "lists of numbers of labels": (
        {"text": TEXTS, "labels": [[1, 2, 3][: i % 4] for i in range(60)]},
        "decoder",
        "multi_label_classification",
        {"text": "text", "labels": "labels"},
    ),
    "cats of spaCy": (
        {"text": TEXTS, "cats": [{"a": 1.0, "b": float(i % 2)} for i in range(60)]},
        "encoder",
        "multi_label_classification",
        {"text": "text", "labels": "cats"},
    ),
    "tags beside a conversation": (
        {"messages": CHAT, "tags": [["a", "b"][: i % 3] for i in range(60)]},
        "decoder",
        "sft",
        {"messages": "messages"},
    ),
    "tags beside an answer": (
        {"prompt": TEXTS, "completion": TEXTS, "tags": [["a", "b"][: i % 3] for i in range(60)]},
        "decoder",
        "sft",
        {"prompt": "prompt", "completion": "completion"},
    ),
    "flags beside a label": (
        {"text": TEXTS, "label": LABELS, "checked": [i % 2 for i in range(60)], "sent": ["yes", "no"] * 30},
        "encoder",
        "sequence_classification",
        {"text": "text", "label": "label"},
    ),
    "labels as numbers": (
        {"text": TEXTS, "label": [i % 3 for i in range(60)]},
        "encoder",
        "sequence_classification",
        {"text": "text", "label": "label"},
    ),
    "labels as booleans": (
        {"body": TEXTS, "spam": [i % 3 == 0 for i in range(60)]},
        "encoder",
        "sequence_classification",
        {"text": "body", "label": "spam"},
    ),
    "an id beside": (
        {"id": list(range(60)), "text": TEXTS, "uuid": [f"x{i}" for i in range(60)], "kind": LABELS},
        "encoder",
        "sequence_classification",
        {"text": "text", "label": "kind"},
    ),
    "a usual name among others": (
        {"text": TEXTS, "label": LABELS, "language": ["de", "en"] * 30},
        "encoder",
        "sequence_classification",
        {"text": "text", "label": "label"},
    ),
    "a conversation": ({"messages": CHAT, "id": list(range(60))}, "decoder", "sft", {"messages": "messages"}),
    "spans": (
        {"sentence": TEXTS, "entities": SPANS},
        "encoder",
        "token_classification",
        {"text": "sentence", "spans": "entities"},
    ),
    "texts for an encoder": ({"anything": TEXTS}, "encoder", "masked_lm", {"text": "anything"}),
    "questions as in SQuAD": (
        {
            "id": [f"56be4db0acb8001400a50{i}" for i in range(60)],
            "title": ["Beyoncé"] * 60,
            "context": [f"{text}. It is long." for text in TEXTS],
            "question": [f"which number, in row {i}?" for i in range(60)],
            "answers": [{"text": ["a text"], "answer_start": [0]}, {"text": [], "answer_start": []}] * 30,
        },
        "encoder",
        "question_answering",
        {"question": "question", "context": "context", "answers": "answers"},
    ),
    "answers as records": (
        {
            "passage": TEXTS,
            "query": [f"which number, in row {i}?" for i in range(60)],
            "answers": [[{"text": "a text", "start": 0}], []] * 30,
        },
        "encoder",
        "question_answering",
        {"question": "query", "context": "passage", "answers": "answers"},
    ),
    "endings as in SWAG": (
        {
            "video-id": [f"anetv_{i}" for i in range(60)],
            "sent1": TEXTS,
            "sent2": ["He"] * 60,
            **{f"ending{n}": [f"takes the number {n + i}." for i in range(60)] for n in range(4)},
            "label": [i % 4 for i in range(60)],
        },
        "encoder",
        "multiple_choice",
        {
            "context": "sent1",
            "question": "sent2",
            "choices": "{ending0} {ending1} {ending2} {ending3}",
            "label": "label",
        },
    ),
    "choices as lists": (
        {"context": TEXTS, "choices": [["yes", "no", "both"]] * 60, "label": [i % 3 for i in range(60)]},
        "encoder",
        "multiple_choice",
        {"context": "context", "choices": "choices", "label": "label"},
    ),
    "an instruction": (
        {"instruction": TEXTS, "input": [""] * 60, "output": [f"{text}, too" for text in TEXTS]},
        "decoder",
        "sft",
        {"prompt": "instruction", "completion": "output"},
    ),
    "pairs with negatives": (
        {"anchor": TEXTS, "positive": [f"{text}, too" for text in TEXTS], "negative": TEXTS[::-1]},
        "encoder",
        "embedding",
        {"prompt": "anchor", "completion": "positive", "rejected": "negative"},
    ),
    "pairs with several negatives": (
        {
            "query": TEXTS,
            "answer": [f"{text}, too" for text in TEXTS],
            "negative_1": TEXTS[::-1],
            "negative_2": TEXTS[::-1],
        },
        "encoder",
        "embedding",
        {"prompt": "query", "completion": "answer", "rejected": "{negative_1} {negative_2}"},
    ),
    "pairs with a numbered negative": (
        {"anchor": TEXTS, "positive": [f"{text}, too" for text in TEXTS], "negative_1": TEXTS[::-1]},
        "encoder",
        "embedding",
        {"prompt": "anchor", "completion": "positive", "rejected": "negative_1"},
    ),
    "one text that repeats": (
        {"command": ["yes, please", "no, thanks"] * 30},
        "decoder",
        "causal_lm",
        {"text": "command"},
    ),
    "two texts with usual names": (
        {"idx": list(range(60)), "Premise": TEXTS, "Hypothesis": TEXTS[::-1], "label": [i % 3 for i in range(60)]},
        "encoder",
        "sequence_classification",
        {"text": "Premise", "text-pair": "Hypothesis", "label": "label"},
    ),
    "a question and a passage": (
        {"passage": TEXTS, "question": TEXTS[::-1], "answer_is_there": [True, False] * 30},
        "encoder",
        "sequence_classification",
        {"text": "question", "text-pair": "passage", "label": "answer_is_there"},
    ),
    "documents of queries": (
        {"query": [text for text in TEXTS[:20] for _ in range(3)], "document": TEXTS, "relevant": [1, 0, 0] * 20},
        "encoder",
        "ranking",
        {"prompt": "query", "completion": "document", "score": "relevant"},
    ),
    "a score": (
        {"text": TEXTS, "score": SCORES},
        "encoder",
        "regression",
        {"text": "text", "score": "score"},
    ),
    "a label that is a number with decimals": (
        {"text": TEXTS, "label": SCORES, "id": list(range(60))},
        "decoder",
        "regression",
        {"text": "text", "score": "label"},
    ),
    "how alike two sentences are": (
        {"sentence1": TEXTS, "sentence2": TEXTS[::-1], "similarity": SCORES, "pair_id": list(range(60))},
        "encoder",
        "regression",
        {"text": "sentence1", "text-pair": "sentence2", "score": "similarity"},
    ),
    "one text": ({"anything": TEXTS}, "decoder", "causal_lm", {"text": "anything"}),
}


def test_columns_of_embeddings_that_the_user_names() -> None:
    """Scored pairs, and texts with classes, which nothing else tells from other rows."""
    pairs = sample(one=TEXTS, other=TEXTS[::-1], alike=[i / 7 for i in range(60)])
    for flag in ("label", "score"):
        named = {"prompt": "one", "completion": "other", flag: "alike"}
        found = proposed(pairs, objective="embedding", columns=named)
        assert found.options == {"anchor_column": "one", "positive_column": "other", "label_column": "alike"}
    classes = sample(body=TEXTS, topic=LABELS)
    found = proposed(classes, objective="embedding", columns={"label": "topic"})
    assert found.options == {"anchor_column": "body", "label_column": "topic"}


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_each_form(form: str) -> None:
    columns, kind, objective, expected = FORMS[form]
    assert proposed(sample(**columns), kind) == ObjectiveProposal(objective, expected)


def test_shares_of_people_are_labels_where_a_flag_names_their_columns() -> None:
    rows = sample(text=TEXTS, rude=[0.0, 0.25, 0.75, 1.0] * 15, funny=["yes", "no"] * 30, far=[0.5, 2.5] * 30)
    assert proposed(rows, columns={"labels": "{rude} {funny}"}).objective == "multi_label_classification"
    with pytest.raises(EvergreenError, match="holds numbers with decimals"):
        proposed(rows, columns={"labels": "{rude} {far}"})


def test_two_texts_need_a_choice() -> None:
    rows = sample(title=TEXTS, summary_text=[f"more {text}" for text in TEXTS], label=LABELS)
    with pytest.raises(RecipeError, match="--text: The column with the text is not clear") as error:
        proposed(rows)
    assert error.value.fix.startswith("add --text summary_text or --text title;")
    assert proposed(rows, columns={"text": "title"}).columns == {"text": "title", "label": "label"}


def test_a_label_and_a_score_need_a_choice() -> None:
    rows = sample(sentence_a=TEXTS, sentence_b=TEXTS[::-1], relatedness=SCORES, entailment=LABELS)
    with pytest.raises(RecipeError, match=r"not clear: sequence_classification .*, regression "):
        proposed(rows)
    with pytest.raises(RecipeError, match=r"not clear: sequence_classification .*, regression "):
        proposed(sample(text=TEXTS, score=SCORES, source=["web", "mail"] * 30))
    pair = {"text": "sentence_a", "text-pair": "sentence_b"}
    for objective, own in (
        ("sequence_classification", {"label": "entailment"}),
        ("regression", {"score": "relatedness"}),
    ):
        for request in ({"columns": own}, {"objective": objective}):
            assert proposed(rows, **request) == ObjectiveProposal(objective, pair | own)


def test_flags_say_which_texts_are_read() -> None:
    rows = sample(sentence1=TEXTS, sentence2=TEXTS[::-1], title=[f"my {text}" for text in TEXTS], label=LABELS)
    assert proposed(rows, columns={"text": "sentence2"}).columns == {"text": "sentence2", "label": "label"}
    named = {"text": "title", "text-pair": "sentence1"}
    assert proposed(rows, columns=named).columns == named | {"label": "label"}


def test_whole_numbers_are_predicted_if_a_flag_says_so() -> None:
    rows = sample(text=TEXTS, stars=[i % 5 for i in range(60)], likes=[i * 7 % 50 for i in range(60)])
    assert proposed(rows).objective == "sequence_classification"
    for name in ("stars", "likes"):
        assert proposed(rows, columns={"score": name}) == ObjectiveProposal(
            "regression", {"text": "text", "score": name}
        )
    with pytest.raises(RecipeError, match=r"column `text` holds text, and regression reads numbers there"):
        proposed(sample(text=TEXTS, other=TEXTS[::-1]), columns={"text": "other", "score": "text"})


def test_a_few_cells_that_are_no_numbers_hide_no_score() -> None:
    found = ObjectiveProposal("regression", {"text": "text", "score": "score"})
    for numbers in (SCORES, [i % 4 / 2 for i in range(60)]):
        rows = sample(text=TEXTS, score=["n/a", "1,5", "", *map(str, numbers[3:])])
        assert proposed(rows) == proposed(rows, "decoder") == proposed(rows, columns={"score": "score"}) == found
    written = sample(text=TEXTS, score=[str(one) for one in SCORES])  # in quotes, they may be names, such as versions
    assert proposed(written, columns={"score": "score"}) == found
    with pytest.raises(RecipeError, match="--score: column `score` holds text, and regression reads numbers"):
        proposed(
            sample(text=TEXTS, score=["high", "low", *map(str, SCORES[:20]), *["?"] * 38]), columns={"score": "score"}
        )


def test_two_labels_need_a_choice() -> None:
    rows = sample(text=TEXTS, urgency=["high", "low"] * 30, team=LABELS)
    with pytest.raises(RecipeError, match=r"--label: .* urgency \(2 values\), team \(4 values\)"):
        proposed(rows)
    assert proposed(rows, columns={"label": "team"}).columns["label"] == "team"


NO_LABELS: dict[str, list[Any]] = {
    "day": ["2024-01-01", "2024-01-02", "2024-02-01"],
    "when": ["2024-01-01 10:00:00", "2024-01-02T10:00:00Z"],
    "tag": ["31.12.2024", "1/2/2024"],
    "month": ["2024-01", "2024-02"],
    "clock": ["09:30", "10:00"],
    "seconds": [1_700_000_000, 1_700_086_400],
    "milliseconds": ["1700000000000", "1700086400000"],
    "number": [20240131, 20240201],
    "page": ["https://example.org/a", "https://example.org/b"],
    "origin": ["data/a.txt", "data/b file.txt"],
    "userId": ["anna", "bob", "eve"],
    "customer_id": [7, 8],
    "created_at": ["morning", "evening"],
    "file": ["a", "b"],
    "type": ["message"],
    "language": ["en"],
}


@pytest.mark.parametrize("name", NO_LABELS)
def test_what_says_where_when_or_which_a_row_is_is_no_label(name: str) -> None:
    """Nor is what is the same in all rows."""
    other = [NO_LABELS[name][i % len(NO_LABELS[name])] for i in range(60)]
    rows = sample(text=TEXTS, **{name: other}, mood=["good", "bad"] * 30)
    assert proposed(rows).columns == {"text": "text", "label": "mood"}
    alone = best_fitting_objectives(sample(text=TEXTS, **{name: other}), {})
    assert "sequence_classification" not in alone
    assert proposed(rows, columns={"label": name}).columns["label"] == name


@pytest.mark.parametrize("name", ["label", "Category"])
@pytest.mark.parametrize("values", ["day", "clock", "seconds", "page", "origin"])
def test_a_column_that_is_called_label_holds_labels_whatever_they_look_like(name: str, values: str) -> None:
    """They were taken for incidental, so that the texts alone were learned."""
    rows = sample(text=TEXTS, **{name: [NO_LABELS[values][i % len(NO_LABELS[values])] for i in range(60)]})
    for kind in ("encoder", "decoder"):
        assert proposed(rows, kind) == ObjectiveProposal("sequence_classification", {"text": "text", "label": name})


def test_texts_that_end_with_the_name_of_a_file_are_texts() -> None:
    rows = sample(text=[f"please open file {i}.txt" for i in range(60)], label=LABELS)
    assert proposed(rows).columns == {"text": "text", "label": "label"}


def test_names_of_rows_are_no_text() -> None:
    """Nor is a way to learn them proposed."""
    rows = sample(id=[f"x{i}" for i in range(60)], tokens=[["a", "b"]] * 60, ner_tags=[["O", "B-N"]] * 60)
    with pytest.raises(DataError, match="tags of the words") as error:
        proposed(rows, "decoder")
    assert "--objective" not in error.value.fix
    with pytest.raises(RecipeError, match="none of these columns fits"):
        proposed(rows, "decoder", objective="causal_lm")


def test_a_number_of_a_label_is_a_label() -> None:
    assert proposed(sample(text=TEXTS, label_id=[i % 4 for i in range(60)])).columns["label"] == "label_id"


def test_a_person_is_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answers = iter(["nothing", "team"])
    monkeypatch.setattr("typer.prompt", lambda text, default: next(answers))
    rows = sample(text=TEXTS, urgency=["high", "low"] * 30, team=LABELS)
    assert (
        choose_objective_and_columns(NewRecipeRequest("x", "", may_ask=True), rows, "encoder").columns["label"]
        == "team"
    )
    assert "Type one of: urgency, team" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        ({"columns": {"label": "labl"}}, "--label: the rows have no column `labl`\n.*did you mean `label`"),
        ({"objective": "sequence_clasification"}, "did you mean `sequence_classification`"),
        ({"objective": "grpo"}, "needs a reward, which only you can choose"),
        ({"objective": "sft"}, "sft does not work with this encoder model"),
    ],
)
def test_a_flag_that_does_not_fit_is_an_error(request_: dict[str, Any], what: str) -> None:
    with pytest.raises(RecipeError, match=what):
        proposed(sample(text=TEXTS, label=LABELS), **request_)


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"data": [{"text": text, "label": "a"} for text in TEXTS]}, "column `data` holds records|holds records"),
        ({"score": [i / 7 for i in range(60)]}, "no objective fits these columns: score"),
        ({"id": list(range(60))}, "no objective fits these columns"),
    ],
)
def test_rows_of_another_form_are_named(columns: dict[str, list[Any]], what: str) -> None:
    with pytest.raises((DataError, RecipeError), match=what):
        proposed(sample(**columns), "decoder")


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "a"},
        {"from": "human", "value": "a"},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": None, "tool_calls": [{}]},
    ],
)
def test_conversations_are_known_in_all_forms_that_are_read(message: dict[str, Any]) -> None:
    assert proposed(sample(conversations=[[message]] * 60), "decoder").objective == "sft"


def test_whole_conversations_are_preferences_without_a_prompt() -> None:
    pair = {name: [[{"role": "user", "content": f"{i}"}] for i in range(60)] for name in ("chosen", "rejected")}
    found = proposed(sample(**pair), "decoder")
    assert (found.objective, found.columns) == ("dpo", {"chosen": "chosen", "rejected": "rejected"})


def whole(i: int, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{i}"}, {"role": "assistant", "content": answer}]


@pytest.mark.parametrize("prompt", ["prompt", "source", "instruction"])
@pytest.mark.parametrize("is_chat", [True, False])
def test_whole_conversations_need_no_prompt_from_a_column_beside_them(prompt: str, is_chat: bool) -> None:
    """The answers hold it; the column may be the prompt once more, or where the row is from."""
    better, worse = (
        [[{"role": "user", "content": TEXTS[i]}, *whole(i, f"{answer} {i}")[1:]] for i in range(60)]
        for answer in ("good", "bad")
    )
    if not is_chat:
        better, worse = (
            [f"\n\nHuman: {a['content']}\n\nAssistant: {b['content']}" for a, b in own] for own in (better, worse)
        )
    beside = LABELS if prompt == "source" else TEXTS
    rows = sample(**{prompt: beside, "chosen": better, "rejected": worse})
    assert proposed(rows, "decoder").columns == {"chosen": "chosen", "rejected": "rejected"}
    others = sample(**{prompt: TEXTS[::-1], "chosen": better, "rejected": worse})
    with pytest.raises(RecipeError, match=rf"`{prompt}` \(text\) may belong to `chosen`"):
        proposed(others, "decoder")
    if not is_chat:
        given = {"prompt": prompt}
        assert proposed(rows, "decoder", columns=given).columns["prompt"] == prompt


def test_answers_alone_need_the_prompt_beside_them() -> None:
    better, worse = ([whole(i, answer)[1:] for i in range(60)] for answer in ("good", "bad"))
    asked = [whole(i, "")[:1] for i in range(60)]
    for prompt, chosen, rejected in ((asked, better, worse), (TEXTS, LABELS, TEXTS)):
        found = proposed(sample(prompt=prompt, chosen=chosen, rejected=rejected), "decoder")
        assert found.columns == {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}


@pytest.mark.parametrize(
    ("labels", "what", "fix"),
    [
        ([float(i % 3) for i in range(60)], "holds whole numbers with decimals", "writes 1 for 1.0"),
        ([["a"], ["b"]] * 30, "holds lists", "writes the one label of each"),
        ([[f"word {i}", "a"] for i in range(60)], "lists of something else than labels", "write lists of labels"),
        ([[{"name": "a"}], [{"name": "b"}]] * 30, "lists of something else than labels", "write lists of labels"),
    ],
)
def test_labels_of_another_form_are_not_passed_over(labels: list[Any], what: str, fix: str) -> None:
    rows = sample(text=TEXTS, label=labels)
    with pytest.raises(DataError, match=what) as error:
        proposed(rows, "decoder")
    assert fix in error.value.fix
    assert proposed(rows, "decoder", objective="causal_lm").columns == {"text": "text"}


EACH = {"text": TEXTS, "toxic": [i % 2 for i in range(60)], "rude": [i % 3 == 0 for i in range(60)]}


def test_a_column_for_each_label_is_one_of_two_things_to_learn() -> None:
    with pytest.raises(RecipeError, match=r"--objective: What the model should learn is not clear: .*multi_label"):
        proposed(sample(**EACH))
    found = proposed(sample(**EACH), objective="multi_label_classification")
    assert found.options == {"text_column": "text", "labels_column": "{toxic} {rude}"}
    assert found.read_columns() == ["text", "toxic", "rude"]
    assert proposed(sample(**EACH), columns={"labels": "{toxic}"}).objective == "multi_label_classification"
    assert proposed(sample(**EACH), columns={"label": "toxic"}).objective == "sequence_classification"


def test_several_labels_under_the_flag_of_one_name_the_right_flag() -> None:
    rows = sample(text=TEXTS, topics=[["a", "b", "c"][: i % 4] for i in range(60)])
    with pytest.raises(RecipeError, match=r"`topics` holds several labels of each row") as error:
        proposed(rows, columns={"label": "topics"})
    assert error.value.fix == "name it with --labels topics"
    assert proposed(rows, columns={"labels": "topics"}).options["labels_column"] == "topics"


OWN = "advice = type('Own', (NewRecipeAdvice,), {'meaning': 'own', 'columns': {'text': 'text'}, 'fit': lambda self, seen: ObjectiveFit.SPANS})()"


def test_an_objective_of_your_own_is_proposed_if_it_has_advice(own_objective: Any) -> None:
    own_objective("")
    with pytest.raises(RecipeError, match=r"--objective: own has no `advice`, from which a recipe could be written"):
        proposed(sample(text=TEXTS), "decoder", objective="own")
    assert proposed(sample(text=TEXTS), "decoder").objective == "causal_lm"


def test_an_objective_of_your_own_with_advice_is_proposed(own_objective: Any) -> None:
    own_objective(OWN)
    found = proposed(sample(text=TEXTS), "decoder")
    assert (found.objective, found.options) == ("own", {"text": "text"})


@pytest.mark.parametrize("name", proposable_objectives())
def test_columns_of_an_objective_have_a_flag_and_an_option(name: str) -> None:
    columns = proposable_objectives()[name].columns
    assert set(columns) <= set(COLUMN_FLAGS)
    assert set(columns.values()) <= set(objectives.import_objective_class(name).options_class.model_fields)


PAIRS = {"prompt": TEXTS, "completion": [f"{text}, too" for text in TEXTS]}
UNREAD: dict[str, tuple[dict[str, list[Any]], str, str]] = {
    "a number beside a text": ({"text": TEXTS, "likes": [i * 7 % 50 for i in range(60)]}, "`likes`", "causal_lm"),
    "a score": ({"text": TEXTS, "value": [i / 7 for i in range(60)]}, "`value` .numbers.", "causal_lm"),
    "a score of a text file": ({"text": TEXTS, "value": [f"{i / 7:.3f}" for i in range(60)]}, "`value`", "causal_lm"),
    "a record": (
        {"text": TEXTS, "meta": [{"by": "me", "at": str(i)} for i in range(60)]},
        "`meta` .record.",
        "causal_lm",
    ),
    "JSON text": ({"text": TEXTS, "meta": [f'{{"at": {i}}}' for i in range(60)]}, "JSON", "causal_lm"),
    "conversations with a score": ({"messages": CHAT, "quality": [i % 5 for i in range(60)]}, "how good", "sft"),
    "answers with a rating": ({**PAIRS, "score": [i / 7 for i in range(60)]}, "how good", "sft"),
}


@pytest.mark.parametrize("form", UNREAD)
def test_what_no_objective_reads_is_named_with_the_flag_that_passes_over_it(form: str) -> None:
    """Not even a person's Enter makes a model of the texts alone."""
    columns, what, objective = UNREAD[form]
    with pytest.raises((DataError, RecipeError), match=what) as error:
        proposed(sample(**columns), "decoder")
    assert f"--objective {objective}" in error.value.fix
    assert proposed(sample(**columns), "decoder", objective=objective).objective == objective


LIKED: dict[str, tuple[dict[str, list[Any]], dict[str, str]]] = {
    "answers": (
        {**PAIRS, "label": [True, False] * 30},
        {"prompt": "prompt", "completion": "completion", "liked": "label"},
    ),
    "answers, in words": (
        {"question": TEXTS, "answer": PAIRS["completion"], "feedback": ["good", "bad"] * 30, "at": TEXTS},
        {"prompt": "question", "completion": "answer", "liked": "feedback"},
    ),
    "answers, some without a word": (
        {**PAIRS, "liked": ["n/a", *["good", "bad"] * 29, "good"]},
        {"prompt": "prompt", "completion": "completion", "liked": "liked"},
    ),
    "conversations": ({"messages": CHAT, "thumbs_up": [1, 0] * 30}, {"messages": "messages", "liked": "thumbs_up"}),
    "messages behind messages": (
        {"prompt": [own[:1] for own in CHAT], "completion": [own[1:] for own in CHAT], "liked": [True, False] * 30},
        {"prompt": "prompt", "completion": "completion", "liked": "liked"},
    ),
}


@pytest.mark.parametrize("form", LIKED)
def test_feedback_is_learned_from(form: str) -> None:
    columns, expected = LIKED[form]
    rows = sample(**columns)
    found = proposed(rows, "decoder")
    assert (found.objective, found.columns) == ("kto", expected)
    assert proposed(rows, "decoder", columns={"liked": expected["liked"]}) == found
    if form != "messages behind messages":
        assert proposed(rows, "decoder", objective="sft").objective == "sft"
        with pytest.raises((DataError, RecipeError), match=r"how good|kto, which does not work with this encoder"):
            proposed(rows, "encoder")


def test_topics_of_answers_are_no_ratings() -> None:
    assert proposed(sample(messages=CHAT, label=LABELS), "decoder").objective == "sft"
    with pytest.raises(RecipeError, match=r"not clear: sft .*, sequence_classification"):
        proposed(sample(**PAIRS, label=LABELS), "decoder")
    assert proposed(sample(messages=CHAT, redacted=[True, False] * 30), "decoder").objective == "sft"


def test_at_a_terminal_it_asks_whether_to_learn_from_the_texts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, answers = sample(text=TEXTS, likes=[i * 7 % 50 for i in range(60)]), iter([False, True])
    monkeypatch.setattr("typer.confirm", lambda question: next(answers))
    with pytest.raises(RecipeError, match="likes"):
        proposed(rows, "decoder", may_ask=True)
    assert proposed(rows, "decoder", may_ask=True).objective == "causal_lm"


@pytest.mark.parametrize(
    "other",
    [
        {"id": list(range(60))},
        {"uuid": [f"x{i}" for i in range(60)]},
        {"language": ["en"] * 60},
        {"nothing": [None] * 60},
        {"url": [f"https://example.org/{'a' * 40}/{i}" for i in range(60)]},
    ],
)
def test_names_of_rows_stand_beside_running_text(other: dict[str, list[Any]]) -> None:
    assert proposed(sample(text=TEXTS, **other), "decoder") == ObjectiveProposal("causal_lm", {"text": "text"})


def test_a_label_is_never_taken_for_the_text() -> None:
    numbers, labels = [100_000 + 37 * i for i in range(60)], ["even", "odd"] * 30
    for kind in ("encoder", "decoder"):
        with pytest.raises((DataError, RecipeError), match=r"holds numbers|none of these columns"):
            proposed(sample(number=numbers, label=labels), kind)
        assert proposed(sample(text=numbers, label=labels), kind).columns == {"text": "text", "label": "label"}


@pytest.mark.parametrize(
    ("labels", "what"),
    [
        (SCORES, "numbers with decimals.*\n.*--score mark to predict the number"),
        ([float(i % 2) for i in range(60)], "whole numbers with decimals"),
        ([["a"], ["a", "b"]] * 30, "several labels"),
        ([{"a": 1, "b": 0}] * 60, "several labels"),
    ],
)
def test_a_label_that_a_flag_names_is_refused_if_it_is_none(labels: list[Any], what: str) -> None:
    rows = sample(text=TEXTS, mark=labels)
    with pytest.raises((DataError, RecipeError), match=f"mark.*{what}"):
        proposed(rows, columns={"label": "mark"})


def test_lists_in_the_columns_of_texts_are_refused() -> None:
    rows = sample(prompt=CHAT, answer=TEXTS)
    with pytest.raises(RecipeError, match="column `prompt` holds messages, and sft reads text there"):
        proposed(rows, "decoder", columns={"prompt": "prompt", "completion": "answer"})


def test_numbers_as_answers_are_a_choice_between_texts_and_labels() -> None:
    rows = sample(question=TEXTS, answer=[i % 9 for i in range(60)])
    with pytest.raises(RecipeError, match=r"not clear: sft .*, sequence_classification"):
        proposed(rows, "decoder")
    assert proposed(rows, "encoder").columns == {"text": "question", "label": "answer"}
    few = {"prompt": TEXTS, "completion": ["yes", "no", "it depends"] * 20}
    with pytest.raises(RecipeError, match=r"not clear: sft .*, sequence_classification"):
        proposed(sample(**few), "decoder")
    assert proposed(sample(prompt=TEXTS, target=LABELS), "decoder").objective == "sequence_classification"


ASKED = {"instruction": [f"do {i % 5}" for i in range(60)], "input": ["", *TEXTS[1:]], "output": PAIRS["completion"]}


def test_the_input_of_an_instruction_belongs_to_its_prompt() -> None:
    found = proposed(sample(**ASKED), "decoder")
    assert found.columns == {"prompt": "{instruction}\n\n{input}", "completion": "output"}
    assert found.read_columns() == ["instruction", "input", "output"]
    assert proposed(sample(**ASKED), "encoder-decoder").columns == found.columns
    numbers = ASKED | {"input": [None, *(i * 37 % 60 for i in range(59))]}
    assert proposed(sample(**numbers), "decoder").columns == found.columns
    only = proposed(sample(**ASKED), "decoder", columns={"prompt": "instruction"})
    assert only.columns["prompt"] == "instruction"
    asked = {"question": ["How much?"] * 60, "context": TEXTS, "answer": PAIRS["completion"]}
    assert proposed(sample(**asked), "decoder").columns["prompt"] == "{question}\n\n{context}"


@pytest.mark.parametrize(
    ("template", "what"),
    [("{instruction} {imput}", "did you mean `input`"), ("{instruction:>9}", "is not a column name")],
)
def test_a_template_of_a_flag_is_checked(template: str, what: str) -> None:
    given = {"prompt": template, "completion": "output"}
    with pytest.raises(RecipeError, match=what):
        proposed(sample(**ASKED), "decoder", columns=given)
    given["prompt"] = "Do: {instruction}"
    assert proposed(sample(**ASKED), "decoder", columns=given).options["prompt_column"] == "Do: {instruction}"


def test_an_answer_of_preferences_is_never_the_prompt() -> None:
    found = proposed(sample(chosen=TEXTS, rejected=PAIRS["completion"]), "decoder")
    assert found.columns == {"chosen": "chosen", "rejected": "rejected"}, (
        "both begin with the prompt, or no row can be used"
    )


def test_braces_in_the_names_of_columns() -> None:
    rows = sample(**{"{text}": TEXTS, "label": LABELS})
    found = proposed(rows, columns={"text": "{text}"})
    assert (found.columns["text"], found.read_columns()) == ("{text}", ["{text}", "label"])
    rows = sample(**{"{q}": TEXTS, "answer": TEXTS[::-1]})
    with pytest.raises(RecipeError, match="is the name of a column") as error:
        proposed(rows, "decoder", columns={"prompt": "{q}", "completion": "answer"})
    assert error.value.where == "--prompt"


def test_a_template_where_one_column_is_read_is_refused() -> None:
    rows = sample(title=TEXTS, body=TEXTS, label=LABELS, answer=TEXTS[::-1])
    for flag, objective, columns in (
        ("text", "sequence_classification", {"text": "{title} {body}", "label": "label"}),
        ("completion", "sft", {"prompt": "title", "completion": "{answer}"}),
    ):
        with pytest.raises(RecipeError, match="reads one column there") as error:
            proposed(rows, "decoder", objective=objective, columns=columns)
        assert error.value.where == f"--{flag}"


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({"negatives": [["x", "y"][: 1 + bool(i % 3)] for i in range(60)]}, {"listed_negatives": 2}),
        ({"neg": [TEXTS[:9]] * 60}, {"listed_negatives": 4}),
        ({"grade": [1 + i % 3 for i in range(60)]}, {"grade_column": "grade"}),
        ({"grade": [1] * 60}, {}),
    ],
    ids=["lists", "long lists", "grades", "equal grades"],
)
def test_lists_of_negatives_and_grades_of_pairs_are_found(more: dict[str, list[Any]], found: dict[str, Any]) -> None:
    pairs = {"anchor": TEXTS, "positive": [f"{text}, too" for text in TEXTS]}
    proposal = proposed(sample(**pairs, **more))
    assert proposal.objective == "embedding"
    assert {name: one.value for name, one in proposal.found.items()} == found


def test_grades_of_a_ranking_are_those_of_an_embedding_that_somebody_names() -> None:
    rows = sample(query=[f"query {i % 20}" for i in range(60)], document=TEXTS, relevance=[i % 3 for i in range(60)])
    assert proposed(rows).objective == "ranking"
    proposal = proposed(rows, objective="embedding", columns={"completion": "document"})
    assert proposal.options == {
        "anchor_column": "query",
        "positive_column": "document",
        "grade_column": "relevance",
    }


def town(what: str, i: int) -> Any:
    """A value of a column in the rows of `towns`."""
    values = {
        "question": f"How many houses has town {i}?",
        "answer": f"It has {i}.",
        "long": f"The town number {i} has {i} houses and one school near the river.",
        "constant": "You are a helpful assistant.",
        "system": ["Be short.", "Think first."][i % 2],
        "source": ["olympiad", "school", "forum"][i % 3],
        "number": str(i),
        "history": [[f"Say: town {i}.", f"Town {i}."]],
        "picture": f"img/{i}.jpg",
        "bytes": {"bytes": b"\x89PNG", "path": None},
        "place of bytes": {"bytes": None, "path": f"cache/{i}"},
        "data": f"data:image/png;base64,AAAA{i}",
        "messages": whole(i, f"town {i}"),
        "tools": json.dumps([{"name": "look_up", "parameters": {}}]),
        "record": {"text": f"The town number {i} has a river."},
        "list": [f"The town number {i} has a river.", f"It has {i} houses."],
        "JSON": json.dumps({"title": f"town {i}", "text": f"The town number {i} has a river."}),
        "liked": i % 3 > 0,
    }
    return values[what]


PASSED_OVER = {"--prompt": "question", "--messages": "messages", "--completion": "answer"}
LEFT_OUT = {
    "a passage": ("--prompt", {"question": "question", "passage": "long", "answer": "answer"}),
    "a document": ("--prompt", {"question": "question", "document": "long", "answer": "answer"}),
    "a column of any name": ("--prompt", {"question": "question", "zq": "long", "answer": "answer"}),
    "two columns": ("--prompt", {"question": "question", "zq": "long", "notes": "long", "answer": "answer"}),
    "a record": ("--prompt", {"question": "question", "about": "record", "answer": "answer"}),
    "a list": ("--prompt", {"question": "question", "about": "list", "answer": "answer"}),
    "JSON": ("--prompt", {"question": "question", "about": "JSON", "answer": "answer"}),
    "another answer": (
        "--completion",
        {"source": "source", "question": "question", "solution": "long", "answer": "number"},
    ),
    "a picture": ("--prompt", {"question": "question", "shown": "picture", "answer": "answer"}),
    "bytes of a picture": ("--prompt", {"question": "question", "image": "bytes", "answer": "answer"}),
    "a picture that is elsewhere": (
        "--prompt",
        {"question": "question", "shown": "place of bytes", "answer": "answer"},
    ),
    "a picture as text": ("--prompt", {"question": "question", "shown": "data", "answer": "answer"}),
    "a picture beside messages": ("--messages", {"messages": "messages", "images": "picture"}),
    "a text beside messages": ("--messages", {"messages": "messages", "notes": "long"}),
}
READ_TOO = {
    "a constant before it": (
        {"prompt": "constant", "question": "question", "answer": "answer"},
        {"prompt": "{prompt}\n\n{question}", "completion": "answer"},
    ),
    "the system": (
        {"system": "system", "question": "question", "chosen": "answer", "rejected": "number"},
        {"prompt": "{system}\n\n{question}", "chosen": "chosen", "rejected": "rejected"},
    ),
    "the problem, not its source": (
        {"source": "source", "problem": "question", "answer": "answer"},
        {"prompt": "problem", "completion": "answer"},
    ),
    "an instruction and its input": (
        {"instruction": "system", "input": "question", "output": "answer"},
        {"prompt": "{instruction}\n\n{input}", "completion": "output"},
    ),
}


def towns(columns: Mapping[str, str]) -> RowSample:
    return sample(**{name: [town(what, i) for i in range(60)] for name, what in columns.items()})


@pytest.mark.parametrize("case", LEFT_OUT)
def test_no_text_that_an_answer_may_need_is_left_out_in_silence(case: str) -> None:
    flag, columns = LEFT_OUT[case]
    with pytest.raises(RecipeError) as error:
        proposed(towns(columns), "decoder")
    assert error.value.where == flag
    given = {flag[2:]: PASSED_OVER[flag]}
    assert f"{flag} {PASSED_OVER[flag]}" in error.value.fix
    proposed(towns(columns), "decoder", columns=given)
    (read_both,) = re.findall("--prompt '([^']+)'", error.value.fix) or [""]
    if read_both:
        found = proposed(towns(columns), "decoder", columns={"prompt": read_both})
        assert {*found.read_columns()} == {*columns}


@pytest.mark.parametrize(
    ("objective", "kind", "answers"),
    [
        ("sft", "decoder", {"completion": "answer"}),
        ("seq2seq", "encoder-decoder", {"completion": "answer"}),
        ("dpo", "decoder", {"chosen": "answer", "rejected": "number"}),
        ("kto", "decoder", {"completion": "answer", "liked": "liked"}),
    ],
)
def test_every_objective_whose_model_answers_asks(objective: str, kind: ModelKind, answers: dict[str, str]) -> None:
    rows = towns({"prompt": "question", "zq": "long", **answers})
    for request in ({}, {"objective": objective}):
        with pytest.raises(RecipeError, match=r"`zq` \(text\) may belong to `prompt`, and would not be read"):
            proposed(rows, kind, **request)
    assert proposed(towns({"prompt": "question", **answers}), kind).objective == objective


@pytest.mark.parametrize("case", READ_TOO)
def test_the_prompt_is_what_the_columns_hold_not_their_order(case: str) -> None:
    columns, found = READ_TOO[case]
    assert proposed(towns(columns), "decoder").columns == found


def test_system_and_tools_beside_messages_are_read() -> None:
    found = proposed(towns({"messages": "messages", "system": "constant", "tools": "tools"}), "decoder")
    assert found.options == {"messages_column": "messages", "system_column": "system", "tools_column": "tools"}
