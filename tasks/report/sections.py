"""The sections of the report page: the first sentence of each, its charts, and the texts of its tables.

A section is None where the run has no results for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from params import Recipe
from params.foundation.artifacts import SPLITS
from tasks.drift.report import ChampionConfidence, DriftReport
from tasks.evaluation.report import Opponent
from tasks.report import chart_data
from tasks.report.calibration_plot import draw_calibration
from tasks.report.canvas import svg
from tasks.report.chart_data import OPPONENTS
from tasks.report.formatting import amount, duration, finite, gain_class, memory, number, percent, plural
from tasks.report.metric_plots import NAMES, draw_comparison, draw_gains, draw_slices, value_range
from tasks.report.run_results import RunResults
from tasks.report.timings import Timing
from tasks.report.training_curves import draw_curves

Section = dict[str, Any]
MAX_METRICS = 12
MAX_ROWS = 400
_MAX_CHECKS = 100
_MAX_QUOTED = 100


def comparison_section(results: RunResults) -> Section | None:
    """Return every metric of the candidate, the champion and the model before training."""
    metrics = {model: results.model_metrics(model) for model in ("model", *OPPONENTS)}
    if not metrics["model"]:
        return None
    models = [model for model, known in metrics.items() if known]
    against = [model for model in OPPONENTS if any(results.comparison(model, name) for name in metrics["model"])]
    directions = results.details.directions if results.details else {}
    rows = [
        {
            "metric": name,
            "is_better_small": directions.get(name) == "min",
            "values": [(metrics[model].get(name), results.interval(model, name)) for model in models],
            "gains": [results.comparison(model, name) for model in against],
        }
        for name in results.metric_names[:MAX_ROWS]
    ]
    values = chart_data.model_values(results)
    charts = []
    if values:
        charts.append(("Side by side", svg(draw_comparison(dict(list(values.items())[:MAX_METRICS])))))
    for model in against:
        if gains := chart_data.gains_over(results, model)[:MAX_METRICS]:
            drawn = svg(draw_gains(gains, against=OPPONENTS[model]))
            charts.append((f"Gain over the {OPPONENTS[model]}", drawn))
    return {
        "lead": _comparison_lead(results, against),
        "models": [NAMES[model] for model in models],
        "against": [OPPONENTS[model] for model in against],
        "rows": rows,
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
    ordered, bars = results.slices_worst_first(), chart_data.slice_bars(results)
    if not ordered or not bars:
        return None
    metric = chart_data.sliced_metric(results)
    overall = chart_data.value_on_all_rows(results, metric)
    shown = bars[: chart_data.MAX_SLICES]
    half = max(5, (len(shown) + 1) // 2)
    scale = value_range(shown, overall)
    judged = [bar for bar in bars if bar.low is not None]
    worst = (judged or bars)[0]
    lead = f"The worst slice is {worst.name}: {metric} {number(worst.value)} on {plural(worst.rows, 'row')}"
    lead += f", {number(overall)} on all rows." if overall is not None else "."
    if results.blessing and results.blessing.metric != metric:
        lead += f" A slice has {metric} in place of {results.blessing.metric}, which needs the rows of all labels."
    gain_highs = [high for one in ordered if (high := finite(one.gain_high)) is not None]
    if gain_highs:
        fell = sum(high < 0 for high in gain_highs)
        by_chance = len(gain_highs) * (1 - results.confidence) / 2
        lead += f" In {fell} of {plural(len(gain_highs), 'slice')} the whole interval of the gain over the champion is"
        lead += f" below zero; about {by_chance:.1f} would be by chance alone."
    return {
        "lead": lead,
        "metric": metric,
        "has_champion": any(one.champion is not None for one in ordered),
        "rows": ordered[:MAX_ROWS],
        "total": len(ordered),
        "charts": [
            ("", svg(draw_slices(shown[i : i + half], overall=overall, scale=scale)))
            for i in range(0, len(shown), half)
        ],
    }


def worst_rows_section(results: RunResults) -> Section | None:
    """Return the rows with the largest errors."""
    rows = results.details.worst[:_MAX_QUOTED] if results.details else []
    shown = plural(len(rows), "row")
    lead = f"The {shown} with the largest error, the largest first. Wrong labels are often among them."
    return {"lead": lead, "rows": rows} if rows else None


def changed_rows_section(results: RunResults) -> Section | None:
    """Return the rows on which candidate and champion differ most."""
    rows = results.details.changed[:_MAX_QUOTED] if results.details else []
    better = sum(one.gain > 0 for one in rows)
    lead = f"The {plural(len(rows), 'row')} whose error differs most between candidate and champion: the candidate does"
    return {"lead": f"{lead} better on {better} and worse on {len(rows) - better}.", "rows": rows} if rows else None


def calibration_section(results: RunResults) -> Section | None:
    """Return how often the model is right, by its confidence."""
    bins = chart_data.calibration_bins(results)
    if not bins:
        return None
    total = sum(one.rows for one in bins)
    error = 100 * sum(one.rows * abs(one.confidence - one.accuracy) for one in bins) / total
    excess = 100 * sum(one.rows * (one.confidence - one.accuracy) for one in bins) / total
    side = "overconfident" if excess > 0 else "underconfident"
    lead = f"Confidence and accuracy differ by {error:.1f} percentage points on average (expected calibration error);"
    return {
        "lead": f"{lead} overall, the model is {side}.",
        "charts": [("", svg(draw_calibration(bins)))],
        "rows": [(percent(one.confidence), percent(one.accuracy), one.rows) for one in bins],
    }


def curves_section(results: RunResults) -> Section | None:
    """Return the curves of training and of its evaluations."""
    panels = chart_data.curve_panels(results)
    trained = results.trained
    if not panels:
        return None
    lead = "Loss and metrics over the training."
    if trained:
        lead = (
            f"The weights of step {number(trained.best_step)} of {number(trained.steps)} were kept: {trained.best_metric} on"
            f" the validation split was best there, {number(trained.best_value)}."
        )
    return {"lead": lead, "charts": [("", svg(draw_curves([panel]))) for panel in panels]}


def data_section(results: RunResults, *, quote_rows: bool) -> Section | None:
    """Return what validation checked, and what it set aside."""
    validated = results.validated
    if validated is None:
        return None
    rows_in, rows_out = sum(validated.rows_in.values()), sum(validated.rows_out.values())
    failing = [check for check in validated.checks if not check.success]
    lead = f"All {plural(rows_in, 'row')} passed."
    if validated.quarantined:
        lead = f"{rows_out:,} of {plural(rows_in, 'row')} passed; {validated.quarantined:,} were set aside"
        lead += f" ({percent(validated.share)}; the limit is {percent(validated.max_quarantined)})."
    lead += (
        f" {len(failing)} of {plural(len(validated.checks), 'check')} failed." if failing else " Every check passed."
    )
    ordered = sorted(validated.checks, key=lambda check: check.success)
    quarantine = results.quarantine
    return {
        "lead": lead,
        "checks": ordered[:_MAX_CHECKS],
        "results": {"quarantine": "set aside", "fail": "ended the stage", "report": "reported"},
        "left_out": max(0, len(validated.checks) - _MAX_CHECKS),
        "reasons": quarantine.reasons[:20] if quarantine else [],
        "examples": quarantine.examples if quarantine and quote_rows else [],
        "drift": _drift(validated.drift, results.details.champion_confidence if results.details else None),
        "quote_rows": quote_rows,
    }


def _drift(drift: DriftReport | None, confidence: ChampionConfidence | None) -> Section | None:
    found = [one for one in (drift, confidence) if one]
    if not found:
        return None
    changes = [*(drift.changes if drift else ()), *([confidence.change] if confidence and confidence.change else ())]
    leads = [one.sentence for one in found] + ([drift.left_out] if drift and drift.left_out else [])
    return {"leads": leads, "changes": changes, "examples": drift.examples if drift else []}


def tokens_section(results: RunResults) -> Section | None:
    """Return the counts of tokens of each split."""
    tokenized = results.tokenized
    if tokenized is None or "train" not in tokenized.splits:
        return None
    splits = tokenized.splits
    lost = sum(split.truncated_rows + split.unused_rows for split in splits.values())
    lead = (
        f"{plural(splits['train'].tokens, 'token')} to train on, {number(tokenized.characters_per_token)} characters each;"
        f" {plural(lost, 'row') if lost else 'no row'} did not fit into the limit of {number(tokenized.max_length)} tokens."
    )
    names = ("rows", "sequences", "tokens", "mean_length", "longest", "learned_tokens", "truncated_rows", "unused_rows")
    rows = [(name.replace("_", " "), [getattr(splits.get(split), name, None) for split in SPLITS]) for name in names]
    return {"lead": lead, "splits": SPLITS, "rows": rows, "vocabulary": tokenized.vocab_size}


def time_section(timings: Mapping[str, Timing], recipe: Recipe | None) -> Section | None:
    """Return time and memory by stage, and what the stages cost together."""
    if not timings:
        return None
    total = sum(timing.seconds for timing in timings.values())
    longest = max(timings.values(), key=lambda timing: timing.seconds)
    peaks = [timing.peak_memory_mib for timing in timings.values() if timing.peak_memory_mib is not None]
    lead = f"{duration(total)} in total, of which {duration(longest.seconds)} in {longest.stage}"
    lead += f"; at most {memory(max(peaks))} of memory." if peaks else "."
    if recipe and recipe.launch.price_per_hour is not None:
        price = recipe.launch.price_per_hour
        lead += f" Cost: {amount(total / 3600 * price)}, at {amount(price)} an hour (launch.price_per_hour)."
    return {"lead": lead, "rows": list(timings.values()), "longest": longest.seconds or 1.0}
