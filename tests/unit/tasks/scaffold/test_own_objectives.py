"""Files of one's own in trainer/objectives: `new` and `check` leave alone what nobody names, and options without a flag can be given."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from params import RecipeError
from params.schema import ObjectiveChoice
from tasks.commands import app
from tasks.recipes.loading import load
from tasks.scaffold.candidates import proposable_objectives
from tests.support.project import write_lists_of_recipes
from tests.support.settings_check import check_settings_in_this_process
from trainer import objectives

FILES = {
    "shared_by_ours": "def clean(text):\n    return text.strip()\n",
    "two_of_ours": """
from trainer.objectives.sequence_classification import SequenceClassification

class Base(SequenceClassification):
    pass

class Own(Base):
    pass
""",
    "broken_of_ours": "import no_such_package\n",
    "taught_by_ours": """
from trainer.objectives import sequence_classification
from trainer.objectives.advice.base import ObjectiveFit
from trainer.objectives.shared_by_ours import clean

class Options(sequence_classification.Options):
    teacher: str | None = None
    temperature: float = 1.0

class _Advice(type(sequence_classification.SequenceClassification.advice)):
    def fit(self, seen):
        return ObjectiveFit.NOT

    def asked_options(self, tokenizer):
        return {"teacher": clean(" Model that teaches, a folder ")}

class Taught(sequence_classification.SequenceClassification):
    options_class = Options
    advice = _Advice()
""",
}


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A project with such files, one of which is an objective."""
    folder = tmp_path / "ours"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.setattr(objectives, "__path__", [*objectives.__path__, str(folder)])
    monkeypatch.chdir(tmp_path)
    check_settings_in_this_process(monkeypatch)
    write_lists_of_recipes(tmp_path)
    rows = [{"text": f"the {['lamp', 'rain'][i % 2]} number {i}", "label": "ab"[i % 2]} for i in range(60)]
    (tmp_path / "data/rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    yield
    for name in FILES:
        sys.modules.pop(f"trainer.objectives.{name}", None)


def new(*flags: str) -> None:
    CliRunner().invoke(
        app,
        ["new", "mine", "--data", "data/rows.jsonl", "--model", "new", "--yes", *flags],
        catch_exceptions=False,
        standalone_mode=False,
    )


def test_new_of_any_rows_leaves_files_alone_that_nobody_names(ours: None) -> None:
    new()
    assert load(Path("params/mine.yaml")).objective.name == "sequence_classification"
    assert (
        {"taught_by_ours"}
        == {*objectives.objective_names()} & FILES.keys()
        == {*proposable_objectives()} & FILES.keys()
    )


@pytest.mark.parametrize(
    ("name", "what"),
    [
        (
            "shared_by_ours",
            "there is no objective `shared_by_ours`; trainer/objectives/shared_by_ours.py defines no sub",
        ),
        ("two_of_ours", "trainer/objectives/two_of_ours.py defines 2 objectives, Base and Own"),
        ("broken_of_ours", "trainer/objectives/broken_of_ours.py cannot be imported: ModuleNotFoundError"),
    ],
)
def test_file_that_is_no_objective_is_an_error_where_it_is_named(ours: None, name: str, what: str) -> None:
    (problem,) = objectives.find_option_problems(ObjectiveChoice(name=name))
    assert problem.what.startswith(what)
    with pytest.raises(RecipeError) as error:
        new("--objective", name)
    assert error.value.where == "--objective"
    assert error.value.what.startswith(what)


def test_option_that_an_objective_asks_for_can_be_given(ours: None) -> None:
    own = ("--objective", "taught_by_ours")
    with pytest.raises(RecipeError, match="is needed: model that teaches") as error:
        new(*own)
    assert error.value.fix == "add --option teacher=VALUE"
    new(
        *own,
        *error.value.fix.removeprefix("add ").replace("VALUE", "runs/large/model").split(),
        "--option",
        "temperature=2",
    )
    options = load(Path("params/mine.yaml")).objective.options
    assert (options["teacher"], options["temperature"]) == ("runs/large/model", 2)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("teachr=a", "did you mean `teacher`?"),
        ("teacher", "write it as KEY=VALUE"),
        ("label_column=label", "use --label"),
        ("temperature=warm", "temperature"),
        ("teacher=[", "is not YAML"),
    ],
)
def test_option_that_cannot_be_is_an_error_that_says_why(ours: None, option: str, message: str) -> None:
    with pytest.raises(RecipeError) as error:
        new("--objective", "taught_by_ours", "--option", "teacher=a", "--option", option)
    assert message in str(error.value)
