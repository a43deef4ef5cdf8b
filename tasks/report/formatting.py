"""Numbers and texts as the report page shows them."""

from __future__ import annotations

import math

from tasks.evaluation.report import EvaluationReport
from tasks.hub_client.connection import name_of_hub

MISSING = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"


def finite_or_none(value: object) -> float | None:
    """Return a finite number as a float, and None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def format_number(value: object) -> str:
    """Return a number with about four digits; a dash for what is missing or not finite."""
    known = finite_or_none(value)
    if known is None:
        return MISSING
    size = abs(known)
    if isinstance(value, int) or (known.is_integer() and 1000 <= size < 1e7):
        text = f"{size:,.0f}"
    elif not size:
        text = "0"
    elif size < 1e-3 or size >= 1e7:
        text = f"{size:.2e}"
    else:
        text = f"{size:,.{3 - min(3, max(0, math.floor(math.log10(size))))}f}"
    return f"{MINUS}{text}" if known < 0 else text


def format_large_number(value: float) -> str:
    """Return a large number with its unit: `23 K`, `22.7 M` or `1.1 B`."""
    for unit, size, places in (("B", 1e9, 1), ("M", 1e6, 1), ("K", 1e3, 0)):
        if value >= 0.9995 * size:  # not 1000 of the next smaller one
            return f"{value / size:.{places}f} {unit}"
    return f"{value:.0f}"


def format_interval(low: object, high: object, *, signed: bool = False) -> str:
    """Return an interval with two digits of its width, such as `0.911 to 0.930`; empty if an end is missing."""
    ends = finite_or_none(low), finite_or_none(high)
    if ends[0] is None or ends[1] is None:
        return ""
    places = interval_decimal_places(ends[0], ends[1])
    return f"{_fixed(ends[0], places, signed=signed)} to {_fixed(ends[1], places, signed=signed)}"


def format_signed_gain(value: object, low: object = None, high: object = None) -> str:
    """Return a gain with its sign, and as many digits as its interval justifies."""
    known, ends = finite_or_none(value), (finite_or_none(low), finite_or_none(high))
    if known is None:
        return MISSING
    first, last = (0.0, known) if ends[0] is None or ends[1] is None else (ends[0], ends[1])
    return _fixed(known, interval_decimal_places(first, last), signed=True)


def interval_decimal_places(low: float, high: float) -> int:
    """Return the decimal places that show two digits of the distance from `low` to `high`."""
    width = abs(high - low)
    return min(8, max(0, 1 - math.floor(math.log10(width)))) if width > 0 else 3


def _fixed(value: float, places: int, *, signed: bool) -> str:
    text = f"{abs(value):,.{places}f}"
    is_zero = not text.strip("0.,")
    sign = "" if is_zero else MINUS if value < 0 else "+" if signed else ""
    return sign + text


def format_percent(share: object) -> str:
    known = finite_or_none(share)
    return MISSING if known is None else f"{100 * known:.3g}%"


def format_p_value(probability: float) -> str:
    """Return a p-value with three digits, such as `0.012` or `< 0.001`."""
    return "< 0.001" if probability < 0.001 else f"{probability:.3f}"


def format_duration(seconds: object) -> str:
    """Return a duration such as `0.4 s`, `3 min 20 s` or `2 h 5 min`."""
    known = finite_or_none(seconds)
    if known is None:
        return MISSING
    if known < 60:
        return f"{known:.1f} s" if known < 10 else f"{known:.0f} s"
    minutes, rest = divmod(round(known), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, left = divmod(minutes, 60)
    return f"{hours} h {left} min" if left else f"{hours} h"


def format_mib(mib: float | None) -> str:
    """Return an amount of memory, such as `812 MiB` or `1.4 GiB`; a dash for what is missing."""
    if mib is None:
        return MISSING
    return f"{mib / 1024:.1f} GiB" if mib >= 1000 else f"{mib:.0f} MiB"


def format_money(money: object) -> str:
    """Return an amount of money, such as `1,204.50`; a dash for what is missing."""
    known = finite_or_none(money)
    if known is None:
        return MISSING
    return f"{known:,.2f}" if known >= 0.1 or not known else f"{known:,.4f}"


def truncate_and_escape_invisible(value: object, limit: int) -> str:
    """Return at most `limit` characters of a text, with invisible characters escaped, except line ends."""
    text = value if isinstance(value, str) else MISSING if value is None else str(value)
    shown = (c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text[:limit])
    return "".join(shown) + ("…" if len(text) > limit else "")


def format_one_line(value: object, limit: int) -> str:
    """Return a text on one line, for a label."""
    return " ".join(truncate_and_escape_invisible(value, limit).split())


def count_with_noun(count: int, noun: str) -> str:
    """Return `1 row`, `2 rows` or `3,080 rows`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def release_name_and_address(repo_id: str | None, endpoint: str | None, commit: str | None) -> tuple[str, str]:
    """Return the name of a release, and its address if its Hub is on a network, else an empty string."""
    if endpoint and endpoint.startswith(("https://", "http://")) and repo_id and commit:
        return f"{repo_id} on {endpoint}", f"{endpoint}/{repo_id}/tree/{commit}"
    return f"{repo_id or ''} on {name_of_hub(endpoint or '')}", ""


def classify_gain(low: object, high: object) -> str:
    """Return whether a gain's interval is `better` or `worse` than zero, or `undecided`."""
    ends = finite_or_none(low), finite_or_none(high)
    if ends[0] is not None and ends[0] > 0:
        return "better"
    return "worse" if ends[1] is not None and ends[1] < 0 else "undecided"


def metrics_markdown_table(evaluation: EvaluationReport) -> str:
    """Return the model's metrics beside those of the champion and of the untrained model, as a Markdown table."""
    others = {name: metrics for name, metrics in evaluation.metrics.items() if metrics and name != "model"}
    lines = [f"| metric | model |{''.join(f' {name} |' for name in others)}", f"| --- |{' ---: |' * (1 + len(others))}"]
    for name, value in evaluation.model.items():
        beside = [f" {other[name]:.4g} |" if name in other else " |" for other in others.values()]
        lines.append(f"| {name} | {value:.4g} |{''.join(beside)}")
    return "\n".join([*lines, "", f"on the {evaluation.split} split, {evaluation.rows} rows"])
