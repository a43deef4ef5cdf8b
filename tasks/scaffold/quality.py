"""What is wrong with the rows, and how many of them validation will set aside."""

from __future__ import annotations

import random
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from params import DataError
from tasks.scaffold.forms import joining_mark
from tasks.scaffold.look import Row, RowSample
from tasks.scaffold.proposal import ObjectiveProposal
from trainer import objectives
from trainer.objectives.bases.conversations.messages import read_turns
from trainer.objectives.bases.labels.names import FEW_ROWS, as_learned, describe_look_alikes, list_labels
from trainer.objectives.bases.objective import Objective
from trainer.objectives.bases.rows import to_json
from trainer.objectives.bases.spans.places import is_moved

_OWN_PARTS = re.compile(r"(tool|argument) ('[^']*'|\"[^\"]*\")|\d+")
"""Numbers, and names of what is called, of which each row has others."""
NO_LABEL = "-"
"""Stands in the place of a label of rows that have none."""
_NO_CLASS = "-1"
"""Stands there if classes are numbers from 0 on, as `datasets` has them."""
_SUCH_AS = "for example, "


class SampleQuality(NamedTuple):
    """The rows of a sample, judged by the checks that validation makes."""

    usable: Sequence[Row]
    """Training rows that pass the objective's checks."""
    unusable: Mapping[str, int]
    """Reasons why rows of any split do not, with the number of rows."""
    rows: int
    """Rows of the sample, of all splits."""
    examples: Mapping[str, str]
    """The first row for each of these reasons."""
    labels: Counter[str]
    """Rows of each label; empty without labels."""
    repeated: int
    """Training rows whose text occurs before: most often short texts, which people write again and again."""
    largest_group: int
    """Rows that have the most frequent text."""
    known: int
    """Held-out rows whose text training rows have, too."""
    unlabelled: str
    """The column of labels, if `no_label` stands there for none."""
    no_label: str | int | None
    """What says that a row has no label: `-` or -1."""
    is_written_alike: bool
    """Whether equal texts are written alike, as `data.group_by` compares them; False if some have other white space at their ends."""
    remarks: Sequence[str]
    """What else a person should know, a sentence each."""

    @property
    def set_aside_share(self) -> float:
        """Share of rows that validation will set aside."""
        return sum(self.unusable.values()) / self.rows

    def sample(self, count: int) -> tuple[list[Row], int]:
        """Return usable rows, at least `count` if there are so many, and of how many rows each is one, by chance: files often take turns between kinds."""
        step, chance = max(1, len(self.usable) // count), random.Random(0)  # noqa: S311
        return [chance.choice(self.usable[i : i + step]) for i in range(0, len(self.usable), step)], step

    def without(self, refused: Mapping[int, str], step: int) -> SampleQuality:
        """Return the quality without some usable rows, by `id` with the reason; of the rows, one of `step` was tried."""
        counts, examples = Counter(self.unusable), dict(self.examples)
        for row in self.usable:
            if reason := refused.get(id(row)):
                counts[reason] += step
                examples.setdefault(reason, str(dict(row))[:120])
        usable = [row for row in self.usable if id(row) not in refused]
        counts, examples = _group_reasons(counts, examples)
        return self._replace(usable=usable, unusable=counts, examples=examples)

    def notes(self) -> Iterator[str]:
        """Yield what a person should know, one line each."""
        for reason, count in self.unusable.items():
            yield f"{count:,} of {self.rows:,} rows will be set aside: {reason}"
        yield from self.remarks


def _group_reasons(counts: Counter[str], examples: Mapping[str, str]) -> tuple[Counter[str], dict[str, str]]:
    """Return reasons that differ in numbers and names of tools as one, with the example of the most frequent of them."""
    alike = defaultdict[str, Counter[str]](Counter)
    for reason, count in counts.items():
        alike[_OWN_PARTS.sub("", reason.removeprefix(_SUCH_AS))][reason] += count
    grouped, kept = Counter[str](), dict[str, str]()
    for own in alike.values():
        ((first, _),) = own.most_common(1)
        name = first if len(own) == 1 else _SUCH_AS + first.removeprefix(_SUCH_AS)
        grouped[name], kept[name] = own.total(), examples[first]
    return grouped, kept


def _how_to_divide_labels(sample: RowSample, proposal: ObjectiveProposal) -> str:
    """Return the end of a remark that names --labels, if the texts of the label column join several labels; else nothing."""
    given = sample.columns.get(proposal.columns.get("label", ""))
    if not given or not joining_mark(given, sample.columns):
        return ""
    return f"; to learn each by itself, add --labels {shlex.quote(given.name)}"


def assess_sample_quality(sample: RowSample, proposal: ObjectiveProposal, objective: Objective[Any]) -> SampleQuality:
    """Return the quality of the sample for an objective.

    Raises:
        DataError: no row can be used, or all rows have the same label.
    """
    if objective.columns().get(proposal.columns.get("label", "")) == "number":  # numbers are no labels to count
        proposal = replace(proposal, columns={flag: own for flag, own in proposal.columns.items() if flag != "label"})
    unlabelled, no_label = _find_marks_of_no_label(sample, proposal)
    unusable, examples, held_out, train = Counter[str](), dict[str, str](), list[Row](), list[Row]()
    for split in sorted(sample.rows, key=lambda split: split == "train"):
        for number, found in enumerate(sample.rows[split], start=1):
            row: Row = {**dict.fromkeys(objective.columns()), **found}  # a row may lack a key that others have
            is_marked = unlabelled and row.get(unlabelled) == no_label
            reason = f"no label: `{unlabelled}` is `{no_label}`" if is_marked else None
            if reason := reason or _reason(row, objective):
                unusable[reason] += 1
                place = f"row {number} of {split}" if sample.is_whole else f"a row of {split}"
                examples.setdefault(reason, f"{place}, {str(dict(row))[:120]}")
            else:
                (train if split == "train" else held_out).append(row)
    unusable, examples = _group_reasons(unusable, examples)
    if not train:
        reasons = "; ".join(f"{count} rows: {reason}" for reason, count in unusable.most_common(3))
        raise DataError("the training rows", f"none can be used: {reasons}", "name other columns, or fix the rows")
    raw = Counter(label for row in train for label, *_ in _targets(row, proposal, objective))
    held_out_labels = {label for row in held_out for label, *_ in _targets(row, proposal, objective)}
    learned = {label: as_learned(label, objective.state_of) for label in {*raw, *held_out_labels}}
    labels = Counter[str]()
    for label, count in raw.items():
        labels[learned[label]] += count
    if len(labels) == 1 and "label" in proposal.columns:
        where = f"column `{proposal.columns['label']}`"
        what = f"every row has the label {next(iter(labels))!r}, so there is nothing to learn"
        raise DataError(where, what, "name another column with --label, or add rows with other labels")
    columns, answers = input_columns(proposal), dict[str, set[frozenset[Any]]]()
    inputs = [_input(row, columns, objective) for row in train] if columns else []
    known_inputs = [_input(row, columns, objective) for row in held_out] if columns else []
    texts = Counter(inputs)
    for row, own in zip(train, inputs, strict=False):
        target = frozenset((learned[label], *place) for label, *place in _targets(row, proposal, objective))
        answers.setdefault(own, set()).add(target)
    written = {to_json([row.get(column) for column in columns]) for row in (*train, *held_out)}
    is_written_alike = not columns or len(written) == len({*inputs, *known_inputs})
    conversation = proposal.columns.get("messages")
    turns = [read_turns(row[conversation]) for row in train] if conversation else []
    unanswered = sum(own[-1]["role"] != "assistant" for own in turns)
    repeated = len(train) - len(answers) if columns else 0
    known = sum(own in answers for own in known_inputs)
    conflicting = sum(len(found) > 1 for found in answers.values())
    spans = proposal.columns.get("spans")
    moved = sum(is_moved(span, objective.text(row)) for row in train for span in (row.get(spans) or ())) if spans else 0
    few = sorted(label for label, count in labels.items() if count <= FEW_ROWS)
    uses = Counter(part for label in labels for part in _parts(label))
    joined = sorted(own for own in labels if len(_parts(own)) > 1 and all(uses[part] > 1 for part in _parts(own)))
    instead = _how_to_divide_labels(sample, proposal)
    unseen = sorted({learned[label] for label in held_out_labels} - set(labels)) if sample.is_whole else []
    remarks = {
        f"{repeated:,} training rows repeat a text; they are kept": repeated and not objective.group_columns,
        f"{known:,} held-out rows have a text that training rows have, too; to set those of training aside, name its column"
        f" in data.group_by{'' if is_written_alike else ', and write equal ones alike: some have other white space'}": known,
        f"{conflicting} texts occur with different labels; correct them if they are mistakes": conflicting,
        f"labels with fewer than {FEW_ROWS + 1} rows: {len(few)}, {list_labels(few, 5)}": few,
        f"labels that consist of others, and are learned as labels of their own: {len(joined)}, {list_labels(joined, 5)}{instead}": joined,
        f"labels of held-out rows that no training row has: {list_labels(unseen, 5)}; validation will refuse them: add"
        " training rows with these labels, or take the rows with them out of the held-out data": unseen,
        f"{moved:,} spans have offsets that their own text contradicts; they are read where that text is": moved,
        f"{unanswered:,} conversations do not end with the assistant; what follows its last message is not learned": unanswered,
        f"{labels[_NO_CLASS]:,} training rows have the label -1, which is learned like 0 and 1; if it says that a row has none, remove"
        " these rows": proposal.columns.get("label") and {*labels} == {_NO_CLASS, "0", "1"},
        **dict.fromkeys(describe_look_alikes(raw, objective.state_of), True),
    }
    return SampleQuality(
        usable=train,
        unusable=unusable,
        rows=sum(map(len, sample.rows.values())),
        examples=examples,
        labels=labels,
        repeated=repeated,
        largest_group=max(texts.values(), default=0),
        known=known,
        unlabelled=unlabelled,
        no_label=no_label,
        is_written_alike=is_written_alike,
        remarks=[remark for remark, count in remarks.items() if count],
    )


def _find_marks_of_no_label(sample: RowSample, proposal: ObjectiveProposal) -> tuple[str, str | int | None]:
    """Return the column of labels and what stands there for none, an empty name and None if nothing does.

    It is `-`, as of rows in SNLI on which people did not agree, if all other labels are words or numbers; and -1 beside the numbers of three or
    more classes from 0 on. Beside 0 and 1 alone, -1 may as well be the third class, as of opinions.
    """
    column = proposal.columns.get("label", "")
    found = {
        str(value): value for rows in sample.rows.values() for row in rows if (value := row.get(column)) is not None
    }
    labels = found.keys() - {NO_LABEL, _NO_CLASS}
    are_words = all(any(sign.isalnum() for sign in label) for label in labels)
    if NO_LABEL in found and are_words and len(labels | found.keys() & {_NO_CLASS}) > 1:
        return column, NO_LABEL
    if _NO_CLASS in found and len(labels) > 2 and labels == {*map(str, range(len(labels)))}:
        return column, found[_NO_CLASS]
    return "", None


def _parts(label: str) -> set[str]:
    """Return the labels that a label may consist of: those between `|`, `;` or commas."""
    return {part.strip() for part in re.split("[|;,]", label)}


def input_columns(proposal: ObjectiveProposal) -> list[str]:
    """Return the columns of the input: rows that have the same one are alike, whatever their label or answer is."""
    kinds = (("text", "text-pair"), ("prompt",), ("context",))
    return next((found for flags in kinds if (found := proposal.read_columns(*flags))), [])


def _input(row: Row, columns: Sequence[str], objective: Objective[Any]) -> str:
    """Return the content of a row's input, by which validation finds equal rows, too."""
    content = objectives.content_of_row(objective, row)
    return to_json([content.get(column) for column in columns])


def _reason(row: Row, objective: Objective[Any]) -> str | None:
    """Return why a row does not pass the objective's checks, without what differs between rows."""
    checks = {(check.type, check.arguments["column"]): check.on_failure for check in objective.expectations(())}
    for column, kind in objective.columns().items():
        if row.get(column) is None:
            if checks.get(("expect_column_values_to_not_be_null", column)) != "quarantine":
                continue
            return f"no `{column}`"
        if kind == "number" and isinstance(row[column], str):
            return f"`{column}` is no number"
        if kind in ("string", "label") and not str(row[column]).strip():
            return f"an empty `{column}`"
    reason = objectives.why_row_unusable(objective, row)
    if reason and reason.startswith("an answer is not where it says"):
        return "an answer is not where it says"
    return "overlapping spans" if reason and " overlaps the span before it" in reason else reason


def _targets(row: Row, proposal: ObjectiveProposal, objective: Objective[Any]) -> list[tuple[Any, ...]]:
    """Return the labels of a row; of spans with their places."""
    if spans := proposal.columns.get("spans"):
        return [(str(span["label"]), span["start"], span["end"]) for span in row.get(spans) or ()]
    return [(label,) for label in objective.row_labels(row)]
