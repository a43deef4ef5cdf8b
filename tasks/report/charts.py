"""The charts of a run: what is drawn of its artifacts, on the report page and on the model card."""

from __future__ import annotations

from params.artifacts import Artifacts
from tasks.report.drawing import png, svg
from tasks.report.evidence import (
    Evidence,
    amount,
    compare,
    gather,
    interval,
    metric_names,
    worst_slices,
)
from tasks.report.graphs import Bin, Panel, calibration, curves
from tasks.report.plots import (
    MODELS,
    Gain,
    Part,
    Value,
    comparison,
    slices,
)
from tasks.report.wording import line

__all__ = [
    "bins",
    "card_pictures",
    "differences",
    "overall",
    "panels",
    "parts",
    "png",
    "sliced_metric",
    "svg",
    "values",
]
MAX_PANELS = 6
MAX_SLICES = 20


def panels(evidence: Evidence) -> list[Panel]:
    """The curves of a run: the loss, the metric that chose the weights, then the others."""
    best = amount(evidence.training.get("best_step"))
    chosen = evidence.training.get("best_metric")
    names = {name for row in evidence.validation_curve for name in row} - {"step"}
    names |= {"loss"} if any("loss" in row for row in evidence.train_curve) else set()
    ordered = sorted(names, key=lambda name: (name != "loss", name != chosen, name))
    found = []
    for name in ordered[:MAX_PANELS]:
        train = [(row["step"], row[name]) for row in evidence.train_curve if name == "loss" and name in row]
        validation = [(row["step"], row[name]) for row in evidence.validation_curve if name in row]
        found.append(Panel(name, train, validation, best))
    return found


def parts(evidence: Evidence) -> list[Part]:
    """The slices that can be drawn, the worst first."""
    ordered = worst_slices(evidence)
    several = len({part.get("slice_by") for part in ordered}) > 1
    found = []
    for part in ordered:
        value = amount(part.get("value"))
        if value is not None:
            name = line(part.get("slice"), 200)
            name = f"{line(part.get('slice_by'), 40)}: {name}" if several else name
            ends = [amount(part.get(key)) for key in ("low", "high", "champion")]
            found.append(Part(name, int(part.get("rows") or 0), value, *ends))
    return found


def bins(evidence: Evidence) -> list[Bin]:
    """The bins of the reliability diagram that hold rows."""
    found = []
    for one in evidence.details.get("calibration") or ():
        confidence, accuracy = amount(one.get("confidence")), amount(one.get("accuracy"))
        if confidence is not None and accuracy is not None and one.get("rows"):
            found.append(Bin(confidence, accuracy, int(one["rows"])))
    return found


def values(evidence: Evidence) -> dict[str, list[Value]]:
    """The models' figures by metric, the one that decides first."""
    found: dict[str, list[Value]] = {}
    for metric in metric_names(evidence):
        for model in MODELS:
            value = amount((evidence.metrics.get(model) or {}).get(metric))
            if value is not None:
                one = Value(model, value, *interval(evidence, model, metric))
                found.setdefault(metric, []).append(one)
    return found


def card_pictures(artifacts: Artifacts) -> dict[str, bytes]:
    """The charts of a run for its model card, by file name, as PNG; only those that there are figures for."""
    evidence = gather(artifacts, local=False)
    found: dict[str, bytes] = {}
    if drawn := panels(evidence):
        found["curves.png"] = png(curves(drawn[:3]))
    if side_by_side := values(evidence):
        found["comparison.png"] = png(comparison(dict(list(side_by_side.items())[:6])))
    if sliced := parts(evidence):
        all_rows = overall(evidence, sliced_metric(evidence))
        found["slices.png"] = png(slices(sliced[:MAX_SLICES], overall=all_rows, columns=2))
    if sure := bins(evidence):
        found["calibration.png"] = png(calibration(sure))
    return found


def sliced_metric(evidence: Evidence) -> str:
    """The metric that the slices show."""
    return str(next((part["metric"] for part in evidence.details.get("slices") or ()), ""))


def overall(evidence: Evidence, metric: str) -> float | None:
    """The trained model's figure on all rows."""
    return amount((evidence.metrics.get("model") or {}).get(metric))


def differences(evidence: Evidence, against: str) -> list[Gain]:
    """The gains over one model, that of the metric that decides first."""
    decides = "champion" if evidence.blessing.get("champion") else "untrained"
    gate = evidence.plan.evaluation.gate if evidence.plan and against == decides else None
    bar = None if gate is None else max(gate.bar, 0.0) if against == "untrained" else gate.bar
    found = []
    for i, metric in enumerate(metric_names(evidence)):
        one = compare(evidence, against, metric)
        gain, low, high = (amount(one.get(key)) for key in ("gain", "low", "high"))
        if gain is not None and low is not None and high is not None:
            found.append(Gain(metric, gain, low, high, bar if i == 0 else None))
    return found
