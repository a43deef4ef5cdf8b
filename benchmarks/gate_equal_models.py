"""Pairs of equal models for benchmarks/gate_simulation.py: scores of every kind of objective, of two models that neither is better.

What both models have in common (how hard a row is) is drawn once, and what is each model's own (`Draw.noise`) twice from the same
distribution. So each model is as likely to look better as the other one, in every metric.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from params.schema import ObjectiveChoice
from tasks.evaluation.scoring import RowScores, resampling_units
from tasks.evaluation.statistics import Gain, Resampler
from trainer import objectives
from trainer.objectives.bases.metrics.metric import directions as directions_of_metrics
from trainer.objectives.bases.objective import Objective

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Columns = dict[str, Floats]

Kind = Literal["independent rows", "ties", "groups"]
KINDS: tuple[Kind, ...] = ("independent rows", "ties", "groups")
ROWS = (30, 100, 300)
_GROUP_ROWS = 3
_BATCH = 50
"""Pairs that are resampled with the same weights."""


@dataclass(frozen=True)
class Draw:
    """The random numbers of one pair of models."""

    random: np.random.Generator
    rows: int
    kind: Kind

    def noise(self, *shape: int) -> Floats:
        """Return what a model does to each row by itself, (rows, ...), of variance 1.

        With ties, both models are the same on every other row. With groups, half of it is common to the rows of a group.
        """
        found: Floats = self.random.normal(size=(self.rows, *shape))
        if self.kind == "ties":
            found[::2] = 0.0
        if self.kind == "groups":
            common = self.random.normal(size=(self.rows // _GROUP_ROWS + 1, *shape))
            found = (found + np.repeat(common, _GROUP_ROWS, axis=0)[: self.rows]) / 2**0.5
        return found

    def rounded(self, values: Floats) -> Floats:
        """Return values as they are or, for ties, in steps of a half."""
        return np.round(2 * values) / 2 if self.kind == "ties" else values

    @property
    def groups(self) -> NDArray[np.int64] | None:
        """The group of each row, as the gate knows it."""
        return np.arange(self.rows) // _GROUP_ROWS if self.kind == "groups" else None


@dataclass(frozen=True)
class EqualModels(ABC):
    """A distribution of the scores of two equal models."""

    objective: ClassVar[str]
    title: ClassVar[str]
    """What its rows are, for the table."""
    options: ClassVar[Mapping[str, Any]] = {}
    metrics: ClassVar[tuple[str, ...]]
    state: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @abstractmethod
    def models(self, draw: Draw) -> tuple[Columns, Columns]:
        """Return the scores of both models."""

    def build(self) -> Objective[Any]:
        return objectives.build_objective(ObjectiveChoice(name=self.objective, **self.options))

    def groups(self, draw: Draw, columns: Columns) -> NDArray[np.int64] | None:
        """Return what is resampled as one."""
        score = self.build().group_score
        return resampling_units(draw.groups, columns[score] if score else None)

    def rates(self, rows: int, kind: Kind, pairs: int, resamples: int = 500, seed: int = 0) -> dict[str, float]:
        """Return by metric how often one of two equal models would be published over the other.

        Each pair is judged in both orders: the rate is the mean of both.
        """
        random = np.random.default_rng([seed, rows, *map(ord, self.title + kind)])
        learned = self.build()
        directions = directions_of_metrics(learned.metrics)
        passed = dict.fromkeys(self.metrics, 0)
        for number in range(pairs):
            draw = Draw(random, rows, kind)
            own, other = self.models(draw)
            groups = self.groups(draw, own)
            ids = np.arange(len(next(iter(own.values()))))
            resampler = Resampler(learned, self.state, resamples, confidence=0.95, seed=seed + number // _BATCH)
            gains = resampler.gains(RowScores(ids, own, groups), RowScores(ids, other, groups), directions)
            for metric in self.metrics:
                passed[metric] += is_shown(gains[metric])
        return {metric: found / (2 * pairs) for metric, found in passed.items()}


def is_shown(gain: Gain) -> bool:
    """Whether the default gate would publish the one model over the other, or the other one over this."""
    may_be_equal = gain.p_value is not None and gain.p_value > 0.05
    return (gain.low > 0 or gain.high < 0) and not may_be_equal


def _sigmoid(values: Floats) -> Floats:
    found: Floats = 1 / (1 + np.exp(-values))
    return found


def _unit(vectors: Floats) -> Floats:
    found: Floats = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return found


class OneLabel(EqualModels):
    """Ten labels, the rarest on 3% of the rows."""

    objective, title = "sequence_classification", "one of 10 labels"
    metrics = ("accuracy", "macro_f1", "calibration_error", "loss")
    labels: ClassVar[int] = 10

    def models(self, draw: Draw) -> tuple[Columns, Columns]:
        shares = 1 / np.arange(1, self.labels + 1)
        label = draw.random.choice(self.labels, draw.rows, p=shares / shares.sum())
        common = draw.random.normal(0, 1.0, (draw.rows, self.labels)) + 3.0 * np.eye(self.labels)[label]

        def scores() -> Columns:
            logits = draw.rounded(common + 0.8 * draw.noise(self.labels))
            probability = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
            right = probability[np.arange(draw.rows), label]
            return {
                "nll": -np.log(right),
                "label": label.astype(float),
                "prediction": probability.argmax(1).astype(float),
                "confidence": probability.max(1),
            }

        return scores(), scores()


class SeveralLabels(EqualModels):
    """Six labels, which 30% to 5% of the rows have."""

    objective, title = "multi_label_classification", "several of 6 labels"
    metrics = ("micro_f1", "macro_f1", "exact_match", "loss")
    shares: ClassVar[tuple[float, ...]] = (0.3, 0.2, 0.1, 0.1, 0.05, 0.05)

    def models(self, draw: Draw) -> tuple[Columns, Columns]:
        given = draw.random.random((draw.rows, len(self.shares))) < self.shares
        common = np.where(given, 1.2, -2.5) + draw.random.normal(0, 1.0, given.shape)

        def scores() -> Columns:
            probability = _sigmoid(draw.rounded(common + 1.2 * draw.noise(len(self.shares))))
            nll = -np.log(np.where(given, probability, 1 - probability)).sum(1)
            found = {"nll": nll, "agreement": np.where(given, probability, 1 - probability).mean(1)}
            for label, name in enumerate(self.state["labels"]):
                found[f"given {name}"] = given[:, label].astype(float)
                found[f"probability {name}"] = probability[:, label]
                found[f"predicted {name}"] = (probability[:, label] >= 0.5).astype(float)
            return found

        return scores(), scores()


class SpansOfTexts(EqualModels):
    """Texts with none to a few spans; a third have none."""

    objective, title = "token_classification", "spans of texts"
    metrics = ("f1", "precision", "recall", "token_accuracy", "loss")

    def models(self, draw: Draw) -> tuple[Columns, Columns]:
        spans = draw.random.poisson(1.1, draw.rows)
        common = draw.random.normal(1.0, 1.0, draw.rows)
        tokens = draw.random.integers(5, 30, draw.rows).astype(float)

        def scores() -> Columns:
            skill = draw.rounded(common + draw.noise())
            found = np.minimum(np.round(spans * _sigmoid(skill)), spans)
            more = np.round(np.maximum(-0.7 * skill, 0.0))
            wrong = np.minimum(2 * (spans - found) + more, tokens)
            return {
                "nll": tokens * np.log1p(np.exp(-skill - 1)),
                "tokens": tokens,
                "correct": tokens - wrong,
                "correct_spans": found,
                "predicted_spans": found + more,
                "actual_spans": spans.astype(float),
            }

        return scores(), scores()


class Numbers(EqualModels):
    """Numbers with errors of heavy tails."""

    objective, title = "regression", "numbers"
    metrics = ("mae", "loss", "pearson", "spearman")

    def models(self, draw: Draw) -> tuple[Columns, Columns]:
        given = draw.rounded(draw.random.normal(3, 1, draw.rows))
        common = given + draw.random.normal(0, 0.5, draw.rows)
        spread = 0.4 * np.sqrt(5 / draw.random.chisquare(5, draw.rows))

        def scores() -> Columns:
            return {"predicted label": draw.rounded(common + spread * draw.noise()), "given label": given}

        return scores(), scores()


class Similarity(EqualModels):
    """Pairs of texts with a number that says how alike they are."""

    objective, title = "embedding", "embeddings: scored pairs"
    options: ClassVar[Mapping[str, Any]] = {"label_column": "label", "positive_column": "b"}
    metrics = ("spearman",)

    def models(self, draw: Draw) -> tuple[Columns, Columns]:
        given = draw.rounded(draw.random.uniform(1, 5, draw.rows))
        common = given + draw.random.normal(0, 0.6, draw.rows)

        def scores() -> Columns:
            return {"predicted": np.tanh(draw.rounded(common + 0.6 * draw.noise()) / 4), "given": given}

        return scores(), scores()


class Ranked(EqualModels):
    """Queries with ten documents each; a fifth of the queries have no relevant one."""

    objective, title = "ranking", "ranking: 10 documents a query"
    metrics = ("ndcg_at_10", "map", "mrr_at_10", "loss")
    documents: ClassVar[int] = 10

    def models(self, draw: Draw) -> tuple[Columns, Columns]:
        has_any = draw.random.random((draw.rows, 1)) < 0.8
        relevance = (draw.random.random((draw.rows, self.documents)) < 0.25) & has_any
        relevance[:, :1] |= has_any
        common = relevance + draw.random.normal(0, 0.7, relevance.shape)
        query = np.repeat(np.arange(draw.rows), self.documents).astype(float)
        grades = relevance.ravel().astype(float)

        def scores() -> Columns:
            score = draw.rounded(common + 0.7 * draw.noise(self.documents)).ravel()
            probability = _sigmoid(score)
            nll = -np.log(np.where(grades > 0, probability, 1 - probability))
            return {"nll": nll, "probability": probability, "score": score, "relevance": grades, "query": query}

        return scores(), scores()

    def groups(self, draw: Draw, columns: Columns) -> NDArray[np.int64]:
        query = columns["query"].astype(np.int64)
        return query if draw.groups is None else draw.groups[query]


class EmbeddedPairs(EqualModels):
    """Queries that are to find their positives among those of all rows, and some documents of a corpus."""

    objective, title = "embedding", "embeddings: pairs"
    metrics = ("ndcg_at_10", "mrr_at_10", "recall_at_1", "recall_at_10")
    size: ClassVar[int] = 12
    corpus: ClassVar[int] = 0

    def models(self, draw: Draw) -> tuple[Columns, Columns]:
        objective, random = self.build(), draw.random
        query = random.normal(size=(draw.rows, self.size))
        texts = np.stack([query, query + random.normal(0, 0.6, query.shape)], 1)
        numbers = np.stack([np.arange(draw.rows) + 1.0, np.arange(draw.rows) + 1e6], 1)
        further = _unit(random.normal(size=(self.corpus, self.size)))
        documents = np.concatenate([further, np.arange(self.corpus)[:, None] + 1e7], 1) if self.corpus else None

        def scores() -> Columns:
            vectors = _unit(draw.rounded(texts + 0.55 * draw.noise(2, self.size)))
            measured = np.concatenate([vectors.reshape(draw.rows, -1), numbers], 1)
            found = objective.scores_of_split(measured, {}, documents)
            return dict(zip(objective.score_names({}), found.T, strict=True))

        return scores(), scores()


class EmbeddedPairsInCorpus(EmbeddedPairs):
    """The same, among 300 further documents."""

    title = "embeddings: pairs, in a corpus of 300"
    corpus: ClassVar[int] = 300


class EmbeddedClasses(EqualModels):
    """Texts of eight classes, which are to find the others of their class."""

    objective, title = "embedding", "embeddings: texts of 8 classes"
    options: ClassVar[Mapping[str, Any]] = {"label_column": "label"}
    metrics = ("ndcg_at_10", "mrr_at_10", "recall_at_1", "recall_at_10")
    classes: ClassVar[int] = 8
    size: ClassVar[int] = 8

    def models(self, draw: Draw) -> tuple[Columns, Columns]:
        objective, random = self.build(), draw.random
        label = random.integers(0, self.classes, draw.rows)
        centres = random.normal(size=(self.classes, self.size))
        texts = centres[label] + random.normal(0, 0.9, (draw.rows, self.size))
        numbers = np.stack([np.arange(draw.rows) + 1.0, label + 1e6], 1)

        def scores() -> Columns:
            vectors = _unit(draw.rounded(texts + 0.6 * draw.noise(self.size)))
            found = objective.scores_of_split(np.concatenate([vectors, numbers], 1), {})
            return dict(zip(objective.score_names({}), found.T, strict=True))

        return scores(), scores()


class EmbeddedFewClasses(EmbeddedClasses):
    """The same with three classes."""

    title = "embeddings: texts of 3 classes"
    classes: ClassVar[int] = 3


class EmbeddedManyClasses(EmbeddedClasses):
    """The same with forty classes: at 30 rows, most texts are alone in theirs."""

    title = "embeddings: texts of 40 classes"
    classes: ClassVar[int] = 40


class Answers(EqualModels):
    """Answers to questions: right, partly right or wrong; contexts have one to three windows."""

    objective, title = "question_answering", "answers to questions"
    metrics = ("f1", "exact_match", "loss")

    def models(self, draw: Draw) -> tuple[Columns, Columns]:
        common, windows = draw.random.normal(0.5, 1.0, draw.rows), draw.random.integers(1, 4, draw.rows).astype(float)

        def scores() -> Columns:
            skill = draw.rounded(common + draw.noise())
            f1 = np.clip(np.round(_sigmoid(2 * skill), 1), 0.0, 1.0)
            one = np.ones(draw.rows)
            exact = (f1 == 1).astype(float)
            nll = windows * np.log1p(np.exp(-skill))
            return {"nll": nll, "windows": windows, "questions": one, "exact_match": exact, "f1": f1}

        return scores(), scores()


class Texts(EqualModels):
    """Texts of different lengths that are generated from others, such as translations; of a twentieth, nothing is left to predict."""

    objective, title = "seq2seq", "texts that are generated"
    metrics = ("loss", "perplexity", "token_accuracy", "bits_per_byte", "exact_match", "rouge1")

    def models(self, draw: Draw) -> tuple[Columns, Columns]:
        tokens = np.round(np.exp(draw.random.normal(2.5, 0.7, draw.rows))) + 1
        tokens[draw.random.random(draw.rows) < 0.05] = 0.0
        common = draw.random.normal(0.5, 1.0, draw.rows)

        def scores() -> Columns:
            skill = draw.rounded(common + draw.noise())
            share = _sigmoid(skill)
            right = np.round(tokens * share)
            exact = (skill > 1.5).astype(float)
            rouge = np.round(share, 1)
            return {
                "nll": -tokens * np.log(share),
                "tokens": tokens,
                "correct": right,
                "generated": np.ones(draw.rows),
                "exact_match": exact,
                **dict.fromkeys(("rouge1", "rouge2", "rougeL"), np.maximum(rouge, exact)),
                "bytes": 4 * tokens,
            }

        return scores(), scores()


class Preferences(EqualModels):
    """Pairs of a chosen and a rejected answer."""

    objective, title = "reward", "rewards of two answers"
    metrics = ("loss", "reward_accuracy", "reward_margin", "calibration_error")

    def models(self, draw: Draw) -> tuple[Columns, Columns]:
        common = draw.random.normal(np.array([0.8, 0.0]), 1.0, (draw.rows, 2))

        def scores() -> Columns:
            chosen, rejected = draw.rounded(common + draw.noise(2)).T
            return {"loss": np.log1p(np.exp(rejected - chosen)), "chosen_reward": chosen, "rejected_reward": rejected}

        return scores(), scores()


class Feedback(EqualModels):
    """Answers that people like or not; one in seven is liked."""

    objective, title = "kto", "answers that are liked or not"
    metrics = ("loss", "roc_auc", "reward_margin", "desirable_reward", "undesirable_reward")

    def models(self, draw: Draw) -> tuple[Columns, Columns]:
        liked = draw.random.random(draw.rows) < 1 / 7
        liked[:2] = True, False
        common = np.where(liked, 0.8, 0.0) + draw.random.normal(size=draw.rows)

        def scores() -> Columns:
            reward = draw.rounded(common + draw.noise())
            loss = 1 - _sigmoid(np.where(liked, reward, -reward))
            return {"loss": loss, "liked": liked.astype(float), "reward": reward, "logprob": reward - 5}

        return scores(), scores()


class Rewards(EqualModels):
    """Texts that a function rewards."""

    objective, title = "grpo", "rewards of texts"
    metrics = ("reward", "completion_length", "terminated")

    def models(self, draw: Draw) -> tuple[Columns, Columns]:
        common = draw.random.normal(size=draw.rows)

        def scores() -> Columns:
            skill = draw.rounded(common + draw.noise())
            length = np.round(np.exp(3 - 0.3 * skill)).astype(np.float64)
            return {"reward": skill, "completion_length": length, "terminated": (length < 40).astype(float)}

        return scores(), scores()


class Choices(EqualModels):
    """One of four choices."""

    objective, title = "multiple_choice", "one of 4 choices"
    metrics = ("loss", "accuracy")

    def models(self, draw: Draw) -> tuple[Columns, Columns]:
        common = draw.random.normal(np.array([1.2, 0.0, 0.0, 0.0]), 1.0, (draw.rows, 4))

        def scores() -> Columns:
            logits = draw.rounded(common + draw.noise(4))
            probability = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
            return {
                "nll": -np.log(probability[:, 0]),
                "correct": (probability[:, 0] > probability[:, 1:].max(1)).astype(float),
                "confidence": probability.max(1),
                "label": np.zeros(draw.rows),
                "prediction": probability.argmax(1).astype(float),
            }

        return scores(), scores()


EQUAL: tuple[EqualModels, ...] = (
    OneLabel({"labels": [str(label) for label in range(OneLabel.labels)]}),
    SeveralLabels({"labels": [str(label) for label in range(len(SeveralLabels.shares))]}),
    SpansOfTexts({"labels": ["O", "B-a", "I-a"]}),
    Numbers({"numbers": ["label"], "mean": [3.0], "std": [1.0]}),
    Ranked({"highest": 1.0}),
    EmbeddedPairs(),
    EmbeddedPairsInCorpus(),
    EmbeddedFewClasses(),
    EmbeddedClasses(),
    EmbeddedManyClasses(),
    Similarity(),
    Answers(),
    Texts(),
    Choices(),
    Preferences(),
    Feedback(),
    Rewards(),
)
COMPUTED_ALIKE = {
    "causal_lm": "seq2seq",
    "masked_lm": "seq2seq",
    "sft": "seq2seq",
    "iterative_sft": "seq2seq",
    "dpo": "reward",
}
"""Objectives whose metrics are computed from rows as those of another one, which is simulated."""
