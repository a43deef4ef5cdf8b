"""What is wrong with the rows, and how many of them validation will set aside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from params import DataError, RecipeError
from tasks.scaffold.look import Row, RowSample
from tasks.scaffold.proposal import ObjectiveProposal
from trainer.objectives.bases.labels import FEW_ROWS, describe_look_alikes
from trainer.objectives.bases.objective import Objective


class SampleQuality(NamedTuple):
    """The rows of a sample, judged by the checks that validation makes."""

    usable: Sequence[Row]
    """Training rows that pass the objective's checks."""
    unusable: Mapping[str, int]
    """Reasons why rows of any split do not, with the number of rows."""
    rows: int
    """Rows of the sample, of all splits."""
    repeated: int
    """Training rows whose text occurs before: most often short texts, which people write again and again."""
    known: int
    """Held-out rows whose text training rows have, too."""
    conflicting: int
    """Texts of training rows that occur with different labels or spans."""
    labels: Counter[str]
    """Rows of each label; empty without labels."""
    unseen: Sequence[str]
    """Labels that only held-out rows have."""
    look_alikes: Sequence[str] = ()
    """Sentences about labels that differ in nothing but case, Unicode form or white space."""

    @property
    def set_aside_share(self) -> float:
        """Share of rows that validation will set aside."""
        return sum(self.unusable.values()) / self.rows

    def notes(self) -> Iterator[str]:
        """Yield what a person should know, one line each."""
        for reason, count in self.unusable.items():
            yield f"{count:,} of {self.rows:,} rows will be set aside: {reason}"
        if self.repeated:
            yield f"{self.repeated:,} training rows repeat a text; they are kept"
        if self.known:
            fix = "to set those of training aside, name its column in data.group_by"
            yield f"{self.known:,} held-out rows have a text that training rows have, too; {fix}"
        if self.conflicting:
            yield f"{self.conflicting} texts occur with different labels; correct them if they are mistakes"
        few = sorted(label for label, count in self.labels.items() if count <= FEW_ROWS)
        if few:
            yield f"{len(few)} labels have fewer than {FEW_ROWS + 1} rows: {_listed(few)}"
        if self.unseen:
            said = f"labels of held-out rows that no training row has: {_listed(self.unseen)}; validation will set their rows aside"
            yield f"{said}, or refuse them if a label has more than {FEW_ROWS}"
        yield from self.look_alikes


def assess_sample_quality(sample: RowSample, proposal: ObjectiveProposal, objective: Objective[Any]) -> SampleQuality:
    """Return the quality of the sample for an objective.

    Raises:
        DataError: no row can be used, or all rows have the same label.
    """
    unusable, held_out, train = Counter[str](), list[Row](), list[Row]()
    for split in sorted(sample.rows, key=lambda split: split == "train"):
        for sampled in sample.rows[split]:
            row: Row = {**dict.fromkeys(objective.columns()), **sampled}  # a row may lack a key that others have
            if reason := _reason(row, objective):
                unusable[reason] += 1
            else:
                (train if split == "train" else held_out).append(row)
    if not train:
        reasons = "; ".join(f"{count} rows: {reason}" for reason, count in unusable.most_common(3))
        raise DataError("the training rows", f"none can be used: {reasons}", "name other columns, or fix the rows")
    raw = Counter(label for row in train for label in _labels(row, proposal))
    labels = Counter[str]()
    for label, count in raw.items():
        labels[label.strip()] += count
    if len(labels) == 1 and "label" in proposal.columns:
        where = f"column `{proposal.columns['label']}`"
        what = f"every row has the label {next(iter(labels))!r}, so there is nothing to learn"
        raise DataError(where, what, "name another column with --label, or add rows with other labels")
    column, target = input_column(proposal) or "", proposal.columns.get("label") or proposal.columns.get("spans", "")
    answers: dict[str, set[str]] = {}
    for row in train if column else ():
        answers.setdefault(str(row.get(column)), set()).add(str(row.get(target)))
    unseen = {label.strip() for row in held_out for label in _labels(row, proposal)} - set(labels)
    return SampleQuality(
        usable=train,
        unusable=unusable,
        rows=sum(map(len, sample.rows.values())),
        repeated=len(train) - len(answers) if column else 0,
        known=sum(str(row.get(column)) in answers for row in held_out),
        conflicting=sum(len(found) > 1 for found in answers.values()),
        labels=labels,
        unseen=sorted(unseen) if sample.is_whole else (),
        look_alikes=describe_look_alikes(raw, objective.state_of),
    )


def input_column(proposal: ObjectiveProposal) -> str | None:
    """Return the column of the input: rows that have the same one are alike, whatever their label or answer is."""
    return proposal.columns.get("text") or proposal.columns.get("prompt")


def _reason(row: Row, objective: Objective[Any]) -> str | None:
    """Return why a row does not pass the objective's checks, without what differs between rows."""
    checks = {(check.type, check.arguments["column"]): check.on_failure for check in objective.expectations(())}
    for column, kind in objective.columns().items():
        if row.get(column) is None and checks["expect_column_values_to_not_be_null", column] == "quarantine":
            return f"no `{column}`"
        if kind in ("string", "label") and not str(row[column]).strip():
            return f"an empty `{column}`"
    try:
        reason = objective.reject_reason(row)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        columns = ", ".join(f"`{column}`" for column in objective.columns())
        what = f"cannot read {columns}: {type(error).__name__}: {error}"
        raise RecipeError("--objective", what, "name its columns, such as --text <column> --label <column>") from error
    return "overlapping spans" if reason and " overlaps the span before it" in reason else reason


def _labels(row: Row, proposal: ObjectiveProposal) -> list[str]:
    if label := proposal.columns.get("label"):
        return [str(row[label])] if row.get(label) is not None else []
    spans = proposal.columns.get("spans")
    return [str(span["label"]) for span in row.get(spans) or ()] if spans else []


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
