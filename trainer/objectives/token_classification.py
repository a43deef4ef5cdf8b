"""Token classification: find spans of a text and name them, such as people, dates and times.

    {"text": "We need a table for 4 people on Friday", "spans": [{"label": "people", "start": 20, "end": 28},
                                                                 {"label": "date", "start": 32, "end": 38}]}

A span is the characters from `start` up to, but not including, `end`; if it also has its `text`, that decides where it is
(trainer.objectives.bases.spans.places). The first of its sub-words gets the tag `B-<label>`,
the others `I-<label>`; sub-words outside of spans get `O`. A span covers every sub-word that it touches; if two spans touch
the same sub-word, it belongs to the first. All sub-words have a loss, special tokens do not.

A text longer than `max_length` is split into windows that do not overlap: every sub-word is in one of them. A window ends
between words if possible, and never inside a span, so that the scores of the windows add up to those of the row; at its
borders the model has less context. A span that tags cannot represent is neither learned nor counted: one that is longer than
a window, or whose sub-words all belong to another span. statistics.json counts such rows in `truncated_rows`.

Loss and token accuracy are means over sub-words. Precision, recall and F1 are those of seqeval: over all spans of the split,
where a predicted span is correct if its label and both ends are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from params import DataError
from params.defaults import ObjectiveDefaults
from params.sections.base import Section
from params.sections.rows import Expectation
from trainer.objectives.advice.base import AdvisedValue, ClassifierNewRecipeAdvice, ObjectiveFit, SeenColumns, UpTo
from trainer.objectives.bases.lazy_imports import NDArray, PreTrainedModel, np, torch
from trainer.objectives.bases.likelihood import (
    TOKEN_ACCURACY,
    TOKEN_LOSS,
    ClassifierObjective,
    compute_logits,
    sum_token_scores,
)
from trainer.objectives.bases.metrics.metric import Metric, Sums, every_row, named
from trainer.objectives.bases.objective import ColumnKind, EncodedRow, Example, ObjectiveState, Row, ScoreColumns
from trainer.objectives.bases.spans.places import locate_span
from trainer.objectives.bases.texts.padding import IGNORE_INDEX
from trainer.objectives.bases.texts.tokenizing import Tokenizer

OUTSIDE = "O"
Span = tuple[str, int, int]
"""Label, start and end: in characters, or in sub-words."""


class Options(Section):
    """Keys of the recipe's `objective` section."""

    text_column: str = "text"
    """The column with the text."""
    spans_column: str = "spans"
    """The column with the spans: a list of records with `label`, `start` and `end`; a row may lack it."""


class _Advice(ClassifierNewRecipeAdvice):
    meaning = "spans of a text and their names"
    columns: ClassVar[Mapping[str, str]] = {"text": "text_column", "spans": "spans_column"}
    epochs: ClassVar[UpTo] = ((1_000, 10), (5_000, 5), (50_000, 3), (500_000, 2), (math.inf, 1))

    def fit(self, seen: SeenColumns) -> ObjectiveFit:
        return ObjectiveFit.SPANS if seen.has("spans") else ObjectiveFit.NOT

    def best_metric(self, labels: Mapping[str, int]) -> AdvisedValue:
        return AdvisedValue("f1", "over spans")


def _span_metric(name: str, of: Sequence[str]) -> Metric:
    """Return the share of correct ones among spans that are predicted, or there, or both (F1); of no span it is 0, as in seqeval.

    It is about texts with such a span. Rows without a span have none of the metrics: one that is predicted there would count as much as
    thousands.
    """

    def share(sums: Sums) -> NDArray[np.float64]:
        found: NDArray[np.float64] = len(of) * sums["correct_spans"] / np.maximum(_sum_of(sums, of), 1)
        return found

    return Metric(
        name,
        "max",
        share,
        share_of=every_row,
        about=lambda statistics: _sum_of(statistics, of) > 0,
        exists=lambda sums: bool(sums["actual_spans"]),
        weights=lambda scores: _sum_of(scores, of),
        restated=True,
    )


def _sum_of(columns: Mapping[str, NDArray[np.float64]], names: Sequence[str]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.sum([columns[name] for name in names], axis=0)
    return found


class TokenClassification(ClassifierObjective[Options]):
    """A tag for every sub-word."""

    options_class = Options
    # as of sequence classification
    defaults = ObjectiveDefaults(5e-5, 4.0, 32, 32, best_metric="f1", group_by_length=True)
    advice = _Advice()
    metrics: ClassVar[Mapping[str, Metric]] = named(
        TOKEN_LOSS,
        TOKEN_ACCURACY,
        _span_metric("precision", ("predicted_spans",)),
        _span_metric("recall", ("actual_spans",)),
        _span_metric("f1", ("predicted_spans", "actual_spans")),
    )
    main_metric = "f1"
    served_scores = ("nll", "tokens")
    reader_strides = True
    auto_class = "AutoModelForTokenClassification"
    pipeline_tag = "token-classification"
    example_rows: ClassVar[tuple[Row, ...]] = (
        {
            "text": "A table for 4 people on Friday",
            "spans": [{"label": "people", "start": 12, "end": 20}, {"label": "date", "start": 24, "end": 30}],
        },
        {"text": "Is there parking nearby?", "spans": []},
        {"text": "at 8pm", "spans": [{"label": "time", "start": 3, "end": 6}]},
    )

    def columns(self) -> Mapping[str, ColumnKind]:
        return {self.options.text_column: "string", self.options.spans_column: "records"}

    def expectations(self, text_columns: Collection[str]) -> list[Expectation]:
        """As the base class; a row without spans, also one without that key, is a text without any."""
        checks = super().expectations(text_columns)
        spans = {"column": self.options.spans_column}
        return [
            check.model_copy(update={"on_failure": "report"}) if check.arguments == spans else check for check in checks
        ]

    def reject_reason(self, row: Row) -> str | None:
        """Return why a row's spans are invalid: not in the text, or overlapping."""
        text, spans, end_before = self.text(row), row[self.options.spans_column] or (), 0
        if reason := next((f"span {i}: {r}" for i, s in enumerate(spans) if (r := _span_problem(s, text))), None):
            return reason
        for label, start, end in self._spans(row):
            if start < end_before:
                return f"{label!r} from {start} to {end} overlaps the span before it, which ends at {end_before}"
            end_before = end
        return None

    def content(self, row: Row) -> Mapping[str, Any]:
        """As the base class; the spans are in the order of the text, each where it stands in that without outer space."""
        text = self.text(row)
        before = len(text) - len(text.lstrip())
        spans = []
        for label, *ends in self._spans(row):
            start, end = _trimmed(text, *ends)
            spans.append([self.learned_label(label), start - before, end - before])
        return {**super().content(row), self.options.spans_column: spans}

    def unseen_label(self, row: Row, state: ObjectiveState) -> str | None:
        return super().unseen_label(row, {"labels": [tag.removeprefix("B-") for tag in state["labels"][1::2]]})

    def text(self, row: Row) -> str:
        return str(row[self.options.text_column])

    def row_labels(self, row: Row) -> Iterable[str]:
        return (str(span["label"]) for span in row[self.options.spans_column] or ())

    def state_of(self, labels: Collection[str]) -> ObjectiveState:
        """The tags, ordered by label: O, B-date, I-date, B-people, ..."""
        if not labels:
            what = "no row of the train split has a span"
            raise DataError(self.options.spans_column, what, "add rows with spans")
        names = sorted({label.strip() for label in labels})
        return {"labels": [OUTSIDE, *(f"{tag}-{label}" for label in names for tag in "BI")]}

    def encode(
        self, rows: Sequence[Row], tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[EncodedRow]:
        """Each row's windows; a row is truncated if one of its spans has no tag."""
        tokenized = tokenize_with_offsets([self.text(row) for row in rows], tokenizer)
        pairs = zip(rows, tokenized, strict=True)
        return [self._encode_row(row, pieces, max_length, state["labels"]) for row, pieces in pairs]

    def _encode_row(self, row: Row, pieces: TokenizedText, max_length: int, names: Sequence[str]) -> EncodedRow:
        room = max_length - len(pieces.front) - len(pieces.back)
        if room < 1:
            raise ValueError(f"max_length {max_length} leaves no room for text beside the special tokens")
        spans = self._spans(row)
        tags = spans_to_tags(pieces, spans)
        for _, start, end in bio_tags_to_subword_spans(tags):
            if end - start > room:  # longer than a window
                tags[start:end] = [None] * (end - start)
        labels = [IGNORE_INDEX if tag is None else names.index(tag) for tag in tags]
        inside = [label > 0 and label % 2 == 0 for label in labels]
        front, back = ([IGNORE_INDEX] * len(special) for special in (pieces.front, pieces.back))
        examples = [
            {
                "row_id": row["row_id"],
                "input_ids": [*pieces.front, *pieces.ids[start:end], *pieces.back],
                "labels": [*front, *labels[start:end], *back],
            }
            for start, end in _windows(inside, pieces.words, room)
        ]
        begun = sum(label > 0 and label % 2 == 1 for label in labels)
        return EncodedRow(examples, is_truncated=begun < len(spans))

    @property
    def call_arguments(self) -> Mapping[str, Any]:
        return {"aggregation_strategy": "simple"}

    def reader_input(self, row: Row) -> str:
        return self.text(row)

    def answer_scores(
        self, ask: Callable[..., Any], row: Row, example: Example, tokenizer: Tokenizer
    ) -> Mapping[str, float]:
        text = self.text(row)
        answers = ask(text)
        found = {(str(one["entity_group"]), *_trimmed(text, int(one["start"]), int(one["end"]))) for one in answers}
        actual = self._tagged_spans(row, tokenizer)
        return {"predicted_spans": len(answers), "correct_spans": len(found & set(actual))}

    def says_all(self, row: Row, examples: Sequence[Example], tokenizer: Tokenizer) -> bool:
        """Whether the tags stand for the very characters of the spans: a coarse tokenizer rounds them to its tokens."""
        text = self.text(row)
        exact = [(label, *_trimmed(text, start, end)) for label, start, end in self._spans(row)]
        return self._tagged_spans(row, tokenizer) == exact

    def with_inputs_of(self, example: Example, other: Example) -> Example | None:
        """Put the tagged sub-words of another row, over and over, in the place of those of the example."""
        words = [word for word, tag in zip(other["input_ids"], other["labels"], strict=True) if tag != IGNORE_INDEX]
        if not words:
            return example
        pairs, taken = zip(example["input_ids"], example["labels"], strict=True), itertools.cycle(words)
        return {**example, "input_ids": [own if tag == IGNORE_INDEX else next(taken) for own, tag in pairs]}

    def score_names(self, state: ObjectiveState) -> Sequence[str]:
        return ("nll", "tokens", "correct", "correct_spans", "predicted_spans", "actual_spans")

    def score_logits(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Token scores, then numbers of spans: correct, predicted, actual, (B, 6)."""
        counts = []
        for tags, predictions in zip(labels.tolist(), logits.argmax(-1).tolist(), strict=True):
            actual = _spans_of_ids([tag for tag in tags if tag != IGNORE_INDEX])
            predicted = _spans_of_ids([p for p, tag in zip(predictions, tags, strict=True) if tag != IGNORE_INDEX])
            counts.append([len(actual & predicted), len(predicted), len(actual)])
        spans = torch.tensor(counts, dtype=torch.float64, device=logits.device)
        losses = self.charge_unknown(self.losses(logits, labels), labels)
        return torch.cat([sum_token_scores(logits, labels, losses), spans], dim=1)

    def statistics(self, scores: ScoreColumns, state: ObjectiveState) -> Sums:
        """The scores themselves."""
        return {name: scores[name] for name in self.score_names(state)}

    def right_rows(self, scores: ScoreColumns) -> NDArray[np.bool_]:
        """Return which of N rows have exactly the spans that are predicted, (N,)."""
        return np.array(np.ptp([scores[name] for name in self.score_names({})[3:]], axis=0) == 0, np.bool_)

    def describe_scores(self, scores: Mapping[str, float], state: ObjectiveState) -> dict[str, str]:
        correct, predicted, actual = (f"{scores[f'{name}_spans']:.0f}" for name in ("correct", "predicted", "actual"))
        return {"spans": f"{correct} of {actual} found, {predicted} predicted"}

    def prediction_lines(
        self, row: Row, model: PreTrainedModel, tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[str]:
        (pieces,), tags = tokenize_with_offsets([self.text(row)], tokenizer), []
        for example in self.encode([row], tokenizer, max_length, state)[0].examples:
            ids = compute_logits(model, self.collate([example], tokenizer))[0].argmax(-1).tolist()
            tags += [state["labels"][i] for i in ids[len(pieces.front) : len(ids) - len(pieces.back)]]
        spans = tags_to_character_spans(pieces, tags)
        return [f"{label}: {start} to {end}, {pieces.text[start:end]!r}" for label, start, end in spans]

    def _spans(self, row: Row) -> list[Span]:
        text, spans = self.text(row), row[self.options.spans_column] or ()
        places = [(str(span["label"]).strip(), *(locate_span(span, text) or (0, 0))) for span in spans]
        return sorted(places, key=lambda span: span[1:])

    def _tagged_spans(self, row: Row, tokenizer: Tokenizer) -> list[Span]:
        (pieces,) = tokenize_with_offsets([self.text(row)], tokenizer)
        return tags_to_character_spans(pieces, spans_to_tags(pieces, self._spans(row)))


@dataclass(frozen=True)
class TokenizedText:
    """A text split into sub-words, with the special tokens apart."""

    text: str
    ids: list[int]
    offsets: list[tuple[int, int]]
    """Start and end character of each sub-word, without the spaces around it."""
    words: list[int | None]
    """The index of the word that each sub-word belongs to."""
    front: list[int]
    """Special tokens before every sequence."""
    back: list[int]
    """Special tokens after every sequence."""


def tokenize_with_offsets(texts: Sequence[str], tokenizer: Tokenizer) -> list[TokenizedText]:
    """Return each text as the tokenizer splits it."""
    encoding = tokenizer(list(texts), return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False)
    columns = (encoding[name] for name in ("input_ids", "special_tokens_mask", "offset_mapping"))
    found = []
    for i, (text, ids, special, places) in enumerate(zip(texts, *columns, strict=True)):
        first = special.index(0) if 0 in special else len(ids)
        last = len(ids) - (special[::-1].index(0) if 0 in special else 0)
        offsets = [_trimmed(text, start, end) for start, end in places[first:last]]
        words = encoding.word_ids(i)[first:last]
        found.append(TokenizedText(text, ids[first:last], offsets, words, ids[:first], ids[last:]))
    return found


def spans_to_tags(pieces: TokenizedText, spans: Sequence[Span]) -> list[str | None]:
    """Return the tag of each sub-word, from spans in the order of the text; a span whose sub-words are all taken has none."""
    tags: list[str | None] = [OUTSIDE] * len(pieces.ids)
    for label, *ends in spans:
        start, end = _trimmed(pieces.text, *ends)
        first = True
        for i, (left, right) in enumerate(pieces.offsets):
            # a sub-word of spaces has no width: it is inside only if it is not at a border
            touched = start < left < end if left == right else left < end and right > start
            if touched and tags[i] == OUTSIDE:
                tags[i] = f"{'B' if first else 'I'}-{label}"
                first = False
    return tags


def tags_to_character_spans(pieces: TokenizedText, tags: Sequence[str | None]) -> list[Span]:
    """Return the spans of characters that tags stand for."""
    return [
        (label, pieces.offsets[start][0], pieces.offsets[end - 1][1])
        for label, start, end in bio_tags_to_subword_spans(tags)
    ]


def bio_tags_to_subword_spans(tags: Sequence[str | None]) -> list[Span]:
    """Return label, first sub-word and sub-word after the last of each span of B- and I-tags, as seqeval reads them.

    An I-tag that does not continue the span before it begins one.
    """
    found: list[Span] = []
    for place, tag in enumerate(tags):
        kind, _, label = (tag or OUTSIDE).partition("-")
        if kind == "I" and found and (found[-1][0], found[-1][2]) == (label, place):
            found[-1] = (label, found[-1][1], place + 1)
        elif kind != OUTSIDE:
            found.append((label, place, place + 1))
    return found


def _spans_of_ids(tags: Sequence[int]) -> set[Span]:
    """As `bio_tags_to_subword_spans`, for ids of tags; the spans have numbers for labels."""
    return set(bio_tags_to_subword_spans([f"{'IB'[tag % 2]}-{(tag - 1) // 2}" if tag else OUTSIDE for tag in tags]))


def _windows(inside: Sequence[bool], words: Sequence[int | None], room: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each window: it ends before a word in its second half, or else anywhere outside of a span."""
    start = 0
    while start < len(inside):
        end = min(start + room, len(inside))
        if end < len(inside):
            allowed = [place for place in range(end, start, -1) if not inside[place]]
            whole = (p for p in allowed if p > start + room // 2 and (words[p] is None or words[p] != words[p - 1]))
            end = next(whole, allowed[0])
        yield start, end
        start = end


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    kept = text[start:end].strip()
    start += text[start:end].index(kept)
    return start, start + len(kept)


def _span_problem(span: Any, text: str) -> str | None:
    missing = [key for key in ("label", "start", "end") if (span or {}).get(key) is None]
    if missing:
        return f"has no {' and no '.join(missing)}"
    label, start, end = span["label"], span["start"], span["end"]
    if not str(label).strip():
        return "its label is empty"
    if not all(isinstance(x, int | float) and float(x).is_integer() for x in (start, end)):
        return f"start and end must be integers, and are {start!r} and {end!r}"
    place = locate_span(span, text)
    if place is None:
        said, found = span["text"], text[max(0, int(start)) : max(0, int(end))]
        return f"its text is {said!r:.60}, and from {start} to {end} there is {found!r:.60}"
    if not 0 <= place[0] <= place[1] <= len(text):
        return f"from {start} to {end} is not in the text, which has {len(text)} characters"
    return None if text[slice(*place)].strip() else f"from {start} to {end} there is no text"
