"""evaluate: score the trained model, and the model as it was before training, on the held-out split.

    tokens/ and model/ -> evaluation/metrics.json     {"model": {...}, "untrained": {...}, "rows": n, "split": "test"}
                          evaluation/scores.parquet   the figures of every sequence, by row_id
                          evaluation/plots/           for `dvc plots`

Logits are reduced on each batch before anything is kept, and scores go to disk as they come: memory does not grow with
the number of rows.
"""

from __future__ import annotations

import csv
import gc
import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from params import ModelError
from params.artifacts import Artifacts, whole_folder
from params.schema import Evaluation, Launch, Model, ObjectiveChoice
from tasks.progress import progress
from tasks.stages import Report, save_report
from trainer import modeling, objectives, tokens
from trainer.figures import Figures, measured_batches

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from trainer.objectives import Objective, State

logger = logging.getLogger(__name__)


class EvaluationReport(Report):
    """Figures of the held-out split."""

    split: str
    sequences: int
    model: dict[str, float]
    """Of the best weights that training reached."""
    untrained: dict[str, float] | None
    """Of the model before training, on the same rows."""


def evaluate(
    artifacts: Artifacts, *, seed: int, objective: ObjectiveChoice, model: Model, evaluation: Evaluation, launch: Launch
) -> EvaluationReport:
    """Compute the figures of the held-out split.

    Raises:
        ModelError: the model cannot be loaded, or a figure is not finite.
        StorageError: the disk is full; the earlier evaluation is as it was.
    """
    learned = objectives.build(objective)
    state = tokens.read_state(artifacts.tokens)
    tokenizer = tokens.read_tokenizer(artifacts.tokens)

    def untrained() -> PreTrainedModel:
        return modeling.untrained_model(model, objective=learned, state=state, tokenizer=tokenizer, seed=seed)

    learned.start_from(untrained)
    candidates: dict[str, Any] = {"model": lambda: modeling.trained_model(artifacts.model, learned)}
    if evaluation.compare_untrained:
        candidates["untrained"] = untrained
    with whole_folder(artifacts.evaluation) as folder:
        figures = {}
        for name, load in candidates.items():
            network = load()
            figures[name] = _figures(
                artifacts,
                network,
                learned,
                state=state,
                tokenizer=tokenizer,
                name=name,
                folder=folder,
                evaluation=evaluation,
                batch_size=launch.eval_batch_size,
            )
            del network
            gc.collect()
        _write_comparison(folder / "plots", figures)
        report = EvaluationReport(
            split=evaluation.split,
            sequences=len(tokens.read_split(artifacts.tokens, evaluation.split)),
            model=figures["model"],
            untrained=figures.get("untrained"),
        )
        save_report(report, folder / artifacts.report("evaluate").name)
    return report


def _figures(
    artifacts: Artifacts,
    network: PreTrainedModel,
    objective: Objective[Any],
    *,
    state: State,
    tokenizer: PreTrainedTokenizerBase,
    name: str,
    folder: Path,
    evaluation: Evaluation,
    batch_size: int,
) -> dict[str, float]:
    """Score one model; only the trained one's scores are kept row by row."""
    sequences = tokens.read_split(artifacts.tokens, evaluation.split)
    counted = Figures(objective, state=state, tokenizer=tokenizer, metrics=evaluation.metrics)
    batches = measured_batches(
        network, sequences, objective=objective, tokenizer=tokenizer, figures=counted, batch_size=batch_size
    )
    total = math.ceil(len(sequences) / batch_size)
    with _ScoreWriter(folder / "scores.parquet" if name == "model" else None, objective.score_names) as writer:
        for row_ids, measured in progress(batches, what=f"evaluate: {name} batches", total=total):
            counted.update(measured)
            writer.add(row_ids, measured[0])
    figures = counted.compute()
    if bad := [metric for metric, value in figures.items() if not math.isfinite(value)]:
        raise ModelError(
            f"{name} on {evaluation.split}",
            f"{', '.join(bad)} not finite",
            "look at evaluation of single rows with `python -m tasks trace`; lower training.learning_rate",
        )
    logger.info("evaluate: %s on %s: %s", name, evaluation.split, ", ".join(f"{k} {v:.4f}" for k, v in figures.items()))
    return figures


class _ScoreWriter:
    """Writes the scores of every sequence in row groups of a few thousand; without a path it writes nothing."""

    _ROWS = 8192

    def __init__(self, path: Path | None, names: tuple[str, ...]) -> None:
        self._schema = pa.schema([("row_id", pa.int64()), *((name, pa.float64()) for name in names)])
        self._writer = pq.ParquetWriter(path, self._schema) if path else None
        self._pending: list[pa.RecordBatch] = []

    def add(self, row_ids: list[int], scores: torch.Tensor) -> None:
        """Take in (B) row ids and (B, K) scores."""
        self._pending.append(pa.record_batch([row_ids, *scores.T.numpy()], schema=self._schema))
        if sum(batch.num_rows for batch in self._pending) >= self._ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._writer and self._pending:
            self._writer.write_table(pa.Table.from_batches(self._pending).combine_chunks())
        self._pending = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        if self._writer:
            self._writer.close()


def _write_comparison(folder: Path, figures: dict[str, dict[str, float]]) -> None:
    folder.mkdir()
    with (folder / "comparison.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "metric", "value"])
        writer.writerows([name, metric, value] for name, values in figures.items() for metric, value in values.items())
