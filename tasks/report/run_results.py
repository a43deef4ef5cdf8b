"""The results of a run, read from its artifacts. Any of them may be missing: a run can end in any stage."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from params import EvergreenError, ModelError, Recipe, load
from params.dvc_files import recorded_stages
from params.foundation.artifacts import STAGES, Artifacts
from tasks.evaluation.report import (
    Blessing,
    Comparison,
    Details,
    EvaluationReport,
    Interval,
    Opponent,
    SliceResult,
)
from tasks.hub_client.receipt import Receipt
from tasks.ingestion.report import IngestReport
from tasks.report.formatting import finite
from tasks.stages import ReportT, read_report
from tasks.tokenization.report import TokenizationReport
from tasks.training.report import TrainingReport
from tasks.validation.report import ValidationReport

Curve = Sequence[Mapping[str, float]]
"""Rows of a curve: `step`, and the finite values by name."""
_EXAMPLES = 5
_MAX_RECIPE = 60_000


@dataclass(frozen=True)
class Quarantine:
    """The rows that were set aside."""

    rows: int
    reasons: Sequence[tuple[str, int]]
    """Each reason with its number of rows, the most frequent first; a row may have several reasons."""
    examples: Sequence[Mapping[str, Any]]
    """A few rows of quarantine.parquet."""


@dataclass(frozen=True)
class RunResults:
    """The results of a run; None or empty where they are missing."""

    recipe_name: str
    recipe_text: str
    recipe: Recipe | None
    """None where the recipe cannot be read."""
    ingested: IngestReport | None
    validated: ValidationReport | None
    quarantine: Quarantine | None
    tokenized: TokenizationReport | None
    trained: TrainingReport | None
    train_curve: Curve
    validation_curve: Curve
    evaluated: EvaluationReport | None
    details: Details | None
    blessing: Blessing | None
    receipt: Receipt | None
    dvc_lock: Mapping[str, Any]
    """The stages of this recipe in dvc.lock, by name."""
    finished: Sequence[str]
    """The stages that have left a report."""
    unreadable: Sequence[str] = field(default=())
    """Files that exist and cannot be read."""

    @property
    def metric(self) -> str | None:
        """The metric that decides."""
        decided = self.blessing or self.evaluated
        return decided.metric if decided else None

    @property
    def metric_names(self) -> list[str]:
        """The metrics of the evaluation, the one that decides first."""
        return sorted(self.model_metrics("model"), key=lambda name: name != self.metric)

    @property
    def confidence(self) -> float:
        """The confidence of all intervals."""
        return self.details.confidence if self.details else 0.95

    def model_metrics(self, model: str) -> Mapping[str, float]:
        """Return the metrics of `model`, `champion` or `untrained`; empty if it was not scored."""
        if self.evaluated is None:
            return {}
        return {
            "model": self.evaluated.model,
            "champion": self.evaluated.champion,
            "untrained": self.evaluated.untrained,
        }[model] or {}

    def comparison(self, against: Opponent, metric: str) -> Comparison | None:
        """Return the comparison with another model in one metric, if there is one."""
        compared = self.details.comparisons if self.details else ()
        return next((one for one in compared if (one.against, one.metric) == (against, metric)), None)

    def interval(self, model: str, metric: str) -> tuple[float | None, float | None]:
        """Return the ends of the interval of a model's metric."""
        intervals: Mapping[str, Interval] = self.details.intervals.get(model, {}) if self.details else {}
        found = intervals.get(metric)
        return (finite(found.low), finite(found.high)) if found else (None, None)

    def slices_worst_first(self) -> list[SliceResult]:
        """Return the slices, the worst first; slices with too few rows for an interval come last."""
        if self.details is None:
            return []
        directions = self.details.directions

        def order(one: SliceResult) -> tuple[bool, bool, float]:
            value = finite(one.value)
            sign = -1 if directions.get(one.metric) == "min" else 1
            return finite(one.low) is None, value is None, sign * (value or 0.0)

        return sorted(self.details.slices, key=order)


def read_results(artifacts: Artifacts, *, local: bool) -> RunResults:
    """Read the results that a run has left.

    With `local`, read also what depends on where and when the run was made: the receipt and dvc.lock.
    """
    unreadable: list[str] = []

    def read(kind: type[ReportT]) -> ReportT | None:
        path = artifacts.report(kind.saved_as)
        if not path.exists():
            return None
        try:
            return read_report(artifacts, kind)
        except ModelError:
            unreadable.append(path.name)
            return None

    stages = STAGES if local else STAGES[:-1]
    return RunResults(
        recipe_name=artifacts.recipe,
        recipe_text=_recipe_text(artifacts.recipe_path),
        recipe=_recipe(artifacts.recipe_path),
        ingested=read(IngestReport),
        validated=read(ValidationReport),
        quarantine=_quarantine(artifacts.validated / "quarantine.parquet"),
        tokenized=read(TokenizationReport),
        trained=read(TrainingReport),
        train_curve=_curve(artifacts.history / "train.csv"),
        validation_curve=_curve(artifacts.history / "validation.csv"),
        evaluated=read(EvaluationReport),
        details=read(Details),
        blessing=read(Blessing),
        receipt=read(Receipt) if local else None,
        dvc_lock=_recorded(artifacts) if local else {},
        finished=[stage for stage in stages if artifacts.report(stage).exists()],
        unreadable=unreadable,
    )


def _recipe_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")[:_MAX_RECIPE] if path.is_file() else ""


def _recipe(path: Path) -> Recipe | None:
    try:
        return load(path)
    except (EvergreenError, OSError):
        return None


def _curve(path: Path) -> Curve:
    """Return the rows of a CSV file, without values that are missing or not finite."""
    if not path.is_file():
        return []
    rows = []
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            values = {name: value for name, text in row.items() if (value := _parse(text)) is not None}
            if "step" in values:
                rows.append(values)
    return rows


def _parse(text: object) -> float | None:
    try:
        return finite(float(str(text)))
    except ValueError:
        return None


def _quarantine(path: Path) -> Quarantine | None:
    if not path.is_file():
        return None
    import pyarrow.parquet as pq

    counts: Counter[str] = Counter()
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=["reasons"]):
            for reasons in batch.column(0).to_pylist():
                counts.update(dict.fromkeys(map(_kind_of_reason, reasons or ()), 1))
        first = next(file.iter_batches(_EXAMPLES), None)
        return Quarantine(file.metadata.num_rows, counts.most_common(), first.to_pylist() if first else [])


def _kind_of_reason(reason: str) -> str:
    """A reason without its details about one row: the row that it repeats, or the objective's explanation."""
    if check := re.match(r"\w+\(\)(?=: )", reason):
        return check[0]
    return re.sub(r", repeats [^,)]*$", "", reason)


def _recorded(artifacts: Artifacts) -> Mapping[str, Any]:
    """The entries of this recipe in dvc.lock."""
    stages = recorded_stages(artifacts.root)
    return {name: body for name, body in stages.items() if name.endswith(f"@{artifacts.recipe}")}
