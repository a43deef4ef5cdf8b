"""Short runs of the benchmarks."""

from __future__ import annotations

import importlib
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks import gate_families, gate_simulation
from benchmarks.workload import classifier, language_model, sequences, texts, trainer
from tests.support.project import ROOT


@pytest.mark.parametrize("kind", ["ours", "plain"])
@pytest.mark.parametrize("work", ["language model", "classifier"])
def test_benchmark_trainers_take_every_step(tmp_path, kind, work):
    if work == "classifier":
        data, model = texts([4, 9, 5, 17, 6, 12, 30, 8]), classifier(32, 1)
    else:
        data, model = sequences(8, 16), language_model(16, 1)
    made = trainer(kind, tmp_path, data, model, max_steps=2, save_steps=1, per_device_train_batch_size=2)
    made.train()
    assert made.state.global_step == 2
    assert len(made.stalls_s) == 2
    assert made.first_step_s > 0.0


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_every_benchmark_imports_and_names_its_command(path):
    module = importlib.import_module(f"benchmarks.{path.stem}")
    assert module.__doc__
    if path.stem not in {"workload", "gate_families", "gate_equal_models", "reference_trainers", "__main__"}:
        assert path.stem in module.__doc__  # the command that runs it


def test_gate_simulation_prints_every_cell(capsys, monkeypatch, tmp_path):
    """test_gate_simulation.py tests the rates."""
    families = (gate_families.Accuracy(200, 0.9, 0.05), gate_families.BitsPerByte(50, 1.0, rare=True))
    monkeypatch.setattr(gate_simulation, "FAMILIES", families)
    monkeypatch.setattr(gate_simulation, "EQUAL", ())
    monkeypatch.setattr(gate_simulation, "FEW", (1, 5))
    monkeypatch.setattr(gate_simulation, "ProcessPoolExecutor", lambda count, mp_context: ThreadPoolExecutor(count))
    monkeypatch.setattr("sys.argv", ["gate_simulation", "--pairs", "2", "--json", str(tmp_path / "rates.json")])
    gate_simulation.main()
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    for family in families:
        cells = [row[2:] for row in rows if row[0] == family.describe()]
        assert len(cells) == len(gate_simulation.GATES)
        assert all(0 <= float(value) <= 100 for row in cells for value in row)
    rates = json.loads((tmp_path / "rates.json").read_text())
    assert {rate["pairs"] for rate in rates} == {2}
    assert sum("alarm" in rate for rate in rates) == 24
