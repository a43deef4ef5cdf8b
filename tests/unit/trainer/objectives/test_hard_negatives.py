"""Hard negatives against those of sentence-transformers, and what rows with them look like."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from datasets import Dataset

from trainer.objectives.bases.vectors.contrastive_loss import multiple_negatives_loss
from trainer.objectives.bases.vectors.hard_negatives import (
    BLOCK,
    NO_TEXT,
    MinedRows,
    find_minable_texts,
    mine_negatives,
)


class Sequences(list):
    """What `trainer.data.tokens.Sequences` gives of rows, in memory."""

    def __getitems__(self, indices):
        return [dict(self[i]) for i in indices]

    def numbers(self, name):
        return np.arange(len(self)), np.array([one[name] for one in self], np.int64)


class VectorsOfTexts:
    """A model in the sense of `mine_hard_negatives`: the vector of each text is known."""

    device = torch.device("cpu")

    def __init__(self, known):
        self.known = known

    def encode_query(self, texts, **_):
        return np.stack([self.known[text] for text in texts])

    encode_document = encode_query

    def similarity(self, one, other):
        return torch.as_tensor(one) @ torch.as_tensor(other).T

    def similarity_pairwise(self, one, other):
        return (torch.as_tensor(one) * torch.as_tensor(other)).sum(1)


def pairs(chance, queries=40, texts=90):
    """Rows of anchors with one to three positives, and further documents; the vector of each text."""
    rows = [
        (f"q{i}", f"d{j}") for i in range(queries) for j in chance.choice(texts, chance.integers(1, 4), replace=False)
    ]
    names = [*(f"q{i}" for i in range(queries)), *(f"d{j}" for j in range(texts + 30))]
    vectors = chance.normal(size=(len(names), 6)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    known = dict(zip(names, vectors, strict=True))
    return rows, [f"d{j}" for j in range(texts - 10, texts + 30)], known


def sequences(rows, documents, number):
    """The same as sequences: the number of a text is its only token."""
    of_rows = [
        {
            "row_id": i,
            "input_ids": [number[a]],
            "positive_input_ids": [number[p]],
            "text_0": number[a],
            "text_1": number[p],
        }
        for i, (a, p) in enumerate(rows)
    ]
    return Sequences(of_rows), Sequences(
        {"row_id": i, "input_ids": [number[d]], "text_0": number[d]} for i, d in enumerate(documents)
    )


def mined_rows(rows, documents, known, *, count, margin):
    """The rows with what is mined, by the steps of the Trainer."""
    number = {text: i for i, text in enumerate(known)}
    names = [*known]
    of_rows, of_corpus = sequences(rows, documents, number)
    texts = find_minable_texts(of_rows, of_corpus)

    def embed(parts):
        return np.stack([known[names[one["text_0"]]] for part in parts for one in part])

    anchors, candidates = embed([texts.anchors]), embed(texts.candidates)
    blocks = [slice(i, i + 16) for i in range(0, len(anchors), 16)]
    found = np.concatenate(
        [
            mine_negatives(anchors[b], candidates, texts.relevant[b], texts.itself[b], count=count, margin=margin)
            for b in blocks
        ]
    )
    mined = np.where(found < 0, -1, texts.sources[found])[texts.anchor_of_row]
    return MinedRows(of_rows, of_corpus, mined), names


@pytest.mark.parametrize("margin", [0.05, 0.4])
def test_mined_texts_are_those_of_sentence_transformers(margin):
    from sentence_transformers.util import mine_hard_negatives

    rows, documents, known = pairs(np.random.default_rng(4))
    own, names = mined_rows(rows, documents, known, count=3, margin=margin)
    theirs = mine_hard_negatives(
        Dataset.from_dict({"anchor": [a for a, _ in rows], "positive": [p for _, p in rows]}),
        VectorsOfTexts(known),
        corpus=documents,
        relative_margin=margin,
        num_negatives=3,
        range_max=len(known),
        output_format="labeled-list",
        verbose=False,
    )
    expected = {(one["anchor"], one["positive"][0]): one["positive"][1:] for one in theirs}
    for one in own:
        texts = [names[one[f"text_{i}"]] for i in range(2, 5) if one[f"text_{i}"] != NO_TEXT]
        assert texts == expected.get((names[one["text_0"]], names[one["text_1"]]), [])
    lengths = {len(texts) for texts in expected.values()}
    assert 3 in lengths, "some rows have all"
    assert margin < 0.1 or lengths != {3}, "some rows have fewer"


def test_neither_a_positive_nor_the_anchor_itself_is_mined():
    """The anchor's own text is the nearest one, and the positive of its other row comes next."""
    east = np.array([1, 0], np.float32)
    near = [np.array([c, (1 - c * c) ** 0.5], np.float32) for c in (0.9, 0.8, 0.75, 0.5)]
    known = {"q": east, "other": -east, "first": near[0], "second": near[1], "false": near[2], "hard": near[3]}
    rows = [("q", "first"), ("q", "second"), ("other", "false"), ("other", "q")]
    own, names = mined_rows(rows, ["hard", "first"], known, count=2, margin=0.1)
    first, second = own[0], own[1]
    assert [names[first["text_2"]], first["text_3"]] == ["hard", NO_TEXT], "0.75 is within a tenth of 0.8"
    assert second["text_2"] == first["text_2"], "the least near positive decides for both rows"
    assert first["negative0_input_ids"] == [[*known].index("hard")]
    assert first["negative1_input_ids"] == first["positive_input_ids"][:1]
    assert own.__getitems__([1, 0])[1] == first


def test_the_anchor_as_a_document_is_no_negative():
    """With a prompt before documents, its vector is another one."""
    anchors, candidates = np.eye(2, dtype=np.float32)[:1], np.array([[1, 0], [0.6, 0.8], [0.5, 0.75**0.5]], np.float32)
    settings = {"count": 1, "margin": 0.05}
    relevant = [np.array([0])]
    assert mine_negatives(anchors, candidates, relevant, np.array([-1]), **settings).tolist() == [[1]]
    assert mine_negatives(anchors, candidates, relevant, np.array([1]), **settings).tolist() == [[2]]


def test_rows_keep_the_negatives_that_they_have():
    rows = Sequences([{"row_id": 0, "input_ids": [1], "positive_input_ids": [2], "negative0_input_ids": [3]}])
    rows[0] |= {"text_0": 1, "text_1": 2, "text_2": 3}
    found = MinedRows(rows, Sequences([{"row_id": 0, "input_ids": [9, 9], "text_0": 9}]), np.array([[1]]))[0]
    assert (found["negative0_input_ids"], found["negative1_input_ids"], found["text_3"]) == ([3], [9, 9], 9)


def test_blocks_do_not_change_what_is_mined():
    chance = np.random.default_rng(1)
    anchors, candidates = (chance.normal(size=(n, 8)).astype(np.float32) for n in (BLOCK + 20, 50))
    relevant, itself = [np.array([i % 50]) for i in range(len(anchors))], np.full(len(anchors), -1)
    settings = {"count": 4, "margin": 0.05}
    whole = mine_negatives(anchors, candidates, relevant, itself, **settings)
    at = slice(BLOCK, BLOCK + 20)
    assert (whole[at] == mine_negatives(anchors[at], candidates, relevant[at], itself[at], **settings)).all()
    assert mine_negatives(anchors[:1], candidates[:2], relevant[:1], itself[:1], **settings).shape == (1, 4)


def test_a_missing_negative_changes_no_loss():
    vectors = torch.randn((5, 3, 4), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    texts = torch.arange(15).reshape(5, 3)
    alone = multiple_negatives_loss(vectors[:, :2], texts[:, :2], scale=20.0, both_directions=True)
    texts[:, 2] = NO_TEXT
    found = multiple_negatives_loss(vectors, texts, scale=20.0, both_directions=True)
    torch.testing.assert_close(found, alone, rtol=0, atol=1e-12)
