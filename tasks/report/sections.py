"""What the report page and the model card compute from the results of a run: first sentences and charts of sections.

The template has all other text. A section is None where the run has no results for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from params.foundation.artifacts import Artifacts
from tasks.evaluation.report import MetricComparison, Opponent, SliceResult
from tasks.measurement import list_measurements
from tasks.report import charts
from tasks.report.canvas import chart_as_png, chart_as_svg
from tasks.report.formatting import classify_gain, count_with_noun, finite_or_none, format_one_line
from tasks.report.run_results import RunResults, read_curve_csv

Section = dict[str, Any]
MAX_PANELS = 6
MAX_METRICS = 12
MAX_SLICES = 20
OPPONENTS: Mapping[Opponent, str] = {"champion": "champion", "untrained": "model before training"}
"""What the candidate is compared with, the one that decides first, and its name."""


def read_metric_curves(results: RunResults) -> list[charts.MetricCurves]:
    """Return the curves of the loss, of the metric that chose the weights, and of other metrics, in this order."""
    trained, folder = results.trained, results.artifacts.history
    best_step, best_metric = (float(trained.best_step), trained.best_metric) if trained else (None, None)
    training, validation = read_curve_csv(folder / "train.csv"), read_curve_csv(folder / "validation.csv")
    names = {name for row in validation for name in row} - {"step"}
    names |= {"loss"} if any("loss" in row for row in training) else set()
    panels = []
    for name in sorted(names, key=lambda name: (name != "loss", name != best_metric, name))[:MAX_PANELS]:
        parts = (((row["step"], row[name]) for row in rows if name in row) for rows in (training, validation))
        train, held_out = map(tuple, parts)
        panels.append(charts.MetricCurves(name, train if name == "loss" else (), held_out, best_step))
    return panels


def all_slices(results: RunResults) -> list[SliceResult]:
    """Return those of measurements, such as rows by age, and those of the recipe."""
    details = results.details
    if details is None:
        return []
    measured = [found for one in list_measurements() for found in one.slices(details.findings(one.kind))]
    return [*measured, *details.slices]


def slices_worst_first(results: RunResults) -> list[SliceResult]:
    """Return the slices, the worst first; slices with too few rows for an interval come last."""
    if results.details is None:
        return []
    directions = results.details.directions

    def order(one: SliceResult) -> tuple[bool, bool, float]:
        value = finite_or_none(one.value)
        sign = -1 if directions.get(one.metric) == "min" else 1
        return finite_or_none(one.low) is None, value is None, sign * (value or 0.0)

    return sorted(all_slices(results), key=order)


def slices_for_chart(results: RunResults) -> list[SliceResult]:
    """Return the slices that have a value, the worst first, each with a name for a chart and with finite numbers only."""
    ordered = slices_worst_first(results)
    several = len({one.slice_by for one in ordered}) > 1
    found = []
    for one in ordered:
        name = f"{format_one_line(one.slice_by, 40)}: " if several else ""
        ends = {key: finite_or_none(getattr(one, key)) for key in ("low", "high", "champion")}
        found.append(one.model_copy(update={"slice": name + format_one_line(one.slice, 200), **ends}))
    return [one for one in found if isfinite(one.value)]


def own_slices_for_charts(results: RunResults) -> dict[str, list[SliceResult]]:
    """Return the slices of each way that the objective names, in their order: those with a value, with finite numbers only."""
    found: dict[str, list[SliceResult]] = {}
    for one in results.details.own_slices if results.details else ():
        if isfinite(one.value):
            ends = {key: finite_or_none(getattr(one, key)) for key in ("low", "high", "champion")}
            found.setdefault(one.slice_by, []).append(one.model_copy(update=ends))
    return found


def metric_values_of_models(results: RunResults, most: int) -> dict[str, charts.Values]:
    """Return the values of all models by metric, the metric that decides first, of so many metrics."""
    values: dict[str, charts.Values] = {}
    for metric in results.metric_names:
        known = {model: value for model in charts.MODELS if (value := results.value(model, metric)) is not None}
        if known:
            values[metric] = {model: (value, *results.interval(model, metric)) for model, value in known.items()}
    return dict(list(values.items())[:most])


def gains_over_opponent(results: RunResults, against: Opponent) -> list[MetricComparison]:
    """Return the gains over one model that have an interval, the metric that decides first."""
    found = [results.comparison(against, metric) for metric in results.metric_names]
    return [one for one in found if one and one.has_interval and isfinite(one.gain)]


def gate_gain_thresholds(results: RunResults, against: Opponent) -> dict[str, float]:
    """Return what the gate demands the lower end of the gain to be above, by the metric that decides; empty if another model does."""
    decides = "champion" if results.blessing and results.blessing.champion else "untrained"
    if not results.recipe or not results.metric or against != decides:
        return {}
    bar = results.recipe.evaluation.gate.bar
    return {results.metric: max(bar, 0.0) if against == "untrained" else bar}


def sliced_metric(results: RunResults) -> str:
    """Return the metric that the slices show."""
    return next((one.metric for one in all_slices(results)), "")


def draw_card_charts(artifacts: Artifacts) -> dict[str, bytes]:
    """Return the charts of the model card as PNG by file name; a chart without data is left out."""
    results = RunResults(artifacts, local=False)
    drawn = {}
    if panels := read_metric_curves(results):
        drawn["curves.png"] = chart_as_png(charts.draw_curves, panels[:3])
    if values := metric_values_of_models(results, 6):
        drawn["comparison.png"] = chart_as_png(charts.draw_comparison, values)
    if slices := slices_for_chart(results):
        overall = results.value("model", sliced_metric(results))
        drawn["slices.png"] = chart_as_png(charts.draw_slices, slices[:MAX_SLICES], overall=overall, columns=2)
    if results.details is None:
        return drawn
    for one in list_measurements():
        picture = one.draw_card_chart(results.details.findings(one.kind))
        if one.card_chart and picture:
            drawn[one.card_chart.file] = picture
    return drawn


def comparison_section_content(results: RunResults) -> Section | None:
    """Return what compares the candidate with the champion and the model before training."""
    if results.evaluated is None or not results.metric_names:
        return None
    where = f"on {count_with_noun(results.evaluated.rows, 'row')} of the {results.evaluated.split} split"
    against = [model for model in OPPONENTS if any(results.comparison(model, name) for name in results.metric_names)]
    titled = []
    if values := metric_values_of_models(results, MAX_METRICS):
        titled.append(("Side by side", chart_as_svg(charts.draw_comparison, values)))
    for title, parts in own_slices_for_charts(results).items():
        drawn = chart_as_svg(charts.draw_slices, parts, overall=results.value("model", parts[0].metric))
        titled.append((f"{parts[0].metric} by {title}", drawn))
    for model in against:
        if gains := gains_over_opponent(results, model)[:MAX_METRICS]:
            options = {"against": OPPONENTS[model], "bars": gate_gain_thresholds(results, model)}
            titled.append((f"Gain over the {OPPONENTS[model]}", chart_as_svg(charts.draw_gains, gains, **options)))
    return {
        "lead": _comparison_lead(results, against, where),
        "models": {model: charts.NAMES[model] for model in ("model", *OPPONENTS) if results.model_metrics(model)},
        "rows": {"champion": results.fewer_champion_rows},
        "against": {model: OPPONENTS[model] for model in against},
        "charts": titled,
    }


def _count_of_gains(found: Sequence[str]) -> str:
    """Return in how many metrics the candidate is better, worse and undecided."""
    counts = {word: found.count(word) for word in ("better", "worse", "undecided") if word in found}
    if len(counts) == 1:
        return f"{found[0]} in {'all metrics' if len(found) > 1 else 'the only metric'}"
    listed = ", ".join(f"{word} in {count}" for word, count in counts.items())
    return f"{listed} of {count_with_noun(len(found), 'metric')}"


def _comparison_lead(results: RunResults, against: Sequence[Opponent], where: str) -> str:
    if not against:
        lead = f"Metrics of the candidate {where}, which it was not trained on."
        return " ".join([lead, *_rows_that_do_not_count(results)])
    model = against[0]
    compared = [one for name in results.metric_names if (one := results.comparison(model, name))]
    result = _count_of_gains([classify_gain(one.low, one.high) for one in compared])
    missing = {
        "the champion has learned from": compared[0].learned - compared[0].learned_by_candidate,
        "not both models read as a whole": compared[0].left_out,
    }
    without = " and ".join(f"{count_with_noun(count, 'row')} that {why}" for why, count in missing.items() if count)
    lead = f"Compared with the {OPPONENTS[model]} {where}, {f'without {without}, ' if without else ''}the candidate is {result}."
    deciding = [f"{one.heavy_rows[0].upper()}{one.heavy_rows[1:]}." for one in compared if one.heavy_rows]
    return " ".join([lead, *_rows_that_do_not_count(results), *deciding])


def _rows_that_do_not_count(results: RunResults) -> list[str]:
    """Say how many rows the candidate knows through what it started from, and why there may be more."""
    assert results.evaluated
    told = [
        f"It is not known of all of them whether the candidate has learned from them: {why}."
        for why in results.evaluated.unknown
    ]
    if count := results.evaluated.learned:
        rows = count_with_noun(count, "other row")
        told.insert(
            0, f"{rows} of the split do not count: the candidate has learned from them through what it started from."
        )
    if count := results.evaluated.learned_validation:
        rows = count_with_noun(count, "validation row")
        told.append(
            f"The best step was chosen on {rows} that the candidate had learned from through what it started from, too."
        )
    if results.details and results.details.copies:
        told.append(results.details.copies_sentence(results.evaluated.split))
    return told


def slices_section_content(results: RunResults) -> Section | None:
    """Return every slice, the worst first."""
    ordered, drawn = slices_worst_first(results), slices_for_chart(results)
    if not drawn:
        return None
    metric = sliced_metric(results)
    overall = results.value("model", metric)
    shown = drawn[:MAX_SLICES]
    half = max(5, (len(shown) + 1) // 2)
    scale = charts.slice_value_range(shown, overall)
    parts = (shown[i : i + half] for i in range(0, len(shown), half))
    titled = [("", chart_as_svg(charts.draw_slices, part, overall=overall, scale=scale)) for part in parts]
    worst = next((one for one in drawn if one.low is not None), drawn[0])
    return {"metric": metric, "overall": overall, "worst": worst, "all": ordered, "charts": titled}
