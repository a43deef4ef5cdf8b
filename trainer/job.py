"""The job that the train stage hands to `trainer.worker` as a JSON file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from params import InputsChangedError, RecipeError
from params.foundation.artifacts import Artifacts
from params.problems import suggestion
from params.schema import Launch, Model, ObjectiveChoice, Recipe, Training
from params.sections.base import Direction, Section
from params.sections.evaluation import OwnMetrics
from trainer.identity import code_hashes, deciding_keys, run_identity, run_key
from trainer.objectives import build_objective
from trainer.objectives.bases.metrics.metric import directions_in_training
from trainer.start import read_pinned_start, start_model_folder

SECTIONS = ("seed", "objective", "model", "training", "metrics")
"""What a recipe says that decides the weights."""


class Job(Section):
    """One training, as `tasks.training.stage` hands it to `trainer.worker`."""

    seed: int
    objective: ObjectiveChoice
    model: Model
    training: Training
    launch: Launch
    metrics: OwnMetrics | None = None
    tokens: Path
    """Folder with a folder of shards for each split, tokenizer/ and objective.json."""
    folder: Path
    """Folder of this run's checkpoints and best weights."""
    identity: dict[str, str]
    """Everything that decides the weights, see `trainer.identity.run_identity`."""
    start: Path | None = None
    """Folder of the published model that the training starts from; None for the recipe's own model."""
    checkpoint: Path | None = None
    """The checkpoint to resume from; the supervisor chooses it, so that all processes use the same."""
    stop_at_step: int | None = None
    """Stop after this step as if a stop were requested; for `verify-resume`."""
    keep_freed_memory: bool = True
    """Whether the processes keep the memory that a step frees (`trainer.runtime.memory`); false once memory has run out."""
    record: bool = False
    """Record what each step saw in `steps-<rank>.jsonl` in the run's folder; for `verify-resume`."""

    @classmethod
    def plan(cls, artifacts: Artifacts, launch: Launch, sections: Mapping[str, Any]) -> Job:
        """Return the job of the sections `SECTIONS` of a recipe; its folder is named after its identity."""
        start = start_model_folder(artifacts, sections["model"].start)
        models = build_objective(sections["objective"]).models().values()
        identity = run_identity(artifacts.tokens, sections, models, start)
        tokens, folder = artifacts.tokens.absolute(), (artifacts.checkpoints / run_key(identity)).absolute()
        return cls(**sections, launch=launch, tokens=tokens, folder=folder, identity=identity, start=start)

    @classmethod
    def plan_arms(cls, artifacts: Artifacts, launch: Launch, sections: Mapping[str, Any]) -> list[Job]:
        """Return a job for each model that the training starts from: with `model.start: best` the published one, then the recipe's own."""
        model, training = sections["model"], sections["training"]
        if model.start != "best" or not read_pinned_start(artifacts, model.start):
            return [cls.plan(artifacts, launch, sections)]
        # what holds on to the published model means nothing to a training that does not start from it
        alone = {"replay": None, "stay_close": None if model.config else training.stay_close}
        own = model.model_copy(update={"start": "base"}), training.model_copy(update=alone)
        pairs = [(model.model_copy(update={"start": "champion"}), training), own]
        return [cls.plan(artifacts, launch, {**sections, "model": one, "training": two}) for one, two in pairs]

    @classmethod
    def arms_of(cls, recipe: Recipe, artifacts: Artifacts) -> list[Job]:
        """Return the jobs that the train stage runs for `recipe`."""
        sections = {name: getattr(recipe, name) for name in SECTIONS if name != "metrics"}
        return cls.plan_arms(artifacts, recipe.launch, sections | {"metrics": recipe.evaluation.metrics})

    @classmethod
    def of(cls, recipe: Recipe, artifacts: Artifacts) -> Job:
        """Return the first job that the train stage runs for `recipe`."""
        return cls.arms_of(recipe, artifacts)[0]

    def check_code(self) -> None:
        """Fail if the code that decides the weights is not what it was when the job was planned.

        Raises:
            InputsChangedError: names the code.
        """
        now = code_hashes(deciding_keys({name: getattr(self, name) for name in SECTIONS}))
        planned = {name: value for name, value in self.identity.items() if name.startswith("code ")}
        changed = sorted(name for name in now.keys() | planned.keys() if now.get(name) != planned.get(name))
        if changed:
            names = ", ".join(name.removeprefix("code ") for name in changed)
            fix = "run the recipe again; for several machines, use the same code on all of them"
            raise InputsChangedError("train", f"changed since the training was planned: {names}", fix)

    @property
    def direction(self) -> Direction:
        """Whether the smallest or the largest value of `training.best_metric` is best; RecipeError if it is unknown."""
        own = self.metrics.directions if self.metrics else {}
        known = {**directions_in_training(build_objective(self.objective).metrics), **own}
        name = self.training.best_metric
        if name not in known:
            fix = suggestion(name, list(known), "metrics")
            raise RecipeError("training.best_metric", f"{self.objective.name} does not compute {name!r}", fix)
        return known[name]

    def save(self, path: Path) -> None:
        path.write_text(self.model_dump_json(indent=2), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Job:
        return cls.model_validate_json(path.read_text(encoding="utf-8"), strict=False)
