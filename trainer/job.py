"""The job that the train stage hands to `trainer.worker` as a JSON file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from params import InputsChangedError, RecipeError
from params.foundation.artifacts import Artifacts
from params.loading import suggestion
from params.schema import Direction, Launch, Metrics, Model, ObjectiveChoice, Recipe, Section, Training
from trainer.identity import code_hashes, deciding_keys, run_identity, run_key
from trainer.objectives import find


class Job(Section):
    """One training, as `tasks.training.stage` hands it to `trainer.worker`."""

    seed: int
    objective: ObjectiveChoice
    model: Model
    training: Training
    launch: Launch
    metrics: Metrics | None = None
    tokens: Path
    """Folder with a folder of shards for each split, tokenizer/ and objective.json."""
    folder: Path
    """Folder of this run's checkpoints and best weights."""
    identity: dict[str, str]
    """Everything that decides the weights, see `trainer.identity.run_identity`."""
    checkpoint: Path | None = None
    """The checkpoint to resume from; the supervisor chooses it, so that all processes use the same."""
    stop_at_step: int | None = None
    """Stop after this step as if a stop were requested; for `verify-resume`."""
    keep_freed_memory: bool = True
    """Whether the processes keep the memory that a step frees (`trainer.runtime.memory`); false once memory has run out."""
    record: bool = False
    """Record what each step saw in `steps-<rank>.jsonl` in the run's folder; for `verify-resume`."""

    @classmethod
    def plan(
        cls,
        artifacts: Artifacts,
        *,
        seed: int,
        objective: ObjectiveChoice,
        model: Model,
        training: Training,
        launch: Launch,
        metrics: Metrics | None,
    ) -> Job:
        """Return the job of these sections of a recipe; its folder is named after its identity."""
        keys: Any = {"seed": seed, "objective": objective, "model": model, "training": training, "metrics": metrics}
        identity = run_identity(**keys, tokens=artifacts.tokens)
        folder = (artifacts.checkpoints / run_key(identity)).absolute()
        return cls(**keys, launch=launch, tokens=artifacts.tokens.absolute(), folder=folder, identity=identity)

    @classmethod
    def of(cls, recipe: Recipe, artifacts: Artifacts) -> Job:
        """Return the job that the train stage runs for `recipe`."""
        return cls.plan(
            artifacts,
            seed=recipe.seed,
            objective=recipe.objective,
            model=recipe.model,
            training=recipe.training,
            launch=recipe.launch,
            metrics=recipe.evaluation.metrics,
        )

    def check_code(self) -> None:
        """Fail if the code that decides the weights is not what it was when the job was planned.

        Raises:
            InputsChangedError: names the code.
        """
        names = ("seed", "objective", "model", "training", "metrics")
        now = code_hashes(deciding_keys(**{name: getattr(self, name) for name in names}))
        planned = {name: value for name, value in self.identity.items() if name.startswith("code ")}
        changed = sorted(name for name in now.keys() | planned.keys() if now.get(name) != planned.get(name))
        if changed:
            what = (
                f"changed since the training was planned: {', '.join(name.removeprefix('code ') for name in changed)}"
            )
            fix = "run the recipe again; for several machines, use the same code on all of them"
            raise InputsChangedError("train", what, fix)

    @property
    def direction(self) -> Direction:
        """Whether the smallest or the largest value of `training.best_metric` is best; RecipeError if it is unknown."""
        own = self.metrics.directions if self.metrics else {}
        known = {**find(self.objective.name).metrics, **own}
        name = self.training.best_metric
        if name not in known:
            fix = suggestion(name, list(known), "metrics")
            raise RecipeError("training.best_metric", f"{self.objective.name} does not compute {name!r}", fix)
        return known[name]

    def save(self, path: Path) -> None:
        """Write the job to `path`."""
        path.write_text(self.model_dump_json(indent=2), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Job:
        """Return the job that was written to `path`."""
        return cls.model_validate_json(path.read_text(encoding="utf-8"), strict=False)
