"""What one training is: everything the worker needs, handed over as a JSON file, and the key that identifies it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from params import RecipeError
from params.importing import source_files
from params.loading import suggestion
from params.schema import Launch, Metrics, Model, ObjectiveChoice, Section, Training
from trainer.objectives import find

_CODE = Path(__file__).parent
_EFFECTLESS = {"logging_steps", "keep_checkpoints", "save_steps", "save_minutes", "resume"}
"""Keys of `training` that change what is written down, not what is learned."""
_EFFECTLESS_PREFIXES = (
    "logging_",
    "log_",
    "dataloader_",
    "report_to",
    "trackio_",
    "ddp_timeout",
    "eval_accumulation_steps",
)
_EFFECTLESS_ARGUMENTS = {"run_name", "project", "skip_memory_metrics", "debug"}


class Job(Section):
    """One training, as `tasks.training.stage` hands it to `trainer.worker`."""

    seed: int
    objective: ObjectiveChoice
    model: Model
    training: Training
    launch: Launch
    metrics: Metrics | None = None
    tokens: Path
    """Folder with `<split>.arrow`, tokenizer/ and objective.json."""
    folder: Path
    """Folder of this run's checkpoints and best weights."""
    identity: dict[str, str]
    """All that determines the run, see `identity`."""
    checkpoint: Path | None = None
    """The checkpoint to go on from; the supervisor chooses it, so that all processes take up the same."""
    stop_at_step: int | None = None
    """Stop after this step as if asked to; for `verify-resume`."""
    record: bool = False
    """Write down what each step saw, to `steps-<rank>.jsonl` in the run's folder; for `verify-resume`."""

    @classmethod
    def plan(
        cls,
        root: Path,
        *,
        seed: int,
        objective: ObjectiveChoice,
        model: Model,
        training: Training,
        launch: Launch,
        metrics: Metrics | None,
        tokens: Path,
        stop_at_step: int | None = None,
        record: bool = False,
    ) -> Job:
        """The training that these sections describe, in a folder of `root` that is named after its identity."""
        determined = identity(
            seed=seed, objective=objective, model=model, training=training, metrics=metrics, tokens=tokens
        )
        return cls(
            seed=seed,
            objective=objective,
            model=model,
            training=training,
            launch=launch,
            metrics=metrics,
            tokens=tokens.absolute(),
            folder=(root / run_key(determined)).absolute(),
            identity=determined,
            stop_at_step=stop_at_step,
            record=record,
        )

    @property
    def direction(self) -> Literal["min", "max"]:
        """Whether the smallest or the largest `training.best_metric` is best.

        Raises:
            RecipeError: nothing computes it.
        """
        own = self.metrics.directions if self.metrics else {}
        known = {**find(self.objective.name).metrics, **own}
        wanted = self.training.best_metric
        if wanted not in known:
            fix = suggestion(wanted, list(known), "metrics")
            raise RecipeError("training.best_metric", f"{self.objective.name} does not compute {wanted!r}", fix)
        return known[wanted]

    def save(self, path: Path) -> None:
        """Write the job to `path`."""
        path.write_text(self.model_dump_json(indent=2), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Job:
        """The job that was written to `path`."""
        return cls.model_validate_json(path.read_text(encoding="utf-8"), strict=False)


def identity(
    *,
    seed: int,
    objective: ObjectiveChoice,
    model: Model,
    training: Training,
    metrics: Metrics | None = None,
    tokens: Path,
) -> dict[str, str]:
    """All that determines the weights that a training gives, by name: equal for two trainings that must give the same.

    In it: the recipe's keys that determine the run, and hashes of the tokens and tokenizer, of a local base model's
    files, of the code that the recipe names, and of this package's. Not in it: the number of processes, the micro-batch, what is logged and kept.
    """
    keys = {
        "seed": seed,
        "objective": objective.model_dump(mode="json"),
        "model": model.model_dump(mode="json"),
        "training": training.model_dump(mode="json", exclude=_EFFECTLESS),
        "metrics": metrics.model_dump(mode="json") if metrics else None,
    }
    arguments = keys["training"]["arguments"]  # type: ignore[index]
    keys["training"]["arguments"] = {k: v for k, v in arguments.items() if not is_effectless(k)}  # type: ignore[index]
    found = dict(_flat(keys))
    files = {f"code {p.name}": p for p in [*_CODE.glob("*.py"), _CODE / "objectives" / f"{objective.name}.py"]}
    files |= {f"code {name}": path for name, path in source_files(keys)}
    data = (p for p in tokens.rglob("*") if p.is_file() and p.suffix in {".arrow", ".json"})
    files |= {f"tokens {p.relative_to(tokens)}": p for p in data}
    if model.pretrained and Path(model.pretrained).is_dir():
        weights = (p for p in Path(model.pretrained).iterdir() if p.suffix in {".safetensors", ".json"})
        files |= {f"base model {p.name}": p for p in weights}
    for name, path in files.items():
        with path.open("rb") as file:
            found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return dict(sorted(found.items()))


def run_key(identity: Mapping[str, str]) -> str:
    """Sixteen hex digits for an identity, for the name of its folder."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def is_effectless(argument: str) -> bool:
    """Whether a field of TrainingArguments changes what is written down or how fast it goes, not what is learned."""
    return argument in _EFFECTLESS_ARGUMENTS or argument.startswith(_EFFECTLESS_PREFIXES)


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else key)
    else:
        yield name, json.dumps(value, sort_keys=True)
