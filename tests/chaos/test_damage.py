"""Damaged checkpoints are set aside by name, and a run goes on from the newest valid one, to the same end."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.victims import EX_TEMPFAIL, Victim
from trainer.checkpoints.resume import choose


def flip_a_bit(checkpoint: Path) -> None:
    """In the middle of the weights, as a bad disk does."""
    weights = checkpoint / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)


def truncate(checkpoint: Path) -> None:
    """The optimizer's state, as a disk does that loses what was not flushed."""
    state = checkpoint / "optimizer.pt"
    state.write_bytes(state.read_bytes()[:-100])


def empty(checkpoint: Path) -> None:
    """A folder under its final name, with nothing in it."""
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()


def of_another_run(checkpoint: Path) -> None:
    """Whole and sound, but of a run with another seed."""
    run = json.loads((checkpoint / "run.json").read_text())
    (checkpoint / "run.json").write_text(json.dumps(run | {"seed": "4"}, indent=1))
    sign_again(checkpoint)


def without_position(checkpoint: Path) -> None:
    """All that is there is as the manifest says; Trainer itself would go on from it, with the rows from the start."""
    (checkpoint / "position.json").unlink()
    sign_again(checkpoint)


def without_manifest(checkpoint: Path) -> None:
    """As one that was never finished would look, were it not renamed last."""
    (checkpoint / "manifest.json").unlink()


def sign_again(checkpoint: Path) -> None:
    import hashlib

    files = (path for path in checkpoint.iterdir() if path.name != "manifest.json")
    manifest = {path.name: [path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()] for path in files}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


DAMAGES: dict[Callable[[Path], None], str] = {
    flip_a_bit: "not as it was written: model.safetensors",
    truncate: "not as it was written: optimizer.pt",
    empty: "it has no manifest",
    of_another_run: "another run",
    without_position: "it lacks the place in the data",
    without_manifest: "it has no manifest",
}
KEPT = len(DAMAGES) + 1


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    """A run that was killed when it had one checkpoint for each damage, and one more, the oldest."""
    steps = {"training.max_steps": 2 * KEPT + 4, "training.keep_checkpoints": KEPT}
    victim = Victim(tmp_path_factory.mktemp("damaged"), steps, {"train": 240, "validation": 40, "test": 16})
    try:
        victim.train_golden()
        assert victim.wait(victim.start(f"checkpoint.retained:{KEPT}")).status == EX_TEMPFAIL
        assert len(victim.checkpoints()) == KEPT
        yield victim
    finally:
        victim.project.end()


@pytest.mark.parametrize(("damage", "why"), DAMAGES.items(), ids=[damage.__name__ for damage in DAMAGES])
def test_damaged_checkpoint_falls_back_to_the_one_before(killed, damage, why, tmp_path, caplog):
    folder = tmp_path / killed.folder.name
    shutil.copytree(killed.folder, folder)
    newest, before = (folder / checkpoint.name for checkpoint in killed.checkpoints()[:2])
    run = json.loads((newest / "run.json").read_text())
    damage(newest)
    assert choose(folder, run, "auto") == before
    assert not newest.exists()
    (line,) = (message for message in caplog.messages if "set aside" in message)
    assert f"broken-{newest.name}: " in line
    assert why in line


def test_run_with_every_checkpoint_damaged_ends_like_the_golden_run(killed):
    """Last in this module: it ends the run."""
    *newer, oldest = killed.checkpoints()
    for checkpoint, damage in zip(newer, DAMAGES, strict=True):
        damage(checkpoint)
    left = killed.run()
    assert left.status == 0, left.output
    assert left.set_aside == [checkpoint.name for checkpoint in newer]
    assert left.resumed_at == int(oldest.name.removeprefix("checkpoint-"))
    assert killed.final_differences() == []
