"""A run from its tokens to its release, in this process: the training is a few steps on one batch."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from params import Recipe
from params.foundation.artifacts import Artifacts
from tasks.evaluation.report import EvaluationReport
from tasks.evaluation.stage import evaluate as evaluate_stage
from tasks.ingestion.report import IngestReport
from tasks.lineage.learned_rows import record_learned_rows
from tasks.publishing import served
from tasks.publishing.candidate import Candidate
from tasks.publishing.stage import publish as publish_stage
from tasks.recipes.loading import load
from tasks.release_log.receipt import Receipt
from tasks.stage_inputs import StageInputsSnapshot
from tasks.stages import save_report
from tasks.training.model_folder import complete_model_folder
from tasks.training.report import TrainingReport
from tests.support import tiny
from trainer import objectives
from trainer.data import tokens
from trainer.job import Job
from trainer.model.network import build_model_to_train, write_merged_and_adapter
from trainer.objectives.bases.loss import MicroBatchShare
from trainer.objectives.bases.objective import Objective

SIZES = {"train": 60, "validation": 12, "test": 40}
BATCH = 32
"""Sequences that `learn` looks at."""
ASKED_ROWS = 4
"""How many rows `publish` asks a release about; where these answers are what is tested, all of `served.ROWS`."""


SOURCE = IngestReport(
    source="files",
    revision="0123456789ab",
    rows={"train": 41, "validation": 8, "test": 8},
    columns={"text": "string"},
    data_sha256={split: split * 4 for split in ("train", "validation", "test")},
)
"""What the ingest stage says of the rows."""


def tokenized(root: Path, content: dict[str, Any], sizes: dict[str, int] = SIZES) -> tuple[Artifacts, Recipe]:
    """A project whose ingest, validate and tokenize stages have run."""
    artifacts, recipe = tiny.tokenized(root, content, sizes)
    save_report(SOURCE, artifacts.report("ingest"))
    return artifacts, recipe


def learn(artifacts: Artifacts, recipe: Recipe, steps: int, *, seed: int = 11, rows: int = BATCH) -> None:
    """What the train stage leaves: a model of random weights of its own, after so many steps."""
    objective, tokenizer = objectives.build_objective(recipe.objective), tokens.read_tokenizer(artifacts.tokens)
    state = tokens.read_objective_state(artifacts.tokens)
    network = build_model_to_train(recipe.model, objective=objective, state=state, tokenizer=tokenizer, seed=seed)
    sequences = tokens.read_split(artifacts.tokens, "train")
    examples = [sequences[i] for i in range(min(rows, len(sequences)))]
    batch = objective.prepare_inputs(network, objective.collate(examples, tokenizer))
    network.eval()  # without dropout
    settings = (recipe.objective.model_dump_json(), recipe.model.model_dump_json())
    numbers = {
        name: value.numpy() for name, value in {**network.state_dict(), **batch}.items() if hasattr(value, "numpy")
    }
    others = sorted((name, repr(value)) for name, value in batch.items() if name not in numbers)
    known = [
        settings,
        steps,
        others,
        *((name, one.dtype.str, one.shape, one.tobytes()) for name, one in numbers.items()),
    ]
    key = hashlib.sha256(repr(known).encode()).digest()
    if key not in _LEARNED:
        _take_steps(network, objective, batch, steps)
        _LEARNED[key] = {name: weights.detach().clone() for name, weights in network.state_dict().items()}
    network.load_state_dict(_LEARNED[key])
    shutil.rmtree(artifacts.model, ignore_errors=True)
    if recipe.model.lora:
        trained = artifacts.scratch / "adapters"
        network.save_pretrained(trained, save_embedding_layers=False)
        parts = {"objective": objective, "state": state, "tokenizer": tokenizer, "seed": recipe.seed}
        write_merged_and_adapter(trained, artifacts.model, artifacts.adapter, recipe.model, **parts)
    else:
        network.save_pretrained(artifacts.model)
    complete_model_folder(artifacts.model, artifacts, recipe.model, objective.release_format)
    record_learned_rows(artifacts.model, artifacts, recipe.model, objective)
    trained = TrainingReport(
        run=Job.of(recipe, artifacts).folder.name,
        steps=12,
        parameters=network.num_parameters(),
        best_step=8,
        best_metric="loss",
        best_value=2.5,
        final_train_loss=2.4,
        git_commit="c0ffee",
        versions={"python": "3.11"},
    )
    save_report(trained, artifacts.report("train"))


_LEARNED: dict[bytes, dict[str, torch.Tensor]] = {}
"""Weights by all that decides them: many tests begin with the same training, and take it over from the first."""


def _take_steps(network: Any, objective: Any, batch: Any, steps: int) -> None:
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        if objective.trainer_class == Objective.trainer_class:
            objective.batch_loss(network, batch, MicroBatchShare(objective.loss_items(batch), 1, 1)).loss.backward()
        elif hasattr(objective, "global_loss"):
            labels = batch[objective.label_name]
            objective.global_loss(objective.embed(network, batch), labels).backward()
        else:  # its loss needs more than a batch, such as a reference or completions
            network(**batch).loss.backward()
        optimizer.step()


def evaluate(
    artifacts: Artifacts, recipe: Recipe, *, batch_size: int | None = None, **changes: Any
) -> EvaluationReport:
    """The evaluate stage, some keys of the recipe's `evaluation` section set."""
    launch = recipe.launch if batch_size is None else recipe.launch.model_copy(update={"eval_batch_size": batch_size})
    return evaluate_stage(
        artifacts,
        seed=recipe.seed,
        objective=recipe.objective,
        model=recipe.model,
        evaluation=recipe.evaluation.model_copy(update=changes),
        repo_id=recipe.publish.repo_id,
        endpoint=recipe.publish.endpoint,
        launch=launch,
    )


def publish(artifacts: Artifacts, recipe: Recipe, **changes: Any) -> Receipt:
    """The publish stage, some keys of the recipe's `publish` section set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(served, "ROWS", ASKED_ROWS)
        return publish_stage(
            artifacts,
            seed=recipe.seed,
            objective=recipe.objective,
            model=recipe.model,
            evaluation=recipe.evaluation,
            publish=recipe.publish.model_copy(update={"timeout_s": 5.0, **changes}),
            inputs=StageInputsSnapshot.read("publish", artifacts),
        )


def candidate(artifacts: Artifacts, **changes: Any) -> Candidate:
    """What the publish stage makes of a judged model, some keys of the recipe's `publish` section set."""
    recipe = load(artifacts.recipe_path)
    return Candidate(artifacts, recipe.publish.model_copy(update=changes), recipe.objective)
