"""The values that are chosen follow from the figures that their reasons name."""

from __future__ import annotations

import datetime as dt
import re

import numpy as np
import pytest
from ruamel.yaml import YAML

from params.schema import ObjectiveChoice
from params.sections.data import Data
from params.sections.evaluation import Gate
from tasks.evaluation.report import min_interval_observations
from tasks.evaluation.scoring import RowScores
from tasks.evaluation.statistics import Resampler
from tasks.ingestion.split_assigner import assign_split
from tasks.scaffold import choices
from tasks.scaffold.candidates import proposable_objectives
from tasks.scaffold.look import RowSample
from tasks.scaffold.proposal import ObjectiveProposal
from trainer import objectives
from trainer.objectives.advice.base import AdvisedValue
from trainer.objectives.bases.metrics.metric import directions

CLASSES = ObjectiveProposal("sequence_classification", {})


def test_few_characters_and_tokens_have_a_unit_of_their_size() -> None:
    """Not `0.0 M`."""
    assert choices.choose_vocabulary_size(23_456).why.startswith("for about 23 K characters")
    assert choices.choose_epochs(ObjectiveProposal("causal_lm", {}), 10, 540.0, is_new=True).why.startswith(
        "for 540 tokens"
    )


def test_the_length_covers_the_rows_and_not_one_long_text() -> None:
    lengths = [10] * 990 + [60] * 9 + [500]
    chosen = choices.choose_max_length(lengths, None)
    assert chosen.value == 64
    assert "covers 99.9 % of the rows; the longest has 500 tokens" in chosen.why
    assert choices.choose_max_length([10] * 1000, None).why.startswith("covers 100 % of the rows")
    limited = choices.choose_max_length([900] * 100, 512)
    assert limited.value == 512
    assert limited.why.startswith("covers 0 % of the rows")
    assert "no more than 512 positions" in limited.why
    assert choices.choose_max_length([3], None).value == 16


@pytest.mark.parametrize(
    ("lengths", "value", "said"),
    [
        ([70] * 994 + [83] * 6, 88, "covers 100 % of the rows; the longest has 83 tokens, the mean is 70"),
        ([70] * 999 + [83], 88, "covers 100 % of the rows; the longest has 83 tokens, the mean is 70"),
        (
            [70] * 999 + [300],
            72,
            "covers 99.9 % of the rows; the longest has 300 tokens, the mean is 70; 1 of 1,000 are cut",
        ),
    ],
)
def test_a_longest_row_that_is_near_is_covered_and_what_is_cut_is_said(
    lengths: list[int], value: int, said: str
) -> None:
    assert choices.choose_max_length(lengths, None) == AdvisedValue(value, said)


def test_the_reason_of_what_is_set_aside_holds() -> None:
    for share in (i / 1000 for i in range(400)):
        chosen = choices.choose_max_quarantined(share, None)
        assert share <= chosen.value <= max(choices.UNASKED_QUARANTINE, 2 * share + 0.0101)
        assert chosen.why.endswith("of the sample; a night with more bad rows than this fails") or not share


@pytest.mark.parametrize("sequences", [3, 60, 100, 500, 5000])
def test_the_reason_of_a_batch_holds(sequences: int) -> None:
    chosen = choices.choose_global_batch_size(CLASSES, sequences)
    assert (sequences // chosen.value >= 50) == ("at least 50 steps" in chosen.why or chosen.value == 32)


@pytest.mark.parametrize("steps", [1, 7, 30, 215, 1184, 4321, 20_000, 1_000_000])
def test_evaluations_are_about_twenty(steps: int) -> None:
    every = choices.choose_eval_steps(steps, 4, 32, 10).value
    assert every >= 1
    if steps >= 30:
        assert 13 <= steps / every <= 30


@pytest.mark.parametrize(
    ("steps", "epochs", "batch", "evaluated", "every", "why"),
    [
        (120, 3, 32, 184, 5, "about 24 evaluations in 120 steps"),
        (120, 3, 32, 1_584, 20, "about 6 evaluations in 120 steps: each takes about as long as 16 steps, for 1,584 sequences"),
        (120, 3, 32, 10_013, 40, "about 3 evaluations in 120 steps: each takes about as long as 104 steps, for 10,013 sequences"),
        (12, 3, 32, 1_413, 5, "about 2 evaluations in 12 steps: each takes about as long as 15 steps, for 1,413 sequences"),
    ],
)  # fmt: skip
def test_there_are_fewer_evaluations_where_one_takes_longer_than_the_steps_before_it(
    steps: int, epochs: int, batch: int, evaluated: int, every: int, why: str
) -> None:
    """A corpus is encoded in each of them. There is about one in each epoch at least."""
    assert choices.choose_eval_steps(steps, epochs, batch, evaluated) == AdvisedValue(every, why)


def test_small_batches_take_smaller_steps() -> None:
    """At 3e-4, all-MiniLM-L6-v2 learned nothing of 360 scored pairs in batches of 4."""
    assert [choices.choose_learning_rate(CLASSES, 22_000_000, batch, lora=False).value for batch in (64, 32, 16, 8, 2)] == [
        3e-4, 3e-4, 2.1e-4, 1.5e-4, 7.5e-5,
    ]  # fmt: skip
    assert (
        "0.0003, usual for a model of this size, is for batches of 32"
        in choices.choose_learning_rate(CLASSES, 22_000_000, 8, lora=False).why
    )
    for advised in ({"parameters": None, "lora": False}, {"parameters": 22_000_000, "lora": True}):
        assert len({choices.choose_learning_rate(CLASSES, batch=batch, **advised).value for batch in (2, 32)}) == 1


def test_batches_leave_fifty_steps_an_epoch() -> None:
    assert choices.choose_global_batch_size(CLASSES, 10_000).value == 32
    assert choices.choose_global_batch_size(CLASSES, 500).value == 8
    assert choices.choose_global_batch_size(CLASSES, 3).value == 2
    micro = choices.choose_micro_batch_size(32, 96, "cpu")
    assert (micro.value, micro.why) == (32, "one forward pass for each step")
    assert choices.choose_micro_batch_size(16, 4096, "cpu").value == 2
    assert choices.choose_micro_batch_size(16, 100_000, "cpu").value == 1


@pytest.mark.parametrize("name", proposable_objectives())
def test_larger_models_learn_slower_and_more_rows_fewer_times(name: str) -> None:
    objective = ObjectiveProposal(name, {})
    rates = [
        choices.choose_learning_rate(objective, int(size), 64, lora=False).value for size in (5e6, 2e7, 1e8, 1e9, 7e9)
    ]
    assert rates == sorted(rates, reverse=True)
    epochs = [choices.choose_epochs(objective, rows, 1e9, is_new=False).value for rows in (100, 10_000, 100_000, 10**6)]
    assert epochs == sorted(epochs, reverse=True)
    assert epochs[-1] == 1
    assert choices.choose_learning_rate(objective, 7_000_000_000, 64, lora=True).value > rates[-1]


SIZES = (20_000_000, 60_000_000, 200_000_000, 300_000_000, 2_000_000_000, 7_000_000_000)
ROWS = (1_000, 5_000, 50_000, 500_000, 500_001)
ADVISED = {
    "sequence_classification": (
        [3e-4, 3e-4, 5e-5, 2e-5, 2e-5, 2e-5],
        [2e-4, 1e-3, 32, "linear", 0.01],
        [10, 6, 4, 2, 1],
    ),
    "token_classification": ([3e-4, 3e-4, 5e-5, 2e-5, 2e-5, 2e-5], [2e-4, 1e-3, 32, "linear", 0.01], [10, 5, 3, 2, 1]),
    "seq2seq": ([3e-4, 3e-4, 3e-4, 3e-4, 1e-4, 1e-4], [1e-3, 1e-3, 32, "cosine", 0.01], [10, 3, 3, 2, 1]),
    "sft": ([1e-3, 1e-4, 1e-4, 2e-5, 2e-5, 1e-5], [2e-4, 2e-3, 16, "cosine", 0.01], [3, 3, 3, 2, 1]),
    "dpo": ([1e-4, 1e-5, 1e-5, 5e-7, 5e-7, 5e-7], [5e-6, 2e-3, 16, "linear", 0.0], [3, 3, 1, 1, 1]),
    "kto": ([1e-4, 1e-5, 1e-5, 1e-6, 1e-6, 1e-6], [1e-5, 2e-3, 32, "linear", 0.0], [3, 3, 1, 1, 1]),
    "ranking": ([5e-5, 5e-5, 2e-5, 1e-5, 1e-5, 1e-5], [2e-4, 1e-3, 16, "linear", 0.01], [4, 4, 3, 2, 1]),
    "reward": ([1e-4, 1e-4, 5e-5, 1e-5, 1e-5, 1e-5], [1e-4, 2e-3, 16, "linear", 0.01], [3, 3, 1, 1, 1]),
    "causal_lm": ([1e-3, 1e-4, 1e-4, 2e-5, 2e-5, 1e-5], [2e-4, 2e-3, 32, "cosine", 0.01], [3, 3, 3, 2, 1]),
}
"""Learning rates of `SIZES`; learning rates of adapters and of a new model, batch, scheduler, weight decay; epochs of `ROWS`."""


@pytest.mark.parametrize("name", ADVISED)
def test_what_an_objective_advises_reaches_the_recipe(name: str) -> None:
    """The same values as ever: a recipe that is written again is the same text."""
    objective = ObjectiveProposal(name, {})
    rates = [choices.choose_learning_rate(objective, size, 64, lora=False).value for size in SIZES]
    others = [
        choices.choose_learning_rate(objective, 7_000_000_000, 64, lora=True),
        choices.choose_learning_rate(objective, None, 2, lora=False),
        choices.choose_global_batch_size(objective, 1_000_000),
        AdvisedValue(objective.advice.scheduler),
        objective.advice.weight_decay or AdvisedValue(0.01),
    ]
    epochs = [choices.choose_epochs(objective, rows, 1.0, is_new=False).value for rows in ROWS]
    assert (rates, [choice.value for choice in others], epochs) == ADVISED[name]


def test_adapters_where_the_weights_do_not_fit() -> None:
    assert choices.reason_to_use_lora(22_700_000, 8 * 2**30) is None
    why = choices.reason_to_use_lora(7_000_000_000, 80 * 2**30)
    assert why == "training all weights would take 104 GiB beside activations, and there are 80 GiB here"


def test_shares_only_of_splits_without_files() -> None:
    assert choices.choose_split_shares(1000, has_validation=True, has_test=True) == {}
    shares = choices.choose_split_shares(10_003, has_validation=False, has_test=True)
    assert {split: share.value for split, share in shares.items()} == {"validation": 0.05}
    assert shares["validation"].why == "about 500 rows choose the best checkpoint"
    few = choices.choose_split_shares(967, has_validation=False, has_test=False)
    assert {split: share.value for split, share in few.items()} == {"validation": 0.1, "test": 0.2}


@pytest.mark.parametrize(
    ("share", "value"),
    [(0.0, 0.01), (0.001, 0.01), (0.0064, 0.02), (0.025, 0.05), (0.04, 0.05), (0.05, 0.05), (0.2, 0.4), (0.8, 0.9)],
)
def test_quarantine_has_room_for_twice_the_bad_rows_of_the_sample(share: float, value: float) -> None:
    assert choices.choose_max_quarantined(share, None).value == pytest.approx(value)
    assert choices.choose_max_quarantined(share, 0.7).value == 0.7


@pytest.mark.parametrize("metric", ["accuracy", "macro_f1"])
@pytest.mark.parametrize(("labels", "tested", "needed"), [((90, 10), 12, 60), ((50, 50), 8, 12), ((80, 10, 10), 30, 0)])
def test_the_gate_is_one_that_a_model_without_mistakes_passes(labels, tested, needed, metric) -> None:
    chosen = choices.choose_gate_metric(AdvisedValue(metric), dict(enumerate(labels)), tested)
    assert chosen.value == ("loss" if needed else metric)
    assert (f"; with {needed} test rows it could" in chosen.why) is bool(needed)
    assert passes(metric, *(round((needed or tested) * own / sum(labels)) for own in labels))


def test_with_fewer_rows_of_other_labels_no_model_passes() -> None:
    assert not passes("accuracy", 54, 5)
    assert not passes("macro_f1", 54, 3)


def passes(metric: str, *counts: int) -> bool:
    """Whether the gate's interval lets a model without mistakes replace one that knows only the first label."""
    objective = objectives.build_objective(ObjectiveChoice(name="sequence_classification"))
    label = np.repeat(np.arange(len(counts)), counts).astype(float)
    scores = {"nll": np.ones(len(label)), "label": label, "confidence": np.full(len(label), 0.9)}
    perfect, other = (
        RowScores(np.arange(len(label)), scores | {"prediction": own}) for own in (label, np.zeros(len(label)))
    )
    state = {"labels": [str(number) for number in range(len(counts))]}
    gains = Resampler(objective, state, 500, 0.95, 1).gains(perfect, other, directions(objective.metrics))
    return gains[metric].low > 0


@pytest.mark.parametrize(("rows", "said"), [(20, ["; give 62 rows"]), (61, ["; give 62 rows"]), (62, [])])
def test_too_few_test_rows_for_any_gate_are_said(rows: int, said: list[str]) -> None:
    shares = choices.choose_split_shares(rows, has_validation=False, has_test=False)
    found = choices.find_few_test_rows(RowSample({"train": [{}] * rows}, {"train": rows}), shares)
    assert [text.partition("at least 6 can")[2] for text in found] == said


def test_a_split_by_hash_seldom_has_fewer_test_rows_than_new_lets_pass() -> None:
    """Of the splits that ingest makes of the fewest rows that `new` says nothing of, about 1 in 60 is too small for the gate."""

    def shares(rows: int) -> dict[str, AdvisedValue]:
        return choices.choose_split_shares(rows, has_validation=False, has_test=False)

    def says_nothing(rows: int) -> bool:
        return not choices.find_few_test_rows(RowSample({"train": [{}] * rows}, {"train": rows}), shares(rows))

    def too_small(rows: int) -> float:
        values = {name: share.value for name, share in shares(rows).items()}
        splits = [[assign_split({"text": f"row {i}"}, values, seed) for i in range(rows)] for seed in range(400)]
        least = min_interval_observations(Gate().comparison_confidence)
        return sum(split.count("test") < least for split in splits) / len(splits)

    rows = next(rows for rows in range(20, 200) if says_nothing(rows))
    assert 0 < too_small(rows) < 0.04
    assert too_small(rows // 2) > 0.3


_BOTH = {name: AdvisedValue(0.1) for name in ("validation", "test")}
_DAY_S = 86_400


@pytest.mark.parametrize(
    ("name", "values", "span"),
    [
        ("created_at", [f"2026-0{1 + i % 9}-01T10:00:00+02:00" for i in range(90)], "12d"),
        ("seen", [dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=i) for i in range(100)], "5h"),
        ("timestamp", [1_760_000_000 + _DAY_S * i for i in range(100)], "5d"),
        (
            "created_at",
            ["2026-01-01", *["soon"] * 9, *[f"2026-01-{i + 1:02}" for i in range(20)]],
            None,
        ),  # a third says none
        ("created_at", ["2026-01-01"] * 50, None),  # one moment
        ("number", [1_760_000_000 + _DAY_S * i for i in range(100)], None),  # may number the rows
        ("text", [f"row {i}" for i in range(100)], None),
    ],
)
def test_column_of_times_is_proposed_and_not_used(name: str, values: list[object], span: str | None) -> None:
    sample = RowSample({"train": [{name: value, "label": "a"} for value in values]}, {"train": len(values)})
    found = choices.propose_time_split(sample, _BOTH)
    assert choices.propose_time_split(sample, {"validation": _BOTH["validation"]}) == [], "test rows are there"
    assert bool(found) == bool(span)
    for remark in found:
        time_column, split = re.findall("`(.*?)`", remark)
        read = YAML(typ="safe").load(f"{time_column}\n{split}")
        assert read == {"time_column": name, "split": {"by": "time", "test": span, "validation": span}}
        Data.model_validate({"source": {"kind": "files", "train": "rows.csv"}, **read})
