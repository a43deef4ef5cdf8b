"""The sections of the page: of each its first sentence, its charts, and what its tables hold, as text.

A section is None where the run has left nothing for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from params.artifacts import SPLITS
from tasks.report import charts, graphs, plots
from tasks.report.evidence import Evidence, Json, amount, compare, interval, metric_names, worst_slices
from tasks.report.plots import NAMES
from tasks.report.timings import Timing
from tasks.report.wording import MISSING, better, cut, gain, line, number, percent, plural, seconds, span

Section = dict[str, Any]
MAX_METRICS = 12
MAX_ROWS = 400
_MAX_CHECKS = 100
_MAX_TEXT = 400
_OPPONENTS = ("champion", "untrained")


def compared(evidence: Evidence) -> Section | None:
    """Candidate, champion and the model before training, in every metric."""
    metrics = evidence.metrics
    if not metrics.get("model"):
        return None
    models = [model for model in ("model", *_OPPONENTS) if metrics.get(model)]
    against = [model for model in _OPPONENTS if any(compare(evidence, model, m) for m in metrics["model"])]
    directions = evidence.details.get("directions") or {}
    rows = []
    for metric in metric_names(evidence)[:MAX_ROWS]:
        found = {model: compare(evidence, model, metric) for model in against}
        rows.append(
            {
                "metric": line(metric, 60),
                "note": "smaller is better" if directions.get(metric) == "min" else "",
                "figures": [
                    (number(metrics[model].get(metric)), span(*interval(evidence, model, metric))) for model in models
                ],
                "gains": [_difference(one) for one in found.values()],
            }
        )
    drawn = charts.values(evidence)
    side_by_side = plots.comparison(dict(list(drawn.items())[:MAX_METRICS]))
    pictures = [("Side by side", charts.svg(side_by_side))] if drawn else []
    for model in against:
        found_gains = charts.differences(evidence, model)[:MAX_METRICS]
        picture = charts.svg(plots.gains(found_gains, against=_opponent(model))) if found_gains else ""
        pictures += [(f"Gain over the {_opponent(model)}", picture)] if picture else []
    return {
        "lead": _compared_lead(evidence, against),
        "models": [NAMES[model] for model in models],
        "against": [_opponent(model) for model in against],
        "rows": rows,
        "charts": pictures,
    }


def _compared_lead(evidence: Evidence, against: Sequence[str]) -> str:
    count = amount(evidence.metrics.get("rows") or evidence.metrics.get("sequences")) or 0
    where = f"on {plural(int(count), 'row')} of the {evidence.metrics.get('split')} split"
    if not against:
        return f"The candidate's figures, {where}, which training has not seen."
    model = against[0]
    found = [better(one) for metric in metric_names(evidence) if (one := compare(evidence, model, metric))]
    counts = {word: found.count(word) for word in ("better", "worse", "undecided") if word in found}
    said = ", ".join(f"{word} in {count}" for word, count in counts.items()) + f" of {plural(len(found), 'metric')}"
    if len(counts) == 1:
        said = f"{found[0]} in {'all metrics' if len(found) > 1 else 'the one metric'}"
    return f"Against the {_opponent(model)}, {where}, the candidate is {said}."


def _difference(one: Json) -> tuple[str, str, str]:
    """A gain, its interval with the p-value, and what they say."""
    if not one:
        return MISSING, "", ""
    low, high, p_value = one.get("low"), one.get("high"), amount(one.get("p_value"))
    note = span(low, high, signed=True)
    if p_value is not None:
        note += f"; p {'< 0.001' if p_value < 0.001 else f'{p_value:.3f}'}"
    return gain(one.get("gain"), low, high), note, better(one)


def _opponent(model: str) -> str:
    return "champion" if model == "champion" else "model before training"


def sliced(evidence: Evidence) -> Section | None:
    """Every part of the rows, the worst first."""
    ordered = worst_slices(evidence)
    drawn = charts.parts(evidence)
    if not ordered or not drawn:
        return None
    metric = charts.sliced_metric(evidence)
    overall = charts.overall(evidence, metric)
    shown = drawn[: charts.MAX_SLICES]
    half = max(5, (len(shown) + 1) // 2)
    scale = plots.reach(shown, overall)
    judged = [part for part in drawn if part.low is not None]
    worst = (judged or drawn)[0]
    lead = f"The worst is {worst.name}: {metric} {number(worst.value)} on {plural(worst.rows, 'row')}"
    lead += f", {number(overall)} on all rows." if overall is not None else "."
    tested = [part for part in ordered if amount(part.get("gain_high")) is not None]
    if tested:
        fell = sum(part["gain_high"] < 0 for part in tested)
        chance = len(tested) * (1 - (amount(evidence.details.get("confidence")) or 0.95)) / 2
        lead += (
            f" In {fell} of {plural(len(tested), 'slice')} the whole interval of the gain over the champion is below"
        )
        lead += f" zero; by chance alone it would be in about {chance:.1f}."
    rows = [
        {
            "name": line(part.get("slice"), 80) or "(empty)",
            "division": line(part.get("slice_by"), 40),
            "rows": number(part.get("rows")),
            "figure": (number(part.get("value")), span(part.get("low"), part.get("high")) or "too few rows to judge"),
            "champion": number(part.get("champion")),
            "gain": _difference({"gain": part.get("gain"), "low": part.get("gain_low"), "high": part.get("gain_high")}),
        }
        for part in ordered[:MAX_ROWS]
    ]
    return {
        "lead": lead,
        "metric": metric,
        "has_champion": any(part.get("champion") is not None for part in ordered),
        "rows": rows,
        "total": len(ordered),
        "charts": [
            ("", charts.svg(plots.slices(shown[i : i + half], overall=overall, scale=scale)))
            for i in range(0, len(shown), half)
        ],
    }


def worst(evidence: Evidence) -> Section | None:
    """The rows that the model does worst on."""
    found = evidence.details.get("worst") or ()
    rows = [
        {
            "row": cut(one.get("row_id"), 40),
            "row_error": number(one.get("row_error")),
            "notes": [(line(k, 40), line(v, 160)) for k, v in list((one.get("notes") or {}).items())[:8]],
            "text": cut(one.get("text"), _MAX_TEXT),
        }
        for one in found[:100]
    ]
    if not rows:
        return None
    lead = (
        f"The {plural(len(rows), 'row')} that the candidate does worst on, the worst first: wrong labels show up here."
    )
    return {"lead": lead, "rows": rows}


def calibrated(evidence: Evidence) -> Section | None:
    """Whether the model is as often right as it is sure."""
    found = charts.bins(evidence)
    if not found:
        return None
    total = sum(one.rows for one in found)
    off = 100 * sum(one.rows * abs(one.confidence - one.accuracy) for one in found) / total
    over = 100 * sum(one.rows * (one.confidence - one.accuracy) for one in found) / total
    leaning = "it is surer than it is right" if over > 0 else "it is right more often than it is sure"
    lead = f"Its confidence is off by {off:.1f} percentage points on average (expected calibration error): "
    return {
        "lead": f"{lead}{leaning}.",
        "charts": [("", charts.svg(graphs.calibration(found)))],
        "rows": [(percent(one.confidence), percent(one.accuracy), number(one.rows)) for one in found],
    }


def learned(evidence: Evidence) -> Section | None:
    """The curves of training and of its evaluations."""
    panels = charts.panels(evidence)
    training = evidence.training
    if not panels:
        return None
    lead = "How the figures moved while the model trained."
    if training:
        lead = (
            f"The weights of step {number(training.get('best_step'))} of {number(training.get('steps'))} were kept: there"
            f" {training.get('best_metric')} on the validation split was best, {number(training.get('best_value'))}."
        )
    return {"lead": lead, "charts": [("", charts.svg(graphs.curves([panel]))) for panel in panels]}


def checked(evidence: Evidence, *, quote_rows: bool) -> Section | None:
    """What validation found, and what it set aside."""
    found = evidence.validation
    if not found:
        return None
    rows_in, rows_out = found.get("rows_in") or {}, found.get("rows_out") or {}
    checks = found.get("checks") or ()
    failing = [check for check in checks if not check.get("success")]
    aside = int(found.get("quarantined") or 0)
    lead = f"All {plural(sum(rows_in.values()), 'row')} went on."
    if aside:
        lead = f"{sum(rows_out.values()):,} of {plural(sum(rows_in.values()), 'row')} went on; {aside:,} were set aside"
        lead += f" ({percent(found.get('share'))}, at most {percent(found.get('max_quarantined'))} may be)."
    passed = (
        "every check passed" if not failing else f"{len(failing)} of {plural(len(checks), 'check')} found something"
    )
    lead += f" {passed.capitalize()}."
    ordered = sorted(checks, key=lambda check: bool(check.get("success")))
    quarantine = evidence.quarantine
    return {
        "lead": lead,
        "checks": [_check(check, quote_rows=quote_rows) for check in ordered[:_MAX_CHECKS]],
        "left_out": max(0, len(checks) - _MAX_CHECKS),
        "reasons": [(line(reason, 240), number(count)) for reason, count in quarantine.reasons[:20]]
        if quarantine
        else [],
        "examples": [_set_aside(row) for row in quarantine.examples] if quarantine and quote_rows else [],
    }


def _check(check: Json, *, quote_rows: bool) -> dict[str, Any]:
    count = check.get("unexpected_count")
    examples = [line(one.get("value"), 120) for one in (check.get("examples") or ())[:2]] if quote_rows else []
    outcome = {"quarantine": "set aside", "fail": "ends the stage", "report": "reported"}
    return {
        "type": line(check.get("type"), 120),
        "arguments": [(line(k, 40), line(v, 160)) for k, v in (check.get("arguments") or {}).items()],
        "success": bool(check.get("success")),
        "outcome": "passed" if check.get("success") else outcome.get(str(check.get("on_failure")), "failed"),
        "count": "whole table" if count is None else number(count),
        "examples": examples,
    }


def _set_aside(row: Json) -> dict[str, Any]:
    values = [(name, value) for name, value in row.items() if name not in ("row_id", "split", "reasons")]
    return {
        "row": f"{row.get('row_id')} of {row.get('split')}",
        "reasons": [line(reason, 240) for reason in row.get("reasons") or ()],
        "values": [(line(name, 40), line(value, 240)) for name, value in values[:8]],
    }


def tokenized(evidence: Evidence) -> Section | None:
    """What the model was trained and measured on, in tokens."""
    found = evidence.statistics
    splits = found.get("splits") or {}
    if not splits:
        return None
    train = splits.get("train") or {}
    lost = sum(int(split.get("truncated_rows") or 0) + int(split.get("unused_rows") or 0) for split in splits.values())
    lead = (
        f"{plural(int(train.get('tokens') or 0), 'token')} to train on, {number(found.get('characters_per_token'))}"
        f" characters each; {plural(lost, 'row') if lost else 'no row'} lost something to the limit of"
        f" {number(found.get('max_length'))} tokens."
    )
    names = ("rows", "sequences", "tokens", "mean_length", "longest", "learned_tokens", "truncated_rows", "unused_rows")
    rows = [(name.replace("_", " "), [number(splits.get(split, {}).get(name)) for split in SPLITS]) for name in names]
    return {"lead": lead, "splits": SPLITS, "rows": rows, "vocabulary": number(found.get("vocab_size"))}


def timed(timings: Mapping[str, Timing]) -> Section | None:
    """Time and memory by stage."""
    if not timings:
        return None
    total = sum(timing.seconds for timing in timings.values())
    longest = max(timings.values(), key=lambda timing: timing.seconds)
    peaks = [timing.peak_memory_mib for timing in timings.values() if timing.peak_memory_mib is not None]
    lead = f"{seconds(total)} in all, {seconds(longest.seconds)} of it in {longest.stage}"
    lead += f"; at most {_memory(max(peaks))} of memory." if peaks else "."
    rows = [
        {
            "stage": timing.stage,
            "outcome": timing.outcome,
            "seconds": seconds(timing.seconds),
            "memory": _memory(timing.peak_memory_mib),
        }
        for timing in timings.values()
    ]
    drawn = graphs.durations({stage: timing.seconds for stage, timing in timings.items()})
    return {"lead": lead, "rows": rows, "charts": [("", charts.svg(drawn))]}


def _memory(mib: float | None) -> str:
    if mib is None:
        return MISSING
    return f"{mib / 1024:.1f} GiB" if mib >= 1000 else f"{mib:.0f} MiB"
