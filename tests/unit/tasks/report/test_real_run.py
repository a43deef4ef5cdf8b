"""The page of a run of the real stages."""

from __future__ import annotations

import pytest

from params.artifacts import Artifacts
from tasks.report.chart_data import card_pictures
from tasks.report.page import render, write_report
from tests.support.project import Project
from tests.unit.tasks.report.test_page import assert_self_contained, headline, words


@pytest.mark.slow
def test_page_of_a_run_of_the_real_stages(project: Project) -> None:
    project.stages("params/tiny.yaml")
    artifacts = Artifacts("tiny", project.root)
    page = write_report(artifacts, timings={}).read_text(encoding="utf-8")
    assert headline(page) == "Published"
    assert_self_contained(page)
    for section in ("comparison", "worst", "curves", "data", "tokens", "lineage"):
        assert f'<section id="{section}"' in page, section
    receipt = project.json("runs/tiny/release/receipt.json")
    assert receipt["tag"] in words(page)
    released = render(artifacts, timings=None)
    assert headline(released) == "To be published"
    assert receipt["commit"] not in released
    assert set(card_pictures(artifacts)) >= {"curves.png", "comparison.png"}
