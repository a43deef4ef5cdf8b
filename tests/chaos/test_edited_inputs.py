"""Recipe and code are edited during every stage: it fails, DVC records nothing, and the next start takes what there is then."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from params.foundation.artifacts import Artifacts, write_text_atomically
from params.foundation.file_lock import hold_file_lock
from tests.chaos.campaign import IS_LONG
from tests.support.project import STAGES, Project, wait_for

pytestmark = pytest.mark.skipif(not IS_LONG, reason="only `make chaos` edits the inputs of every stage")

RECIPE_EDITS = {
    "ingest": ("seed: 3", "seed: 4"),
    "validate": ("max_quarantined: 0.05", "max_quarantined: 0.06"),
    "tokenize": ("vocab_size: 300", "vocab_size: 310"),
    "train": ("learning_rate: 1e-2", "learning_rate: 2e-2"),
    "evaluate": ("resamples: 200", "resamples: 210"),
    "publish": ("tests/tiny", "tests/other"),
}
CODE = {
    "ingest": "tasks/ingestion/report.py",
    "validate": "tasks/validation/report.py",
    "tokenize": "tasks/tokenization/report.py",
    "train": "trainer/losses.py",
    "evaluate": "tasks/evaluation/report.py",
    "publish": "tasks/publishing/model_card.py",
}


@pytest.mark.parametrize("edited", ["recipe", "code"])
@pytest.mark.parametrize("stage", STAGES)
def test_stage_whose_inputs_are_edited_records_nothing(finished: Project, stage: str, edited: str) -> None:
    path = finished.root / ("params/tiny.yaml" if edited == "recipe" else CODE[stage])
    before, entry = path.read_text(encoding="utf-8"), recorded_entry(finished, stage)
    old, new = RECIPE_EDITS[stage] if edited == "recipe" else (before, f"{before}# edited\n")
    release = finished.json("runs/tiny/release/receipt.json")["commit"]
    log = finished.root / "edited.log"
    shutil.rmtree(
        finished.root / ".scratch/tiny/checkpoints", ignore_errors=True
    )  # a finished training is restored at once
    with hold_file_lock(finished.root / Artifacts("tiny").log_lock, "this test"):  # evaluate and publish wait for it
        dvc = finished.start("dvc", "repro", "--force", "-s", f"{stage}@tiny", log=log.name)
        wait_for(lambda: f"{stage}: params/tiny.yaml" in log.read_text(), "the stage", 60, every_s=0.01)
        time.sleep(0.2)  # the inputs are read at once; imports and work take longer
        write_text_atomically(path, before.replace(old, new))  # a stage that starts slowly may import it just now
    try:
        assert dvc.wait(120) != 0, log.read_text()
        assert f"InputsChangedError: {stage}@tiny: changed while it ran: " in log.read_text()
        assert recorded_entry(finished, stage) == entry
    finally:
        path.write_text(before, encoding="utf-8")
    finished.run("dvc", "repro")
    assert finished.json("runs/tiny/release/receipt.json")["commit"] == release


def recorded_entry(project: Project, stage: str) -> dict:
    """What dvc.lock says of a stage."""
    return YAML(typ="safe").load(Path(project.root / "dvc.lock"))["stages"][f"{stage}@tiny"]
