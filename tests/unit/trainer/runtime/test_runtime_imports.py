"""Packages that a process leaves out, and modules that it imports when they are used."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from params import Recipe
from tests.support import tiny
from trainer.runtime import imports


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An installed package; `statistics` in it is slow."""
    (tmp_path / "evergreen_example").mkdir()
    (tmp_path / "evergreen_example" / "__init__.py").write_text("")
    (tmp_path / "evergreen_example" / "statistics.py").write_text("import sys; sys.example_ran = True\nmean = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "example_ran", False, raising=False)
    yield "evergreen_example"
    for name in [name for name in sys.modules if name.startswith("evergreen_example")]:
        del sys.modules[name]


def test_package_is_left_out_inside_the_block_only(package: str) -> None:
    with imports.hide_packages_in_block(package), pytest.raises(ModuleNotFoundError):
        importlib.import_module(package)
    importlib.import_module(package)
    with imports.hide_packages_in_block(package):  # too late: others use it
        importlib.import_module(package)
    assert sys.modules[package]


def test_package_that_turns_out_to_be_needed_is_imported(package: str) -> None:
    imports.hide_packages(package)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(package)
    imports.unhide_package(package)
    found = importlib.import_module(package)
    imports.unhide_package(package)
    assert sys.modules[package] is found


def test_package_is_empty_inside_the_block_only(package: str) -> None:
    with imports.hide_packages_in_block(stubs=[package]):
        assert importlib.import_module(package).__spec__ is None
    assert importlib.import_module(package).__spec__
    with imports.hide_packages_in_block(stubs=[package]):  # too late: others use it
        assert importlib.import_module(package).__spec__


def test_module_is_imported_when_one_of_its_names_is_used(package: str) -> None:
    imports.defer_import(f"{package}.statistics")
    from evergreen_example import statistics

    assert not sys.example_ran
    assert statistics.mean == 3
    assert sys.example_ran


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        ({"optimizer": "adamw_torch_fused"}, {"peft", "torchao"}),
        ({"optimizer": "adamw_torch_4bit"}, {"peft"}),
        ({"loss": "tests.support.own_code:loss"}, set()),
    ],
)
def test_what_a_recipe_does_not_use_is_left_out(training: dict, expected: set, monkeypatch: pytest.MonkeyPatch) -> None:
    left_out: set[str] = set()
    monkeypatch.setattr(imports, "hide_packages", lambda *packages: left_out.update(packages))
    sections = tiny.RECIPE | {"training": tiny.RECIPE["training"] | training}
    imports.hide_unused_packages(Recipe.model_validate(sections))
    assert left_out == expected
