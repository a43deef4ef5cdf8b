"""The reference trainers of `benchmarks.objectives`, at their defaults.

Plain Trainer with the settings of run_glue's and run_classification's documentation, CrossEncoderTrainer with BinaryCrossEntropyLoss, and
SentenceTransformerTrainer with CachedMultipleNegativesRankingLoss. They keep their last weights, as their scripts do. Plain Trainer
pads each batch to its longest row: run_glue pads all rows to 128 tokens, which ends with the same metric, later.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

Rows = list[dict[str, Any]]


class Splits(NamedTuple):
    """The rows of a task."""

    train: Rows
    test: Rows
    documents: Rows


class Result(NamedTuple):
    """One training: the metric on the test rows, and the seconds of its loop."""

    metric: float
    seconds: float
    epochs: float


def _dcg(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(place + 2) for place, gain in enumerate(gains[:10]))


def ndcg_at_10(queries: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    """Return the mean NDCG@10 of queries with scores and gains of their documents; those without a gain do not count."""
    values = []
    for scores, gains in queries:
        if any(gains):
            ranked = [gain for _, gain in sorted(zip(scores, gains, strict=True), key=lambda pair: -pair[0])]
            values.append(_dcg(ranked) / _dcg(sorted(gains, reverse=True)))
    return statistics.fmean(values)


def _trained(made: Any) -> float:
    start = time.perf_counter()
    made.train()
    return time.perf_counter() - start


def _plain_trainer(
    rows: Splits, model: str, seed: int, folder: str, texts: list[str], **head: Any
) -> tuple[Any, float]:
    """Train a classifier as run_glue does; return the logits of the test rows, of shape (rows, outputs), and the seconds."""
    from datasets import Dataset
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

    tokenizer = AutoTokenizer.from_pretrained(model)

    def encoded(split: Rows) -> Dataset:
        columns = [[row[name] for row in split] for name in texts]
        found = tokenizer(*columns, max_length=128, truncation=True)
        return Dataset.from_dict({**found, "label": [row["_label"] for row in split]})

    made = Trainer(
        model=AutoModelForSequenceClassification.from_pretrained(model, **head),
        args=TrainingArguments(
            folder,
            per_device_train_batch_size=32,
            learning_rate=2e-5,
            num_train_epochs=3,
            seed=seed,
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=encoded(rows.train),
        processing_class=tokenizer,
    )
    seconds = _trained(made)
    return made.predict(encoded(rows.test)).predictions, seconds


def classes(rows: Splits, model: str, seed: int, folder: str) -> Result:
    """Return the macro F1 of classes of pairs."""
    from sklearn.metrics import f1_score

    names = sorted({row["entailment"] for row in rows.train})
    for row in [*rows.train, *rows.test]:
        row["_label"] = names.index(row["entailment"])
    logits, seconds = _plain_trainer(rows, model, seed, folder, ["sentence_a", "sentence_b"], num_labels=len(names))
    true = [row["_label"] for row in rows.test]
    return Result(float(f1_score(true, logits.argmax(-1), average="macro")), seconds, 3)


def score(rows: Splits, model: str, seed: int, folder: str) -> Result:
    """Return Pearson's correlation of scores of pairs."""
    from scipy.stats import pearsonr

    for row in [*rows.train, *rows.test]:
        row["_label"] = float(row["relatedness"])
    texts = ["sentence_a", "sentence_b"]
    values, seconds = _plain_trainer(rows, model, seed, folder, texts, num_labels=1, problem_type="regression")
    return Result(float(pearsonr(values[:, 0], [row["_label"] for row in rows.test])[0]), seconds, 3)


def labels(rows: Splits, model: str, seed: int, folder: str) -> Result:
    """Return the micro F1 of several labels, predicted from a probability of one half on."""
    import numpy as np
    from sklearn.metrics import f1_score

    names = sorted({label for row in rows.train for label in row["labels"]})
    for row in [*rows.train, *rows.test]:
        row["_label"] = [float(name in row["labels"]) for name in names]
    head = {"num_labels": len(names), "problem_type": "multi_label_classification"}
    logits, seconds = _plain_trainer(rows, model, seed, folder, ["text"], **head)
    true = np.array([row["_label"] for row in rows.test])
    return Result(float(f1_score(true, logits > 0, average="micro")), seconds, 3)


def ranking(rows: Splits, model: str, seed: int, folder: str) -> Result:
    """Return NDCG@10 by query of a cross-encoder."""
    from datasets import Dataset
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
    from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

    encoder = CrossEncoder(model, num_labels=1)
    columns = {
        "query": [row["query"] for row in rows.train],
        "document": [row["document"] for row in rows.train],
        "label": [float(row["relevant"]) for row in rows.train],
    }
    arguments = CrossEncoderTrainingArguments(folder, seed=seed, report_to="none", disable_tqdm=True)
    made = CrossEncoderTrainer(
        model=encoder, args=arguments, train_dataset=Dataset.from_dict(columns), loss=BinaryCrossEntropyLoss(encoder)
    )
    seconds = _trained(made)
    scores = encoder.predict([(row["query"], row["document"]) for row in rows.test], show_progress_bar=False)
    queries: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for row, score in zip(rows.test, scores, strict=True):
        queries[row["query"]][0].append(float(score))
        queries[row["query"]][1].append(float(row["relevant"]))
    return Result(ndcg_at_10([*queries.values()]), seconds, arguments.num_train_epochs)


def embedding(rows: Splits, model: str, seed: int, folder: str) -> Result:
    """Return NDCG@10 of queries that search all documents."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss

    encoder = SentenceTransformer(model)
    columns = {"anchor": [row["query"] for row in rows.train], "positive": [row["document"] for row in rows.train]}
    arguments = SentenceTransformerTrainingArguments(
        folder, per_device_train_batch_size=32, seed=seed, report_to="none", disable_tqdm=True
    )
    made = SentenceTransformerTrainer(
        model=encoder,
        args=arguments,
        train_dataset=Dataset.from_dict(columns),
        loss=CachedMultipleNegativesRankingLoss(encoder),
    )
    seconds = _trained(made)
    documents = [row["document"] for row in rows.documents]
    found = defaultdict(set)
    for row in rows.test:
        found[row["query"]].add(row["document"])
    scores = encoder.similarity(
        encoder.encode([*found], show_progress_bar=False), encoder.encode(documents, show_progress_bar=False)
    ).tolist()
    gains = [[float(document in relevant) for document in documents] for relevant in found.values()]
    return Result(ndcg_at_10([*zip(scores, gains, strict=True)]), seconds, arguments.num_train_epochs)
