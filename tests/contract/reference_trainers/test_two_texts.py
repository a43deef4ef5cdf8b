"""How well texts fit together: 20 steps beside the trainers of sentence-transformers, at the defaults of their losses.

The loss of an embedding compares all rows that it gets. Ours gets a global batch, theirs a batch of one device; so there the device's batch is the
global one, and nothing accumulates.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from transformers import AutoModel, AutoModelForSequenceClassification

from tests.support import tiny
from tests.support.reference_trainers import BERT, GLOBAL_BATCH, LIMIT, Case, InOrder, Ours, by_name, check


def cross_encoder(ours: Ours, folder: Path) -> Any:
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
    from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

    class TrainerInOrder(InOrder, CrossEncoderTrainer):
        pass

    start = ours.saved(folder, AutoModelForSequenceClassification)
    encoder = CrossEncoder(start, num_labels=1, max_length=LIMIT, device="cpu")
    columns = {"query": [row["label"] for row in ours.rows], "document": [row["text"] for row in ours.rows]}
    highest = max(row["number"] for row in ours.train_rows)
    columns |= {"label": [row["number"] / highest for row in ours.rows]}
    arguments = ours.arguments(folder, CrossEncoderTrainingArguments)
    made = Dataset.from_dict(columns)
    return TrainerInOrder(model=encoder, args=arguments, train_dataset=made, loss=BinaryCrossEntropyLoss(encoder))


def sentence_transformer(ours: Ours, folder: Path) -> Any:
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    class TrainerInOrder(InOrder, SentenceTransformerTrainer):
        pass

    encoder = SentenceTransformer(ours.saved(folder, AutoModel), device="cpu")
    columns = {name: [row[name] for row in ours.rows] for name in ("anchor", "positive", "negative")}
    arguments = ours.arguments(folder, SentenceTransformerTrainingArguments, batch=GLOBAL_BATCH)
    made = Dataset.from_dict(columns)
    return TrainerInOrder(model=encoder, args=arguments, train_dataset=made, loss=MultipleNegativesRankingLoss(encoder))


def triples(count: int, split: str) -> dict[str, list[str]]:
    """Each text once: what is a positive twice is no negative in ours, and theirs advises to keep it out of a batch."""
    texts = tiny.sentences(count, len(split))
    return {
        "anchor": texts,
        "positive": [f"{text.split()[1]}{' and more' * (i % 4)} {i}" for i, text in enumerate(texts)],
        "negative": [
            f"{text.split()[-1]} {text.split()[0]} is not it{', no' * (i % 3)}" for i, text in enumerate(texts)
        ],
    }


RANKING = {"query_column": "label", "document_column": "text", "relevance_column": "number"}
CASES = {
    "ranking": Case({"name": "ranking", **RANKING}, "wordpiece", BERT, cross_encoder),
    "embedding": Case(
        {"name": "embedding", "negative_columns": ["negative"]}, "wordpiece", BERT, sentence_transformer, rows=triples
    ),
}


@pytest.mark.filterwarnings("ignore")  # the library warns of renamed arguments
@by_name(CASES, "ranking")
def test_twenty_steps_are_those_of_sentence_transformers(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)
