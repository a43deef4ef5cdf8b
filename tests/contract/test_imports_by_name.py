"""Never up, by name either: no text in a module names a module above it, which `lint-imports` would not see."""

from __future__ import annotations

import ast
import fnmatch
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

from tests.support.project import ROOT

PACKAGES = ("params", "trainer", "tasks", "flows")
NAMED = re.compile(rf"(?:{'|'.join(PACKAGES)})(?:\.[\w*]+)+(?::\w+)?")
"""A module of ours, or an object in one; `*` stands for what is computed."""

SEARCHED = {"tasks.measurement": "tasks.measurements"}
"""Plug points that search a folder above them, as they ask for what packages bring: they name no module in it."""


def read_layers() -> dict[str, list[list[str]]]:
    """The layers of each container from the top down, as pyproject.toml has them; the packages themselves are those of ''."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = {}
    for contract in settings["tool"]["importlinter"]["contracts"]:
        if contract["type"] == "layers":
            layers = [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]
            for container in contract.get("containers", [""]):
                found[container] = layers
    return found


LAYERS = read_layers()


def may_name(module: str, named: str) -> bool:
    """Whether a module stands above another one, or is in the same folder."""
    own, other, container = module.split("."), named.split("."), ""
    while own and other and own[0] == other[0]:
        container = f"{container}.{own[0]}".lstrip(".")
        own, other = own[1:], other[1:]
    layers = LAYERS.get(container)
    if not layers or not own or not other:
        return True
    heights = [next(i for i, layer in enumerate(layers) if name in layer) for name in (own[0], other[0])]
    return heights[0] < heights[1]


def texts(tree: ast.AST, module: str) -> Iterator[tuple[int, str]]:
    """The texts in code, with `*` for what is computed; a text that stands by itself, such as a docstring, is for people."""
    for_people = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in for_people:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(part_of(value, module) for value in node.values)


def part_of(node: ast.expr, module: str) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    is_own_name = (
        isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name) and node.value.id == "__name__"
    )
    return module if is_own_name else "*"


def names_above(code: str, module: str, modules: set[str]) -> list[str]:
    """The texts in the code of a module that name a module above it, with their lines."""
    found = []
    for line, text in texts(ast.parse(code), module):
        if not NAMED.fullmatch(text):
            continue
        place = text.partition(":")[0]
        named = fnmatch.filter(modules, place) or fnmatch.filter(modules, place.rpartition(".")[0])
        if text != SEARCHED.get(module) and not all(may_name(module, one) for one in named):
            found.append(f"{line}: {text}")
    return found


@pytest.fixture(scope="module")
def modules() -> set[str]:
    return grimp.build_graph(*PACKAGES, cache_dir=None).modules


def source(module: str) -> Path:
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def test_no_text_names_a_module_above(modules: set[str]) -> None:
    found = {name: names_above(source(name).read_text(encoding="utf-8"), name, modules) for name in sorted(modules)}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("module", "code", "is_found"),
    [
        ("params.defaults", "import_module('trainer.objectives')", True),
        ("params.foundation.stages", "FUNCTIONS = {'train': 'tasks.training.stage:train'}", True),
        ("params.schema", "name = 'flows'", False),
        ("tasks.shards.times", "import_module(f'tasks.{folder}.stage')", True),
        ("tasks.stage_run", "import_module(f'tasks.{folder}.stage')", False),
        ("trainer.objectives", "import_module(f'{__name__}.{name}')", False),
        ("trainer.objectives.dpo", "trainer_class = 'trainer.loop.preference_trainer:PreferenceTrainer'", True),
        ("trainer.worker", "name = 'trainer.build'", False),
        ("tasks.measurement", "import_module('tasks.measurements.suites')", True),
        ("tasks.training.stage", "name = 'tasks.evaluation.stage'", True),  # side by side
        ("tasks.training.stage", "'''As tasks.publishing.stage.'''", False),
    ],
)
def test_names_that_are_found(module: str, code: str, is_found: bool, modules: set[str]) -> None:
    assert bool(names_above(code, module, modules)) == is_found
