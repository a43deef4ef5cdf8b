"""Answers that are spans of a context: how rows say them, and the windows in which a model reads a question with a long context."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from params import ModelError
from trainer.objectives.bases.lazy_imports import Encoding, torch
from trainer.objectives.bases.network.position_limits import NO_LIMIT
from trainer.objectives.bases.texts.tokenizing import Tokenizer, encode_texts, gives_types

Answer = tuple[str, int]
"""A text, and the character of the context that it begins at."""
_START: Final = ("answer_start", "start")


class PairFrame(NamedTuple):
    """The special tokens around a question and its context, each with its token type."""

    front: list[int]
    middle: list[int]
    back: list[int]
    types: tuple[int, int, int, int, int]
    """Of front, question, middle, context and back."""
    has_types: bool
    """Whether the model takes token types."""

    @property
    def size(self) -> int:
        """How many special tokens there are."""
        return len(self.front) + len(self.middle) + len(self.back)


class Passage(NamedTuple):
    """A part of a context, and what its characters are to a model."""

    text: str
    starts: Sequence[int]
    """Of each of its tokens, the first character."""
    ends: Sequence[int]
    """The one behind the last."""
    first: int
    """Which token of the sequence is its first."""
    golds: Sequence[str]
    """The correct answers to the question; none if the context has none."""


def read_answers(value: Any) -> list[Answer]:
    """Return the answers of a row: `{"text": [...], "answer_start": [...]}`, or a list of `{"text", "answer_start" or "start"}`.

    ValueError if it has another form.
    """
    found = []
    for number, (text, start) in enumerate(_texts_and_starts(value)):
        is_place = isinstance(start, int | float) and not isinstance(start, bool) and float(start).is_integer()
        if not isinstance(text, str) or not is_place:
            raise ValueError(f"answer {number} needs a text and the number of its first character")
        found.append((text, int(start)))
    return found


def _texts_and_starts(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        texts, starts = value.get("text"), value.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise ValueError("its answers are not {text: [...], answer_start: [...]} with as many starts as texts")
        return list(zip(texts, starts, strict=True))
    if isinstance(value, list) and all(isinstance(one, Mapping) for one in value):
        return [(one.get("text"), next((one[key] for key in _START if key in one), None)) for one in value]
    raise ValueError("its answers are neither a record nor a list of records")


def looks_like_answers(value: Any) -> bool:
    try:
        return bool(value) and read_answers(value) is not None
    except ValueError:
        return False


def why_answer_misplaced(text: str, start: int, context: str) -> str | None:
    """Return what is wrong with an answer, and where it stands instead; None if it stands where it says."""
    if not text.strip():
        return "is empty: a question without an answer has no answers"
    if context[start : start + len(text)] == text and start >= 0:
        return None
    told = f"{text[:40]!r}, is not at character {start} of the context"
    place = context.find(text)
    return f"{told}, but at {place}" if place >= 0 else f"{told}, and nowhere else"


def frame_of_pairs(tokenizer: Tokenizer) -> PairFrame:
    """Return what a tokenizer puts around two texts."""
    pair: Any = ("a", "b")
    (found,) = encode_texts([pair], tokenizer, offsets=True)
    places = found.sequence_ids
    first, second = places.index(0), places.index(1)
    ends = [len(places) - places[::-1].index(number) for number in (0, 1)]
    kinds = found.type_ids
    of_front, of_middle = kinds[0], kinds[min(ends[0], second)]
    return PairFrame(
        front=found.ids[:first],
        middle=found.ids[ends[0] : second],
        back=found.ids[ends[1] :],
        types=(of_front, kinds[first], of_middle, kinds[second], kinds[-1]),
        has_types=gives_types(tokenizer),
    )


def frame_pairs(tokenizer: Tokenizer) -> None:
    """Let a tokenizer put a token before, between and behind two texts, if it is one that does not: it is saved with the tokenizer.

    The first position is where a model says that there is no answer; `separate_texts_of_pairs` needs none, and leaves one text as it is.
    ModelError if the tokenizer has no such tokens.
    """
    frame = frame_of_pairs(tokenizer)
    if frame.front and frame.middle:
        return
    begin, end = tokenizer.cls_token or tokenizer.eos_token, tokenizer.sep_token or tokenizer.eos_token
    if begin is None or end is None:
        what = "has no tokens to put before and between a question and its context"
        raise ModelError("tokenization.tokenizer", what, "use one of a model that reads pairs, such as a BERT")
    from tokenizers.processors import TemplateProcessing

    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {end} $B:1 {end}:1",
        special_tokens=[(token, tokenizer.convert_tokens_to_ids(token)) for token in dict.fromkeys((begin, end))],
    )


def windows(tokens: int, room: int, overlap: int) -> Iterator[range]:
    """Yield the tokens of a context in windows of `room`, of which neighbours share `overlap`, as the tokenizers library makes them."""
    for start in range(0, max(1, tokens), room - overlap):
        yield range(start, min(start + room, tokens))
        if start + room >= tokens:
            return


def tokens_of_span(encoding: Encoding, start: int, end: int) -> tuple[int, int] | None:
    """Return the first and the last token with a character from `start` to before `end`; None if none has."""
    inside = [i for i, (left, right) in enumerate(encoding.offsets) if left < end and right > start and right > left]
    return (inside[0], inside[-1]) if inside else None


def best_span(
    start_logits: torch.Tensor, end_logits: torch.Tensor, passage: Passage, longest: int
) -> tuple[float, str]:
    """Return the highest sum of a start and an end logit of a span of at most `longest` tokens of the passage, and its text.

    The logits are (T,). It is the search of run_qa.py of transformers, over all spans and not only those of the 20 best ends. With equal
    sums, the first span is taken. Without a token it is minus infinity.
    """
    here = slice(passage.first, passage.first + len(passage.starts))
    if not passage.starts:
        return float("-inf"), ""
    starts, ends = start_logits[here].double(), end_logits[here].double()  # (W,)
    allowed = torch.ones(len(starts), len(starts), dtype=torch.bool, device=starts.device).triu().tril(longest - 1)
    sums = (starts[:, None] + ends[None, :]).masked_fill(~allowed, float("-inf"))
    place = int(sums.argmax())
    first, last = divmod(place, len(starts))
    return float(sums[first, last]), passage.text[passage.starts[first] : passage.ends[last]]


_CODE: Final = '''import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({repo_id})
model = AutoModelForQuestionAnswering.from_pretrained({repo_id}, use_safetensors=True, dtype="float32").eval()


def answer(question, context):
    """The answer in the context; "" if there is none."""
    inputs = tokenizer(question.strip(), context, truncation="only_second", max_length={max_length}, stride={stride}, padding=True,
                       return_overflowing_tokens=True, return_offsets_mapping=True, return_tensors="pt")
    inputs.pop("overflow_to_sample_mapping")
    offsets = inputs.pop("offset_mapping").tolist()
    with torch.inference_mode():
        found = model(**inputs)
    best, said, no_answer = float("-inf"), "", float("inf")
    for window, (starts, ends) in enumerate(zip(found.start_logits.double(), found.end_logits.double())):
        sums = starts[:, None] + ends[None, :]
        no_answer = min(no_answer, float(sums[0, 0]))
        is_context = torch.tensor([number == 1 for number in inputs.sequence_ids(window)])
        allowed = (is_context[:, None] & is_context[None, :]).triu().tril({longest} - 1)
        sums = sums.masked_fill(~allowed, float("-inf"))
        if float(sums.max()) > best:
            best = float(sums.max())
            first, last = divmod(int(sums.argmax()), len(starts))
            said = context[offsets[window][first][0] : offsets[window][last][1]]
    return {said}


print(answer("Who wrote it?", "The book was written by Ada in 1843."))'''


def card_code(repo_id: str, folder: Path, *, stride: int, longest: int, may_be_none: bool) -> str:
    """Return code that answers questions with a release, as it was evaluated."""
    said = int(json.loads((folder / "tokenizer_config.json").read_bytes()).get("model_max_length", 512))
    limit = min(said, NO_LIMIT)  # one without a limit says a number that is too large for the tokenizer's own cut
    return _CODE.format(
        repo_id=json.dumps(repo_id),
        max_length=limit,
        stride=overlap_of(stride, limit),
        longest=longest,
        said='"" if no_answer > best else said' if may_be_none else "said",
    )


def overlap_of(stride: int, max_length: int) -> int:
    """Return how many tokens two windows share at most."""
    return min(stride, max_length // 4)


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Return a text in lower case, without punctuation, articles and repeated white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def score_answer(answer: str, golds: Sequence[str]) -> tuple[float, float]:
    """Return exact match and F1 of an answer, the best over all correct answers; empty texts stand for no answer."""
    known = [gold for gold in golds if normalize_answer(gold)] or [""]
    return max(_exact(answer, gold) for gold in known), max(_f1(answer, gold) for gold in known)


def _exact(answer: str, gold: str) -> float:
    return float(normalize_answer(answer) == normalize_answer(gold))


def _f1(answer: str, gold: str) -> float:
    """The harmonic mean of precision and recall of words; of texts without any, whether both are."""
    own, wanted = normalize_answer(answer).split(), normalize_answer(gold).split()
    if not own or not wanted:
        return float(own == wanted)
    same = sum((Counter(own) & Counter(wanted)).values())
    if not same:
        return 0.0
    precision, recall = same / len(own), same / len(wanted)
    return 2 * precision * recall / (precision + recall)
