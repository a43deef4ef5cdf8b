"""How often the held-out rows were used: sketches of rows, and the count over the log of verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from params.foundation.artifacts import KEPT_FOLDER, Artifacts
from params.schema import ObjectiveChoice
from params.sections.evaluation import Gate
from tasks.evaluation.row_use import (
    ComparisonId,
    estimate_reused_row_share,
    hash_rows_of_split,
    hash_texts,
    make_row_sketch,
    measure_row_use,
)
from tasks.hub_client.repository_name import name_repository
from tasks.release_log.events import ReleaseEvent, read_release_events_of_project
from tasks.shards.split_rows import SplitRows
from tests.support import tiny
from trainer import objectives

GATE = Gate(over="test_rows", comparisons=12)
TODAY = ComparisonId(name_repository("local", "tests/tiny"), "today", "c0", "d0", "accuracy")


def rows(first: int, end: int) -> NDArray[np.uint64]:
    return hash_texts(f"row {i}" for i in range(first, end))


def verdict(hashes: NDArray[np.uint64], weights: str = "other", **changes: object) -> ReleaseEvent:
    fields = {
        "event": "verdict",
        "reasons": (),
        "repo_id": "tests/tiny",
        "endpoint": "local",
        "commit": "c0",
        "tag": None,
        "weights": weights,
        "data": "d0",
        "metric": "accuracy",
        "confidence": GATE.comparison_confidence,
        "row_sketch": make_row_sketch(hashes),
        "row_sketch_of": "inputs",
    }
    return ReleaseEvent.model_validate(fields | changes)


def uses(today: NDArray[np.uint64], entries: Sequence[ReleaseEvent], gate: Gate = GATE) -> float:
    return measure_row_use(gate, {"inputs": today}, entries, TODAY).uses


def test_sketch_is_small_and_of_the_content_only(tmp_path) -> None:
    hashes = rows(0, 1000)
    assert len(make_row_sketch(hashes)) == 64
    assert make_row_sketch(hashes) == tuple(sorted(make_row_sketch(hashes))) == make_row_sketch(rows(0, 1000))
    assert make_row_sketch(hash_texts(["b", "a", "a"])) == make_row_sketch(hash_texts(["a", "b"]))
    tiny.write_splits(tmp_path, {"train": {"text": ["x"]}, "test": {"text": ["a", "b", "c"], "seen": [1, 2, 3]}})
    objective = objectives.build_objective(ObjectiveChoice(name="causal_lm"))
    found = hash_rows_of_split(SplitRows(tmp_path / "test"), np.array([1, 2]), objective)["inputs"]
    assert make_row_sketch(found) == make_row_sketch(hash_texts(["a", "b"])), (
        "neither row_id, nor other columns, nor other rows"
    )


@pytest.mark.parametrize("size", [10, 63, 64, 65, 5000])
def test_same_rows_are_used_as_a_whole_and_other_rows_not_at_all(size: int) -> None:
    assert estimate_reused_row_share(make_row_sketch(rows(0, size)), rows(0, size)) == 1
    assert estimate_reused_row_share(make_row_sketch(rows(0, size)), rows(size, 2 * size)) == 0


@pytest.mark.parametrize(
    ("earlier", "today", "share"),
    [
        ((0, 2000), (0, 4000), 0.5),  # the split has grown
        ((0, 2000), (1000, 3000), 0.5),  # old rows have left, too
        ((0, 4000), (0, 2000), 1.0),  # the split has shrunk
        ((0, 4000), (3000, 5000), 0.5),
        ((0, 40), (0, 400), 0.1),  # the sketch holds the whole split
        ((0, 40), (20, 60), 0.5),
    ],
)
def test_share_of_rows_is_estimated(earlier: tuple[int, int], today: tuple[int, int], share: float) -> None:
    found = estimate_reused_row_share(make_row_sketch(rows(*earlier)), rows(*today))
    assert found == pytest.approx(share, abs=0.2)  # three standard errors of 64 rows
    if earlier[1] < 64:
        assert found == share


def test_estimate_is_unbiased() -> None:
    """Over 100 pairs of splits, a mean of 0.5 has a standard error of 0.005."""
    shares = [
        estimate_reused_row_share(
            make_row_sketch(hash_texts(f"{i} {seed}" for i in range(600))),
            hash_texts(f"{i} {seed}" for i in range(300, 900)),
        )
        for seed in range(100)
    ]
    assert np.mean(shares) == pytest.approx(0.5, abs=0.02)


def test_a_few_rows_after_very_many_count_as_used() -> None:
    """No hash of the new rows is below the largest in the sketch: nothing can be said about them."""
    one = rows(0, 5)[-1:]
    assert estimate_reused_row_share(make_row_sketch(rows(100, 100_000)), one) == 1


def test_every_earlier_comparison_on_these_rows_counts() -> None:
    hashes = rows(0, 500)
    assert uses(hashes, []) == 0
    assert uses(hashes, [verdict(hashes, str(i)) for i in range(7)]) == 7
    assert uses(hashes, [verdict(rows(500, 1000), str(i)) for i in range(7)]) == 0
    assert uses(rows(0, 1000), [verdict(hashes, str(i)) for i in range(8)]) == pytest.approx(4, abs=1.5)


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": "today"},  # the same comparison
        {"repo_id": "tests/else"},
        {"endpoint": "https://huggingface.co"},  # which serves no folder of this project
        {"row_sketch": ()},  # a verdict with `over: release`, or without a comparison
        {"event": "refused"},
    ],
)
def test_what_does_not_count(changes: dict[str, object]) -> None:
    hashes = rows(0, 100)
    assert uses(hashes, [verdict(hashes), verdict(hashes, **{"weights": "third"} | changes)]) == 1


@pytest.mark.parametrize("changes", [{"commit": None}, {"commit": "c1"}, {"data": "d1"}, {"metric": "loss"}])
def test_same_weights_count_with_another_champion_other_rows_or_another_metric(changes: dict[str, object]) -> None:
    hashes = rows(0, 100)
    assert uses(hashes, [verdict(hashes, "today", **changes)]) == 1


def test_repeated_verdict_counts_once_with_its_largest_error() -> None:
    hashes = rows(0, 100)
    half = Gate(over="test_rows", comparisons=24).comparison_confidence
    repeated = [verdict(hashes, reasons=("first",)), verdict(hashes, reasons=("again",), confidence=half)]
    assert uses(hashes, repeated) == uses(hashes, repeated[::-1]) == 1
    assert uses(hashes, repeated[1:]) == pytest.approx(0.5)


def test_errors_add_up_although_the_plan_was_changed() -> None:
    hashes = rows(0, 100)
    half = [verdict(hashes, str(i)) for i in range(6)]  # half of the error for 12
    doubled = measure_row_use(Gate(over="test_rows", comparisons=24), {"inputs": hashes}, half, TODAY)
    assert (doubled.uses, doubled.left) == (pytest.approx(12), pytest.approx(12))
    full = [verdict(hashes, str(i)) for i in range(12)]
    assert measure_row_use(Gate(over="test_rows", comparisons=24), {"inputs": hashes}, full, TODAY).is_up
    assert not measure_row_use(
        Gate(over="test_rows", comparisons=12, confidence=0.9), {"inputs": hashes}, full, TODAY
    ).is_up


@pytest.mark.parametrize("comparisons", [1, 3, 12, 365])
def test_exactly_so_many_comparisons_fit(comparisons: int) -> None:
    gate, hashes = Gate(over="test_rows", comparisons=comparisons), rows(0, 100)
    entries = [verdict(hashes, str(i), confidence=gate.comparison_confidence) for i in range(comparisons)]
    assert not measure_row_use(gate, {"inputs": hashes}, entries[1:], TODAY).is_up
    assert measure_row_use(gate, {"inputs": hashes}, entries, TODAY).is_up


def made(gate: Gate, splits: Iterator[tuple[int, int]]) -> tuple[float, float]:
    """How many comparisons are made on a series of splits, and how many times their rows are replaced."""
    entries: list[ReleaseEvent] = []
    turnovers, largest = 0.0, 0
    for i, (first, end) in enumerate(splits):
        hashes = rows(first, end)
        turnovers += (end - max(largest, first)) / (end - first)
        largest = end
        if not measure_row_use(gate, {"inputs": hashes}, entries, TODAY).is_up:
            entries.append(verdict(hashes, str(i), confidence=gate.comparison_confidence))
    return len(entries), turnovers


def test_number_of_comparisons_is_bounded_by_the_turnover_of_the_rows() -> None:
    """docs/gate.md has the proof; the sketches' errors allow for a tenth more."""
    gate = Gate(over="test_rows", comparisons=4)
    for night in (0, 10, 40, 100):  # new rows a night, on top of 400
        count, turnovers = made(gate, ((0, 400 + night * i) for i in range(30)))
        assert 0.75 * 4 * (turnovers - 1) <= count <= 1.1 * 4 * turnovers
    for night in (10, 40, 57, 100, 400):  # as many leave: those that were used most often
        count, turnovers = made(gate, ((night * i, night * i + 400) for i in range(40)))
        assert count <= 1.1 * 2 * 4 * turnovers


def pairs(folder, chosen: list[str], prompts: list[str]) -> dict:
    columns = {"prompt": prompts, "chosen": chosen, "rejected": ["no"] * len(prompts)}
    tiny.write_splits(folder, {"train": columns, "test": columns})
    rows = SplitRows(folder / "test")
    objective = objectives.build_objective(ObjectiveChoice(name="dpo"))
    return hash_rows_of_split(rows, np.array(rows.table()["row_id"]), objective)


def test_a_corrected_target_makes_no_row_a_new_one(tmp_path) -> None:
    before = pairs(tmp_path / "a", ["yes"] * 40, [f"question {i}" for i in range(40)])
    after = pairs(tmp_path / "b", ["corrected"] * 40, [f"question {i}" for i in range(40)])
    assert measure_row_use(GATE, after, [verdict(before["inputs"])], TODAY).uses == 1


def test_lines_of_earlier_versions_count_by_whole_texts(tmp_path) -> None:
    today = pairs(tmp_path / "a", ["yes"] * 40, [f"question {i}" for i in range(40)])
    assert measure_row_use(GATE, today, [verdict(today["texts"], row_sketch_of="texts")], TODAY).uses == 1
    assert measure_row_use(GATE, today, [verdict(today["texts"])], TODAY).uses == 0
    old = ReleaseEvent.model_validate(verdict(today["texts"]).model_dump(exclude={"row_sketch_of"}))
    assert old.row_sketch_of == "texts"


def test_rows_without_an_input_are_known_by_their_whole_texts(tmp_path) -> None:
    before, after = (pairs(tmp_path / name, [f"{name} {i}" for i in range(40)], [""] * 40) for name in "ab")
    assert measure_row_use(GATE, after, [verdict(before["inputs"])], TODAY).uses == 0


def log_lines(*paths: Path) -> None:
    for number, path in enumerate(paths):
        path.parent.mkdir(parents=True)
        path.write_text(verdict(rows(0, 100), str(number)).model_dump_json() + "\n")


def test_comparisons_of_every_recipe_count(tmp_path) -> None:
    """Another recipe on the same repository and rows, one that was renamed or removed, and lines that no branch has yet."""
    own, other, removed = (Artifacts(name, tmp_path) for name in ("own", "other", "removed"))
    log_lines(own.release_events, other.release_events, removed.release_events)
    for number, one in enumerate((own, other)):
        one.unrecorded.mkdir(parents=True)
        line = verdict(rows(0, 100), f"unrecorded {number}").model_dump_json()
        (one.unrecorded / one.release_events.name).write_text(line + "\n")
    for asked in (own, other, Artifacts("new", tmp_path)):
        assert uses(rows(0, 100), read_release_events_of_project(asked)) == 5


def test_in_a_clone_the_lines_that_are_kept_outside_of_it_count(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(KEPT_FOLDER, str(tmp_path / "kept"))
    kept = Artifacts("other").unrecorded / Artifacts("other").release_events.name
    assert kept.is_relative_to(tmp_path / "kept")
    log_lines(kept)
    assert uses(rows(0, 100), read_release_events_of_project(Artifacts("own"))) == 1


@pytest.mark.parametrize(
    ("one", "other", "counts"),
    [
        (("https://hub.example.org", "me/m"), ("https://HUB.example.org./", "me/m"), True),
        (("https://hub.example.org", "me/m"), ("https://hub.example.org:443", "me/m"), True),
        (("https://hub.example.org", "me/m"), ("http://hub.example.org", "me/m"), True),
        (("https://hub.example.org/a", "me/m"), ("https://hub.example.org//a/", "me/m"), True),
        (("https://hub.example.org", "me/m"), ("https://hub.example.org:81", "me/m"), False),
        (("https://hub.example.org/a", "me/m"), ("https://hub.example.org/b", "me/m"), False),
        (("https://hub.example.org", "me/m"), ("https://other.example.org", "me/m"), False),
        (("https://huggingface.co", "me/m"), ("https://hf.co", "Me/M"), True),
        (("https://huggingface.co", "me/m"), ("https://www.huggingface.co/", "me/m"), True),
        (("https://huggingface.co", "me/m"), ("https://huggingface.co", "me/n"), False),
        (("http://127.0.0.1:8000", "me/m"), ("http://localhost:8000", "me/m"), True),
        (("http://127.0.0.1:8000", "me/m"), ("http://[::1]:8001", "me/m"), True),  # another port of the same folder?
        (("http://127.0.0.1:8000", "me/m"), ("http://box.example.org:8000", "me/m"), True),  # this machine's name?
        (("local", "me/m"), ("http://127.0.0.1:8000", "me/m"), True),
        (("local", "me/m"), ("http://box.example.org:8000", "me/m"), True),
        (("local", "me/m"), ("https://hf.co", "me/m"), False),
        (("local", "me/m"), ("http://127.0.0.1:8000", "me/other"), False),
    ],
)
def test_a_repository_counts_by_any_name_that_it_may_have(
    one: tuple[str, str], other: tuple[str, str], counts: bool
) -> None:
    for (endpoint, repo_id), today in ((one, other), (other, one)):
        entries = [verdict(rows(0, 9), endpoint=endpoint, repo_id=repo_id)]
        asked = TODAY._replace(repository=name_repository(*today))
        assert measure_row_use(GATE, {"inputs": rows(0, 9)}, entries, asked).uses == counts


def test_the_same_comparison_by_another_name_is_one() -> None:
    hashes, public = rows(0, 9), TODAY._replace(repository=name_repository("https://hf.co", "Tests/Tiny"))
    again = [
        verdict(hashes, weights, endpoint=f"https://huggingface.co{end}")
        for weights in ("today", "b")
        for end in ("", "/")
    ]
    assert measure_row_use(GATE, {"inputs": hashes}, again, public).uses == 1


def test_other_white_space_or_another_order_of_choices_makes_no_row_a_new_one(tmp_path: Path) -> None:
    texts = [f"text  {i}" for i in range(40)]
    changed = [f" text {i}\r" for i in range(40)]
    for name, before, after in (
        ("causal_lm", {"text": texts}, {"text": changed}),
        (
            "multiple_choice",
            {"context": texts, "choices": [["wet", "dry"]] * 40, "label": [0] * 40},
            {"context": changed, "choices": [["dry", "wet"]] * 40, "label": [1] * 40},
        ),
    ):
        objective, found = objectives.build_objective(ObjectiveChoice(name=name)), []
        for place, columns in enumerate((before, after)):
            folder = tmp_path / name / str(place)
            tiny.write_splits(folder, {"train": columns, "test": columns})
            split = SplitRows(folder / "test")
            found.append(hash_rows_of_split(split, np.array(split.table()["row_id"]), objective))
        entries = [verdict(found[0]["words"], row_sketch_of="words")]
        assert measure_row_use(GATE, found[1], entries, TODAY).uses == 1
