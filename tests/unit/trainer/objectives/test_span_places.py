"""Spans with a text of their own: it decides where they are, whatever counts its offsets are."""

from __future__ import annotations

import random

import pytest

from params.schema import ObjectiveChoice
from trainer import objectives
from trainer.objectives.bases.spans.places import is_moved, locate_span

COUNTS = {
    "characters": len,
    "units of UTF-16, as browsers count": lambda text: len(text.encode("utf-16-le")) // 2,
    "bytes of UTF-8": lambda text: len(text.encode()),
}
PIECES = ["🙂", "👩‍🚀", "é", "日本", " ", "Anna Berg", "an", "call ", "\n", "on Friday", "e\u0301"]


@pytest.mark.parametrize("is_end_in", [False, True])
@pytest.mark.parametrize("count", COUNTS)
def test_a_span_is_where_its_text_is(count: str, is_end_in: bool) -> None:
    objective = objectives.build_objective(ObjectiveChoice(name="token_classification"))
    chance, measure = random.Random(count), COUNTS[count]
    for _ in range(100):
        before, after = ("".join(chance.choices(PIECES, k=chance.randint(0, 6))) for _ in range(2))
        said = "".join(chance.choices(PIECES[5:8], k=2)).strip()
        text = before + said + after
        start, end = measure(before), measure(before + said)
        span = {"label": "PER", "start": start, "end": end - is_end_in, "text": said}
        row = {"text": text, "spans": [span]}
        assert objective.reject_reason(row) is None
        place = locate_span(span, text)
        assert text[slice(*place)] == said
        if not is_end_in:
            assert place == (len(before), len(before + said)) or text[start:end].strip() == said
        assert is_moved(span, text) == (place != (span["start"], span["end"]))
        ((_, *found),) = objective._spans(row)
        assert tuple(found) == place


@pytest.mark.parametrize(
    ("span", "reason"),
    [
        ({"start": 0, "end": 4, "text": "Berg"}, "its text is 'Berg', and from 0 to 4 there is 'Anna'"),
        ({"start": 900, "end": 904, "text": "Zoe"}, "its text is 'Zoe', and from 900 to 904 there is ''"),
        ({"start": 0, "end": 4, "text": "ANNA "}, None),
        ({"start": 0, "end": 4, "text": None}, None),
        ({"start": 0, "end": 4, "text": ""}, None),
        ({"start": 14, "end": 17, "text": "Berg"}, "its text is 'Berg'"),
        ({"start": 90, "end": 94, "text": "called"}, None),
    ],
)
def test_a_span_whose_text_is_nowhere_or_anywhere_is_set_aside(span: dict[str, object], reason: str | None) -> None:
    objective = objectives.build_objective(ObjectiveChoice(name="token_classification"))
    found = objective.reject_reason({"text": "Anna called Berg or Berg", "spans": [{"label": "PER", **span}]})
    assert reason in found if reason else found is None
