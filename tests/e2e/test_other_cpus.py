"""The promises of bits on CPUs that compute in another way than this machine's, by the variables that make libraries compute so.

A weight that a file holds may begin anywhere. Without AVX, kernels of MKL give other bits there; with AVX-512, on which this project is
developed, they do not, so no other test would see that weights are not aligned.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from params import Recipe
from params.foundation.artifacts import Artifacts
from tests.support import pretrained, releases, tiny
from tests.support.placed_weights import CPUS, offsets, place_weights
from tests.support.project import ROOT
from tests.support.training import assert_same, run_train, run_train_with_kills

CASES = [
    "tests/e2e/test_other_cpus.py::test_one_model_at_many_addresses_trains_resumes_and_scores_alike",
    "tests/e2e/test_exact_resume.py",
    "tests/contract/test_objectives.py",
    "tests/unit/trainer/model",
]

pytestmark = pytest.mark.slow


def test_one_model_at_many_addresses_trains_resumes_and_scores_alike(tmp_path: Path) -> None:
    base = pretrained.write_model(tmp_path / "base")
    changes = {
        "tokenization.tokenizer": {"kind": "pretrained", "path": str(base)},
        "launch": {
            "num_processes": 1,
            "micro_batch_size": 1,
            "eval_batch_size": 1,
        },  # MKL multiplies by a vector, not a matrix
    }
    content = tiny.recipe(changes, **tiny.CLASSES | {"model": {"pretrained": str(base)}})
    first, recipe = releases.tokenized(tmp_path / "first", content)
    place_weights(base / "model.safetensors", 0)
    run_train(first, recipe)
    scores = scores_of(first, recipe)
    for offset in offsets():
        place_weights(base / "model.safetensors", offset)
        other = Artifacts("tiny", tmp_path / f"at-{offset}")
        shutil.copytree(first.root, other.root, ignore=shutil.ignore_patterns(".scratch", "model", "checkpoint"))
        if offset == 24:
            other = run_train_with_kills(other, recipe, "checkpoint.renamed:1")
        else:
            run_train(other, recipe)
        assert_same(first, other)
        place_weights(other.model / "model.safetensors", offset)
        assert scores_of(other, recipe) == scores


def scores_of(artifacts: Artifacts, recipe: Recipe) -> dict[str, object]:
    """The score of each row, and the metrics."""
    releases.evaluate(artifacts, recipe)
    tables = {path.stem: pq.read_table(path).to_pydict() for path in (artifacts.evaluation / "scores").iterdir()}
    return tables | {"metrics": json.loads((artifacts.evaluation / "metrics.json").read_bytes())}


@pytest.mark.parametrize("cpu", CPUS)
def test_bits_hold_on_a_cpu(tmp_path: Path, cpu: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "slow or not slow", *CASES]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}  # it is no worker
    done = subprocess.run(
        [*command, f"--basetemp={tmp_path / 'own'}"],
        cwd=ROOT,
        env=own | CPUS[cpu],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
