"""Imports: no cycle, nothing in flows/ that hides a library, and slow packages only where they are needed."""

from __future__ import annotations

import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

from tests.support.project import ROOT, Project, copy_project

PACKAGES = ("params", "trainer", "tasks", "flows")


def test_no_import_cycle() -> None:
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False, cache_dir=None)
    order = TopologicalSorter({module: graph.find_modules_directly_imported_by(module) for module in graph.modules})
    try:
        order.prepare()
    except CycleError as error:
        pytest.fail(f"an import cycle: {' -> '.join(reversed(error.args[1]))}")


@pytest.mark.parametrize(
    "name", sorted({path.stem for path in (ROOT / "flows").iterdir()} - {"__init__", "__pycache__"})
)
def test_no_module_of_flows_hides_a_library(name: str, tmp_path: Path) -> None:
    """A Prefect worker loads flows/retrain.py with flows/ first in sys.path: flows/dvc would be imported as DVC."""
    find = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is not None)"
    assert subprocess.run([sys.executable, "-I", "-c", find], cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("module", "slow"),
    [
        ("flows.child_process", ("prefect", "dvc", "torch", "pydantic")),
        ("flows.cli", ("prefect", "dvc", "torch", "transformers", "pyarrow")),
        ("flows.run.nothing_new", ("prefect", "torch", "dvc")),  # Prefect's import takes longer than all it does
        ("flows.dvc_project.stage", ("prefect", "torch", "pandas", "pydantic")),
        (
            "flows.retrain",
            ("prefect.server", "torch", "transformers", "pandas", "pyarrow", "fastapi", "huggingface_hub"),
        ),
        ("flows.server.own", ("prefect", "uvicorn", "fastapi")),
        (
            "tasks.stage_inputs",
            ("trainer", "tasks.shards", "tasks.stages"),
        ),  # it hashes their code, which is imported later
        ("tasks.hub_client.local", ("fastapi", "torch", "huggingface_hub")),
        ("tasks.hub_server.server", ("fastapi", "uvicorn", "dulwich", "pydantic")),
        ("tasks.report.sections", ("matplotlib", "pyarrow")),
        ("tasks.training.stage", ("torch", "transformers", "accelerate", "pandas", "datasets")),
        ("trainer.identity", ("trainer.build", "trainer.job", "trainer.objectives", "torch")),
        ("trainer.reporting.metrics_log", ("torch", "transformers")),  # the train stage reads the metrics with it
        ("trainer.worker", ("torch", "transformers", "trainer.job")),  # its parent must be known first
    ],
)
def test_slow_packages_are_imported_only_when_needed(module: str, slow: tuple[str, ...]) -> None:
    code = f"import sys, {module}; sys.exit(str([name for name in {slow} if name in sys.modules] or ''))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr.strip() == ""


MODELS = ("torch", "transformers.trainer", "transformers.modeling_utils", "accelerate", "datasets", "peft")
NOT_IMPORTED = {
    "ingest": (*MODELS, "transformers", "great_expectations", "scipy", "sqlalchemy", "matplotlib", "fastapi"),
    "validate": (*MODELS, "transformers", "scipy.stats._stats_py", "sqlalchemy", "matplotlib", "fastapi"),
    "tokenize": (*MODELS, "great_expectations", "scipy", "sqlalchemy", "matplotlib", "fastapi"),
}
"""What a stage must not import, although packages that it needs would import it."""


def test_each_data_stage_imports_only_what_it_needs(tmp_path: Path) -> None:
    copy_project(tmp_path)
    code = "import sys; from tasks.commands import main; status = main([sys.argv[1], 'tiny']); "
    code += "print('imported', *(name for name, module in sys.modules.items() if module)); sys.exit(status)"
    imported = {}
    for stage in NOT_IMPORTED:
        out = Project(tmp_path, tmp_path).run(sys.executable, "-c", code, stage)
        imported[stage] = set(out.splitlines()[-1].split())
    found = {stage: sorted(imported[stage] & set(names)) for stage, names in NOT_IMPORTED.items()}
    assert found == {stage: [] for stage in NOT_IMPORTED}


@pytest.mark.slow  # what it guards is a tenth of the start of a process
def test_a_network_is_imported_without_scipy() -> None:
    code = "import sys; sys.modules.update(peft=None, torchao=None); from trainer.runtime import memory; "
    code += "memory.import_network_code(); import transformers.models.llama.modeling_llama; "
    code += "print('scipy.optimize' in sys.modules, transformers.utils.is_scipy_available())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True"]
