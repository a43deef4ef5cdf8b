"""How much there is to understand in the product: syntax-tree nodes, branch points of functions, files that name a feature.

    python -m benchmarks.code_figures [folder of the project]

A branch point is an `if`, a conditional expression, a loop, an `except`, a `for` or `if` of a comprehension, an operand of `and` and `or`
beyond the first, and a `case`. Those of a function inside of another one count there alone. Where a function is above
`MAX_BRANCH_POINTS` for a reason, the comment above it says so: `# 14 branch points: <reason>`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).parents[1]
PRODUCT = ("flows", "tasks", "trainer", "params", "src")
"""The folders of the product, as far as there are."""
MAX_BRANCH_POINTS = 12
"""Most branch points of a function that has no reason for more."""
FEATURES = ("suites", "drift", "corpus", "group_by", "corrections")
"""Features of a recipe that should each be named in few files."""
PLUG_POINTS = ("Objective", "Metric", "Format", "Measurement", "Stage")
"""Classes whose members are counted: what somebody meets who adds one."""
_REASON = re.compile(r"# (\d+) branch points: \S")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case)


class Function(NamedTuple):
    """A function with its branch points, and how many the comment above it gives a reason for."""

    path: str
    name: str
    line: int
    branch_points: int
    explained: int


@cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a file, read once."""
    return ast.parse(path.read_text(encoding="utf-8"))


def product_files(project: Path = PROJECT) -> list[Path]:
    """Return the Python files of the product."""
    return [path for folder in PRODUCT for path in sorted((project / folder).rglob("*.py"))]


def branch_points(node: ast.AST) -> int:
    """Return the branch points inside of a node, without those of functions and classes in it."""
    count = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*_FUNCTIONS, ast.ClassDef)):
            continue
        if isinstance(child, _BRANCHES):
            count += 1
        elif isinstance(child, ast.BoolOp):
            count += len(child.values) - 1
        elif isinstance(child, ast.comprehension):
            count += 1 + len(child.ifs)
        count += branch_points(child)
    return count


def functions_above(project: Path = PROJECT, limit: int = MAX_BRANCH_POINTS) -> Iterator[Function]:
    """Yield the functions of the product that have more branch points."""
    for path in product_files(project):
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in ast.walk(parse(path)):
            if not isinstance(node, _FUNCTIONS):
                continue
            count = branch_points(node)
            if count > limit:
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                where = path.relative_to(project).as_posix()
                yield Function(where, node.name, node.lineno, count, _explained(lines[: first - 1]))


def _explained(lines_before: list[str]) -> int:
    """Return the number of branch points that the comment at the end of these lines gives a reason for."""
    for line in map(str.strip, reversed(lines_before)):
        if not line.startswith("#"):
            break
        if found := _REASON.match(line):
            return int(found[1])
    return 0


def files_that_name(feature: str, project: Path = PROJECT) -> int:
    """Return how many files of the product have a feature's name as a word; pages and their templates count, too."""
    word = re.compile(rf"\b{feature}\b")
    files = (path for folder in PRODUCT for path in (project / folder).rglob("*"))
    texts = (path.read_bytes().decode(errors="ignore") for path in files if path.suffix != ".pyc" and path.is_file())
    return sum(1 for text in texts if word.search(text))


def members_of_plug_points(project: Path = PROJECT) -> dict[str, tuple[int, int]]:
    """Return for each plug point how many public members it has with its bases, and how many of them have no default."""
    classes: dict[str, ast.ClassDef] = {}
    for path in product_files(project):
        classes |= {node.name: node for node in parse(path).body if isinstance(node, ast.ClassDef)}
    found = {}
    for name in PLUG_POINTS:
        if name in classes:
            members = _members(name, classes)
            found[name] = len(members), sum(members.values())
    return found


def _members(name: str, classes: Mapping[str, ast.ClassDef]) -> dict[str, bool]:
    """Return the public members of a class and of its bases, and whether each has to be given."""
    members: dict[str, bool] = {}
    for base in classes[name].bases:
        base_name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
        if base_name in classes and base_name != name:
            members |= _members(base_name, classes)
    for node in classes[name].body:
        match node:
            case ast.FunctionDef(name=member, decorator_list=decorators):
                is_needed = any("abstractmethod" in ast.unparse(decorator) for decorator in decorators)
            case ast.AnnAssign(target=ast.Name(id=member), value=value):
                is_needed = value is None
            case ast.Assign(targets=[ast.Name(id=member)]):
                is_needed = False
            case _:
                continue
        if not member.startswith("_"):
            members[member] = is_needed
    return members


def _count_nodes(project: Path) -> tuple[Counter[str], Counter[str]]:
    """Return the nodes and the lines of each folder of the product."""
    nodes, lines = Counter[str](), Counter[str]()
    for path in product_files(project):
        folder = "/".join(path.relative_to(project).parent.parts[:2])
        nodes[folder] += sum(1 for _ in ast.walk(parse(path)))
        lines[folder] += len(path.read_text(encoding="utf-8").splitlines())
    return nodes, lines


def main(project: Path = PROJECT) -> None:
    nodes, lines = _count_nodes(project)
    above = list(functions_above(project))
    tests = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (project / "tests").rglob("*.py"))
    figures = {
        "nodes of the product": nodes.total(),
        "lines of the product": lines.total(),
        "nodes per line": round(nodes.total() / lines.total(), 1),
        f"functions above {MAX_BRANCH_POINTS} branch points": len(above),
        "of these without a reason": sum(one.explained != one.branch_points for one in above),
    }
    for name, (count, needed) in members_of_plug_points(project).items():
        figures |= {f"members of {name}": count, f"of these without a default in {name}": needed}
    figures |= {f"files that name `{feature}`": files_that_name(feature, project) for feature in FEATURES}
    for name, figure in (figures | {"lines of tests": tests}).items():
        print(f"{figure:>9,}  {name}")
    print("\nnodes and nodes per line of each folder")
    for folder, count in nodes.most_common():
        print(f"{count:>9,}  {count / lines[folder]:4.1f}  {folder}")
    print(f"\nfunctions above {MAX_BRANCH_POINTS} branch points")
    for one in sorted(above, key=lambda one: -one.branch_points):
        reason = "with a reason" if one.explained == one.branch_points else ""
        print(f"{one.branch_points:>9}  {one.path}:{one.line} {one.name} {reason}".rstrip())


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
