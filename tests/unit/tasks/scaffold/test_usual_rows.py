"""Rows in the forms of well-known data sets: what `new` proposes for them, and what `convert` makes of those that no objective reads."""

from __future__ import annotations

from typing import Any

import pytest

from params import DataError, RecipeError
from tasks.scaffold.candidates import list_row_forms
from tasks.scaffold.look import RowSample
from tasks.scaffold.model_facts import ModelKind
from tasks.scaffold.proposal import choose_objective_and_columns
from tasks.scaffold.request import NewRecipeRequest

TEXTS = [f"a text about the number {i}" for i in range(60)]
OTHERS = [f"another text, of {i} words" for i in range(60)]
CHOICES = [[f"choice {i}", f"other choice {i}", f"none of {i}"] for i in range(60)]
TWICE = [TEXTS[i // 2] for i in range(60)]


def sample(columns: dict[str, list[Any]]) -> RowSample:
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return RowSample({"train": rows}, {"train": len(rows)})


def proposed(columns: dict[str, list[Any]], kind: ModelKind = "encoder") -> tuple[str, dict[str, str]]:
    found = choose_objective_and_columns(NewRecipeRequest("x", ""), sample(columns), kind)
    return found.objective, dict(found.columns)


def test_the_answer_of_choices_is_their_label_although_no_other_column_is_a_text() -> None:
    """As RACE has them: the letter of the right option, beside two texts that are no labels."""
    rows = {"article": OTHERS, "question": TEXTS, "options": CHOICES, "answer": [*"ABC"] * 20}
    columns = {"context": "article", "question": "question", "choices": "options", "label": "answer"}
    assert proposed(rows) == ("multiple_choice", columns)


@pytest.mark.parametrize(
    "choices", [{"choices": CHOICES}, {f"choice{i}": [own[i] for own in CHOICES] for i in range(3)}]
)
def test_the_text_of_the_right_choice_is_a_label(choices: dict[str, Any]) -> None:
    """Every row has other choices, so no such text occurs twice."""
    label = [own[i % 3] for i, own in enumerate(CHOICES)]
    objective, columns = proposed({"question": TEXTS, **choices, "label": label})
    assert (objective, columns["context"], columns["label"]) == ("multiple_choice", "question", "label")


def test_choices_with_marks_are_not_passed_over() -> None:
    """As ARC and CommonsenseQA have them: a question and a letter alone would be learned as text and label."""
    marks = [[*"ABC"] if i % 2 else [*"123"] for i in range(60)]
    choices = [{"text": own, "label": mark} for own, mark in zip(CHOICES, marks, strict=True)]
    rows = sample({"question": TEXTS, "choices": choices, "answerKey": [mark[2] for mark in marks]})
    with pytest.raises(DataError, match="choices: holds choices with marks, which `answerKey` names"):
        choose_objective_and_columns(NewRecipeRequest("x", ""), rows, "encoder")
    (form,) = [own for own in list_row_forms(rows) if own.column == "choices" and own.found == "answerKey"]
    assert form.convert is not None
    converted = [form.convert(row, "choices", "answerKey")[0] for row in rows.rows["train"]]
    assert converted[0] == {"question": TEXTS[0], "choices": CHOICES[0], "answerKey": 2}
    with pytest.raises(ValueError, match="`answerKey` is '', which is none of 1, 2, 3"):
        form.convert({**rows.rows["train"][0], "answerKey": ""}, "choices", "answerKey")


def test_a_query_with_a_document_is_a_pair() -> None:
    rows = {"query": TEXTS, "document": OTHERS}
    assert proposed(rows) == ("embedding", {"prompt": "query", "completion": "document"})
    with pytest.raises(RecipeError, match="for embedding, which does not work with this decoder model"):
        proposed(rows, "decoder")
    label = {"query": TWICE, "document": OTHERS, "label": [0, 1] * 30}
    columns = {"text": "query", "text-pair": "document", "label": "label"}
    assert proposed(label) == ("sequence_classification", columns)
    columns = {"text": "query", "text-pair": "document", "score": "score"}
    assert proposed({**rows, "score": [i / 7 for i in range(60)]}) == ("regression", columns)


def test_true_and_false_are_not_grades_and_the_error_says_what_makes_them_some() -> None:
    rows = {"query": TWICE, "document": OTHERS, "relevant": [True, False, False] * 20}
    with pytest.raises(DataError, match=r"relevant: holds true and false.*\s.*convert .* writes 1 and 0"):
        proposed(rows)
    grades = {**rows, "relevant": [int(own) for own in rows["relevant"]]}
    assert proposed(grades)[0] == "ranking"
    alone = {"text": TEXTS, "relevant": rows["relevant"]}
    assert proposed(alone) == ("sequence_classification", {"text": "text", "label": "relevant"})


def test_the_grades_of_documents_are_found_beside_scores_and_with_a_cell_that_is_none() -> None:
    columns = {"prompt": "query", "completion": "document", "score": "relevance"}
    rows = {"query": TWICE, "document": OTHERS, "score": [i / 7 for i in range(60)], "relevance": [0, 1, 2] * 20}
    assert proposed(rows) == ("ranking", columns)
    rows = {"query": TWICE, "document": OTHERS, "relevance": ["n/a", *map(str, range(3))] * 15}
    assert proposed(rows) == ("ranking", columns)


@pytest.mark.parametrize("names", ["ABCD", ("opa", "opb", "opc", "opd")])
def test_choices_may_be_columns_that_are_called_by_letters(names: str | tuple[str, ...]) -> None:
    """As tables of MMLU and MedMCQA have them."""
    choices = {name: [f"choice {name} of {i}" for i in range(60)] for name in names}
    objective, columns = proposed({"question": TEXTS, **choices, "answer": [*"ABCD"] * 15})
    assert (objective, columns["choices"]) == ("multiple_choice", " ".join(f"{{{name}}}" for name in names))


@pytest.mark.parametrize("answer", [{"text": "a", "answer_start": 0}, True])
@pytest.mark.parametrize("kind", ["encoder", "decoder", "encoder-decoder"])
def test_no_other_text_is_the_answer_where_the_answer_is_none(answer: Any, kind: ModelKind) -> None:
    """The context was learned as the answer to its question."""
    rows = {"question": TEXTS, "context": OTHERS, "answer": [answer] * 60}
    with pytest.raises(RecipeError, match=r"needs --completion; none of these columns fits: .* answer \(.*\)"):
        proposed(rows, kind)


@pytest.mark.parametrize("flag", ["score", "label"])
def test_two_texts_and_what_is_said_of_both_are_a_pair_for_an_embedding(flag: str) -> None:
    """As STS-B and QQP have them; the guide gives the two flags."""
    rows = {"sentence1": TEXTS, "sentence2": OTHERS, "said": [0, 1] * 30}
    request = NewRecipeRequest("x", "", objective="embedding", columns={flag: "said"})
    found = choose_objective_and_columns(request, sample(rows), "encoder").columns
    assert found == {"prompt": "sentence1", "completion": "sentence2", flag: "said"}


def test_a_question_is_read_with_its_context() -> None:
    rows = {"question": TEXTS, "context": OTHERS, "answer": ["yes", "no", "maybe"] * 20}
    columns = {"text": "question", "text-pair": "context", "label": "answer"}
    assert proposed(rows) == ("sequence_classification", columns)
