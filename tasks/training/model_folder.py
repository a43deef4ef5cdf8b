"""The folder of a trained model, as it is evaluated and published: best weights, with the tokenizer and settings of use."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from params import ModelError
from params.foundation.artifacts import Artifacts
from params.schema import Model
from tasks.stages import read_report
from tasks.tokenization.report import TokenizationReport
from trainer import objectives
from trainer.data import tokens
from trainer.job import Job
from trainer.loop.metrics import EvaluationMetrics, Measurement
from trainer.model import network
from trainer.model.limits import find_reading_limit, write_reading_limit
from trainer.model.start_model import resolve_start
from trainer.model.use_settings import read_number_format, restore_use_settings
from trainer.model.weights_header import write_chosen_settings
from trainer.objectives.bases.network.standardization import restore_units
from trainer.objectives.bases.release_reading import ReleaseFormat

_EXACT: Final = 1e-3
_ROUNDED: Final = 0.1
"""How far a metric may be from that of the training, relative to it where it is above 1: rounding in 16 bits moves it, and single rows."""


def complete_model_folder(
    folder: Path, artifacts: Artifacts, model: Model, release_format: ReleaseFormat | None = None
) -> None:
    """Add to the weights in a folder the tokenizer and the files of a format, and undo what only training needs.

    The tokenizer cuts a text where the base model's does, or where a new model's positions end, and not where training has cut it.
    """
    shutil.copytree(artifacts.tokenizer, folder, dirs_exist_ok=True)
    too_coarse = restore_units(folder) | restore_units(folder / artifacts.adapter.name)
    longest = read_report(artifacts, TokenizationReport).splits["train"].longest
    write_reading_limit(folder, find_reading_limit(folder, at_least=longest, is_new=model.pretrained is None))
    restore_use_settings(folder, model, too_coarse)
    if release_format:
        release_format.write_files(folder)


def check_same_metrics(folder: Path, job: Job, trained: Mapping[str, float]) -> None:
    """Score the model in a folder once more, as it was saved: its metrics of the validation split must be those of the training.

    `trained` has the metrics that the training computed with these weights, named `eval_<metric>`. What the objective chooses by the
    scores, such as thresholds, is then written into the model's configuration, and beside its weights.

    Raises:
        ModelError: they are others, such as after adapters were merged that a weight shares.
    """
    objective, state = objectives.build_objective(job.objective), tokens.read_objective_state(job.tokens)
    tokenizer = tokens.read_tokenizer(job.tokens)
    loaded = network.load_trained_model(folder, objective.model_class())
    initial, adapter = resolve_start(job.start, job.model)
    parts: Any = {"objective": objective, "state": state, "tokenizer": tokenizer, "seed": job.seed, "adapter": adapter}
    objective.set_reference(lambda: network.build_untrained_model(initial, **parts))
    documents = tokens.read_documents(job.tokens)
    metrics = EvaluationMetrics(objective, state=state, tokenizer=tokenizer, metrics=job.metrics, documents=documents)

    def measure(sequences: Any) -> Iterator[Measurement]:
        return (parts for _, parts in metrics.batches(loaded, sequences, batch_size=job.launch.eval_batch_size))

    metrics.measure_documents(lambda some: np.concatenate([parts[0].double().numpy() for parts in measure(some)]))
    scores = []
    for parts in measure(tokens.read_split(job.tokens, "validation")):
        metrics.update(parts)
        scores.append(parts[0].double().numpy())
    found = metrics.compute()
    name = "loss" if "loss" in found else job.training.best_metric
    before, now = trained[f"eval_{name}"], found[name]
    is_exact = (
        read_number_format(folder) == "float32" and job.training.precision == "fp32" and not job.model.quantization
    )
    allowed = _EXACT if is_exact else _ROUNDED
    if not abs(now - before) <= allowed * max(1.0, abs(before)):
        what = f"{name} of the validation split is {now:.6g} as saved, and was {before:.6g} at the end of training"
        fix = "change the model section, such as model.lora.target_modules, and train again"
        raise ModelError("train", f"the saved model is not the one that was trained: {what}", fix)
    of_split = objective.scores_of_split(np.concatenate(scores), state)
    columns = dict(zip(objective.score_names(state), of_split.T, strict=True))
    if chosen := objective.config_from_validation(columns, state):
        write_chosen_settings(folder, chosen)
