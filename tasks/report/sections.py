"""What the report page computes for a section: its first sentence and its charts. The template has all other text.

A section is None where the run has no results for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks.evaluation.report import Opponent
from tasks.report import chart_data
from tasks.report.canvas import svg
from tasks.report.chart_data import OPPONENTS
from tasks.report.formatting import finite, gain_class, number, plural
from tasks.report.metric_plots import NAMES, draw_calibration, draw_comparison, draw_gains, draw_slices, value_range
from tasks.report.run_results import RunResults
from tasks.report.training_curves import draw_curves

Section = dict[str, Any]
MAX_METRICS = 12


def comparison_section(results: RunResults) -> Section | None:
    """Return what compares the candidate with the champion and the model before training."""
    if not results.metric_names:
        return None
    against = [model for model in OPPONENTS if any(results.comparison(model, name) for name in results.metric_names)]
    charts = []
    if values := chart_data.model_values(results, MAX_METRICS):
        charts.append(("Side by side", svg(draw_comparison(values))))
    for model in against:
        if gains := chart_data.gains_over(results, model)[:MAX_METRICS]:
            drawn = draw_gains(gains, against=OPPONENTS[model], bars=chart_data.gate_bars(results, model))
            charts.append((f"Gain over the {OPPONENTS[model]}", svg(drawn)))
    return {
        "lead": _comparison_lead(results, against),
        "models": {model: NAMES[model] for model in ("model", *OPPONENTS) if results.model_metrics(model)},
        "against": {model: OPPONENTS[model] for model in against},
        "charts": charts,
    }


def _comparison_lead(results: RunResults, against: Sequence[Opponent]) -> str:
    where = ""
    if results.evaluated:
        where = f"on {plural(results.evaluated.rows, 'row')} of the {results.evaluated.split} split"
    if not against:
        return f"Metrics of the candidate {where}, which it was not trained on."
    model = against[0]
    compared = [one for name in results.metric_names if (one := results.comparison(model, name))]
    found = [gain_class(one.low, one.high) for one in compared]
    counts = {word: found.count(word) for word in ("better", "worse", "undecided") if word in found}
    result = ", ".join(f"{word} in {count}" for word, count in counts.items()) + f" of {plural(len(found), 'metric')}"
    if len(counts) == 1:
        result = f"{found[0]} in {'all metrics' if len(found) > 1 else 'the only metric'}"
    return f"Compared with the {OPPONENTS[model]} {where}, the candidate is {result}."


def slices_section(results: RunResults) -> Section | None:
    """Return every slice, the worst first."""
    ordered, drawn = results.slices_worst_first(), chart_data.drawn_slices(results)
    if not drawn:
        return None
    metric = chart_data.sliced_metric(results)
    overall = results.value("model", metric)
    shown = drawn[: chart_data.MAX_SLICES]
    half = max(5, (len(shown) + 1) // 2)
    scale = value_range(shown, overall)
    worst = next((one for one in drawn if one.low is not None), drawn[0])
    lead = f"The worst slice is {worst.slice}: {metric} {number(worst.value)} on {plural(worst.rows, 'row')}"
    lead += f", {number(overall)} on all rows." if overall is not None else "."
    if results.blessing and results.blessing.metric != metric:
        lead += f" A slice has {metric} in place of {results.blessing.metric}, which needs the rows of all labels."
    if gain_highs := [high for one in ordered if (high := finite(one.gain_high)) is not None]:
        fell = sum(high < 0 for high in gain_highs)
        by_chance = len(gain_highs) * (1 - results.confidence) / 2
        lead += f" In {fell} of {plural(len(gain_highs), 'slice')} the whole interval of the gain over the champion is"
        lead += f" below zero; about {by_chance:.1f} would be by chance alone."
    parts = (shown[i : i + half] for i in range(0, len(shown), half))
    charts = [("", svg(draw_slices(part, overall=overall, scale=scale))) for part in parts]
    return {"lead": lead, "metric": metric, "all": ordered, "charts": charts}


def calibration_section(results: RunResults) -> Section | None:
    """Return how often the model is right, by its confidence."""
    bins = chart_data.calibration_bins(results)
    if not bins:
        return None
    total = sum(one["rows"] for one in bins)
    differences = [one["rows"] * (one["confidence"] - one["accuracy"]) for one in bins]
    error = 100 * sum(map(abs, differences)) / total
    side = "overconfident" if sum(differences) > 0 else "underconfident"
    lead = f"Confidence and accuracy differ by {error:.1f} percentage points on average (expected calibration error);"
    return {"lead": f"{lead} overall, the model is {side}.", "chart": svg(draw_calibration(bins)), "bins": bins}


def curve_charts(results: RunResults) -> list[tuple[str, str]]:
    """Return the charts of training and of its evaluations."""
    return [("", svg(draw_curves([panel]))) for panel in chart_data.curve_panels(results)]
