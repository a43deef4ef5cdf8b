"""The style of all charts, and a matplotlib Figure as SVG or PNG.

An SVG keeps text as text and refers to its colours by CSS variables, so that one drawing fits a light and a dark page.
Both formats hold no date: equal drawings give equal bytes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 320.0
"""Width of a chart in pixels: a phone can show it without scaling the text down."""
_LIGHT_PAGE = files("tasks.report").joinpath("page.css").read_text("utf-8").partition("@media")[0]
_COLOURS: dict[str, str] = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", _LIGHT_PAGE))
"""The colours of the light page by the names of their CSS variables; no two are equal."""
_VARIABLES = {colour: f"var(--{name})" for name, colour in _COLOURS.items()}
INK, SOFT, LINE, CARD = (_COLOURS[name] for name in ("ink", "soft", "line", "card"))
CANDIDATE, CHAMPION, BASE = (_COLOURS[name] for name in ("candidate", "champion", "base"))
GOOD, BAD = _COLOURS["good"], _COLOURS["bad"]

_STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": SOFT,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": SOFT,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.unicode_minus": True,
    "figure.dpi": 72,
    "figure.facecolor": "none",
    "font.family": ["DejaVu Sans"],
    "font.size": 11,
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "legend.fontsize": 11,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.6,
    "patch.edgecolor": INK,
    "patch.facecolor": CANDIDATE,
    "svg.fonttype": "none",
    "svg.hashsalt": "evergreen",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": SOFT,
    "xtick.labelsize": 10,
    "xtick.major.size": 3,
    "ytick.color": SOFT,
    "ytick.labelsize": 10,
    "ytick.major.size": 0,
}
_POINTS_PER_INCH = 72
_PNG_SCALE = 2
_XLINK = "{http://www.w3.org/1999/xlink}"


@contextlib.contextmanager
def use_report_style() -> Iterator[None]:
    """Use the report's style inside the block, whatever the user's matplotlib settings are."""
    from matplotlib.style import context

    with context(_STYLE, after_reset=True), warnings.catch_warnings():
        # the browser has fonts for the glyphs that matplotlib's font lacks
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        yield


def empty_figure(width: float, height: float, description: str) -> Figure:
    """Return an empty figure of `width` by `height` pixels; screen readers read `description`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / _POINTS_PER_INCH, height / _POINTS_PER_INCH))
    figure.set_label(description)
    return figure


def figure_with_pixel_axes(width: float, height: float, description: str) -> tuple[Figure, Axes]:
    """Return a figure and axes in pixels, with the origin in the upper left corner."""
    figure = empty_figure(width, height, description)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    return figure, axes


def shorten_label(text: str, limit: int) -> str:
    """Return a label of at most `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def figure_as_svg(figure: Figure) -> str:
    """Return a figure as an `<svg>` element for an HTML page that defines the colours as CSS variables."""
    text = io.StringIO()
    with use_report_style():
        figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    description = str(figure.get_label())
    root = ET.fromstring(text.getvalue())  # noqa: S314 (drawn here)
    _clean(root, prefix=f"c{hashlib.sha256(text.getvalue().encode() + description.encode()).hexdigest()[:8]}")
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib |= {"class": "chart", "role": "img", "aria-label": description}
    title = ET.Element("title")
    title.text = description
    root.insert(0, title)
    return ET.tostring(root, encoding="unicode")


def chart_as_svg(draw: Callable[..., Figure], *content: Any, **options: Any) -> str:
    """Return what `draw` draws of a content as `figure_as_svg` does; once, as the page of a release and that of its run show the same."""
    drawn: str = _drawn_once(figure_as_svg, draw, pickle.dumps((content, options)))
    return drawn


def chart_as_png(draw: Callable[..., Figure], *content: Any, **options: Any) -> bytes:
    """Return what `draw` draws of a content as `figure_as_png` does; once, as the same model may be published in several forms."""
    drawn: bytes = _drawn_once(figure_as_png, draw, pickle.dumps((content, options)))
    return drawn


@functools.lru_cache(maxsize=64)
def _drawn_once(write: Callable[[Figure], Any], draw: Callable[..., Figure], pickled: bytes) -> Any:
    content, options = pickle.loads(pickled)  # noqa: S301 (pickled above)
    return write(draw(*content, **options))


def figure_as_png(figure: Figure) -> bytes:
    """Return a figure as PNG on white, at twice its size."""
    content = io.BytesIO()
    with use_report_style():
        figure.savefig(
            content, format="png", dpi=_POINTS_PER_INCH * _PNG_SCALE, facecolor=CARD, metadata={"Software": None}
        )
    return content.getvalue()


def _clean(root: ET.Element, prefix: str) -> None:
    """Make an SVG fit for a page with others: unique ids, no fonts, no style sheet, colours as variables."""
    used = set(re.findall(r"#([\w-]+)", " ".join(value for e in root.iter() for value in e.attrib.values())))
    for element in list(root.iter()):
        element.tag = element.tag.rpartition("}")[2]
        for child in [c for c in element if c.tag.rpartition("}")[2] in ("metadata", "style")]:
            element.remove(child)
        for name, value in list(element.attrib.items()):
            del element.attrib[name]
            if cleaned := _attribute(name, value, prefix, used):
                element.attrib[name.removeprefix(_XLINK)] = cleaned
        element.tail = None
        if element.tag != "text":
            element.text = None


def _attribute(name: str, value: str, prefix: str, used: set[str]) -> str | None:
    if name == "id":
        return f"{prefix}{value}" if value in used else None
    if name == "transform" and value.startswith("rotate(-0 "):
        return None
    if name == "style":
        value = re.sub(r"font-family: [^;]*(; |$)", "", value)
        value = re.sub(r"#[0-9a-f]{6}\b", lambda match: _VARIABLES[match[0]], value)
        return value.removesuffix("; ")
    if name == "d":
        return " ".join(value.split())
    return re.sub(r"#([\w-]+)", rf"#{prefix}\1", value) if "#" in value else value
