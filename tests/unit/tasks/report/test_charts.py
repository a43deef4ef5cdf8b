"""Charts: reproducible bytes, plain text, the page's colours, and an isolated style."""

from __future__ import annotations

import io
import re
import subprocess
import sys

import matplotlib as mpl
import pytest
from PIL import Image

from tasks.evaluation.report import MetricComparison, SliceResult
from tasks.measurements.calibration.chart import draw_calibration
from tasks.measurements.labels.charts import draw_confusion_matrix, draw_label_curves
from tasks.measurements.labels.report import LabelCurve
from tasks.report.canvas import chart_as_svg, empty_figure, figure_as_png, figure_as_svg, use_report_style
from tasks.report.charts import (
    MetricCurves,
    draw_comparison,
    draw_curves,
    draw_gain,
    draw_gains,
    draw_slices,
)
from tasks.report.sections import draw_card_charts
from tests.unit.tasks.report import example


def gain(metric, value, low, high):
    return MetricComparison(against="champion", metric=metric, gain=value, low=low, high=high, p_value=None, rows=40)


def slice_result(name, rows, value, low=None, high=None, champion=None):
    shown = {"slice": name, "rows": rows, "value": value, "low": low, "high": high, "champion": champion}
    return SliceResult.model_validate(
        dict.fromkeys(SliceResult.model_fields) | {"slice_by": "a", "metric": "b"} | shown
    )


GAINS = [gain("accuracy", 0.02, 0.005, 0.035), gain("loss", -0.1, -0.2, 0.01), gain("f1", 0, 0, 0)]
SLICES = [slice_result(f"$slice_{i}$ <你好>", 40, 0.1 * i, 0.1 * i - 0.05, 0.1 * i + 0.05, 0.3) for i in range(1, 9)]
BINS = [{"confidence": 0.55, "accuracy": 0.5, "rows": 40}, {"confidence": 0.95, "accuracy": 0.9, "rows": 4}]
LABEL_CURVES = [
    LabelCurve(label=f"$label_{i}$ <你好>", average_precision=0.6, recall=[0.1 * i, 1.0], precision=[1.0, 0.3])
    for i in range(1, 6)
]
CURVE = [(float(step), 4 / (step + 1)) for step in range(0, 1000, 2)]
CHARTS = {
    "gains": lambda: draw_gains(GAINS, against="champion", bars={"accuracy": 0.01}),
    "strip": lambda: draw_gain(GAINS[0], against="champion", bar=0.01),
    "comparison": lambda: draw_comparison(
        {
            "accuracy": {"model": (0.9, 0.88, 0.92), "champion": (0.9, None, None)},
            "one": {"model": (3, None, None)},
        }
    ),
    "slices": lambda: draw_slices(SLICES, overall=0.4),
    "one slice": lambda: draw_slices([slice_result("only", 3, 0.0)]),
    "columns": lambda: draw_slices(SLICES, columns=2),
    "confusion": lambda: draw_confusion_matrix(["$a$ <b>", "c"], [[4, 1], [0, 0]]),
    "many labels": lambda: draw_confusion_matrix([f"label {i}" for i in range(12)], [[i] * 12 for i in range(12)]),
    "curves of labels": lambda: draw_label_curves(LABEL_CURVES),
    "curve of a label": lambda: draw_label_curves(LABEL_CURVES[:1]),
    "calibration": lambda: draw_calibration(BINS),
    "curves": lambda: draw_curves([MetricCurves("loss", CURVE, CURVE[::50], 900.0)]),
    "log curve": lambda: draw_curves([MetricCurves("perplexity", (), [(0.0, 5000.0), (10.0, 10.0)], 10.0)] * 2),
    "one point": lambda: draw_curves([MetricCurves("loss", CURVE[:1])]),
}


ALIKE = {"columns", "many labels", "curve of a label", "curves", "one point", "one slice"}
"""What the other charts have, too."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in ALIKE else ()) for name in CHARTS]
)
def test_charts_are_reproducible(name):
    drawn = figure_as_svg(CHARTS[name]())
    assert drawn == figure_as_svg(CHARTS[name]())
    image = figure_as_png(CHARTS[name]())
    assert image == figure_as_png(CHARTS[name]())
    assert image.startswith(b"\x89PNG")
    assert b"matplotlib" not in image.lower()


@pytest.mark.parametrize("name", CHARTS)
def test_svg_can_be_embedded(name):
    drawn = figure_as_svg(CHARTS[name]())
    assert re.match(r'<svg viewBox="[0-9. ]+" class="chart" role="img" aria-label="[^"]{10,}"><title>', drawn)
    assert not re.search(r"#[0-9a-fA-F]{6}\b|http|font-family|<style|<metadata|<image|mathdefault", drawn)
    assert "var(--" in drawn
    assert "<text" in drawn
    for used in re.findall(r"#(\w+)", drawn):
        assert drawn.count(f'id="{used}"') == 1
    assert set(re.findall(r'id="(\w)', drawn)) <= {"c"}


def test_chart_names_are_not_parsed_as_formulas():
    drawn = figure_as_svg(CHARTS["slices"]())
    assert re.search(r"<text[^>]*>\$slice_1\$ &lt;你好&gt;</text>", drawn)


def test_chart_has_an_aria_label():
    assert (
        'aria-label="Gain over the champion, with intervals: accuracy +0.020 (+0.005 to +0.035); loss'
        in figure_as_svg(CHARTS["gains"]())
    )


def test_charts_ignore_and_keep_the_users_style():
    before = dict(mpl.rcParams)
    figure_as_svg(CHARTS["curves"]())
    assert dict(mpl.rcParams) == before
    with mpl.rc_context({"font.size": 30, "axes.titlepad": 40, "svg.fonttype": "path"}):
        assert figure_as_svg(CHARTS["curves"]()) == figure_as_svg(CHARTS["curves"]())
        inside = figure_as_svg(CHARTS["calibration"]())
    assert inside == figure_as_svg(CHARTS["calibration"]())


def test_long_curves_are_thinned():
    long = [(float(step), step * 7919 % 13.0) for step in range(100_000)]
    assert len(figure_as_svg(draw_curves([MetricCurves("loss", long)]))) < 30_000


def test_card_pictures(published, tmp_path):
    found = draw_card_charts(published)
    assert list(found) == ["curves.png", "comparison.png", "slices.png", "calibration.png"]
    for content in found.values():
        assert Image.open(io.BytesIO(content)).width >= 600
    assert draw_card_charts(example.write(tmp_path)) == found


def test_card_pictures_of_an_incomplete_run(run):
    (run.evaluation / "details.json").unlink()
    (run.history / "train.csv").unlink()
    (run.history / "validation.csv").unlink()
    assert list(draw_card_charts(run)) == ["comparison.png"]


def test_drawing_does_not_import_pyplot():
    code = "from tests.unit.tasks.report.test_charts import CHARTS, figure_as_svg; figure_as_svg(CHARTS['gains']()); import sys; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_a_chart_of_equal_content_is_drawn_once() -> None:
    drawn = []

    def draw(values, *, height):
        drawn.append(values)
        with use_report_style():
            return empty_figure(100, height, f"Values {values}")

    first = chart_as_svg(draw, [1], height=50)
    assert chart_as_svg(draw, [1], height=50) == first
    assert len({first, chart_as_svg(draw, [2], height=50), chart_as_svg(draw, [1], height=60)}) == 3
    assert drawn == [[1], [2], [1]]
