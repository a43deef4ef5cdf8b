"""What is wrong with the rows, and how many of them validation will set aside."""

from __future__ import annotations

import random
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

from params import DataError
from tasks.scaffold.forms import joining_mark
from tasks.scaffold.look import Row, RowSample
from tasks.scaffold.proposal import ObjectiveProposal
from tasks.validation.row_judge import RowJudge
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


class _Sorted(NamedTuple):
    """The rows of a sample: those that can be used, and why others cannot."""

    train: list[Row]
    held_out: list[Row]
    unusable: Counter[str]
    examples: Mapping[str, str]


class _NoLabel(NamedTuple):
    """What says that a row has no label, in which column; an empty one if nothing does."""

    column: str = ""
    mark: str | int | None = None

    def reason(self, row: Row) -> str | None:
        if self.column and row.get(self.column) == self.mark:
            return f"no label: `{self.column}` is `{self.mark}`"
        return None


def assess_sample_quality(sample: RowSample, proposal: ObjectiveProposal, objective: Objective[Any]) -> SampleQuality:
    """Return the quality of the sample for an objective.

    Raises:
        DataError: no row can be used, or all rows have the same label.
    """
    if objective.columns().get(proposal.columns.get("label", "")) == "number":  # numbers are no labels to count
        proposal = replace(proposal, columns={flag: own for flag, own in proposal.columns.items() if flag != "label"})
    no_label = _find_marks_of_no_label(sample, proposal)
    rows = _sort_rows(sample, objective, no_label)
    if not rows.train:
        reasons = "; ".join(f"{count} rows: {reason}" for reason, count in rows.unusable.most_common(3))
        raise DataError("the training rows", f"none can be used: {reasons}", "name other columns, or fix the rows")
    facts = _Facts(sample, proposal, objective, rows.train, rows.held_out)
    if len(facts.labels) == 1 and "label" in proposal.columns:
        where = f"column `{proposal.columns['label']}`"
        what = f"every row has the label {next(iter(facts.labels))!r}, so there is nothing to learn"
        raise DataError(where, what, "name another column with --label, or add rows with other labels")
    return SampleQuality(
        usable=rows.train,
        unusable=rows.unusable,
        rows=sum(map(len, sample.rows.values())),
        examples=rows.examples,
        labels=facts.labels,
        repeated=facts.repeated,
        largest_group=max(Counter(facts.inputs).values(), default=0),
        known=facts.known,
        unlabelled=no_label.column,
        no_label=no_label.mark,
        is_written_alike=facts.is_written_alike,
        remarks=list(dict.fromkeys(remark for rule in _REMARKS for remark in rule(facts))),
    )


def _sort_rows(sample: RowSample, objective: Objective[Any], no_label: _NoLabel) -> _Sorted:
    """Judge all rows of a sample, those of training last."""
    judge, columns = RowJudge(objective), dict.fromkeys(objective.columns())
    found = _Sorted([], [], Counter(), {})
    examples = dict[str, str]()
    for split in sorted(sample.rows, key=lambda split: split == "train"):
        usable = found.train if split == "train" else found.held_out
        for number, own in enumerate(sample.rows[split], start=1):
            row: Row = {**columns, **own}  # a row may lack a key that others have
            reason = no_label.reason(row) or judge.why_set_aside(row)
            if reason is None:
                usable.append(row)
                continue
            found.unusable[reason] += 1
            place = f"row {number} of {split}" if sample.is_whole else f"a row of {split}"
            examples.setdefault(reason, f"{place}, {str(dict(row))[:120]}")
    unusable, examples = _group_reasons(found.unusable, examples)
    return found._replace(unusable=unusable, examples=examples)


@dataclass(frozen=True)
class _Facts:
    """What the usable rows of a sample are like."""

    sample: RowSample
    proposal: ObjectiveProposal
    objective: Objective[Any]
    train: Sequence[Row]
    held_out: Sequence[Row]

    @cached_property
    def written_labels(self) -> Counter[str]:
        """Training rows of each label, as it is written."""
        return Counter(label for row in self.train for label, *_ in self.targets(row))

    @cached_property
    def _held_out_labels(self) -> set[str]:
        return {label for row in self.held_out for label, *_ in self.targets(row)}

    @cached_property
    def _learned(self) -> dict[str, str]:
        """What labels are called that are written in several ways."""
        every = {*self.written_labels, *self._held_out_labels}
        return {label: as_learned(label, self.objective.state_of) for label in every}

    @cached_property
    def labels(self) -> Counter[str]:
        """Training rows of each label, as it is learned."""
        found = Counter[str]()
        for label, count in self.written_labels.items():
            found[self._learned[label]] += count
        return found

    @cached_property
    def unseen_labels(self) -> list[str]:
        return sorted({self._learned[label] for label in self._held_out_labels} - set(self.labels))

    @cached_property
    def _input_columns(self) -> list[str]:
        return input_columns(self.proposal)

    def _inputs_of(self, rows: Sequence[Row]) -> list[str]:
        return [_input(row, self._input_columns, self.objective) for row in rows] if self._input_columns else []

    @cached_property
    def inputs(self) -> list[str]:
        """The input of each training row; none if there are no columns of inputs."""
        return self._inputs_of(self.train)

    @cached_property
    def _held_out_inputs(self) -> list[str]:
        return self._inputs_of(self.held_out)

    @cached_property
    def answers(self) -> dict[str, set[frozenset[Any]]]:
        """The labels that training rows have with the same input."""
        found = defaultdict[str, set[frozenset[Any]]](set)
        for row, own in zip(self.train, self.inputs, strict=False):
            target = frozenset((self._learned[label], *place) for label, *place in self.targets(row))
            found[own].add(target)
        return found

    @property
    def repeated(self) -> int:
        """Training rows whose input occurs before."""
        return len(self.train) - len(self.answers) if self._input_columns else 0

    @cached_property
    def known(self) -> int:
        """Held-out rows whose input training rows have, too."""
        return sum(own in self.answers for own in self._held_out_inputs)

    @cached_property
    def is_written_alike(self) -> bool:
        if not self._input_columns:
            return True
        rows = (*self.train, *self.held_out)
        written = {to_json([row.get(column) for column in self._input_columns]) for row in rows}
        return len(written) == len({*self.inputs, *self._held_out_inputs})

    def targets(self, row: Row) -> list[tuple[Any, ...]]:
        """Return the labels of a row; of spans with their places."""
        if spans := self.proposal.columns.get("spans"):
            return [(str(span["label"]), span["start"], span["end"]) for span in row.get(spans) or ()]
        return [(label,) for label in self.objective.row_labels(row)]


def _repeated_texts(facts: _Facts) -> Iterator[str]:
    if facts.repeated and not facts.objective.group_columns:
        yield f"{facts.repeated:,} training rows repeat a text; they are kept"


def _known_texts(facts: _Facts) -> Iterator[str]:
    if facts.known:
        alike = "" if facts.is_written_alike else ", and write equal ones alike: some have other white space"
        yield (
            f"{facts.known:,} held-out rows have a text that training rows have, too; to set those of training aside, name its column"
            f" in data.group_by{alike}"
        )


def _contradicting_labels(facts: _Facts) -> Iterator[str]:
    if conflicting := sum(len(found) > 1 for found in facts.answers.values()):
        yield f"{conflicting} texts occur with different labels; correct them if they are mistakes"


def _rare_labels(facts: _Facts) -> Iterator[str]:
    if few := sorted(label for label, count in facts.labels.items() if count <= FEW_ROWS):
        yield f"labels with fewer than {FEW_ROWS + 1} rows: {len(few)}, {list_labels(few, 5)}"


def _joined_labels(facts: _Facts) -> Iterator[str]:
    parts = {label: _parts(label) for label in facts.labels}
    uses = Counter(part for own in parts.values() for part in own)
    joined = sorted(label for label, own in parts.items() if len(own) > 1 and all(uses[part] > 1 for part in own))
    if joined:
        instead = _how_to_divide_labels(facts.sample, facts.proposal)
        yield f"labels that consist of others, and are learned as labels of their own: {len(joined)}, {list_labels(joined, 5)}{instead}"


def _unseen_labels(facts: _Facts) -> Iterator[str]:
    if facts.sample.is_whole and facts.unseen_labels:
        yield (
            f"labels of held-out rows that no training row has: {list_labels(facts.unseen_labels, 5)}; validation will refuse them: add"
            " training rows with these labels, or take the rows with them out of the held-out data"
        )


def _moved_spans(facts: _Facts) -> Iterator[str]:
    spans = facts.proposal.columns.get("spans")
    if not spans:
        return
    moved = sum(is_moved(span, facts.objective.text(row)) for row in facts.train for span in row.get(spans) or ())
    if moved:
        yield f"{moved:,} spans have offsets that their own text contradicts; they are read where that text is"


def _unanswered_conversations(facts: _Facts) -> Iterator[str]:
    column = facts.proposal.columns.get("messages")
    if not column:
        return
    if unanswered := sum(read_turns(row[column])[-1]["role"] != "assistant" for row in facts.train):
        yield f"{unanswered:,} conversations do not end with the assistant; what follows its last message is not learned"


def _minus_one(facts: _Facts) -> Iterator[str]:
    if facts.proposal.columns.get("label") and {*facts.labels} == {_NO_CLASS, "0", "1"}:
        yield (
            f"{facts.labels[_NO_CLASS]:,} training rows have the label -1, which is learned like 0 and 1; if it says that a row has none, remove"
            " these rows"
        )


def _look_alikes(facts: _Facts) -> Iterator[str]:
    yield from describe_look_alikes(facts.written_labels, facts.objective.state_of)


_REMARKS: Final[Sequence[Callable[[_Facts], Iterator[str]]]] = (
    _repeated_texts,
    _known_texts,
    _contradicting_labels,
    _rare_labels,
    _joined_labels,
    _unseen_labels,
    _moved_spans,
    _unanswered_conversations,
    _minus_one,
    _look_alikes,
)
"""What a person should know, a rule each, in the order in which it is said."""


def _how_to_divide_labels(sample: RowSample, proposal: ObjectiveProposal) -> str:
    """Return the end of a remark that names --labels, if the texts of the label column join several labels; else nothing."""
    given = sample.columns.get(proposal.columns.get("label", ""))
    if not given or not joining_mark(given, sample.columns):
        return ""
    return f"; to learn each by itself, add --labels {shlex.quote(given.name)}"


def _find_marks_of_no_label(sample: RowSample, proposal: ObjectiveProposal) -> _NoLabel:
    """Return what stands in the column of labels for none.

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
        return _NoLabel(column, NO_LABEL)
    if _NO_CLASS in found and len(labels) > 2 and labels == {*map(str, range(len(labels)))}:
        return _NoLabel(column, found[_NO_CLASS])
    return _NoLabel()


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
