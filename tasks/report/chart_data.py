"""From the results of a run to what its charts draw, on the report page and on the model card."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from params.foundation.artifacts import Artifacts
from tasks.evaluation.report import Comparison, Opponent, SliceResult
from tasks.report.canvas import png
from tasks.report.formatting import finite, one_line
from tasks.report.metric_plots import MODELS, Values, draw_calibration, draw_comparison, draw_slices
from tasks.report.run_results import RunResults
from tasks.report.training_curves import Panel, draw_curves

MAX_PANELS = 6
MAX_SLICES = 20
OPPONENTS: Mapping[Opponent, str] = {"champion": "champion", "untrained": "model before training"}
"""What the candidate is compared with, the one that decides first, and its name."""


def curve_panels(results: RunResults) -> list[Panel]:
    """Return the curves of the loss, of the metric that chose the weights, and of other metrics, in this order."""
    trained = results.trained
    best_step, best_metric = (float(trained.best_step), trained.best_metric) if trained else (None, None)
    names = {name for row in results.validation_curve for name in row} - {"step"}
    names |= {"loss"} if any("loss" in row for row in results.train_curve) else set()
    ordered = sorted(names, key=lambda name: (name != "loss", name != best_metric, name))
    panels = []
    for name in ordered[:MAX_PANELS]:
        train = [(row["step"], row[name]) for row in results.train_curve if name == "loss" and name in row]
        validation = [(row["step"], row[name]) for row in results.validation_curve if name in row]
        panels.append(Panel(name, train, validation, best_step))
    return panels


def drawn_slices(results: RunResults) -> list[SliceResult]:
    """Return the slices that have a value, the worst first, each with a name for a chart and with finite numbers only."""
    ordered = results.slices_worst_first()
    several = len({one.slice_by for one in ordered}) > 1
    found = []
    for one in ordered:
        name = f"{one_line(one.slice_by, 40)}: " if several else ""
        ends = {key: finite(getattr(one, key)) for key in ("low", "high", "champion")}
        found.append(one.model_copy(update={"slice": name + one_line(one.slice, 200), **ends}))
    return [one for one in found if isfinite(one.value)]


def calibration_bins(results: RunResults) -> list[dict[str, float]]:
    """Return the bins of the reliability diagram that have rows."""
    bins = (results.details.calibration if results.details else None) or ()
    return [one for one in bins if one.get("rows") and isfinite(one["confidence"]) and isfinite(one["accuracy"])]


def model_values(results: RunResults, most: int) -> dict[str, Values]:
    """Return the values of all models by metric, the metric that decides first, of so many metrics."""
    values: dict[str, Values] = {}
    for metric in results.metric_names:
        known = {model: value for model in MODELS if (value := results.value(model, metric)) is not None}
        if known:
            values[metric] = {model: (value, *results.interval(model, metric)) for model, value in known.items()}
    return dict(list(values.items())[:most])


def gains_over(results: RunResults, against: Opponent) -> list[Comparison]:
    """Return the gains over one model that have an interval, the metric that decides first."""
    found = [results.comparison(against, metric) for metric in results.metric_names]
    return [one for one in found if one and one.has_interval and isfinite(one.gain)]


def gate_bars(results: RunResults, against: Opponent) -> dict[str, float]:
    """Return what the gate demands the lower end of the gain to be above, by the metric that decides; empty if another model does."""
    decides = "champion" if results.blessing and results.blessing.champion else "untrained"
    if not results.recipe or not results.metric or against != decides:
        return {}
    bar = results.recipe.evaluation.gate.bar
    return {results.metric: max(bar, 0.0) if against == "untrained" else bar}


def sliced_metric(results: RunResults) -> str:
    """Return the metric that the slices show."""
    return next((one.metric for one in results.details.slices), "") if results.details else ""


def card_pictures(artifacts: Artifacts) -> dict[str, bytes]:
    """Return the charts of the model card as PNG by file name; a chart without data is left out."""
    results = RunResults(artifacts, local=False)
    drawn = {}
    if panels := curve_panels(results):
        drawn["curves.png"] = draw_curves(panels[:3])
    if values := model_values(results, 6):
        drawn["comparison.png"] = draw_comparison(values)
    if slices := drawn_slices(results):
        overall = results.value("model", sliced_metric(results))
        drawn["slices.png"] = draw_slices(slices[:MAX_SLICES], overall=overall, columns=2)
    if bins := calibration_bins(results):
        drawn["calibration.png"] = draw_calibration(bins)
    return {name: png(figure) for name, figure in drawn.items()}
