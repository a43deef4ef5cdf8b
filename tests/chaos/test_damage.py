"""Damaged checkpoints are set aside, and the run continues from the newest valid one and ends like the golden run."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.victims import Victim, manifest
from tests.support import tiny
from trainer.checkpoints.resume import prepare_resume


def flip_a_bit(checkpoint: Path) -> None:
    """Change the middle of the weights, as a bad disk does."""
    weights = checkpoint / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)


def truncate(checkpoint: Path) -> None:
    """Cut the optimizer's state, as a disk does that loses what was not flushed."""
    state = checkpoint / "optimizer.pt"
    state.write_bytes(state.read_bytes()[:-100])


def empty(checkpoint: Path) -> None:
    """Leave an empty folder under the final name."""
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()


def of_another_run(checkpoint: Path) -> None:
    """Make it a valid checkpoint of a run with another seed."""
    run = json.loads((checkpoint / "run.json").read_text())
    (checkpoint / "run.json").write_text(json.dumps(run | {"seed": "4"}, indent=1))
    rewrite_manifest(checkpoint)


def without_position(checkpoint: Path) -> None:
    """Delete the position, also from the manifest. Trainer would resume from it, with the first rows."""
    (checkpoint / "position.json").unlink()
    rewrite_manifest(checkpoint)


def without_manifest(checkpoint: Path) -> None:
    """Delete the manifest, as if the checkpoint had been renamed too early."""
    (checkpoint / "manifest.json").unlink()


def rewrite_manifest(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").write_text(json.dumps(manifest(checkpoint)))


DAMAGES: dict[Callable[[Path], None], str] = {
    flip_a_bit: "not as it was written: model.safetensors",
    truncate: "not as it was written: optimizer.pt",
    empty: "it has no manifest",
    of_another_run: "another run",
    without_position: "it lacks the position in the data",
    without_manifest: "it has no manifest",
}
CHECKPOINTS = len(DAMAGES) + 1


@contextmanager
def killing(root: Path, *, golden: bool) -> Iterator[Victim]:
    """A run that was killed when it had a checkpoint for each damage and an older one; on request after the golden run."""
    steps = {"training.max_steps": 2 * CHECKPOINTS + 4, "training.keep_checkpoints": CHECKPOINTS}
    victim = Victim(root, steps, {"train": 240, "validation": 40, "test": 16}, fork=not golden)
    try:
        if golden:
            victim.train_golden()
        else:
            tiny.write(victim.artifacts.recipe_path, tiny.recipe(steps))
        assert victim.wait(victim.start(f"checkpoint.retained:{CHECKPOINTS}")).status == os.EX_TEMPFAIL
        assert len(victim.checkpoints()) == CHECKPOINTS
        yield victim
    finally:
        victim.project.end()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    with killing(tmp_path_factory.mktemp("damaged"), golden=False) as victim:
        yield victim


@pytest.mark.parametrize(("damage", "reason"), DAMAGES.items(), ids=[damage.__name__ for damage in DAMAGES])
def test_damaged_checkpoint_falls_back_to_the_one_before(killed, damage, reason, tmp_path, caplog):
    folder = tmp_path / killed.folder.name
    shutil.copytree(killed.folder, folder)
    newest, before = (folder / checkpoint.name for checkpoint in killed.checkpoints()[:2])
    run = json.loads((newest / "run.json").read_text())
    damage(newest)
    assert prepare_resume(folder, run, "auto") == before
    assert not newest.exists()
    (warning,) = (message for message in caplog.messages if "set aside" in message)
    assert f"broken-{newest.name}: " in warning
    assert reason in warning


@pytest.mark.slow
def test_run_with_damaged_checkpoints_ends_like_the_golden_run(tmp_path):
    with killing(tmp_path, golden=True) as killed:
        *newer, oldest = killed.checkpoints()
        for checkpoint, damage in zip(newer, DAMAGES, strict=True):
            damage(checkpoint)
        result = killed.run()
        assert result.status == 0, result.output
        assert result.set_aside == [checkpoint.name for checkpoint in newer]
        assert result.resumed_at == int(oldest.name.removeprefix("checkpoint-"))
        assert killed.final_differences() == []
