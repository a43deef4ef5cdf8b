"""The page of a run: complete, escaped, reproducible, and written however early the run ended."""

from __future__ import annotations

import json
import re
import shutil
from importlib.resources import files
from pathlib import Path

import pytest

from params.foundation.artifacts import Artifacts
from params.foundation.stages import STAGES
from tasks.report.formatting import MINUS, MISSING
from tasks.report.page import render_report_page, write_run_report_page
from tasks.report.sections import draw_card_charts
from tasks.report.timings import StageTiming, read_timings, save_timing_drop_later_failures
from tests.support import tiny
from tests.support.browser import needs_browser, open_page
from tests.support.html import Outline
from tests.support.project import Project
from tests.unit.tasks.report import example

SECTIONS = [
    "comparison",
    "labels",
    "slices",
    "worst",
    "suspects",
    "changed",
    "calibration",
    "curves",
    "data",
    "tokens",
    "time",
    "lineage",
]
TIMINGS = {
    stage: StageTiming(stage=stage, seconds=41.5 * (i + 1), peak_memory_mib=700.0 * (i + 1), outcome="ran")
    for i, stage in enumerate(STAGES)
}


def assert_self_contained(page: str) -> Outline:
    outline = Outline(page)
    for tag, attributes in outline.elements:
        assert tag != "th" or attributes["scope"] in {"row", "col"}
        assert tag != "svg" or (attributes["role"] == "img" and attributes["aria-label"])
    assert {"script", "link", "img", "iframe", "object", "base", "form", "image", "foreignobject"}.isdisjoint(
        outline.tags
    )
    inside = {f"#{name}" for name in outline.ids}
    assert len(outline.ids) == len(set(outline.ids))
    for address in outline.addresses:
        assert address in inside or address.endswith("report.html"), address
    assert "url(" not in re.sub(r"url\(#\w+\)", "", page)
    assert "@import" not in page
    assert not re.search(r"\b(nan|inf|None|Undefined)\b", re.sub(r"\bNone of\b", "", outline.text)), outline.text
    assert len(page.encode()) < 1_500_000
    return outline


def words(page: str) -> str:
    return " ".join(assert_self_contained(page).text.split())


def headline(page: str) -> str:
    return re.search(r"<h1>(.*?)</h1>", page)[1]


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_sections_are_in_order(published):
    page = render_report_page(published, timings=TIMINGS)
    outline = assert_self_contained(page)
    assert [name for name in outline.ids if name in SECTIONS] == SECTIONS
    assert outline.tags.count("svg") == 1 + 3 + 2 + 2 + 1 + 3
    assert page.count("height: 100%; width: 100%; background") == 1, "the longest stage"
    assert all(page.count(f'href="#{name}"') == 1 for name in SECTIONS)


def test_page_begins_with_verdict_and_reasons(published):
    page = words(render_report_page(published, timings=TIMINGS))
    assert (
        page.index("Published")
        < page.index("accuracy is 0.03 better")
        < page.index("Candidate, champion and model before training")
    )
    for part in (
        "0.9000 95% interval 0.880 to 0.920",
        "+0.030 95% interval +0.011 to +0.049",
        "release-beef",
        "d" * 40,
    ):
        assert part.replace("0.9000", "0.900") in page, part


def test_page_shows_the_bar_of_the_gate(run):
    change(run.evaluation / "details.json", confidence=0.9)
    tiny.write(run.recipe_path, tiny.recipe({"evaluation.gate": {"margin": 0.02}}, **tiny.CLASSES))
    page = words(render_report_page(run, timings=TIMINGS))
    assert f"90% interval +0.011 to +0.049 the gate demands a lower end above {MINUS}0.020" in page


def test_page_shows_what_the_stages_cost(plain):
    hours = sum(timing.seconds for timing in TIMINGS.values()) / 3600
    assert "Cost:" not in words(render_report_page(plain, timings=TIMINGS))
    tiny.write(plain.recipe_path, tiny.recipe({"launch.price_per_hour": 100.0}, **tiny.CLASSES))
    said = f"Cost: {100 * hours:.2f}, at 100.00 an hour (launch.price_per_hour)."
    assert said in words(render_report_page(plain, timings=TIMINGS))
    assert "Cost:" not in words(render_report_page(plain, timings=None)), "a release does not depend on times"


def test_data_is_escaped(published):
    outline = assert_self_contained(render_report_page(published, timings=TIMINGS))
    assert outline.text.count("<script src='https://evil.example/x.js'>alert(1)</script>") > 20
    assert "\u202e" not in outline.text
    assert "\x00" not in outline.text


def test_no_text_changes_the_direction_of_writing(run):
    change(run.history / "training.json", best_metric="accuracy\u202egnp\u2066")
    page = render_report_page(run, timings=TIMINGS)
    assert r"accuracy\u202egnp\u2066" in page
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", page)


def test_same_run_gives_the_same_page(published, tmp_path):
    again = example.write(tmp_path)
    assert render_report_page(published, timings=None) == render_report_page(again, timings=None)
    assert render_report_page(published, timings=TIMINGS) == render_report_page(again, timings=TIMINGS)


def test_released_page_has_no_times_and_no_receipt(run):
    page = render_report_page(run, timings=None)
    assert headline(page) == "To be published"
    text = words(page)
    for unwanted in ("release-beef", "d" * 40, "min", " s ", "GiB", "validated/report.html", "publish</li>"):
        assert unwanted not in re.sub(r"min_value|minor", "", text), unwanted
    run.receipt.unlink()
    (run.root / "dvc.lock").write_text("stages: {}")
    assert render_report_page(run, timings=None) == page


def test_page_without_quoted_rows(published):
    page = render_report_page(published, timings=None, quote_rows=False)
    assert 'id="worst"' not in page
    assert 'id="changed"' not in page
    assert "row 0 of train" in words(render_report_page(published, timings=None))
    assert "row 0 of train" not in words(page)
    assert "8 of 10,000 train rows that were looked at, of 12,998, 3 of 402 test rows" in words(page)
    assert "Examples of rows set aside" not in page
    assert "row_is_usable()" in page
    assert "New rows of this kind" in render_report_page(published, timings=None)
    assert "New rows of this kind" not in page
    assert "The new rows drifted" in page


def test_suites_show_each_failure(published):
    failed = {"row_id": 7, "text": "<b>hello there", "notes": {"expected": "greeting", "predicted": "bye"}}
    suite = {"name": "greetings", "rows": 20, "right": 19, "share": 0.95, "sha256": "", "failures": [failed]}
    path = published.report("details")
    kept = path.read_text()
    try:
        example.save(path, json.loads(kept) | {"suites": [suite, suite | {"name": "all", "share": 1.0}]})
        page = render_report_page(published, timings=None)
        bare = render_report_page(published, timings=None, quote_rows=False)
    finally:
        path.write_text(kept)
    assert_self_contained(page)
    assert "✓ greetings: 19 of 20 rows right; at least 95% must be." in words(page)
    assert "✗ all: 19 of 20 rows right; at least 100% must be." in words(page)
    assert "row 7 expected greeting predicted bye <b>hello there" in words(page)
    assert "greetings" in bare
    assert "hello there" not in bare


@pytest.mark.parametrize("missing", ["dvc.lock", *example.files(slices=0, worst=0, text=""), "validated/quarantine.parquet",
                                     "validated/report.html", "history/train.csv", "history/validation.csv", "recipe"])  # fmt: skip
def test_page_without_one_input(run, missing):
    (run.recipe_path if missing == "recipe" else run.run / missing).unlink(missing_ok=True)
    assert "could not be read" not in words(render_report_page(run, timings=TIMINGS))


def test_unreadable_files_are_named(plain):
    plain.blessing.write_text('{"verdict": "pub')
    plain.recipe_path.write_text("seed: [")
    assert "These files could not be read and are not shown: blessing.json" in words(
        render_report_page(plain, timings={})
    )


@pytest.mark.parametrize("stage", STAGES[:-1])
def test_page_of_a_failed_run_names_the_failed_stage(plain, stage):
    folders = {
        "ingest": "raw",
        "validate": "validated",
        "tokenize": "tokens",
        "train": "history",
        "evaluate": "evaluation",
    }
    later = STAGES[STAGES.index(stage) : -1]
    for name in later:
        shutil.rmtree(plain.run / folders[name])
    shutil.rmtree(plain.receipt.parent)
    done = {name: TIMINGS[name] for name in STAGES[: STAGES.index(stage)]}
    failed = StageTiming(
        stage=stage, seconds=3.0, outcome="failed", error=f"DataError: it is bad {example.EVIL}\n  fix: change it"
    )
    page = render_report_page(plain, timings={**done, stage: failed})
    assert headline(page) == f"Failed in {stage}"
    text = words(page)
    assert "DataError: it is bad <script" in text
    assert "fix: change it" in text
    assert f"✗ {stage} failed" in text
    assert text.count(" not run") == 5 - STAGES.index(stage)
    assert "from an earlier run" not in text


def test_page_of_an_empty_run(tmp_path):
    artifacts = Artifacts("tiny", tmp_path)
    path = write_run_report_page(artifacts, timings={})
    assert path == artifacts.run / "report.html"
    assert headline(path.read_text()) == "Not started"
    assert_self_contained(path.read_text())


def test_results_of_an_earlier_run_are_marked(published):
    failed = {"train": StageTiming(stage="train", seconds=3.0, outcome="failed")}
    text = words(render_report_page(published, timings=failed))
    assert "published before release-beef" in text
    assert text.index("Failed in train") < text.index("published before") < text.index("Curves")
    assert "published as" not in text
    assert "0123456789abcdef" not in text[: text.index("Candidate, champion")]
    assert "The results of train, evaluate below are from an earlier run" in text


def test_failed_validation_links_to_its_report(plain):
    shutil.rmtree(plain.validated)
    page = plain.scratch / "validation-failed" / "report.html"
    page.parent.mkdir(parents=True)
    page.write_text("why")
    failed = {"validate": StageTiming(stage="validate", seconds=1.0, outcome="failed")}
    (link,) = (a for a in Outline(render_report_page(plain, timings=failed)).addresses if not a.startswith("#"))
    assert (plain.run / link).resolve() == page.resolve()
    failed["validate"] = failed["validate"].model_copy(update={"error": "row 3 of train: 'a private text'"})
    assert "a private text" in render_report_page(plain, timings=failed)
    bare = render_report_page(plain, timings=failed, quote_rows=False)
    assert "a private text" not in bare
    assert str(link) not in bare, "it shows rows"


@pytest.mark.parametrize(
    ("blessing", "receipt", "shown", "tone"),
    [
        ({}, example.RECEIPT, "Published", "good"),
        ({}, None, "To be published", "good"),
        ({}, {"status": "dry-run", "commit": None}, "To be published", "good"),
        ({"champion": None, "first_release": True}, example.RECEIPT, "Published", "good"),
        # receipts of an earlier run: of the champion's release, of a kept run, of a release before a kept run
        ({"champion": {**example.CHAMPION, "commit": "d" * 40}}, example.RECEIPT, "To be published", "good"),
        ({}, {"status": "kept"}, "To be published", "good"),
        ({"verdict": "keep"}, example.RECEIPT, "Kept the champion", "note"),
        ({"verdict": "keep"}, {"status": "kept"}, "Kept the champion", "note"),
        ({"verdict": "keep", "model": "9" * 64}, {"status": "kept"}, "Published already", "good"),
        ({"verdict": "refuse"}, None, "Refused", "bad"),
    ],
)
def test_headline_of_each_verdict(plain, blessing, receipt, shown, tone):
    change(plain.blessing, **blessing)
    if receipt is None:
        plain.receipt.unlink()
    else:
        example.save(plain.receipt, {**example.RECEIPT, **receipt})
    page = render_report_page(plain, timings=TIMINGS)
    assert headline(page) == shown
    assert f'class="headline card {tone}"' in page
    if shown != "Published":
        assert "published as" not in words(page)


def test_refusal_is_not_a_failure(plain):
    change(plain.blessing, verdict="refuse")
    failed = {
        "publish": StageTiming(stage="publish", seconds=1.0, outcome="failed", error="ModelError: the gate refuses")
    }
    assert headline(render_report_page(plain, timings=failed)) == "Refused"


def test_release_on_a_remote_hub_is_a_link(plain):
    change(plain.receipt, endpoint="https://hub.example")
    page = render_report_page(plain, timings=TIMINGS)
    assert f'href="https://hub.example/tests/tiny/tree/{"d" * 40}"' in page
    change(plain.receipt, endpoint="javascript:alert(1)//")
    assert 'href="javascript' not in render_report_page(plain, timings=TIMINGS)


def test_changed_rows_show_both_answers(tmp_path):
    page = render_report_page(example.write(tmp_path, text="t"), timings=TIMINGS)
    text = words(page)
    assert "The 8 rows whose error differs most between candidate and champion" in text
    assert "the candidate does better on 3 and worse on 5." in text
    assert "row 100 gain +3.0 candidate" in text
    assert "candidate error 0.250 predicted t champion error 3.250 predicted" in text


def test_page_says_what_is_searched_and_how_far_vectors_have_moved(tmp_path):
    run = example.write(tmp_path, text="t")
    vectors = {"texts": 1200, "cosine": 0.8125, "rotated": 0.954}
    change(run.report("details"), documents=1400, vectors=vectors)
    text = words(render_report_page(run, timings=TIMINGS))
    assert "Each query searches the documents of its split and the 1,400 documents of data.corpus." in text
    assert (
        "The vectors of 1,200 held-out texts have a mean cosine of 0.812 with those of the published model, 0.954"
        in text
    )
    change(run.report("details"), vectors=vectors | {"cosine": None, "rotated": None})
    assert "have another size than those of the published model; an index of vectors must be rebuilt" in words(
        render_report_page(run, timings=TIMINGS)
    )


def test_metric_is_shown_by_the_length_of_queries(tmp_path):
    run = example.write(tmp_path, text="t")
    parts = [{**example.slice_result(i, "t"), "slice_by": "query length", "slice": f"{i} words"} for i in range(2)]
    parts[0]["metric"] = parts[1]["metric"] = "ndcg_at_10"
    change(run.report("details"), own_slices=[*parts, {**parts[0], "slice": "99 words", "value": None}])
    page = render_report_page(run, timings=TIMINGS)
    assert "ndcg_at_10 by query length" in words(page)
    assert "0 words" in page
    assert "1 words" in page
    assert "99 words" not in page, "no query there has a relevant document"


def test_labels_are_shown_with_what_is_mixed_up(tmp_path):
    text = words(render_report_page(example.write(tmp_path, text="t"), timings=TIMINGS))
    assert "Against the champion, 3 of 3 labels are better and 0 worse by their whole interval; about 0.2 would" in text
    assert "t100990.8200.750 0.7800.70 to 0.85 0.680+0.10+0.02 to +0.18" in text
    assert "d10990.8200.750 0.780too few rows to judge 0.680" in text
    assert "1212%9" in text
    run = example.write(tmp_path / "many", text="t")
    labels = example.labels("t")
    many = [{**labels["results"][0], "label": f"label {i}"} for i in range(500)]
    change(run.report("details"), labels={**labels, "results": many, "confusions": [], "matrix": [], "names": []})
    text = words(render_report_page(run, timings=TIMINGS))
    assert "The 400 labels with the most rows of 500; all are in evaluation/details.json" in text
    assert "label 39910099" in text
    assert "label 400" not in text
    assert "mixed up" not in text


def test_page_limits_slices_and_long_texts(tmp_path):
    run = example.write(tmp_path, slices=1500, worst=100, text=example.EVIL * 30)
    page = render_report_page(run, timings=TIMINGS)
    assert "The worst 400 of 1500 slices" in words(page)
    assert "Of the slices with enough rows for an interval, the worst is" in words(page)


def test_nonfinite_values_are_shown_as_missing(run):
    for name in ("metrics.json", "details.json"):
        path = run.evaluation / name
        path.write_text(re.sub(r"\b0\.9\b|0\.03\b|\b0\.5\d*", "NaN", path.read_text()))
    example.curve(run.history / "train.csv", [{"step": 0, "loss": float("nan")}, {"step": 2, "loss": 1e9}])
    assert MISSING in words(render_report_page(run, timings=TIMINGS))


def test_example_files_match_the_report_models():
    from tasks.evaluation.report import Blessing, EvaluationDetails, EvaluationReport
    from tasks.ingestion.report import IngestReport
    from tasks.release_log.receipt import Receipt
    from tasks.tokenization.report import TokenizationReport
    from tasks.training.report import TrainingReport
    from tasks.validation.report import ValidationReport

    models = {
        "raw/source.json": IngestReport,
        "validated/validation.json": ValidationReport,
        "tokens/statistics.json": TokenizationReport,
        "history/training.json": TrainingReport,
        "evaluation/metrics.json": EvaluationReport,
        "evaluation/details.json": EvaluationDetails,
        "evaluation/blessing.json": Blessing,
        "release/receipt.json": Receipt,
    }
    found = example.files(slices=4, worst=2, text="t")
    assert found.keys() == models.keys()
    for path, content in found.items():
        models[path].model_validate_json(json.dumps(content))


def test_timings_are_stored_in_scratch(tmp_path):
    artifacts = Artifacts("tiny", tmp_path)
    assert read_timings(artifacts) == {}
    for timing in reversed(TIMINGS.values()):
        save_timing_drop_later_failures(artifacts, timing)
    assert read_timings(artifacts) == TIMINGS
    assert list(read_timings(artifacts)) == list(STAGES)
    assert not artifacts.run.exists()
    (artifacts.scratch / "timings" / "train.json").write_text("{}")
    assert "train" not in read_timings(artifacts)


def test_new_timing_removes_those_of_later_stages(tmp_path):
    artifacts = Artifacts("tiny", tmp_path)
    save_timing_drop_later_failures(artifacts, TIMINGS["ingest"])
    save_timing_drop_later_failures(artifacts, StageTiming(stage="train", seconds=1, outcome="failed"))
    save_timing_drop_later_failures(artifacts, TIMINGS["evaluate"])
    save_timing_drop_later_failures(artifacts, TIMINGS["validate"])
    assert list(read_timings(artifacts)) == ["ingest", "validate", "evaluate"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_colours_have_enough_contrast(scheme):
    style = files("tasks.report").joinpath("page.css").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    colours = dict(re.findall(r"(--[\w-]+): #(\w{6})", light + (dark if scheme == "dark" else "")))
    backgrounds = {name: ["--page", "--card"] for name in ("--ink", "--soft", "--candidate", "--champion", "--base")}
    backgrounds |= {f"--{name}": ["--card", f"--{name}-wash"] for name in ("good", "bad", "note")}
    for foreground, pairs in backgrounds.items():
        for background in pairs:
            dim, bright = sorted(luminance(colours[name]) for name in (foreground, background))
            assert (bright + 0.05) / (dim + 0.05) >= 4.5, (foreground, background)


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2 defines it."""
    shares = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@needs_browser
@pytest.mark.parametrize(
    ("width", "dark"),
    [pytest.param(1280, False, marks=pytest.mark.slow), (390, True), pytest.param(360, False, marks=pytest.mark.slow)],
)
def test_page_loads_nothing_and_fits(published, tmp_path, width, dark):
    page = write_run_report_page(published, timings=TIMINGS)
    text = page.read_text(encoding="utf-8")
    assert text.count("<details>") >= 4
    page.write_text(text.replace("<details>", "<details open>"), encoding="utf-8")
    visit = open_page(page, width=width, dark=dark, screenshot=tmp_path / "page.png")
    assert visit.console == []
    assert visit.requests == [page.as_uri()]
    assert visit.content_width <= width
    assert "Published" in visit.dom


@pytest.mark.slow
@needs_browser
def test_browser_detects_requests_and_overflow(published, tmp_path):
    page = tmp_path / "report.html"
    text = write_run_report_page(published, timings=TIMINGS).read_text(encoding="utf-8")
    page.write_text(
        text.replace("<main>", '<main><img src="http://127.0.0.1:9/x.png"><p style="width: 900px">wide</p>')
    )
    visit = open_page(page, width=390)
    assert visit.console
    assert visit.content_width > 390


@pytest.mark.slow
def test_page_of_a_run_of_the_real_stages(project: Project) -> None:
    project.stages("params/tiny.yaml")
    artifacts = Artifacts("tiny", project.root)
    page = write_run_report_page(artifacts, timings={}).read_text(encoding="utf-8")
    assert headline(page) == "Published"
    assert_self_contained(page)
    for section in ("comparison", "worst", "curves", "data", "tokens", "lineage"):
        assert f'<section id="{section}"' in page, section
    receipt = project.json("runs/tiny/release/receipt.json")
    assert receipt["tag"] in words(page)
    released = render_report_page(artifacts, timings=None)
    assert headline(released) == "To be published"
    assert receipt["commit"] not in released
    assert set(draw_card_charts(artifacts)) >= {"curves.png", "comparison.png"}


def test_page_says_which_rows_were_left_out(run):
    before = words(render_report_page(run, timings=TIMINGS))
    assert "Ingest left out" not in before
    assert "split, the candidate is" in before
    details = run.evaluation / "details.json"
    comparisons = [one | {"learned": 3, "left_out": 1} for one in json.loads(details.read_text())["comparisons"]]
    change(details, comparisons=comparisons)
    change(run.raw / "source.json", left_out={"older than data.window or data.since": 1200, "more than max_rows": 1})
    corrections = {"corrections": 4, "changed": {"train": 3, "validation": 0, "test": 1}, "unmatched": []}
    change(run.validated / "validation.json", corrections=corrections)
    page = words(render_report_page(run, timings=TIMINGS))
    assert (
        "without 3 rows that the champion has learned from and 1 row that not both models read as a whole, the" in page
    )
    assert "Ingest left out 1,200 rows: older than data.window or data.since." in page
    assert "Ingest left out 1 row: more than max_rows." in page
    assert "data.corrections: 4 corrections give 3 train, 1 test rows another label." in page
