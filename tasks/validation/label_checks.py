"""Checks of the labels of all remaining rows: which ones training lacks, which ones look alike, which ones a held-out split lacks.

Where a hash decides the split of a row, a label with few rows may have none in train. With up to `FEW_ROWS` rows that is chance: they are set
aside. With more, or in a split that the source names itself, training data lacks the label, and the stage fails. It also fails if more than `FEW_LABELS` labels lack
and they are most of those with so few rows: chance would leave most of them in train.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from params.sections.rows import Expectation
from tasks.validation.check_results import CheckResult, objective_identity
from tasks.validation.checks import check_rows_with_objective
from tasks.validation.expectations import ExpectationResult
from tasks.validation.raw_rows import NOTHING, Positions, RawRows, RawShardWork
from trainer import objectives
from trainer.objectives.bases.labels.names import FEW_ROWS, as_learned, describe_look_alikes, list_labels
from trainer.objectives.bases.objective import Objective

ROW_IS_KNOWN: Final = "row_is_known_to_training"
"""The objective's check of a row against the train split; not an expectation of Great Expectations."""
LABELS_DIFFER: Final = "labels_do_not_look_alike"
SPLIT_HAS_LABELS: Final = "split_has_most_labels"
SOURCE_HAS_LABELS: Final = "source_has_labels_of_corrections"
"""Checks that only report."""
FEW_LABELS: Final = 3
"""So many labels with few rows each may all be held out by chance, even if training has no other label with few rows."""


def check_labels(method: Objective[Any], rows: RawRows, set_aside: Positions, given: Counter[str]) -> list[CheckResult]:
    """Compare the labels of the remaining rows of each split; `given` are the rows by the new label that a correction gave them."""
    if not objectives.needs_row_check(method, "unseen_label") or not rows.remaining(set_aside)["train"]:
        return []
    counts = count_labels(method, rows, set_aside)
    method.model_config(method.state_of(set(counts["train"])))  # a DataError if there is nothing to learn
    held_out = counts["validation"] + counts["test"]
    results = [_check_known(method, rows, set_aside, counts["train"], held_out)]
    total = sum(counts.values(), Counter[str]())
    reported = [(LABELS_DIFFER, one) for one in describe_look_alikes(total, method.state_of)]
    only = _labels_of_corrections(method, rows, total, given)
    if only:
        reported.append((SOURCE_HAS_LABELS, f"no row of the source has {list_labels(only)}, only data.corrections"))
    reported += [(SPLIT_HAS_LABELS, one) for one in _lacking_splits(counts)]
    for kind, sentence in reported:
        expectation = Expectation(type=kind, on_failure="report")
        results.append(
            CheckResult("objective", expectation, ExpectationResult(success=False, failing=None, observed=sentence))
        )
    return results


def count_labels(
    method: Objective[Any],
    rows: RawRows,
    set_aside: Positions,
    *,
    only_usable: bool = False,
) -> dict[str, Counter[str]]:
    """Return how many rows of each split have each label, but for those at the positions in `set_aside`.

    With `only_usable`, those that the objective rejects do not count either.
    """
    counted = rows.run(
        partial(count_shard_usable_labels if only_usable else count_shard_labels, method),
        rows.parts,
        what="labels of usable rows" if only_usable else "labels of rows",
        columns=list(method.columns()),
        skip=set_aside,
        objective=objective_identity(method),
    )
    counts = {split: Counter[str]() for split in rows.splits}
    for part, found in zip(rows.parts, counted, strict=True):
        counts[part.split].update(found)
    return counts


def count_shard_labels(method: Objective[Any], work: RawShardWork) -> Counter[str]:
    """Return how many rows of one shard have each label, as it stands there."""
    return Counter(label for _, row in work.each() for label in {*method.row_labels(row)})


def count_shard_usable_labels(method: Objective[Any], work: RawShardWork) -> Counter[str]:
    """Return how many rows of one shard have each label, but for those that the objective rejects."""
    usable = (row for _, row in work.each() if not method.reject_reason(row))
    return Counter(label for row in usable for label in {*method.row_labels(row)})


def _labels_of_corrections(
    method: Objective[Any], rows: RawRows, remaining: Mapping[str, int], given: Mapping[str, int]
) -> list[str]:
    """Return the labels that a correction has given to every row that has them, those that a check sets aside included."""
    in_use = _count_learned(method, remaining)
    only = [label for label in given if 0 < in_use[label] <= given[label]]
    if not only:
        return []
    counts = count_labels(method, rows, NOTHING, only_usable=True)
    every = _count_learned(method, sum(counts.values(), Counter[str]()))
    return [label for label in only if every[label] <= given[label]]


def _count_learned(method: Objective[Any], counts: Mapping[str, int]) -> Counter[str]:
    """Return the rows of each label, without the white space at its ends where the objective learns both as one."""
    found = Counter[str]()
    for label, rows in counts.items():
        found[as_learned(label, method.state_of)] += rows
    return found


def _check_known(
    method: Objective[Any], rows: RawRows, set_aside: Positions, train: Mapping[str, int], held_out: Mapping[str, int]
) -> CheckResult:
    state = method.state_of(set(train))
    unseen_label = partial(method.unseen_label, state=state)
    found = ExpectationResult(success=True, failing=NOTHING)

    def named(labels: Iterable[str]) -> set[str]:
        return {as_learned(label, method.state_of) for label in labels}

    known = named(train)
    if named(held_out) - known or objectives.overrides_method(method, "unseen_label"):
        settings = {"objective": objective_identity(method), "state": state}
        found = check_rows_with_objective(unseen_label, rows, set_aside, **settings)
    if found.success or found.failing is None:
        return CheckResult("objective", Expectation(type=ROW_IS_KNOWN), found)
    picked = rows.pick(found.failing.tolist())
    lacking = Counter(label for row in picked.values() for label in named(method.row_labels(row)) - known)
    splits = list(dict.fromkeys(rows.split_of(position) for position in found.failing.tolist()))
    # new labels are first those of the newest rows
    is_by_time = rows.splits["train"].times.get("split") == "time"
    counts = Counter(train)
    counts.update(held_out)
    is_chance = is_by_time or _lack_by_chance(rows, lacking, splits, _count_learned(method, counts))
    expectation = Expectation(type=ROW_IS_KNOWN, on_failure="quarantine" if is_chance else "fail")
    sentence = _told_lacking(lacking, splits) if lacking else ""
    return CheckResult("objective", expectation, found, unseen_label, sentence)


def _lack_by_chance(
    rows: RawRows, lacking: Mapping[str, int], splits: Iterable[str], totals: Mapping[str, int]
) -> bool:
    """Whether training may lack these labels because few rows have them: not if the source has rows of its own for these splits."""
    if not lacking or max(lacking.values()) > FEW_ROWS:
        return False
    last = rows.splits["train"].manifest.shards[-1]  # behind it come the rows that the source has for other splits
    if any(rows.splits[split].manifest.shards[0].first_row_id > last.first_row_id for split in splits):
        return False
    return len(lacking) <= FEW_LABELS or 2 * len(lacking) <= sum(count <= FEW_ROWS for count in totals.values())


def _told_lacking(lacking: Counter[str], splits: Iterable[str]) -> str:
    listed = ", ".join(f"{label!r} ({count:,} rows)" for label, count in lacking.most_common(10))
    if len(lacking) > 10:
        listed += f" and {len(lacking) - 10:,} more"
    return f"no training row has {'a label' if len(lacking) == 1 else 'labels'} of {' and '.join(splits)}: {listed}"


def _lacking_splits(counts: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    known = sorted({label.strip() for label in counts["train"]})
    for split in ("validation", "test"):
        lacking = [label for label in known if label not in {label.strip() for label in counts[split]}]
        if known and 2 * len(lacking) >= len(known):
            yield f"{split} has none of {len(lacking)} of {len(known)} labels, and says nothing about them: {list_labels(lacking)}"
