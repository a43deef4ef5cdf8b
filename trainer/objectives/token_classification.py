"""Token classification: find spans of a text and name them, such as people, dates and times.

    {"text": "We need a table for 4 people on Friday", "spans": [{"label": "people", "start": 20, "end": 28},
                                                                 {"label": "date", "start": 32, "end": 38}]}

A span is characters `start` to `end`, the last one not included. Its sub-words get tags: `B-<label>` the first, `I-<label>`
those after it; all others get `O`. A span that does not fall on the borders of sub-words covers all that it touches; of two
spans that touch the same sub-word the first has it. All sub-words are learned, special tokens are not.

A text longer than `max_length` becomes windows that do not overlap: every sub-word is in one of them. A window ends between
words where it can, and never inside a span, so that the figures of the windows add up to those of the row; at its borders
the model sees less of the text. What tags cannot hold is neither learned nor counted: a span longer than a window, or one
whose sub-words all belong to another; statistics.json counts their rows among `truncated_rows`.

Loss and token accuracy are means over sub-words. Precision, recall and F1 are those of seqeval: over all spans of the split,
a span being right if its label and both of its ends are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from params import DataError
from params.schema import Direction, Section, Training
from trainer.objectives.bases.likelihood import (
    IGNORED,
    Likelihood,
    label_loss,
    label_losses,
    label_names,
    logits_of,
    pad_batch,
    relabelled,
    token_scores,
)
from trainer.objectives.bases.objective import Example, Kind, Row, Scores, State

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

OUTSIDE = "O"
Span = tuple[str, int, int]
"""Label, start and end in characters."""


class Options(Section):
    """Keys of the recipe's `objective` section."""

    text_column: str = "text"
    """The column with the text."""
    spans_column: str = "spans"
    """The column with the spans: a list of records with `label`, `start` and `end`."""


class TokenClassification(Likelihood[Options]):
    """A tag for every sub-word."""

    options_class = Options
    metrics: ClassVar[Mapping[str, Direction]] = {
        "loss": "min",
        "token_accuracy": "max",
        "precision": "max",
        "recall": "max",
        "f1": "max",
    }
    main_metric = "f1"
    per_token = frozenset({"loss", "token_accuracy"})
    score_names = ("nll", "tokens", "correct", "found", "predicted", "spans")
    pipeline_tag = "token-classification"
    examples: ClassVar[tuple[Row, ...]] = (
        {
            "text": "A table for 4 people on Friday",
            "spans": [{"label": "people", "start": 12, "end": 20}, {"label": "date", "start": 24, "end": 30}],
        },
        {"text": "Is there parking nearby?", "spans": []},
        {"text": "at 8pm", "spans": [{"label": "time", "start": 3, "end": 6}]},
    )

    def columns(self) -> Mapping[str, Kind]:
        return {self.options.text_column: "string", self.options.spans_column: "list"}

    def reject_reason(self, row: Row) -> str | None:
        """Spans that are no spans of the text, or overlap."""
        text, end_before = self.text(row), 0
        written = row[self.options.spans_column]
        if reason := next((f"span {i}: {r}" for i, s in enumerate(written) if (r := _flaw(s, text))), None):
            return reason
        for label, start, end in self._spans(row):
            if start < end_before:
                return f"{label!r} from {start} to {end} overlaps the span before it, which ends at {end_before}"
            end_before = end
        return None

    def unseen(self, row: Row, state: State) -> str | None:
        """A label that no training row has."""
        unknown = sorted({label for label, _, _ in self._spans(row)} - set(_labels(state)))
        return f"no training row has the label {', '.join(map(repr, unknown))}" if unknown else None

    def text(self, row: Row) -> str:
        return str(row[self.options.text_column])

    def fit(self, rows: Iterable[Row]) -> State:
        """The tags, those of a label side by side: O, B-date, I-date, B-people, ..."""
        found = sorted({label for row in rows for label, _, _ in self._spans(row)})
        if not found:
            what = "no row of the train split has a span"
            raise DataError(self.options.spans_column, what, "give rows with spans to learn from")
        return {"labels": [OUTSIDE, *(f"{tag}-{label}" for label in found for tag in "BI")]}

    def encode(self, row: Row, tokenizer: PreTrainedTokenizerBase, max_length: int, state: State) -> list[Example]:
        """The row's windows."""
        pieces = split(tokenizer, self.text(row))
        tags = [IGNORED if tag is None else state["labels"].index(tag) for tag in self._tags(row, pieces, max_length)]
        inside = [tag > 0 and tag % 2 == 0 for tag in tags]
        return [
            {
                "row_id": row["row_id"],
                "input_ids": [*pieces.front, *pieces.ids[start:end], *pieces.back],
                "labels": [*[IGNORED] * len(pieces.front), *tags[start:end], *[IGNORED] * len(pieces.back)],
            }
            for start, end in _windows(inside, pieces.words, pieces.room(max_length))
        ]

    def truncates(
        self, row: Row, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, max_length: int
    ) -> bool:
        """Whether tags cannot hold one of the row's spans."""
        begun = sum(tag > 0 and tag % 2 == 1 for example in examples for tag in example["labels"])
        return bool(begun < len(self._spans(row)))

    def collate(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
        return pad_batch(examples, tokenizer)

    def model_class(self) -> type[PreTrainedModel]:
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification  # type: ignore[no-any-return]

    def model_config(self, state: State) -> dict[str, Any]:
        return label_names(state["labels"])

    def loss(self, training: Training) -> Callable[..., Any]:
        return label_loss(training)

    def losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """(B, T, C) logits and (B, T) labels to (B, T)."""
        return label_losses(logits, labels)

    def score(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """(B, T, C) logits and (B, T) labels to (B, 6); the last three count spans: found, predicted, there."""
        import torch

        counts = []
        for tags, predicted in zip(labels.tolist(), logits.argmax(-1).tolist(), strict=True):
            there = _runs([tag for tag in tags if tag != IGNORED])
            told = _runs([p for p, tag in zip(predicted, tags, strict=True) if tag != IGNORED])
            counts.append([len(there & told), len(told), len(there)])
        spans = torch.tensor(counts, dtype=torch.float64, device=logits.device)
        return torch.cat([token_scores(logits, labels), spans], dim=1)

    def totals(self, scores: Scores, state: State) -> NDArray[np.float64]:
        """The scores themselves, (N, 6)."""
        import numpy as np

        return np.stack([scores[name] for name in self.score_names], axis=1)

    def compute(self, totals: NDArray[np.float64], state: State) -> dict[str, NDArray[np.float64]]:
        """Loss in nats per sub-word, and shares; a share of nothing is 0, as in seqeval."""
        import numpy as np

        nll, tokens, correct, found, predicted, there = np.moveaxis(totals, -1, 0)
        return {
            "loss": nll / tokens,
            "token_accuracy": correct / tokens,
            "precision": found / np.maximum(predicted, 1),
            "recall": found / np.maximum(there, 1),
            "f1": 2 * found / np.maximum(predicted + there, 1),
        }

    def notes(self, scores: Mapping[str, float], state: State) -> dict[str, str]:
        found, predicted, there = (f"{scores[name]:.0f}" for name in ("found", "predicted", "spans"))
        return {"spans": f"{found} of {there} found, {predicted} predicted"}

    def remap_labels(self, model: PreTrainedModel, state: State) -> PreTrainedModel:
        return relabelled(model, state["labels"])

    def answer(
        self, row: Row, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int, state: State
    ) -> list[str]:
        """The spans that the model finds in the row's text."""
        pieces, tags = split(tokenizer, self.text(row)), []
        for example in self.encode(row, tokenizer, max_length, state):
            found = logits_of(model, self.collate([example], tokenizer))[0].argmax(-1).tolist()
            tags += [state["labels"][i] for i in found[len(pieces.front) : len(found) - len(pieces.back)]]
        found_spans = spans_of(pieces, tags)
        return [f"{label}: {start} to {end}, {pieces.text[start:end]!r}" for label, start, end in found_spans]

    def _spans(self, row: Row) -> list[Span]:
        spans = [(str(s["label"]), int(s["start"]), int(s["end"])) for s in row[self.options.spans_column]]
        return sorted(spans, key=lambda span: span[1:])

    def _tags(self, row: Row, pieces: Pieces, max_length: int) -> list[str | None]:
        """A tag for each piece; None for those of a span that no window holds."""
        tags = tags_of(pieces, self._spans(row))
        for _, start, end in runs_of(tags):
            if end - start > pieces.room(max_length):
                tags[start:end] = [None] * (end - start)
        return tags


@dataclass(frozen=True)
class Pieces:
    """A text in sub-words, special tokens aside."""

    text: str
    ids: list[int]
    offsets: list[tuple[int, int]]
    """First character of each sub-word and the one after its last, the spaces around it left out."""
    words: list[int | None]
    """The word that each sub-word is a part of."""
    front: list[int]
    """Special tokens before every sequence."""
    back: list[int]
    """Special tokens after every sequence."""

    def room(self, max_length: int) -> int:
        """How many sub-words a sequence of `max_length` tokens holds.

        Raises:
            ValueError: none.
        """
        room = max_length - len(self.front) - len(self.back)
        if room < 1:
            raise ValueError(f"{max_length} tokens have no room for text beside the special tokens")
        return room


def split(tokenizer: PreTrainedTokenizerBase, text: str) -> Pieces:
    """A text as the tokenizer splits it."""
    encoding = tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False)
    ids, special = encoding["input_ids"], encoding["special_tokens_mask"]
    first = special.index(0) if 0 in special else len(ids)
    last = len(ids) - (special[::-1].index(0) if 0 in special else 0)
    offsets = [_trimmed(text, start, end) for start, end in encoding["offset_mapping"][first:last]]
    return Pieces(text, ids[first:last], offsets, encoding.word_ids()[first:last], ids[:first], ids[last:])


def tags_of(pieces: Pieces, spans: Sequence[Span]) -> list[str | None]:
    """The tag of each sub-word, from spans in the order of the text; a span whose sub-words are all taken gets none."""
    tags: list[str | None] = [OUTSIDE] * len(pieces.ids)
    for label, *ends in spans:
        start, end = _trimmed(pieces.text, *ends)
        first = True
        for i, (left, right) in enumerate(pieces.offsets):
            # a sub-word of spaces has no width, and is inside only if it does not stand at a border
            touched = start < left < end if left == right else left < end and right > start
            if touched and tags[i] == OUTSIDE:
                tags[i] = f"{'B' if first else 'I'}-{label}"
                first = False
    return tags


def spans_of(pieces: Pieces, tags: Sequence[str]) -> list[Span]:
    """The spans of characters that tags stand for: from the first character of a run's sub-words to the last one."""
    return [(label, pieces.offsets[start][0], pieces.offsets[end - 1][1]) for label, start, end in runs_of(tags)]


def runs_of(tags: Sequence[str | None]) -> list[Span]:
    """Label, first and last-but-one place of each run of tags that makes a span, as seqeval reads them."""
    from seqeval.metrics.sequence_labeling import get_entities

    return [(label, start, last + 1) for label, start, last in get_entities([tag or OUTSIDE for tag in tags])]


def _runs(tags: Sequence[int]) -> set[Span]:
    """As `runs_of`, of tags by number: labels need no names to be counted."""
    return set(runs_of([f"{'IB'[tag % 2]}-{(tag - 1) // 2}" if tag else OUTSIDE for tag in tags]))


def _windows(inside: Sequence[bool], words: Sequence[int | None], room: int) -> Iterator[tuple[int, int]]:
    """Where each window starts and ends: in its second half before a word, or else not inside a span."""
    start = 0
    while start < len(inside):
        end = min(start + room, len(inside))
        if end < len(inside):
            allowed = [place for place in range(end, start, -1) if not inside[place]]
            whole = (p for p in allowed if p > start + room // 2 and (words[p] is None or words[p] != words[p - 1]))
            end = next(whole, allowed[0])
        yield start, end
        start = end


def _labels(state: State) -> list[str]:
    return [tag.removeprefix("B-") for tag in state["labels"][1::2]]


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[end - 1].isspace():
        end -= 1
    while start < end and text[start].isspace():
        start += 1
    return start, end


def _flaw(span: Any, text: str) -> str | None:
    missing = [key for key in ("label", "start", "end") if (span or {}).get(key) is None]
    if missing:
        return f"has no {' and no '.join(missing)}"
    label, start, end = span["label"], span["start"], span["end"]
    if not str(label).strip():
        return "its label is empty"
    if not all(isinstance(x, int | float) and float(x).is_integer() for x in (start, end)):
        return f"start and end must be integers, and are {start!r} and {end!r}"
    if not 0 <= start <= end <= len(text):
        return f"from {start} to {end} is not in the text, which has {len(text)} characters"
    return None if text[int(start) : int(end)].strip() else f"from {start} to {end} there is no text"
