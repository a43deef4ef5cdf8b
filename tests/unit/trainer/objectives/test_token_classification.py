"""Token classification: spans to tags and back, windows, and metrics equal to seqeval's."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest
import torch
from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.metrics.sequence_labeling import get_entities
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from params import DataError
from params.schema import ObjectiveChoice
from params.sections.rows import TrainTokenizer
from tasks.tokenization.tokenizers import train_tokenizer
from tests.support.metrics import undefined_metrics
from trainer import objectives
from trainer.loop.metrics import MetricAccumulator
from trainer.objectives.token_classification import (
    bio_tags_to_subword_spans,
    spans_to_tags,
    tags_to_character_spans,
    tokenize_with_offsets,
)

OBJECTIVE = objectives.build_objective(ObjectiveChoice(name="token_classification"))
ROW = {
    "row_id": 7,
    "text": "Table for 4 people on Friday",
    "spans": [{"label": "date", "start": 22, "end": 28}, {"label": "people", "start": 10, "end": 18}],
}
STATE = {"labels": ["O", "B-date", "I-date", "B-people", "I-people"]}


def words() -> PreTrainedTokenizerFast:
    """A WordPiece tokenizer with special tokens, as BERT's."""
    known = [
        "[PAD]", "[CLS]", "[SEP]", "[UNK]", "table", "for", "4", "people", "on", "fri", "##day", "8", "##p",
        "##m", "pm",
    ]  # fmt: skip
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(known)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]")


def byte_pairs(*texts: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, whose subwords include the space before them."""
    return train_tokenizer([*texts, *texts], TrainTokenizer(kind="train", vocab_size=400))


def encode(row, tokenizer, max_length):
    """The examples of a row, and whether they are truncated."""
    (encoded,) = OBJECTIVE.encode([row], tokenizer, max_length, STATE)
    return encoded


def tags(tokenizer, text, *spans):
    (pieces,) = tokenize_with_offsets([text], tokenizer)
    return dict(zip([tokenizer.decode([i]) for i in pieces.ids], spans_to_tags(pieces, spans), strict=True))


def test_row_becomes_tags_without_special_tokens():
    (example,), _ = encode(ROW | {"text": ROW["text"].lower()}, words(), 32)
    #                               [CLS] table for 4 people on fri ##day [SEP]
    assert example["input_ids"] == [1, 4, 5, 6, 7, 8, 9, 10, 2]
    assert example["labels"] == [-100, 0, 0, 3, 4, 0, 1, 2, -100]
    assert example["row_id"] == 7


def test_labels_are_collected_from_the_rows():
    assert OBJECTIVE.collect_state([ROW, {"text": "no", "spans": []}]) == STATE
    assert OBJECTIVE.model_config(STATE)["id2label"][4] == "I-people"
    with pytest.raises(DataError, match="no row of the train split has a span"):
        OBJECTIVE.collect_state([{"text": "no", "spans": []}])
    with pytest.raises(ValueError, match="B-time"):
        encode({"row_id": 0, "text": "at 8", "spans": [{"label": "time", "start": 3, "end": 4}]}, words(), 9)


def test_span_covers_every_subword_it_touches():
    inside_a_word = tags(words(), "on friday", ("date", 4, 5))  # only the r
    assert inside_a_word == {"on": "O", "fri": "B-date", "##day": "O"}
    two_in_one, shared = tokenize_with_offsets(["people", "8pm"], words())
    assert spans_to_tags(two_in_one, [("a", 0, 2), ("b", 2, 6)]) == ["B-a"]
    assert spans_to_tags(shared, [("a", 0, 2), ("b", 2, 3)]) == ["B-a", "I-a", "B-b"]  # 8, ##p, ##m
    assert spans_to_tags(shared, [("a", 0, 1), ("a", 1, 3)]) == [
        "B-a",
        "B-a",
        "I-a",
    ]  # adjacent spans of one label stay separate


def test_leading_space_of_a_subword_belongs_to_no_span():
    text = "four people, on Friday"
    bpe = byte_pairs(*["four people on Friday people on Friday four"] * 4)
    assert " people" in {bpe.decode([i]) for i in tokenize_with_offsets([text], bpe)[0].ids}
    assert tags(bpe, text, ("n", 0, 5))[" people"] == "O"  # the span ends with the space
    assert tags(bpe, text, ("n", 0, 6))[" people"] == "I-n"
    assert tags(bpe, text, ("n", 4, 11))[" people"] == "B-n"  # it begins with the space
    for start, end in ((0, 4), (5, 11), (16, 22), (0, 22)):
        (pieces,) = tokenize_with_offsets([text], bpe)
        assert tags_to_character_spans(pieces, spans_to_tags(pieces, [("n", start, end)])) == [("n", start, end)]


TEXTS = [
    "Für vier Gäste · am 3. Mai, um 20:30 Uhr",
    "Tisch\tfür  👨‍👩‍👧 und 日本語 bitte",
    "ﬁne İstanbul cafe\u0301 tonight",
]


@pytest.mark.parametrize("text", TEXTS)
def test_tags_restore_the_character_span(text):
    """Every span of whole words, in a byte tokenizer: characters of several tokens, wide spaces, tabs."""
    bpe = byte_pairs(*TEXTS)
    starts = [i for i, c in enumerate(text) if not c.isspace() and (i == 0 or text[i - 1].isspace())]
    ends = [i + 1 for i, c in enumerate(text) if not c.isspace() and (i + 1 == len(text) or text[i + 1].isspace())]
    (pieces,) = tokenize_with_offsets([text], bpe)
    for start in starts:
        for end in (e for e in ends if e > start):
            assert tags_to_character_spans(pieces, spans_to_tags(pieces, [("x", start, end)])) == [("x", start, end)]


def entities(examples):
    """The number of spans and of learned tokens."""
    labels = [tag for e in examples for tag in e["labels"]]
    return sum(tag in (1, 3) for tag in labels), sum(tag != -100 for tag in labels)


@pytest.mark.parametrize("max_length", range(6, 40))
def test_windows_hold_every_subword_once_and_never_split_a_span(max_length):
    tokenizer, chance = words(), random.Random(max_length)
    text, spans = "", []
    for _ in range(60):
        start, chosen = len(text), chance.choice(["4 people", "on friday", "for", "table"])
        text += chosen + " "
        if chosen in ("4 people", "on friday"):
            label = "people" if chosen == "4 people" else "date"
            spans.append({"label": label, "start": start, "end": start + len(chosen)})
    row = {"row_id": 0, "text": text, "spans": spans}
    examples, is_truncated = encode(row, tokenizer, max_length)
    whole, _ = encode(row, tokenizer, 4096)
    assert all(len(e["input_ids"]) <= max_length for e in examples)
    assert [i for e in examples for i in e["input_ids"][1:-1]] == whole[0]["input_ids"][1:-1]
    assert [t for e in examples for t in e["labels"][1:-1]] == whole[0]["labels"][1:-1]
    assert all(e["labels"][1] not in (2, 4) for e in examples), "no window begins inside a span"
    assert all(e["input_ids"][1] != 10 for e in examples), "nor inside a word"
    assert len(examples) <= 2 * (len(whole[0]["input_ids"]) - 2) / (max_length - 2) + 1
    assert entities(examples) == entities(whole)
    assert not is_truncated


def test_spans_that_do_not_fit_count_as_truncated():
    tokenizer, text = words(), "table for 4 people on friday"
    long = {"row_id": 0, "text": text, "spans": [{"label": "date", "start": 0, "end": 28}]}
    examples, is_truncated = encode(long, tokenizer, 6)
    assert entities(examples) == (0, 0)
    assert is_truncated
    assert not encode(long, tokenizer, 9).is_truncated
    too_close = [{"label": "date", "start": 10, "end": 12}, {"label": "people", "start": 12, "end": 16}]
    row = {"row_id": 0, "text": "table for people", "spans": too_close}
    assert encode(row, tokenizer, 9).is_truncated
    with pytest.raises(ValueError, match="no room for text"):
        encode(long, tokenizer, 2)


def test_spans_of_tags_are_those_of_seqeval():
    chance = random.Random(0)
    kinds = ["O", *(f"{kind}-{label}" for kind in "BI" for label in ("day", "name", "x-y"))]
    for _ in range(2000):
        tags = chance.choices(kinds, k=chance.randint(0, 12))
        assert bio_tags_to_subword_spans(tags) == [
            (label, start, last + 1) for label, start, last in get_entities(tags)
        ], tags


@pytest.mark.parametrize("seed", range(30))
def test_metrics_match_seqeval(seed):
    """On random tags, also malformed ones (I without B), in batches."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 12, (9,), generator=draw).tolist()
    weights = torch.tensor([2.0, 1, 2, 1, 2])
    labels = torch.full((9, 13), -100)
    for row, length in zip(labels, lengths, strict=True):
        row[1 : 1 + length] = torch.multinomial(weights, length, replacement=True, generator=draw)
    predictions = torch.where(
        torch.rand(labels.shape, generator=draw) < 0.7,
        labels.clamp(min=0),
        torch.randint(0, 5, labels.shape, generator=draw),
    )
    logits = torch.nn.functional.one_hot(predictions, 5) * 5.0 + torch.rand((*labels.shape, 5), generator=draw)
    names = STATE["labels"]
    true = [[names[t] for t in row if t != -100] for row in labels.tolist()]
    predicted = [
        [names[p] for p, t in zip(*pair, strict=True) if t != -100]
        for pair in zip(predictions.tolist(), labels.tolist(), strict=True)
    ]
    accumulator = MetricAccumulator(OBJECTIVE, STATE)
    for part in range(0, 9, 2):
        accumulator.update(OBJECTIVE.score_logits(logits[part : part + 2], labels[part : part + 2]))
    metrics = accumulator.compute()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # divisions by zero
        assert metrics["precision"] == float(precision_score(true, predicted))
        assert metrics["recall"] == float(recall_score(true, predicted))
        assert metrics["f1"] == pytest.approx(float(f1_score(true, predicted)), rel=1e-15)
    seen = labels != -100
    assert metrics["token_accuracy"] == float((predictions == labels)[seen].double().mean())
    loss = torch.nn.functional.cross_entropy(logits[seen], labels[seen])
    assert metrics["loss"] == pytest.approx(float(loss), rel=1e-6)


def test_metrics_without_any_span_are_zero():
    accumulator = MetricAccumulator(OBJECTIVE, STATE)
    accumulator.update(OBJECTIVE.score_logits(torch.eye(5)[None], torch.tensor([[-100, 0, 0, 0, -100]])))
    metrics = accumulator.compute()
    assert (metrics["precision"], metrics["recall"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("predicted", "actual", "undefined"),
    [(0, 0, {"precision", "recall", "f1"}), (3, 0, {"precision", "recall", "f1"}), (0, 4, set()), (3, 4, set())],
)
def test_rows_without_spans_have_no_metrics_of_spans(predicted, actual, undefined):
    """Their value of 0 would miss any floor of slices, by one span that is predicted in thousands of rows."""
    assert undefined_metrics(OBJECTIVE, np.array([5.0, 9.0, 9.0, 0.0, predicted, actual]), {}) == undefined
