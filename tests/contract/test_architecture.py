"""docs/architecture.md shows every folder and what each stage reads, and the modules and names in the docs exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from params.foundation.stages import PIPELINE, STAGES, Stage
from tests.support.project import ROOT

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
PAGES.remove(ROOT / "docs/iterative.md")  # `trainer` is a variable there


@pytest.mark.parametrize("package", ["params", "trainer", "tasks", "flows"])
def test_tree_shows_every_folder(package: str) -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    block = re.search(rf"^    {package}/(.*?)(?=^    \w+[/.]|^\S)", text, re.MULTILINE | re.DOTALL)
    assert block
    folders = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
    assert folders <= set(re.findall(r"(\w+)/", block[0]))


@pytest.mark.parametrize("stage", PIPELINE, ids=STAGES)
def test_table_of_stages_has_what_each_reads(stage: Stage) -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    (read,) = re.findall(rf"^\| {stage.name} \| ([^|]+) \|", text, re.MULTILINE)
    assert sorted(re.findall(r"[\w.]+", read)) == sorted({*stage.sections} - {"launch"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_and_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    code = re.sub(r"```.*?```", "", text, flags=re.DOTALL)  # examples name modules of the user
    missing = [name for name in re.findall(r"`((?:params|trainer|tasks|flows)(?:\.\w+)+)", code) if not exists(name)]
    paths = re.findall(r"`((?:params|trainer|tasks|flows|tests|benchmarks)/[\w/]+\.py)", code)
    missing += [path for path in paths if not (ROOT / path).exists()]
    assert missing == []


def exists(name: str) -> bool:
    """Whether a dotted name is a package, a module, or a module's class, function or constant."""
    parts = name.split(".")
    path = ROOT / "/".join(parts)
    if path.is_dir() or path.with_suffix(".py").exists():
        return True
    *module, last = parts
    source = ROOT / ("/".join(module) + ".py")
    source = source if source.exists() else ROOT / "/".join(module) / "__init__.py"
    return source.exists() and last in names(source)


def names(source: Path) -> set[str]:
    """The names that a module defines or imports."""
    found: set[str] = set()
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found.add(name)
            case ast.Assign(targets=targets):
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.ImportFrom(names=aliases):
                found |= {alias.asname or alias.name for alias in aliases}
    return found
