"""Copies of held-out rows: which rows are one observation, and how often one of two equal models passes on copied rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from params.schema import ObjectiveChoice
from params.sections.evaluation import Gate
from tasks.evaluation.copies import group_with_copies
from tasks.evaluation.gate import gain_passes_bar
from tasks.evaluation.report import MetricComparison
from tasks.evaluation.scoring import RowScores
from tasks.evaluation.statistics import Gain, Resampler
from tasks.shards.split_rows import SplitRows
from tests.support import tiny
from trainer import objectives
from trainer.objectives.bases.metrics.metric import directions

CLASSES: Any = objectives.build_objective(ObjectiveChoice(name="sequence_classification"))
CHOICES: Any = objectives.build_objective(ObjectiveChoice(name="multiple_choice"))


def written(folder: Path, columns: dict[str, list[Any]], *, group_by: tuple[str, ...] = ()) -> SplitRows:
    tiny.write_splits(folder, {"train": columns, "test": columns}, group_by=group_by)
    return SplitRows(folder / "test")


def test_equal_rows_and_rows_of_a_group_are_one_observation_in_any_chain(tmp_path: Path) -> None:
    texts = ["a", "b", "a ", "c", "d", "c", "e"]
    columns = {
        "text": texts,
        "label": ["x", "x", "y", "x", "x", "x", "y"],
        "customer": ["1", "2", "2", "3", "4", "5", ""],
    }
    alone, copies = group_with_copies(written(tmp_path / "rows", columns), CLASSES)
    assert alone is not None
    assert copies == 2, "a label makes no other input"
    assert alone.numbers[0] == alone.numbers[2]
    assert alone.numbers[3] == alone.numbers[5]
    assert len({*alone.numbers}) == 5
    chained, copies = group_with_copies(written(tmp_path / "groups", columns, group_by=("customer",)), CLASSES)
    assert chained is not None
    assert copies == 2
    assert len({*chained.numbers[:3]}) == 1, "b has the customer of a copy of a"
    assert len({*chained.numbers}) == 4
    none, copies = group_with_copies(written(tmp_path / "none", {"text": ["a", "b"], "label": ["x", "x"]}), CLASSES)
    assert (none, copies) == (None, 0)


CHATS: dict[str, dict[str, Any]] = {
    "sft": {"messages_column": "messages"},
    "dpo": {"chat": True, "prompt_column": None},
    "reward": {"chat": True, "prompt_column": None},
}


@pytest.mark.parametrize("beside", [{"tools_column": "tools"}, {"system_column": "system"}])
@pytest.mark.parametrize("name", list(CHATS))
def test_other_conversations_with_the_same_tools_or_system_prompt_are_no_copies(
    tmp_path: Path, name: str, beside: dict[str, Any]
) -> None:
    objective: Any = objectives.build_objective(ObjectiveChoice(name=name, **CHATS[name], **beside))
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    answered = {"messages": "yes", "chosen": "yes", "rejected": "no"}
    columns = {
        column: [
            [{"role": "user", "content": text}, {"role": "assistant", "content": answer}] for text in ("a", "b", "a ")
        ]
        for column, answer in answered.items()
    }
    rows = written(tmp_path / "rows", {**columns, "tools": [[tool]] * 3, "system": ["Be short."] * 3})
    groups, copies = group_with_copies(rows, objective)
    assert groups is not None
    assert copies == 1
    assert groups.numbers[0] == groups.numbers[2] != groups.numbers[1]
    assert not objective.target_columns(), "a conversation is no label of its tools"


def choices_scored(right: NDArray[np.bool_], groups: NDArray[np.int64] | None) -> RowScores:
    columns = {"nll": np.where(right, 0.2, 1.6), "correct": right.astype(float)}
    return RowScores(np.arange(len(right)), columns, groups)


def passes(metric: str, gain: Gain, own: RowScores) -> bool:
    comparison = MetricComparison(
        against="champion",
        metric=metric,
        gain=gain.value,
        low=gain.low,
        high=gain.high,
        p_value=gain.p_value,
        rows=len(own),
        groups=None if own.groups is None else own.observations,
        counted=gain.observations,
    )
    return gain_passes_bar(comparison, Gate())


def test_equal_models_rarely_pass_on_copied_rows(tmp_path: Path) -> None:
    """50 rows that are there 20 times each: as rows by themselves, a third of all pairs of equal models would pass."""
    texts, copies, pairs = 50, 20, 60
    rows: dict[str, list[Any]] = {"context": [], "choices": [], "label": []}
    for number in range(texts * copies):
        own = [f"right {number % texts}", f"wrong {number % texts}"]
        rows["context"].append(f"context {number % texts}")
        rows["choices"].append(own if number % 2 else own[::-1])
        rows["label"].append("right " + str(number % texts))
    groups, found = group_with_copies(written(tmp_path, rows), CHOICES)
    assert groups is not None
    assert found == texts * (copies - 1)
    random, counted = np.random.default_rng(0), {"as groups": 0, "as rows": 0}
    resampler = Resampler(CHOICES, {}, resamples=200, confidence=0.95, seed=1)
    for _ in range(pairs):
        right = [np.tile(random.random(texts) < 0.8, copies) for _ in range(2)]
        for how, numbers in (("as groups", groups.numbers), ("as rows", None)):
            own, other = (choices_scored(one, numbers) for one in right)
            gain = resampler.gains(own, other, directions(CHOICES.metrics))["accuracy"]
            assert how == "as rows" or gain.observations == texts
            counted[how] += passes("accuracy", gain, own)
    assert counted["as rows"] > 0.2 * pairs
    assert counted["as groups"] <= 0.1 * pairs


def test_copies_of_one_row_are_too_few_observations(tmp_path: Path) -> None:
    rows: dict[str, list[Any]] = {"context": ["it rains"] * 60, "choices": [["wet", "dry"]] * 60, "label": [0] * 60}
    groups, copies = group_with_copies(written(tmp_path, rows), CHOICES)
    assert copies == 59
    assert groups is not None
    own, other = (choices_scored(np.full(60, is_right), groups.numbers) for is_right in (True, False))
    gain = Resampler(CHOICES, {}, resamples=50, confidence=0.95, seed=1).gains(own, other, directions(CHOICES.metrics))[
        "accuracy"
    ]
    assert not passes("accuracy", gain, own)
