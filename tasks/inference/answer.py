"""What a model answers to a text: generated text, classes with probabilities, numbers, near or ranked texts, or spans of the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PredictedLabel:
    """A class, as the model names it."""

    name: str
    probability: float


@dataclass(frozen=True)
class PredictedNumber:
    """A number, in the units of the rows that the model learned from."""

    name: str
    value: float

    @property
    def shown(self) -> str:
        return f"{self.value:.6g}" if abs(self.value) < 1e6 else f"{self.value:,.0f}"


@dataclass(frozen=True)
class PredictedSpan:
    """A part of the text that the model has found something in."""

    label: str
    start: int
    """The first character."""
    end: int
    """After the last character."""
    text: str
    probability: float


@dataclass(frozen=True)
class NearText:
    """A text that is near to the one that was asked for."""

    text: str
    cosine: float


@dataclass(frozen=True)
class RankedText:
    """A document for a query."""

    text: str
    probability: float
    """That it is relevant."""


@dataclass(frozen=True)
class ModelAnswer:
    """An answer, of one kind: text, classes, numbers, spans, near texts or ranked ones."""

    text: str
    """What was asked."""
    generated: str | None = None
    """Text that follows the prompt."""
    labels: Sequence[PredictedLabel] | None = None
    """The likeliest classes, the likeliest first."""
    numbers: Sequence[PredictedNumber] | None = None
    spans: Sequence[PredictedSpan] | None = None
    """In the order of the text; they do not overlap."""
    near: Sequence[NearText] | None = None
    """The nearest texts, the nearest first."""
    ranked: Sequence[RankedText] | None = None
    """The documents, the most relevant first."""
    note: str | None = None
    """What the model did not read of the text, and which of several labels it predicts."""
    predicted: Sequence[str] | None = None
    """The classes that reach their thresholds, if a text may have several or none."""

    @property
    def said(self) -> object:
        """What makes two answers the same one: the text, the classes that are predicted or the likeliest one, numbers, the nearest text, the order of documents, or spans."""
        if self.predicted is not None:
            return list(self.predicted)
        if self.labels is not None:
            return self.labels[0].name
        if self.numbers is not None:
            return [(number.name, f"{number.value:.4g}") for number in self.numbers]
        if texts := [one.text for one in self.ranked or self.near or ()]:
            return texts if self.ranked else texts[0]
        if self.spans is not None:
            return [(span.label, span.start, span.end) for span in self.spans]
        return self.generated

    def pieces(self) -> Iterator[tuple[str, str]]:
        """Yield the text in pieces, each with the label of its span; empty for the text between spans."""
        end = 0
        for span in self.spans or ():
            if end < span.start:
                yield self.text[end : span.start], ""
            yield self.text[span.start : span.end], span.label
            end = span.end
        if end < len(self.text):
            yield self.text[end:], ""

    def lines(self) -> list[str]:
        found = self._told()
        if self.note:
            found.append(f"note: {self.note}")
        # what could steer a terminal
        return ["".join(char if char.isprintable() or char == "\t" else "\ufffd" for char in line) for line in found]

    def _told(self) -> list[str]:
        if self.labels is not None:
            return _told_labels(self.labels)
        if self.numbers is not None:
            return [f"{number.name}  {number.shown}" for number in self.numbers]
        if self.near is not None:
            return [f"{near.cosine:6.3f}  {_on_one_line(near.text)}" for near in self.near]
        if self.ranked is not None:
            return [f"{ranked.probability:.3f}  {_on_one_line(ranked.text)}" for ranked in self.ranked]
        if self.spans is not None:
            listed = list(map(_told_span, self.spans))
            return [*self._marked_text().splitlines(), *(listed or ["no spans"])]
        return (self.generated or "").splitlines() or ["(no text)"]

    def _marked_text(self) -> str:
        """Return the text with its spans marked, for example `[Ada](PER) writes`."""
        return "".join(f"[{piece}]({label})" if label else piece for piece, label in self.pieces())


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def _told_labels(labels: Sequence[PredictedLabel]) -> list[str]:
    width = max(len(label.name) for label in labels)
    return [f"{label.name.ljust(width)}  {label.probability:.3f}" for label in labels]


def _told_span(span: PredictedSpan) -> str:
    return f"{span.label}: {span.start} to {span.end}, {span.text!r}, {span.probability:.3f}"
