"""What an installed package brings decides the weights: another version and other code give another run key, and recipes.yaml watches it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from params import RecipeError
from params.foundation.artifacts import Artifacts
from params.foundation.plugins import FUNCTIONS, OBJECTIVES, find_plugins
from params.importing import import_by_name
from tasks.recipes.loading import load
from tests.support import tiny
from tests.support.installed import install
from tests.support.project import copy_project
from trainer import identity, objectives
from trainer.identity import code_hashes, deciding_keys, find_unwatched_code, package_versions

POINTS = {
    OBJECTIVES: {"brought": "brought_code.objectives.one:Brought", "not_one": "brought_code.losses:loss"},
    FUNCTIONS: {"loss": "brought_code.losses:loss"},
}
CODE = {
    "brought_code/__init__.py": "",
    "brought_code/objectives/__init__.py": "",
    "brought_code/objectives/one.py": "from brought_code.sums import add\nfrom trainer.objectives.causal_lm import CausalLM\n\nclass Brought(CausalLM): ...\n",
    "brought_code/sums.py": "def add(a, b): return a + b\n",
    "brought_code/losses.py": "def loss(outputs, labels, items): ...\ndef hidden(outputs, labels, items): ...\n",
    "brought_code/unused.py": "",
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages, beside a project whose recipe names what they bring."""
    project, found = tmp_path / "project", tmp_path / "site-packages"
    copy_project(project)
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(found)
    install(found, "brought-code", "1.0", POINTS, CODE)
    find_plugins.cache_clear()
    changes = {"objective": {"name": "brought", "text_column": "text"}, "training.loss": "brought_code.losses:loss"}
    tiny.write(Path("params/brought.yaml"), tiny.recipe(changes))
    item = "data: data/sentences.csv, objective: pins.txt, base: trainer/rewards.py, code: pins"
    Path("recipes.yaml").write_text(f"recipes:\n  brought: {{{item}}}\n")
    yield found
    find_plugins.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "brought_code"]:
        del sys.modules[name]


def hashes() -> dict[str, str]:
    recipe = load(Path("params/brought.yaml"))
    return code_hashes(
        deciding_keys({name: getattr(recipe, name) for name in ("seed", "objective", "model", "training")})
    )


def unwatched() -> list[str]:
    recipe = load(Path("params/brought.yaml")).model_dump(mode="json")
    return [f"{section}: {what}" for section, what, _ in find_unwatched_code(Artifacts("brought"), recipe)]


def test_objective_and_function_of_a_package_are_found_by_name(site: Path) -> None:
    assert objectives.import_objective_class("brought").__name__ == "Brought"
    assert "brought" in objectives.objective_names()
    assert "not_one" not in objectives.objective_names()
    with pytest.raises(
        RecipeError, match=r"`not_one` of the package brought-code 1.0, brought_code.losses:loss, is no subclass"
    ):
        objectives.import_objective_class("not_one")
    assert import_by_name("brought_code.losses:loss", "training.loss").__name__ == "loss"
    for name in ("brought_code.losses:hidden", "brought_code.sums:add"):
        with pytest.raises(RecipeError, match="`brought_code` is not in the project"):
            import_by_name(name, "training.loss")


def test_version_and_code_of_a_package_decide(site: Path) -> None:
    before = hashes()
    assert package_versions(before) == {"brought-code": "1.0"}
    for path in sorted(site.rglob("*.py")):
        content = path.read_text()
        path.write_text(f"{content}# edited\n")
        assert (hashes() != before) == (path.name != "unused.py"), path
        path.write_text(content)
    shutil.rmtree(site / "brought_code-1.0.dist-info")
    install(site, "brought-code", "1.1", POINTS, CODE)
    find_plugins.cache_clear()
    changed = {name for name, value in hashes().items() if before.get(name) != value}
    assert changed == {"code of the package brought-code"}


def test_file_here_comes_before_what_a_package_brings(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_PROJECT", Path.cwd())
    Path("trainer/objectives/brought.py").write_text(
        "from trainer.objectives.causal_lm import CausalLM\n\nclass Own(CausalLM): ...\n"
    )
    assert identity.find_objective_plugin("brought") == []


def test_item_that_pins_no_version_is_named(site: Path) -> None:
    line = "which does not have the line brought-code==1.0 for"
    assert unwatched() == [
        f"objective: watches pins.txt for this recipe, {line} `brought_code.objectives.one:Brought`",
        f"training: watches pins for this recipe, {line} `brought_code.losses:loss`",
    ]
    Path("pins").mkdir()
    for name in ("pins.txt", "pins/requirements.txt"):
        Path(name).write_text("brought-code==1.0.1\n# brought-code==1.0\n")
        assert len(unwatched()) == 2 - name.startswith("pins/"), name
        Path(name).write_text("other==3\n\nbrought-code==1.0  # ours\n")
    assert unwatched() == []
