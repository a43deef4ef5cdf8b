"""Ranking: which documents are most relevant to a query, by a model that reads a query and a document together (a cross-encoder).

    {"query": "who worships nature?", "document": "Wicca is a form of nature worship.", "relevance": 1}

`relevance` is a grade from 0, or 1 and 0. A row is one document; a query is all rows with the same text. Rows of a query belong into one
split (`data.group_by`). The loss is the binary cross-entropy of each row, the grades divided by the highest one; or LambdaLoss, which
compares the documents of a query. Metrics are means over queries with a relevant document: NDCG@10 with
the grades as gains, the mean average precision (`map`) and the reciprocal rank of the first relevant one (`mrr_at_10`); and `loss`, the
mean cross-entropy of the rows.
Of documents with the same score, to six decimals, the least relevant is ranked first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

from params import DataError, Problem
from params.defaults import ObjectiveDefaults
from params.schema import Launch, Model, Training
from params.sections.base import Section
from trainer.objectives.advice.base import AdvisedValue, ClassifierNewRecipeAdvice, ObjectiveFit, SeenColumns, UpTo
from trainer.objectives.bases.labels.names import require_one_output
from trainer.objectives.bases.lazy_imports import F, NDArray, PreTrainedModel, np, torch
from trainer.objectives.bases.likelihood import compute_logits, without_labels
from trainer.objectives.bases.loss import BatchLoss, MicroBatchShare
from trainer.objectives.bases.metrics.metric import Metric, Sums, is_positive, named, ratio
from trainer.objectives.bases.metrics.retrieval import DEPTH, name_length
from trainer.objectives.bases.objective import ColumnKind, EncodedRow, Example, ObjectiveState, PromptForm, Row
from trainer.objectives.bases.rows import ScoreColumns, group_statistics, hash_group_value
from trainer.objectives.bases.scored_batch import ScoredBatch
from trainer.objectives.bases.texts.pairs import TextOrPairObjective
from trainer.objectives.bases.texts.tokenizing import Tokenizer
from trainer.objectives.bases.vectors.sentence_transformers_files import set_activation

_OF_QUERY: Final = ("ndcg_at_10", "map", "mrr_at_10")
_HIGHEST_GAIN = 30
"""The highest grade of LambdaLoss, whose gains are 2 to the power of the grades."""
_MU: Final = 10.0
"""The weight of NDCG-Loss2 beside that of LambdaRank, in section 7.3 of the paper."""


class Options(Section):
    """Keys of the recipe's `objective` section."""

    query_column: str = "query"
    """The column with the query."""
    document_column: str = "document"
    """The column with a document. Of a query and a document that are too long together, the longer one loses its end."""
    relevance_column: str = "relevance"
    """The column with the grade of the document for the query, from 0; or with 1 for relevant and 0 for others."""
    loss: Literal["bce", "lambda"] = "bce"
    """The binary cross-entropy of each row, or LambdaLoss, for which the documents of a query follow each other in global batches."""


class _Advice(ClassifierNewRecipeAdvice):
    meaning = "how relevant each document is to its query"
    columns: ClassVar[Mapping[str, str]] = {
        "prompt": "query_column",
        "completion": "document_column",
        "score": "relevance_column",
    }
    place = 3
    rates: ClassVar[UpTo] = ((60e6, 5e-5), (200e6, 2e-5), (math.inf, 1e-5))
    """Those of embeddings: at 3e-4, all-MiniLM-L6-v2 ends with NDCG@10 0.73 on trec-qa, at 5e-5 with 0.87 (docs/benchmarks.md)."""
    batch = 16  # at 5e-5, batches of 16 end with NDCG@10 0.871 on trec-qa, batches of 32 with 0.849
    epochs: ClassVar[UpTo] = ((5_000, 4), (50_000, 3), (500_000, 2), (math.inf, 1))

    def fit(self, seen: SeenColumns) -> ObjectiveFit:
        is_named = seen.names_pair and "score" in seen.named
        return ObjectiveFit.PREFERENCES if seen.ranks_documents or is_named else ObjectiveFit.NOT

    def best_metric(self, labels: Mapping[str, int]) -> AdvisedValue:
        return AdvisedValue("ndcg_at_10", "how high the relevant documents of each query are ranked")


def _mean_of_queries(name: str) -> Metric:
    """Return a mean over the queries with a relevant document; the others say nothing."""

    def mean(sums: Sums) -> NDArray[np.float64]:
        found: NDArray[np.float64] = sums[name] / np.maximum(sums["queries"], 1)
        return found

    return Metric(
        name,
        "max",
        mean,
        share_of=lambda sums: [float(sums["queries"])] if sums["queries"] else (),
        about=is_positive("queries"),
        exists=lambda sums: bool(sums["queries"]),
    )


class Ranking(TextOrPairObjective[Options]):
    """A score of relevance for a query with a document."""

    options_class = Options
    text_options: ClassVar[tuple[str, str]] = ("query_column", "document_column")
    own_options = frozenset()
    defaults = ObjectiveDefaults(2e-5, 1.0, 32, 32, best_metric="ndcg_at_10")
    advice = _Advice()
    metrics: ClassVar[Mapping[str, Metric]] = named(
        Metric("loss", "min", ratio("nll", "rows")), *map(_mean_of_queries, _OF_QUERY)
    )
    main_metric = "ndcg_at_10"
    group_score: ClassVar[str | None] = "query"
    served_scores = ("probability",)
    label_name = "ranked"
    example_rows: ClassVar[tuple[Row, ...]] = (
        {"query": "rain", "document": "it will rain", "relevance": 1},
        {"query": "rain", "document": "a king", "relevance": 0},
        {"query": "bird", "document": "a bird, again and again", "relevance": 2},
    )

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.group_columns = (options.query_column,)
        if options.loss == "lambda":
            self.trainer_class = "whole_batches"  # type: ignore[misc]
            self.batch_group = "query"

    # Rows

    def columns(self) -> Mapping[str, ColumnKind]:
        return {**self.text_columns(), self.options.relevance_column: "number"}

    def conflicts(self, *, model: Model, training: Training, launch: Launch) -> Iterable[Problem]:
        yield from super().conflicts(model=model, training=training, launch=launch)
        if self.options.loss == "lambda" and training.loss:
            what = "has no effect: LambdaLoss compares the rows of the global batch"
            yield Problem(("training", "loss"), what, "remove it, or set `objective.loss: bce`")
        for key in ("streaming", "group_by_length") if self.options.loss == "lambda" else ():
            if getattr(training, key):
                what = "would tear the documents of a query apart, which LambdaLoss compares"
                yield Problem(("training", key), what, "set it to false, or set `objective.loss: bce`")

    def reject_reason(self, row: Row) -> str | None:
        grade = float(row[self.options.relevance_column])
        return super().reject_reason(row) or (
            f"{self.options.relevance_column} is {grade:g}, and grades begin at 0" if grade < 0 else None
        )

    def input_text(self, row: Row) -> str:
        return str(row[self.options.query_column])

    def summarize(self, rows: Iterable[Row]) -> float:
        return max((float(row[self.options.relevance_column]) for row in rows), default=0.0)

    def state_of_summaries(self, summaries: Iterable[float]) -> ObjectiveState:
        highest = max(summaries, default=0.0)
        if not highest:
            what = "is 0 in every row of the train split, so there is nothing to learn"
            raise DataError(self.options.relevance_column, what, "add rows with documents that are relevant")
        if self.options.loss == "lambda" and highest > _HIGHEST_GAIN:
            what = f"is up to {highest:g}, and LambdaLoss takes 2 to the power of it"
            raise DataError(
                self.options.relevance_column, what, "write grades such as 0 to 4, or set `objective.loss: bce`"
            )
        return {"highest": highest}

    def encode(
        self, rows: Sequence[Row], tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[EncodedRow]:
        return [
            EncodedRow([example | self._ranked(row, state)], is_truncated)
            for row, (example, is_truncated) in zip(rows, self.encode_inputs(rows, tokenizer, max_length), strict=True)
        ]

    def _ranked(self, row: Row, state: ObjectiveState) -> Example:
        grade = float(row[self.options.relevance_column])
        return {
            "labels": min(grade / state["highest"], 1.0),
            "relevance": grade,
            "query": hash_group_value(str(row[self.options.query_column]).strip()),
        }

    def collate(self, examples: Sequence[Example], tokenizer: Tokenizer) -> dict[str, torch.Tensor]:
        """As the base class, with `ranked`, (B, 2): the grade of each document and the number of its query."""
        ranked = [[float(one["relevance"]), float(one["query"])] for one in examples]
        return super().collate(examples, tokenizer) | {"ranked": torch.tensor(ranked, dtype=torch.float64)}

    # Model and training

    def model_config(self, state: ObjectiveState) -> dict[str, Any]:
        return {"num_labels": 1, "id2label": {0: "relevance"}, "label2id": {"relevance": 0}}

    def prepare_model(
        self, model: PreTrainedModel, tokenizer: Tokenizer, state: ObjectiveState, new: Collection[str]
    ) -> None:
        """Let `CrossEncoder` give probabilities, as a pipeline does, whatever it made of the base model's output."""
        set_activation(model.config, "activation.Sigmoid")

    def remap_labels(self, model: PreTrainedModel, state: ObjectiveState) -> PreTrainedModel:
        require_one_output(model.config)
        return model

    def embed(self, model: Any, batch: Mapping[str, Any]) -> torch.Tensor:
        """Return the score of each of B rows, (B, 1), before the sigmoid."""
        scores: torch.Tensor = model(**_inputs(batch)).logits.float()
        return scores

    def global_loss(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return LambdaLoss of the G rows of a global batch, whose scores are (G, 1) and whose `ranked` are (G, 2)."""
        return lambda_loss(embeddings[:, 0], labels[:, 0], labels[:, 1])

    def batch_loss(self, model: Any, batch: Mapping[str, Any], share: MicroBatchShare) -> BatchLoss:
        outputs = model(**_inputs(batch))
        losses = F.binary_cross_entropy_with_logits(outputs.logits[:, 0].float(), batch["labels"], reduction="sum")
        return BatchLoss(losses / share.items * share.processes, outputs)

    # Scores and metrics

    def with_inputs_of(self, example: Example, other: Example) -> Example | None:
        return {**other, **{name: example[name] for name in ("row_id", "labels", "relevance", "query")}}

    def score_names(self, state: ObjectiveState) -> Sequence[str]:
        return ("nll", "probability", "score", "relevance", "query")

    def score_outputs(self, model: PreTrainedModel, batch: Mapping[str, Any], tokenizer: Tokenizer) -> ScoredBatch:
        """The score of each document before the sigmoid, (B,), and as labels its grade and the number of its query, (B, 2).

        Scores: the loss, the score as a probability and before the sigmoid, the grade and the number of the query, (B, 5).
        """
        scores = compute_logits(model, _inputs(batch)).double()
        losses = F.binary_cross_entropy_with_logits(scores[:, 0], batch["labels"].double(), reduction="none")
        found = torch.cat([losses[:, None], scores.sigmoid(), scores, batch["ranked"]], 1)
        return ScoredBatch(found, scores[:, 0], batch["ranked"])

    def statistics(self, scores: ScoreColumns, state: ObjectiveState) -> Sums:
        """One and the loss of each row; of the first row of a query, what `measure_ranking` says of it."""
        of_queries = group_statistics(scores, "query", lambda own: measure_ranking(own["score"], own["relevance"]))
        queries, *measured = of_queries.T
        measures = dict(zip(_OF_QUERY, measured, strict=True))
        return {"rows": np.ones_like(scores["nll"]), "nll": scores["nll"], "queries": queries, **measures}

    def own_slices(self) -> Mapping[str, Callable[[Row], str]]:
        return {"query length": lambda row: name_length(self.input_text(row))}

    def row_error(self, scores: ScoreColumns) -> NDArray[np.float64]:
        """How far the probability is from what the grade says, in the order of the scores: the worst are ranked wrongly for sure."""
        is_relevant = scores["relevance"] > 0
        return np.where(is_relevant, -scores["score"], scores["score"])

    # Released models

    @classmethod
    def prompt_form(cls, options: Mapping[str, Any]) -> PromptForm:
        return PromptForm(is_pair=True, ranks=True)

    def answer_scores(
        self, ask: Callable[..., Any], row: Row, example: Example, tokenizer: Tokenizer
    ) -> Mapping[str, float]:
        (answer,) = ask(self.reader_input(row), top_k=None)
        return {"probability": float(answer["score"])}

    def describe_scores(self, scores: Mapping[str, float], state: ObjectiveState) -> dict[str, str]:
        return {"expected": f"relevance {scores['relevance']:g}", "predicted": f"{scores['probability']:.3f}"}

    def prediction_lines(
        self, row: Row, model: PreTrainedModel, tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[str]:
        """The probability that the document is relevant."""
        ((example,), _), *_ = self.encode([row], tokenizer, max_length, state)
        batch = _inputs(self.collate([example], tokenizer))
        return [f"relevance: {compute_logits(model, batch)[0, 0].sigmoid().item():.3f}"]


def measure_ranking(scores: NDArray[np.float64], relevance: NDArray[np.float64]) -> list[float]:
    """Return 1, NDCG@10, average precision and reciprocal rank of a query's N documents; zeros if none is relevant.

    The gain of a document is its grade, as in trec_eval, and the discount 1 / log2(rank + 1) (Järvelin and Kekäläinen 2002,
    https://doi.org/10.1145/582415.582418). NaN if a score is not finite.

    Args:
        scores: those of the model, (N,).
        relevance: the grades, (N,).
    """
    if not (relevance > 0).any():
        return [0.0] * 4
    if not np.isfinite(scores).all():
        return [1.0, *[math.nan] * 3]
    gains = relevance[np.lexsort((relevance, -np.round(scores, 6)))]
    ranks = np.arange(1, len(gains) + 1)
    discounts = 1 / np.log2(ranks[:DEPTH] + 1)
    best = -np.sort(-relevance)[:DEPTH]
    found = ranks[gains > 0]
    precision = np.arange(1, len(found) + 1) / found
    reciprocal = 1 / found[0] if found[0] <= DEPTH else 0.0
    return [1.0, float(gains[:DEPTH] @ discounts / (best @ discounts)), float(precision.mean()), float(reciprocal)]


def _inputs(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in without_labels(batch).items() if name != "ranked"}


def lambda_loss(scores: torch.Tensor, relevance: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """Return LambdaLoss with NDCG-Loss2++ (Wang et al. 2018, https://doi.org/10.1145/3269206.3271784, equations 12 and 20).

    It is a mean over all pairs of documents of the same query of which one is more relevant, in bits; 0 if there are none. sentence-transformers has the same.

    Args:
        scores: those of the model for G documents, (G,).
        relevance: their grades, from 0, (G,).
        queries: a number for the query of each document, (G,).
    """
    losses = [scores.new_zeros(0)]
    for query in torch.unique(queries):
        own = queries == query
        losses.append(_pair_losses(scores[own], relevance[own]))
    of_pairs = torch.cat(losses)
    return of_pairs.sum() / max(len(of_pairs), 1) + 0.0 * scores.sum()


def _pair_losses(scores: torch.Tensor, relevance: torch.Tensor) -> torch.Tensor:
    """Return the losses of the pairs of N documents of one query whose first one is more relevant, (P,)."""
    scores, order = scores.sort(descending=True, stable=True)
    relevance = relevance[order].to(scores.dtype)
    ranks = torch.arange(1, len(scores) + 1, device=scores.device, dtype=scores.dtype)
    discounts = 1 / torch.log2(1 + ranks)
    best = ((2 ** relevance.sort(descending=True)[0] - 1) * discounts).sum().clamp(min=1e-10)
    gains = (2**relevance - 1) / best
    distances = (ranks[:, None] - ranks[None, :]).abs()
    of_distance = (1 / torch.log2(1 + distances.clamp(min=1)) - 1 / torch.log2(2 + distances)).abs()
    ndcg_weights = of_distance.masked_fill(distances == 0, 0.0)
    lambda_weights = (discounts[:, None] - discounts[None, :]).abs()
    weights = (_MU * ndcg_weights + lambda_weights) * (gains[:, None] - gains[None, :]).abs()
    losses = -weights * F.logsigmoid(scores[:, None] - scores[None, :]) / torch.log(torch.tensor(2.0))
    return losses[relevance[:, None] > relevance[None, :]]
