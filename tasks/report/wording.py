"""How figures and texts are written on the page."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tasks.report.evidence import amount

MISSING = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"


def number(value: object) -> str:
    """A figure to about four digits; a dash for what is missing or not finite."""
    figure = amount(value)
    if figure is None:
        return MISSING
    size = abs(figure)
    if isinstance(value, int) or (figure.is_integer() and 1000 <= size < 1e7):
        text = f"{size:,.0f}"
    elif not size:
        text = "0"
    elif size < 1e-3 or size >= 1e7:
        text = f"{size:.2e}"
    else:
        text = f"{size:,.{3 - min(3, max(0, math.floor(math.log10(size))))}f}"
    return f"{MINUS}{text}" if figure < 0 else text


def span(low: object, high: object, *, signed: bool = False) -> str:
    """An interval to two digits of its width, for example `0.911 to 0.930`; empty if there is none."""
    ends = amount(low), amount(high)
    if ends[0] is None or ends[1] is None:
        return ""
    return " to ".join(_fixed(end, decimals(ends[0], ends[1]), signed=signed) for end in ends if end is not None)


def gain(value: object, low: object = None, high: object = None) -> str:
    """A difference with its sign, to the digits that its interval leaves it."""
    figure, ends = amount(value), (amount(low), amount(high))
    if figure is None:
        return MISSING
    places = decimals(0.0, figure) if ends[0] is None or ends[1] is None else decimals(ends[0], ends[1])
    return _fixed(figure, places, signed=True)


def decimals(low: float, high: float) -> int:
    """Decimal places that show two digits of the distance from `low` to `high`."""
    width = abs(high - low)
    return min(8, max(0, 1 - math.floor(math.log10(width)))) if width > 0 else 3


def _fixed(value: float, places: int, *, signed: bool) -> str:
    text = f"{abs(value):,.{places}f}"
    zero = not text.strip("0.,")
    sign = "" if zero else MINUS if value < 0 else "+" if signed else ""
    return sign + text


def percent(share: object) -> str:
    """A share of one, in percent."""
    figure = amount(share)
    return MISSING if figure is None else f"{100 * figure:.3g}%"


def seconds(value: object) -> str:
    """A duration as people say it: `0.4 s`, `3 min 20 s`, `2 h 5 min`."""
    figure = amount(value)
    if figure is None:
        return MISSING
    if figure < 60:
        return f"{figure:.1f} s" if figure < 10 else f"{figure:.0f} s"
    minutes, rest = divmod(round(figure), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, left = divmod(minutes, 60)
    return f"{hours} h {left} min" if left else f"{hours} h"


def cut(value: object, limit: int) -> str:
    """A text of at most `limit` characters; what cannot be seen in it, but for line ends, is escaped."""
    text = value if isinstance(value, str) else MISSING if value is None else str(value)
    seen = "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text[:limit])
    return seen if len(text) <= limit else f"{seen}…"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


def line(value: object, limit: int) -> str:
    """A text on one line, for a label."""
    return " ".join(cut(value, limit).split())


def plural(count: int, noun: str) -> str:
    """`1 row`, `2 rows`, `3,080 rows`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def better(comparison: Mapping[str, object]) -> str:
    """What a comparison's interval says: `better`, `worse` or `undecided`."""
    low, high = amount(comparison.get("low")), amount(comparison.get("high"))
    if low is not None and low > 0:
        return "better"
    return "worse" if high is not None and high < 0 else "undecided"
