"""The list of stages. What else knows them is derived from it: their commands, their arguments, their reports, what must have run before.

dvc.yaml has the same stages with all that makes each stale; a contract test compares the two. docs/add-a-stage.md says how to add one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of the pipeline. Its function has the stage's name and is in stage.py of its folder of tasks/."""

    name: str
    does: str
    """The help of its command."""
    folder: str
    sections: tuple[str, ...]
    """What it reads of the recipe: a section, or a single key of one, as `section.key`. Each is an argument of its function by its last name."""
    needs: tuple[str, ...] = ()
    """The names in `Artifacts` of what it cannot run without, made by earlier stages."""
    makes: tuple[str, ...]
    """The names in `Artifacts` of its outputs."""
    reports: Mapping[str, str]
    """Its reports by name, below the run's folder; that of all it did has the stage's name."""
    may_wait_s: str | None = None
    """The key of the recipe that says how much longer than others it may make no progress."""


PIPELINE: Final = (
    Stage(
        name="ingest",
        does="Read the rows from their source and split them.",
        folder="ingestion",
        sections=("data", "seed", "launch", "evaluation.suites"),
        makes=("raw",),
        reports={"ingest": "raw/source.json"},
    ),
    Stage(
        name="validate",
        does="Check the rows, and set bad ones aside.",
        folder="validation",
        sections=(
            "seed",
            "validation",
            "objective",
            "publish.repo_id",
            "publish.endpoint",
            "launch",
            "model.start",
            "training.replay",
            "tokenization.tokenizer",
            "evaluation.suites",
        ),
        needs=("raw",),
        makes=("validated", "start_choice"),
        reports={"validate": "validated/validation.json"},
    ),
    Stage(
        name="tokenize",
        does="Turn the rows into sequences of tokens.",
        folder="tokenization",
        sections=("tokenization", "objective", "launch", "model.start"),
        needs=("rows",),
        makes=("tokens",),
        reports={"tokenize": "tokens/statistics.json"},
    ),
    Stage(
        name="train",
        does="Train the model, or continue an interrupted training.",
        folder="training",
        sections=("seed", "objective", "model", "training", "launch", "evaluation.metrics"),
        needs=("tokens",),
        makes=("model", "checkpoint", "history"),
        reports={"train": "history/training.json"},
        may_wait_s="launch.stall_timeout_s",
    ),
    Stage(
        name="evaluate",
        does="Score the model, and decide whether it may be published.",
        folder="evaluation",
        sections=("seed", "objective", "model", "evaluation", "publish.repo_id", "publish.endpoint", "launch"),
        needs=("rows", "tokens", "model"),
        makes=("evaluation", "review"),
        reports={
            "evaluate": "evaluation/metrics.json",
            "details": "evaluation/details.json",
            "blessing": "evaluation/blessing.json",
        },
    ),
    Stage(
        name="publish",
        does="Publish the model to the Hub if the evaluation allows it.",
        folder="publishing",
        sections=("seed", "objective", "model", "evaluation", "publish"),
        needs=("raw", "rows", "tokens", "model", "evaluation"),
        makes=("receipt",),
        reports={"publish": "release/receipt.json"},
        may_wait_s="publish.timeout_s",
    ),
)
STAGES: Final = tuple(stage.name for stage in PIPELINE)
"""The names of the stages, in order."""
UP_TO_TRAIN: Final = STAGES[: STAGES.index("train") + 1]
"""Those that decide the weights."""


def stage_named(name: str) -> Stage:
    """Return a stage by its name."""
    return next(stage for stage in PIPELINE if stage.name == name)


def stage_of_report(report: str) -> Stage:
    """Return the stage that writes a report, by the report's name."""
    return next(stage for stage in PIPELINE if report in stage.reports)
