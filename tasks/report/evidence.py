"""All that a report is made from, read from a run's artifacts. Each of them may be missing: a run can end in any stage."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from params import EvergreenError, Recipe, load
from params.artifacts import STAGES, Artifacts

Json = Mapping[str, Any]
Curve = Sequence[Mapping[str, float]]
"""Rows of a curve: `step` and the figures that are finite, by name."""
_EXAMPLES = 5
_MAX_RECIPE = 60_000


@dataclass(frozen=True)
class Quarantine:
    """The rows that were set aside."""

    rows: int
    reasons: Sequence[tuple[str, int]]
    """Each reason and how many rows it was given for, the commonest first; a row may have several."""
    examples: Sequence[Json]
    """A few rows as they are in quarantine.parquet."""


@dataclass(frozen=True)
class Evidence:
    """The artifacts of a run; what is missing is empty."""

    recipe: str
    recipe_text: str
    plan: Recipe | None
    """The recipe, typed; None where it cannot be read."""
    source: Json
    validation: Json
    quarantine: Quarantine | None
    statistics: Json
    training: Json
    train_curve: Curve
    validation_curve: Curve
    metrics: Json
    details: Json
    blessing: Json
    receipt: Json
    lock: Json
    """The stages of this recipe as dvc.lock has them, by name."""
    reached: Sequence[str]
    """The stages that have left a report."""
    unreadable: Sequence[str] = field(default=())
    """Files that are there and cannot be read."""


def gather(artifacts: Artifacts, *, local: bool) -> Evidence:
    """Read what there is.

    Args:
        artifacts: of the run.
        local: also read what is not the same wherever the same run was made: the receipt and dvc.lock.
    """
    unreadable: list[str] = []

    def read(path: Path) -> Json:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError):
            content = None
        if not isinstance(content, dict):
            unreadable.append(path.name)
            return {}
        return content

    receipt = read(artifacts.receipt) if local else {}
    stages = STAGES if local else STAGES[:-1]
    return Evidence(
        recipe=artifacts.recipe,
        recipe_text=_recipe_text(artifacts.recipe_path),
        plan=_plan(artifacts.recipe_path),
        source=read(artifacts.report("ingest")),
        validation=read(artifacts.report("validate")),
        quarantine=_quarantine(artifacts.validated / "quarantine.parquet"),
        statistics=read(artifacts.report("tokenize")),
        training=read(artifacts.report("train")),
        train_curve=_curve(artifacts.history / "train.csv"),
        validation_curve=_curve(artifacts.history / "validation.csv"),
        metrics=read(artifacts.report("evaluate")),
        details=read(artifacts.evaluation / "details.json"),
        blessing=read(artifacts.blessing),
        receipt=receipt,
        lock=_lock(artifacts.root / "dvc.lock", artifacts.recipe) if local else {},
        reached=[stage for stage in stages if artifacts.report(stage).exists()],
        unreadable=unreadable,
    )


def amount(value: object) -> float | None:
    """A finite figure, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def main_metric(evidence: Evidence) -> str | None:
    """The metric that decides."""
    named = evidence.blessing.get("metric") or evidence.metrics.get("metric")
    return str(named) if named else next(iter(evidence.metrics.get("model") or ()), None)


def metric_names(evidence: Evidence) -> list[str]:
    """The metrics of the evaluation, the one that decides first."""
    main = main_metric(evidence)
    return sorted(evidence.metrics.get("model") or {}, key=lambda name: name != main)


def compare(evidence: Evidence, against: str, metric: str | None) -> Json:
    """The paired difference of `metric` from the champion or the untrained model; empty if there is none."""
    found = (c for c in evidence.details.get("comparisons") or () if (c["against"], c["metric"]) == (against, metric))
    return next(found, {})


def interval(evidence: Evidence, model: str, metric: str) -> tuple[float | None, float | None]:
    """The ends of the interval of a model's figure."""
    ends = ((evidence.details.get("intervals") or {}).get(model) or {}).get(metric) or {}
    return amount(ends.get("low")), amount(ends.get("high"))


def worst_slices(evidence: Evidence) -> list[Json]:
    """The slices, the worst first; those with too few rows for an interval come last."""
    directions = evidence.details.get("directions") or {}

    def order(part: Json) -> tuple[bool, bool, float]:
        value = amount(part.get("value"))
        sign = -1 if directions.get(part.get("metric")) == "min" else 1
        return part.get("low") is None, value is None, sign * (value or 0.0)

    return sorted(evidence.details.get("slices") or (), key=order)


def _recipe_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")[:_MAX_RECIPE] if path.is_file() else ""


def _plan(path: Path) -> Recipe | None:
    try:
        return load(path)
    except (EvergreenError, OSError):
        return None


def _curve(path: Path) -> Curve:
    """The rows of a CSV file; figures that are missing or not finite are left out."""
    if not path.is_file():
        return []
    rows = []
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            figures = {name: figure for name, value in row.items() if (figure := _parsed(value)) is not None}
            if "step" in figures:
                rows.append(figures)
    return rows


def _parsed(value: object) -> float | None:
    try:
        return amount(float(str(value)))
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
                counts.update(dict.fromkeys(map(_kind, reasons or ()), 1))
        first = next(file.iter_batches(_EXAMPLES), None)
        return Quarantine(file.metadata.num_rows, counts.most_common(), first.to_pylist() if first else [])


def _kind(reason: str) -> str:
    """A reason without what it says of one row: the row that it repeats, or the objective's own words."""
    if of_row := re.match(r"\w+\(\)(?=: )", reason):
        return of_row[0]
    return re.sub(r", repeats [^,)]*$", "", reason)


def _lock(path: Path, recipe: str) -> Json:
    if not path.is_file():
        return {}
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        stages = (YAML(typ="safe").load(path) or {}).get("stages") or {}
    except YAMLError:
        return {}
    return {name: body for name, body in stages.items() if name.endswith(f"@{recipe}")}
