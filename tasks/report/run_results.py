"""The results of a run, read from its artifacts. Any of them may be missing: a run can end in any stage."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from params import EvergreenError, ModelError, Recipe
from params.dvc_files import read_dvc_lock_stages
from params.foundation.artifacts import Artifacts
from params.foundation.stages import STAGES
from tasks.evaluation import report
from tasks.ingestion.report import IngestReport
from tasks.recipes.loading import load
from tasks.release_log.receipt import Receipt
from tasks.report.formatting import finite_or_none
from tasks.stages import ReportT, read_report
from tasks.tokenization.report import TokenizationReport
from tasks.training.report import TrainingReport
from tasks.validation.report import ValidationReport

Curve = Sequence[Mapping[str, float]]
"""Rows of a curve: `step`, and the finite values by name."""


class QuarantineSummary(NamedTuple):
    """The rows that were set aside."""

    reasons: Sequence[tuple[str, int]]
    """Each reason with its number of rows, the most frequent first; a row may have several reasons."""
    examples: Sequence[Mapping[str, Any]]
    """A few rows of quarantine.parquet."""


class RunResults:
    """The results that a run has left; None or empty where they are missing or cannot be read.

    With `local`, also what depends on where and when the run was made: the receipt and dvc.lock.
    """

    def __init__(self, artifacts: Artifacts, *, local: bool = True) -> None:
        self.artifacts, self.local = artifacts, local
        self.unreadable: list[str] = []
        """Files that exist and cannot be read."""
        self.ingested = self._read(IngestReport)
        self.validated = self._read(ValidationReport)
        self.tokenized = self._read(TokenizationReport)
        self.trained = self._read(TrainingReport)
        self.evaluated = self._read(report.EvaluationReport)
        self.details = self._read(report.EvaluationDetails)
        self.blessing = self._read(report.Blessing)
        self.receipt = self._read(Receipt) if local else None
        self.recipe = read_recipe_or_none(artifacts)

    def _read(self, kind: type[ReportT]) -> ReportT | None:
        path = self.artifacts.report(kind.saved_as)
        try:
            return read_report(self.artifacts, kind) if path.exists() else None
        except ModelError:
            self.unreadable.append(path.name)
            return None

    @property
    def finished(self) -> list[str]:
        """The stages that have left a report."""
        stages = STAGES if self.local else STAGES[:-1]
        return [stage for stage in stages if self.artifacts.report(stage).exists()]

    @property
    def dvc_lock(self) -> Mapping[str, Any]:
        """The stages of this recipe in dvc.lock, by name."""
        stages = read_dvc_lock_stages(self.artifacts.root) if self.local else {}
        return {name: body for name, body in stages.items() if name.endswith(f"@{self.artifacts.recipe}")}

    @cached_property
    def quarantine(self) -> QuarantineSummary | None:
        """The rows that were set aside."""
        path = self.artifacts.validated / "quarantine.parquet"
        if not path.is_file():
            return None
        import pyarrow.parquet as pq

        from tasks.shards.split_rows import values_of_rows

        counts: Counter[str] = Counter()
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["reasons"]):
                for reasons in batch.column(0).to_pylist():
                    counts.update(dict.fromkeys(map(_kind_of_reason, reasons or ()), 1))
            first = next(file.iter_batches(5), None)
            return QuarantineSummary(counts.most_common(), values_of_rows(first) if first else [])

    @property
    def metric(self) -> str | None:
        decided = self.blessing or self.evaluated
        return decided.metric if decided else None

    @property
    def metric_names(self) -> list[str]:
        """The metrics of the evaluation, the one that decides first."""
        return sorted(self.model_metrics("model"), key=lambda name: name != self.metric)

    @property
    def confidence(self) -> float:
        return self.details.confidence if self.details else 0.95

    def model_metrics(self, model: str) -> Mapping[str, float]:
        """Return the metrics of `model`, `champion` or `untrained`; empty if it was not scored."""
        return self.evaluated.metrics.get(model, {}) if self.evaluated else {}

    def value(self, model: str, metric: str | None) -> float | None:
        """Return a model's value of a metric, if it is finite."""
        return finite_or_none(self.model_metrics(model).get(metric or ""))

    def comparison(self, against: report.Opponent, metric: str | None) -> report.MetricComparison | None:
        """Return the comparison with another model in one metric, if there is one."""
        compared = self.details.comparisons if self.details else ()
        return next((one for one in compared if (one.against, one.metric) == (against, metric)), None)

    @property
    def fewer_champion_rows(self) -> int | None:
        """How many of the candidate's rows count for the champion; None if all do, or there is no champion."""
        found = self.evaluated
        return found.champion_rows if found and found.champion_rows != found.rows else None

    def interval(self, model: str, metric: str | None) -> tuple[float | None, float | None]:
        """Return the ends of the interval of a model's metric."""
        found = self.details.intervals.get(model, {}).get(metric or "") if self.details else None
        return (finite_or_none(found.low), finite_or_none(found.high)) if found else (None, None)


def read_recipe_or_none(artifacts: Artifacts) -> Recipe | None:
    """Return the recipe of a run; None where it cannot be read."""
    try:
        return load(artifacts.recipe_path)
    except (EvergreenError, OSError):
        return None


def read_curve_csv(path: Path) -> Curve:
    """Return the rows of a CSV file, without values that are missing or not finite."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        rows = [{name: _parse(text) for name, text in row.items()} for row in csv.DictReader(file)]
    known = [{name: value for name, value in row.items() if value is not None} for row in rows]
    return [row for row in known if "step" in row]


def _parse(text: object) -> float | None:
    try:
        return finite_or_none(float(str(text)))
    except ValueError:
        return None


def _kind_of_reason(reason: str) -> str:
    """A reason without its details about one row: the row that it repeats, or the objective's explanation."""
    if check := re.match(r"\w+\(\)(?=: )", reason):
        return check[0]
    return re.sub(r", repeats [^,)]*$", "", reason)
