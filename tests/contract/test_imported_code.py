"""Code that Python runs for an objective or named code, in every way that its text shows: the run key and DVC know it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from params.dvc_files import read_stage_dependencies
from params.foundation.artifacts import Artifacts
from tasks.diagnostics.check import _dvc_problems
from tasks.recipes.loading import load, read_yaml_document
from tests.contract.test_watched_code import edit, key, project, unwatched  # noqa: F401 - a fixture
from tests.support import tiny


def write(name: str, content: str) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(content)


def use_loss(name: str) -> None:
    changes = {"objective": {"name": "mine"}, "model": {"pretrained": "runs/other/model"}, "training.loss": name}
    tiny.write(Path("params/mine.yaml"), tiny.recipe(changes))


def assert_decides(name: str) -> None:
    before = key()
    edit(name)
    assert key() != before, f"the run key does not know {name}"


@pytest.mark.parametrize("decides", ["watched/__init__.py", "watched/patches.py", "watched/deep/__init__.py"])
def test_package_of_named_code_decides(project: Path, decides: str) -> None:  # noqa: F811
    """Python runs the `__init__.py` of each package above a module before the module, and what that imports."""
    write("watched/__init__.py", "from watched import patches\n")
    write("watched/patches.py", "import torch\n\ntorch.nn.functional.dropout = lambda x, *a, **k: x\n")
    write("watched/deep/__init__.py", "SCALE = 1\n")
    write("watched/deep/alone.py", "def loss(outputs, labels, items): ...\n")
    use_loss("watched.deep.alone:loss")
    assert_decides(decides)


def test_module_of_a_star_import_decides(project: Path) -> None:  # noqa: F811
    write("watched/all/__init__.py", "__all__ = ['inner']\n")
    write("watched/all/inner.py", "SCALE = 1\n")
    write("watched/stars.py", "from watched.all import *\n\ndef loss(outputs, labels, items): return inner.SCALE\n")
    use_loss("watched.stars:loss")
    assert_decides("watched/all/inner.py")


@pytest.mark.parametrize("folder", ["params", "tasks", "trainer/iterative", "trainer/runtime"])
def test_what_named_code_imports_decides_wherever_it_is(project: Path, folder: str) -> None:  # noqa: F811
    """The rows of the default recipe come from a function in params/: people put theirs beside it."""
    write(f"{folder}/my_constants.py", "SCALE = 1\n")
    module = f"{folder.replace('/', '.')}.my_constants"
    write("watched/scaled.py", f"from {module} import SCALE\n\ndef loss(outputs, labels, items): return SCALE\n")
    use_loss("watched.scaled:loss")
    assert_decides(f"{folder}/my_constants.py")


def test_trainer_that_an_objective_names_decides(project: Path) -> None:  # noqa: F811
    """`Objective.trainer_class` is a text, `package.module:Class`, and no import."""
    name = "trainer/objectives/mine.py"
    write("watched/own_trainer.py", "class Own: ...\n")
    write(
        name,
        'from trainer.objectives.dpo import DPO\n\nclass Mine(DPO):\n    trainer_class = "watched.own_trainer:Own"\n',
    )
    use_loss("watched.losses:loss")
    assert_decides("watched/own_trainer.py")


@pytest.mark.parametrize("code", ["trainer/objectives", "trainer"])
def test_sibling_of_an_objective_is_watched_by_all_stages_that_run_it(project: Path, code: str) -> None:  # noqa: F811
    """`code` makes train and evaluate watch the sibling; resolve, validate and tokenize run it, too."""
    tiny.write(Path("params/mine.yaml"), tiny.recipe({"objective": {"name": "mine"}}))
    found = unwatched(objective="trainer/objectives/mine.py", code=code)
    sibling = Path("trainer/objectives/dpo.py")
    for stage in ("validate", "tokenize", "train", "evaluate"):
        watched = read_stage_dependencies(stage, Artifacts("mine"))
        assert found or any(sibling.is_relative_to(place) for place in watched), stage


def test_what_is_said_to_fix_an_import_from_trainer_fixes_it(project: Path) -> None:  # noqa: F811
    write("trainer/my_encoding.py", "SHIFT = 1\n")
    edit("trainer/objectives/mine.py", "from trainer.my_encoding import SHIFT\n")
    tiny.write(Path("params/mine.yaml"), tiny.recipe({"objective": {"name": "mine"}}))
    told = unwatched(objective="trainer/objectives/mine.py", code="trainer/losses.py")
    line = next(line for line in told if "my_encoding" in line)
    if asked := re.search(r"write `objective: (\S+)` there", line):
        left = unwatched(objective=asked[1], code="trainer/losses.py")
        assert not [line for line in left if "my_encoding" in line]


def test_check_names_a_function_of_rows_that_no_stage_watches(project: Path) -> None:  # noqa: F811
    """recipes.yaml: `data` is the file of the rows, and `evergreen check` compares it with the recipe."""
    write("watched/rows.py", "from watched.sums import x\n\ndef rows():\n    yield {'text': 'a'}\n")
    tiny.write(
        Path("params/mine.yaml"),
        tiny.recipe({"data": {"source": {"kind": "function", "function": "watched.rows:rows"}}}),
    )
    document = read_yaml_document(Path("params/mine.yaml"))
    unwatched(objective="trainer/objectives/causal_lm.py", data="data/sentences.csv")
    found = list(_dvc_problems(document, {"data": load(Path("params/mine.yaml")).data}))
    assert found, "nobody notices an edit of watched/rows.py"
