"""From the results of a run to what its charts draw, on the report page and on the model card."""

from __future__ import annotations

from collections.abc import Mapping

from params.foundation.artifacts import Artifacts
from tasks.evaluation.report import Opponent
from tasks.report.calibration_plot import Bin, draw_calibration
from tasks.report.canvas import png
from tasks.report.formatting import finite, one_line
from tasks.report.metric_plots import MODELS, GainBar, ModelValue, SliceBar, draw_comparison, draw_slices
from tasks.report.run_results import RunResults, read_results
from tasks.report.training_curves import Panel, draw_curves

MAX_PANELS = 6
MAX_SLICES = 20
OPPONENTS: Mapping[Opponent, str] = {"champion": "champion", "untrained": "model before training"}
"""What the candidate is compared with, the one that decides first, and its name."""


def curve_panels(results: RunResults) -> list[Panel]:
    """Return the curves of the loss, of the metric that chose the weights, and of other metrics, in this order."""
    trained = results.trained
    best_step = float(trained.best_step) if trained else None
    best_metric = trained.best_metric if trained else None
    names = {name for row in results.validation_curve for name in row} - {"step"}
    names |= {"loss"} if any("loss" in row for row in results.train_curve) else set()
    ordered = sorted(names, key=lambda name: (name != "loss", name != best_metric, name))
    panels = []
    for name in ordered[:MAX_PANELS]:
        train = [(row["step"], row[name]) for row in results.train_curve if name == "loss" and name in row]
        validation = [(row["step"], row[name]) for row in results.validation_curve if name in row]
        panels.append(Panel(name, train, validation, best_step))
    return panels


def slice_bars(results: RunResults) -> list[SliceBar]:
    """Return the slices that can be drawn, the worst first."""
    ordered = results.slices_worst_first()
    several = len({one.slice_by for one in ordered}) > 1
    bars = []
    for one in ordered:
        value = finite(one.value)
        if value is not None:
            name = one_line(one.slice, 200)
            name = f"{one_line(one.slice_by, 40)}: {name}" if several else name
            bars.append(SliceBar(name, one.rows, value, finite(one.low), finite(one.high), finite(one.champion)))
    return bars


def calibration_bins(results: RunResults) -> list[Bin]:
    """Return the bins of the reliability diagram that have rows."""
    bins = []
    for one in (results.details.calibration if results.details else None) or ():
        confidence, accuracy = finite(one.get("confidence")), finite(one.get("accuracy"))
        if confidence is not None and accuracy is not None and one.get("rows"):
            bins.append(Bin(confidence, accuracy, int(one["rows"])))
    return bins


def model_values(results: RunResults) -> dict[str, list[ModelValue]]:
    """Return the values of all models by metric, the metric that decides first."""
    values: dict[str, list[ModelValue]] = {}
    for metric in results.metric_names:
        for model in MODELS:
            value = finite(results.model_metrics(model).get(metric))
            if value is not None:
                values.setdefault(metric, []).append(ModelValue(model, value, *results.interval(model, metric)))
    return values


def gains_over(results: RunResults, against: Opponent) -> list[GainBar]:
    """Return the gains over one model, the metric that decides first."""
    decides = "champion" if results.blessing and results.blessing.champion else "untrained"
    gate = results.recipe.evaluation.gate if results.recipe and against == decides else None
    bar = None if gate is None else max(gate.bar, 0.0) if against == "untrained" else gate.bar
    gains = []
    for i, metric in enumerate(results.metric_names):
        one = results.comparison(against, metric)
        gain, low, high = (finite(one.gain), finite(one.low), finite(one.high)) if one else (None, None, None)
        if gain is not None and low is not None and high is not None:
            gains.append(GainBar(metric, gain, low, high, bar if i == 0 else None))
    return gains


def sliced_metric(results: RunResults) -> str:
    """Return the metric that the slices show."""
    return next((one.metric for one in results.details.slices), "") if results.details else ""


def value_on_all_rows(results: RunResults, metric: str) -> float | None:
    """Return the candidate's value on all rows."""
    return finite(results.model_metrics("model").get(metric))


def card_pictures(artifacts: Artifacts) -> dict[str, bytes]:
    """Return the charts of the model card as PNG by file name; a chart without data is left out."""
    results = read_results(artifacts, local=False)
    pictures: dict[str, bytes] = {}
    if panels := curve_panels(results):
        pictures["curves.png"] = png(draw_curves(panels[:3]))
    if values := model_values(results):
        pictures["comparison.png"] = png(draw_comparison(dict(list(values.items())[:6])))
    if bars := slice_bars(results):
        all_rows = value_on_all_rows(results, sliced_metric(results))
        pictures["slices.png"] = png(draw_slices(bars[:MAX_SLICES], overall=all_rows, columns=2))
    if bins := calibration_bins(results):
        pictures["calibration.png"] = png(draw_calibration(bins))
    return pictures
