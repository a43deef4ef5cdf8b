"""The pictures of a report in README.md: `python -m docs.pictures runs/NAME/report.html` writes docs/report-light.png and -dark.png.

Needs Chromium and the packages of `make setup`. The pictures there are of the tutorial's recipe: a run on `docs/questions.py 200`, then
one on 1200. docs/pipeline.svg is written by hand.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image

from tests.support.browser import open_page

WIDTH = 1180
HEIGHT = 1000
COLOURS = 48


def take(report: Path, folder: Path) -> None:
    """Write the head of a report as small pictures, as a light and a dark page."""
    for dark in (False, True):
        whole = folder / "whole.png"
        open_page(report, width=WIDTH, dark=dark, screenshot=whole)
        picture = Image.open(io.BytesIO(whole.read_bytes())).convert("RGB")
        whole.unlink()
        cut = picture.crop((0, 0, picture.width, min(HEIGHT, picture.height)))
        name = f"report-{'dark' if dark else 'light'}.png"
        cut.quantize(COLOURS, dither=Image.Dither.NONE).save(folder / name, optimize=True)


if __name__ == "__main__":
    take(Path(sys.argv[1]), Path(__file__).parent)
