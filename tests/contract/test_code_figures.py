"""No function of the product is above 12 branch points without a reason in the comment above it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from benchmarks.code_figures import files_that_name, functions_above, members_of_plug_points

# fmt: off
STILL_ABOVE = {
    "tasks/diagnostics/check.py": "_dvc_problems _gate_problems",
    "tasks/diagnostics/compare_runs.py": "_difference",
    "tasks/diagnostics/model_checks.py": "find_unmarked_ends_of_texts",
    "tasks/diagnostics/rehearse.py": "rehearse",
    "tasks/diagnostics/trace.py": "token_lines trace_sections",
    "tasks/evaluation/analysis.py": "_slice",
    "tasks/evaluation/plan.py": "plan_evaluation_and_encode",
    "tasks/evaluation/reading.py": "find",
    "tasks/measurements/labels/results.py": "report_labels",
    "trainer/objectives/bases/conversations/chat.py": "_tokenize_spans",
    "trainer/objectives/bases/conversations/verbatim.py": "_find_kind",
    "trainer/objectives/bases/texts/continuations.py": "tokenize_behind_characters",
    "trainer/objectives/question_answering.py": "_encode_row",
    "trainer/objectives/sft.py": "encode",
}
# fmt: on
"""Functions from before this rule, which are to be unfolded. None is added; one that is not above any more is removed here."""


def test_no_function_is_above_without_a_reason() -> None:
    found = defaultdict(list)
    for one in functions_above():
        if one.explained != one.branch_points:
            found[one.path].append(one.name)
    known = {path: sorted(names.split()) for path, names in STILL_ABOVE.items()}
    assert {path: sorted(names) for path, names in found.items()} == known, (
        "unfold a function that is new here, or say above it `# 14 branch points: <reason>`; remove what is not above any more"
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "tasks").mkdir()
    return tmp_path


def count(project: Path, code: str, limit: int = 0) -> list[tuple[str, int, int]]:
    (project / "tasks" / f"{abs(hash(code))}.py").write_text(code)
    found = [(one.name, one.branch_points, one.explained) for one in functions_above(project, limit)]
    (project / "tasks" / f"{abs(hash(code))}.py").unlink()
    return found


@pytest.mark.parametrize(
    ("line", "points"),
    [
        ("return 1", 0),
        ("return a and b and c", 2),
        ("return 1 if a else 2", 1),
        ("return [x for x in a if x if b]", 3),
        ("return lambda: 1 if a else 2", 1),
        ("for x in a: pass", 1),
        ("while a or b: pass", 2),
        ("if a: pass\n    elif b: pass\n    else: pass", 2),
        ("try: pass\n    except ValueError: pass\n    finally: pass", 1),
        ("match a:\n        case 1: pass\n        case _: pass", 2),
    ],
)
def test_branch_points(project: Path, line: str, points: int) -> None:
    found = count(project, f"def f(a, b, c):\n    {line}\n")
    assert found == ([("f", points, 0)] if points else [])


def test_a_function_inside_counts_alone(project: Path) -> None:
    code = "def f(a):\n    if a: pass\n    def g():\n        for _ in a:\n            if a: pass\n    return g\n"
    assert sorted(count(project, code)) == [("f", 1, 0), ("g", 2, 0)]


def test_a_reason_stands_directly_above_and_says_how_many(project: Path) -> None:
    function = "def f(a):\n    return a and a\n"
    assert count(project, f"# 1 branch points: because\n# it is so\n@decorated\n{function}") == [("f", 1, 1)]
    assert count(project, f"# 1 branch points:\n{function}") == [("f", 1, 0)]
    assert count(project, f"# 1 branch points: because\n\n{function}") == [("f", 1, 0)]


def test_features_are_counted_in_pages_too(project: Path) -> None:
    (project / "tasks" / "page.jinja").write_text("{{ drift }}")
    (project / "tasks" / "other.py").write_text("drifted = 1")
    assert files_that_name("drift", project) == 1


def test_members_are_those_of_the_bases_too(project: Path) -> None:
    code = "class Base:\n    given = 1\n    needed: int\nclass Metric(Base):\n    needed = 2\n    _own: int\n"
    code += "    @abstractmethod\n    def one(self): ...\n    def two(self): ...\n"
    (project / "tasks" / "metric.py").write_text(code)
    assert members_of_plug_points(project) == {"Metric": (4, 1)}
