"""How threads that compute wait for each other: bounded, in every process that imports torch, unless the user says otherwise."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project import ROOT

_FIRST_TORCH = """
import importlib, os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(os.environ.get("GOMP_SPINCOUNT"), flush=True)
            os._exit(0)

sys.meta_path.insert(0, Watch())
importlib.import_module(sys.argv[1])
import torch
"""
_LOAD = "import ctypes, sys, trainer; ctypes.CDLL(sys.argv[1])"


def run(code: str, argument: str, **own: str) -> subprocess.CompletedProcess[str]:
    """Run Python in an environment that says nothing about threads but `own`."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))} | own
    command = [sys.executable, "-c", code, argument]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)


@pytest.mark.parametrize(
    "module", ["trainer.worker", "trainer.iterative", "tasks.commands", "tasks.inference.tried_model"]
)
def test_spin_is_bounded_before_torch_is_imported(module: str) -> None:
    """In a training, a script, a stage or `try`, and the answers of a Hub's pages."""
    assert run(_FIRST_TORCH, module).stdout.strip() == "10000"


@pytest.mark.parametrize(
    ("own", "count"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "77"}, "77"), ({"OMP_WAIT_POLICY": "passive"}, "0")],
)
def test_openmp_takes_our_bound_and_rather_the_users_own(own: dict[str, str], count: str) -> None:
    torch = importlib.util.find_spec("torch")
    library = Path(str(torch and torch.origin)).parent / "lib" / "libgomp.so.1"
    if not library.exists():
        pytest.skip("this build of torch has another OpenMP")
    shown = run(_LOAD, str(library), OMP_DISPLAY_ENV="verbose", **own).stderr
    found = re.search(r"GOMP_SPINCOUNT = '(\d+)'", shown)
    assert found, shown
    assert found[1] == count
