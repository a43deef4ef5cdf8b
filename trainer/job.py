"""What one training is: everything the worker needs, handed over as a JSON file, and the key that identifies it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from params.schema import Launch, Model, ObjectiveChoice, Section, Training

_CODE = Path(__file__).parent
_EFFECTLESS = {"logging_steps", "keep_checkpoints"}
"""Keys of `training` that change what is written down, not what is learned."""


class Job(Section):
    """One training, as `tasks.training` hands it to `trainer.worker`."""

    seed: int
    objective: ObjectiveChoice
    model: Model
    training: Training
    launch: Launch
    tokens: Path
    """Folder with `<split>.arrow`, tokenizer/ and objective.json."""
    folder: Path
    """Folder of this run's checkpoints and best weights."""
    checkpoint: Path | None = None
    """The checkpoint to go on from; the supervisor chooses it, so that all processes take up the same."""

    def save(self, path: Path) -> None:
        """Write the job to `path`."""
        path.write_text(self.model_dump_json(indent=2), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Job:
        """The job that was written to `path`."""
        return cls.model_validate_json(path.read_text(encoding="utf-8"), strict=False)


def run_key(*, seed: int, objective: ObjectiveChoice, model: Model, training: Training, tokens: Path) -> str:
    """Sixteen hex digits that are equal for two trainings if and only if they must give the same weights.

    In it: the recipe's keys that determine the run, the tokens and tokenizer, a local base model's files, and the code
    of this package. Not in it: the number of processes, the micro-batch, how often something is logged.
    """
    digest = hashlib.sha256()
    recipe = {
        "seed": seed,
        "objective": objective.model_dump(mode="json"),
        "model": model.model_dump(mode="json"),
        "training": training.model_dump(mode="json", exclude=_EFFECTLESS),
    }
    digest.update(json.dumps(recipe, sort_keys=True).encode())
    files = [*sorted(_CODE.glob("*.py")), _CODE / "objectives" / f"{objective.name}.py"]
    files += sorted(p for p in tokens.rglob("*") if p.is_file() and p.suffix in {".arrow", ".json"})
    if model.pretrained and Path(model.pretrained).is_dir():
        files += sorted(p for p in Path(model.pretrained).iterdir() if p.suffix in {".safetensors", ".json"})
    for path in files:
        digest.update(path.name.encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
