"""The import graph: no cycle, no module of flows/ that hides a library, and slow packages only when needed."""

from __future__ import annotations

import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

from tests.support.project import ROOT

PACKAGES = ("params", "trainer", "tasks", "flows")


def test_no_import_cycle() -> None:
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False, cache_dir=None)
    order = TopologicalSorter({module: graph.find_modules_directly_imported_by(module) for module in graph.modules})
    try:
        order.prepare()
    except CycleError as error:
        pytest.fail(f"an import cycle: {' -> '.join(reversed(error.args[1]))}")


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "flows").glob("*.py") if path.stem != "__init__"))
def test_no_module_of_flows_hides_a_library(name: str, tmp_path: Path) -> None:
    """A Prefect worker loads flows/retrain.py with flows/ first in sys.path: flows/dvc.py would be imported as DVC."""
    find = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is not None)"
    assert subprocess.run([sys.executable, "-I", "-c", find], cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("module", "slow"),
    [
        ("tasks.hub_client.local", ("fastapi", "torch", "huggingface_hub")),
        ("tasks.hub_server.server", ("fastapi", "uvicorn", "dulwich", "pydantic")),
        ("tasks.report.chart_data", ("matplotlib", "pyarrow")),
    ],
)
def test_slow_packages_are_imported_only_when_needed(module: str, slow: tuple[str, ...]) -> None:
    code = f"import sys, {module}; sys.exit(str([name for name in {slow} if name in sys.modules] or ''))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr.strip() == ""
