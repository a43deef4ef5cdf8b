"""Objective and columns that fit the rows: of real data, of rows of every form, and where a person has to choose."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from params import DataError, RecipeError
from tasks.scaffold.look import RowSample, read_source_sample
from tasks.scaffold.model_facts import ModelKind
from tasks.scaffold.proposal import ObjectiveProposal, choose_objective_and_columns, proposable_objectives
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
DATA_SETS = {
    "banking77": ("encoder", "sequence_classification", {"text": "text", "label": "category"}),
    "restaurant8k": ("encoder", "token_classification", {"text": "text", "spans": "spans"}),
    "gsm8k": ("decoder", "sft", {"prompt": "question", "completion": "answer"}),
    "gsm8k-preferences": ("decoder", "dpo", {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}),
    "tinyshakespeare": ("decoder", "causal_lm", {"text": "text"}),
}


@pytest.mark.parametrize(("name", "data"), cases(*DATA_SETS))
def test_data_sets(name: str, data: Kind, tmp_path: Path) -> None:
    kind, objective, columns = DATA_SETS[name]
    rows = read_source_sample(find_source(NewRecipeRequest("x", str(data_set(name, data, tmp_path))), Path()).source)
    assert proposed(rows, kind) == ObjectiveProposal(objective, columns)  # type: ignore[arg-type]
    if name == "gsm8k":
        assert proposed(rows, "encoder-decoder").objective == "seq2seq"
        with pytest.raises(RecipeError, match="for sft or seq2seq, which does not work with this encoder model"):
            proposed(rows, "encoder")


CHAT = [[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]] * 60
SPANS = [[{"label": "who", "start": 0, "end": 1}], []] * 30
FORMS: dict[str, tuple[dict[str, list[Any]], ModelKind, str, dict[str, str]]] = {
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
    "an instruction": (
        {"instruction": TEXTS, "input": [""] * 60, "output": [f"{text}, too" for text in TEXTS]},
        "decoder",
        "sft",
        {"prompt": "instruction", "completion": "output"},
    ),
    "one text that repeats": (
        {"command": ["yes, please", "no, thanks"] * 30},
        "decoder",
        "causal_lm",
        {"text": "command"},
    ),
    "one text": ({"anything": TEXTS}, "decoder", "causal_lm", {"text": "anything"}),
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_each_form(form: str) -> None:
    columns, kind, objective, expected = FORMS[form]
    assert proposed(sample(**columns), kind) == ObjectiveProposal(objective, expected)


def test_two_texts_need_a_choice() -> None:
    rows = sample(title=TEXTS, summary_text=[f"more {text}" for text in TEXTS], label=LABELS)
    with pytest.raises(RecipeError, match="--text: The column with the text is not clear") as error:
        proposed(rows)
    assert "add --text" in error.value.fix
    assert proposed(rows, columns={"text": "title"}).columns == {"text": "title", "label": "label"}


def test_two_labels_need_a_choice() -> None:
    rows = sample(text=TEXTS, urgency=["high", "low"] * 30, team=LABELS)
    with pytest.raises(RecipeError, match=r"--label: .* urgency \(2 values\), team \(4 values\)"):
        proposed(rows)
    assert proposed(rows, columns={"label": "team"}).columns["label"] == "team"


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
        ({"conversations": [[{"from": "human", "value": "a"}]] * 60}, "holds conversations as {from, value}"),
        ({"score": [i / 7 for i in range(60)]}, "no objective fits these columns: score"),
        ({"id": list(range(60))}, "no objective fits these columns"),
    ],
)
def test_rows_of_another_form_are_named(columns: dict[str, list[Any]], what: str) -> None:
    with pytest.raises((DataError, RecipeError), match=what):
        proposed(sample(**columns), "decoder")


@pytest.mark.parametrize(
    ("labels", "what", "fix"),
    [
        ([float(i % 3) for i in range(60)], "holds whole numbers with decimals", "write 1 for 1.0"),
        ([i / 7 for i in range(60)], "no objective here predicts", "a name for each range"),
        ([["a", "b"][: 1 + i % 2] for i in range(60)], "several labels per text", "write one label per text"),
    ],
)
def test_labels_of_another_form_are_not_passed_over(labels: list[Any], what: str, fix: str) -> None:
    rows = sample(text=TEXTS, label=labels)
    with pytest.raises(DataError, match=what) as error:
        proposed(rows, "decoder")
    assert fix in error.value.fix
    assert proposed(rows, "decoder", objective="causal_lm").columns == {"text": "text"}


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


def test_all_rows_in_one_object_get_the_command_that_writes_them_apart() -> None:
    with pytest.raises(DataError, match="holds all rows as one list") as error:
        proposed(sample(data=[[{"text": "a", "label": "b"}]]))
    found = run_jq(error.value.fix, {"data": [{"text": "a", "label": "007"}, {"text": "b", "label": "1_0"}]})
    assert found == [{"text": "a", "label": "007"}, {"text": "b", "label": "1_0"}]


def test_records_get_the_command_that_makes_columns_of_them() -> None:
    with pytest.raises(DataError, match="holds records with 'text', 'label'") as error:
        proposed(sample(**{"a row": [{"text": "a", "label": "b"}] * 9}))
    written = {"id": 1, "a row": {"text": "It\u2019s", "label": "NA", "n": None}}
    assert run_jq(error.value.fix, written) == [{"id": 1, "text": "It\u2019s", "label": "NA", "n": None}]


def run_jq(fix: str, written: dict[str, Any]) -> list[dict[str, Any]]:
    """Run the command in a fix, on a file with one object."""
    command, _, _ = fix.partition("jq ")[2].replace(" FILE", "").partition(" > ")
    done = subprocess.run(["sh", "-c", f"jq {command}"], input=json.dumps(written), text=True, stdout=-1, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]
