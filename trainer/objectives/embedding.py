"""Embedding: a vector for each text, so that texts that belong together are close to each other.

    {"anchor": "how do I sort a list?", "positive": "sorted() returns a new list."}                     pairs
    {"anchor": "a man plays", "positive": "a person plays", "negative": "nobody plays"}                 with `negative_columns`
    {"anchor": "a man plays", "positive": "a person plays", "negatives": ["nobody plays", "..."]}       and `listed_negatives`
    {"anchor": "a man plays", "positive": "a man sings", "label": 2.5}                                  scored pairs
    {"anchor": "where is my card?", "label": "card_arrival"}                                            texts with classes

Pairs are learned by the multiple negatives ranking loss: the positives of all other rows of the global batch are negatives, however
many processes and micro-batches it is spread over. `mined_negatives` adds texts that the model finds near to an anchor before it trains
(bases/vectors/hard_negatives.py). Scored pairs (`label_column` beside `positive_column`) are learned by CoSENT, and
classes (`label_column` alone) by the supervised contrastive loss (bases/vectors/contrastive_loss.py).

Evaluation looks for the positives of each query among all positives and negatives of the split, and the documents of `data.corpus`, if
there is one; the training's own validation among some of the corpus. Of texts with classes, it looks among all other texts. The metrics are
means over queries: a query is one anchor with all its positives (bases/metrics/retrieval.py). Of scored pairs, it is Spearman's rank
correlation of cosines and scores. A release is a repository of sentence-transformers.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, PositiveInt

from params import ModelError, Problem, RecipeError
from params.defaults import ObjectiveDefaults
from params.foundation.installation import install_extra
from params.schema import Launch, Model, Training
from params.sections.base import Section
from trainer.objectives.advice.embedding import EmbeddingAdvice
from trainer.objectives.bases.lazy_imports import F, NDArray, PreTrainedModel, np, torch
from trainer.objectives.bases.metrics.metric import Metric, Sums, named
from trainer.objectives.bases.metrics.rank_correlation import rank_distance, spearman
from trainer.objectives.bases.metrics.retrieval import (
    NAMES,
    center_changes,
    measure_classes,
    measure_pairs,
    name_length,
)
from trainer.objectives.bases.objective import ColumnKind, EncodedRow, Example, Objective, ObjectiveState, Row
from trainer.objectives.bases.rows import ScoreColumns, hash_group_value
from trainer.objectives.bases.scored_batch import ScoredBatch
from trainer.objectives.bases.texts.padding import pad_batch
from trainer.objectives.bases.texts.prompt_template import ColumnNames
from trainer.objectives.bases.texts.tokenizing import Tokenizer, tokenize_texts_truncated
from trainer.objectives.bases.vectors import contrastive_loss, sentence_transformers_files, several_texts
from trainer.objectives.bases.vectors.hard_negatives import find_negative_problems
from trainer.objectives.bases.vectors.space import VectorSpace

_OF_QUERY = (*NAMES, "counted")
_AS_DOCUMENT = tuple(f"{name} without its documents" for name in _OF_QUERY)


class Options(Section):
    """Keys of the recipe's `objective` section."""

    anchor_column: str = "anchor"
    """The column with the text to find others for, such as a query."""
    positive_column: str | None = None
    """The column with a text that belongs to it; by default `positive`, and none where there is a label_column: then rows are texts with classes."""
    negative_columns: ColumnNames = Field(default=[])
    """A column, or several, with texts that do not belong to it, although they seem to: [negative_1, negative_2], or as a template."""
    listed_negatives: int = Field(default=0, ge=0)
    """How many texts of the list in `negative_columns` a row gets, the first ones; it may have fewer. 0: a column holds one text."""
    mined_negatives: int = Field(default=0, ge=0)
    """How many further negatives each row gets: near texts among all positives of train and `data.corpus`, found before the first step."""
    mining_margin: float = Field(default=0.05, ge=0, lt=1)
    """The share of the positive's cosine by which that of a mined negative is lower at least: a nearer text may be a positive, too."""
    document_column: str | None = None
    """The column of `data.corpus` with a document; by default the name of `positive_column`."""
    grade_column: str | None = None
    """The column with a number above 0 that says how relevant the positive is to the anchor: the gain in NDCG. All are learned alike."""
    validation_documents: int = Field(default=10_000, ge=0)
    """Most documents of `data.corpus` that the evaluations during training search, spread over all of them; evaluate searches all."""
    label_column: str | None = None
    """Beside a `positive_column`, the column with a number that says how alike both texts are; alone, the column with the class."""
    scale: float = Field(default=20.0, gt=0)
    """Cosines are multiplied by it in the loss: 1 / temperature."""
    both_directions: bool = False
    """Each positive has to find its anchor, too."""
    matryoshka_dims: list[PositiveInt] = Field(default=[])
    """Dimensions, such as [384, 128, 64], whose losses are summed, so that the first numbers of a vector can be used alone."""
    pooling: sentence_transformers_files.Pooling | None = None
    """How the vectors of all tokens become one; by default as the base model's repository says, else `mean`."""
    query_prompt: str | None = None
    """Text before each anchor; by default as the base model's repository says, else none."""
    document_prompt: str | None = None
    """Text before each positive and negative of a pair. Both texts of a scored pair have `query_prompt`."""


def _mean_of_queries(name: str) -> Metric:
    """Return a mean over queries with a relevant document; a text alone in its class is only a document."""
    place, counted = NAMES.index(name), len(NAMES)

    def mean(sums: Sums) -> NDArray[np.float64]:
        own = sums["queries"] - sums["documents"]
        found: NDArray[np.float64] = own[..., place] / np.maximum(own[..., counted], 1)
        return found

    def queries(sums: Sums) -> Sequence[float]:
        count = float(sums["queries"][counted])
        return [count] if count else ()

    return Metric(name, "max", mean, share_of=queries, about=lambda rows: rows["queries"][:, counted] > 0)


def _spearman(scores: ScoreColumns) -> float:
    return spearman(scores["predicted"], scores["given"])


class Embedding(Objective[Options]):
    """A vector for each text."""

    options_class = Options
    defaults = ObjectiveDefaults(2e-5, epochs=1.0, global_batch_size=64, best_metric="ndcg_at_10")
    advice = EmbeddingAdvice()
    metrics: ClassVar[Mapping[str, Metric]] = named(*map(_mean_of_queries, NAMES))
    main_metric = "ndcg_at_10"
    group_score: ClassVar[str | None] = "query"
    trainer_class = "whole_batches"
    cut_texts_are_easier = False
    reader_cuts = True
    auto_class = "AutoModel"
    pipeline_tag = "sentence-similarity"
    release_format = sentence_transformers_files.FORMAT
    example_rows: ClassVar[tuple[Row, ...]] = (
        {"anchor": "what does the cat see?", "positive": "a bird"},
        {"anchor": "it will rain", "positive": "the rain comes again and again"},
    )

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.group_columns = () if options.label_column else (options.anchor_column,)
        if options.mined_negatives:
            self.trainer_class = "mined_negatives"  # type: ignore[misc]
        if options.label_column and options.positive_column:
            spearman = Metric("spearman", "max", value_of_all=_spearman)
            self.metrics, self.main_metric, self.group_score = named(spearman), "spearman", None  # type: ignore[misc]

    @property
    def _has_scores(self) -> bool:
        return bool(self.options.label_column and self.options.positive_column)

    @property
    def served_scores(self) -> tuple[str, ...]:  # type: ignore[override]
        """The cosine of a pair, which depends on no other row."""
        return ("predicted",) if self._has_scores else () if self.options.label_column else ("cosine",)

    @property
    def label_name(self) -> str:
        return "labels" if self._has_scores else "texts"

    # Rows

    def _text_columns(self) -> list[str]:
        o = self.options
        positive = o.positive_column or (None if o.label_column else "positive")
        return [o.anchor_column, *([positive] if positive else []), *o.negative_columns]

    def columns(self) -> Mapping[str, ColumnKind]:
        found: dict[str, ColumnKind] = dict.fromkeys(self._text_columns(), "string")
        if self.options.listed_negatives:
            found |= dict.fromkeys(self.options.negative_columns, "labels")
        if self.options.label_column:
            found[self.options.label_column] = "number" if self._has_scores else "label"
        return found | ({self.options.grade_column: "number"} if self.options.grade_column else {})

    def content(self, row: Row) -> Mapping[str, Any]:
        """As the base class; two texts that belong together, or are alike, do so in either order."""
        found, two = dict(super().content(row)), self._text_columns()[:2]
        if len(two) < 2:
            return found
        return {**found, two[0]: sorted(found[name] or "" for name in two), two[1]: None}

    @property
    def beside_content(self) -> Sequence[str]:
        return [*self.options.negative_columns, *filter(None, [self.options.grade_column])]

    def target_columns(self) -> Collection[str]:
        """What the two texts, or the one with a class, are learned with."""
        o = self.options
        return [name for name in (*o.negative_columns, o.label_column, o.grade_column) if name]

    def reject_reason(self, row: Row) -> str | None:
        o, name = self.options, str(self.options.grade_column)
        listed = several_texts.why_list_unusable(o.negative_columns[0], row) if o.listed_negatives else None
        is_low = o.grade_column is not None and float(row[name]) <= 0
        low = f"{name} is {row[name]}, and that of a positive is above 0" if is_low else None
        return super().reject_reason(row) or listed or low

    def conflicts(self, *, model: Model, training: Training, launch: Launch) -> Iterable[Problem]:
        yield from super().conflicts(model=model, training=training, launch=launch)
        o = self.options
        for name in ("negative_columns", "listed_negatives", "both_directions", "mined_negatives", "grade_column"):
            if getattr(o, name) and o.label_column:
                what = "has no effect beside label_column"
                yield Problem(("objective", name), what, "remove one of the two")
        yield from find_negative_problems(o.negative_columns, o.listed_negatives, o.mined_negatives, training)
        if importlib.util.find_spec("sentence_transformers") is None:
            what = "needs sentence-transformers, which loads a release before it is published"
            yield Problem(("objective", "name"), what, install_extra("embedding"))
        if training.loss:
            what = "has no effect: the loss compares all rows of the global batch"
            yield Problem(("training", "loss"), what, "remove it")
        if training.global_batch_size < 2:
            what = "is 1: a row has nothing to be compared with"
            yield Problem(("training", "global_batch_size"), what, "use 16 or more")
        try:
            sentence_transformers_files.read_parts(model.pretrained, None) if model.pretrained and Path(
                model.pretrained
            ).is_dir() else None
        except ModelError as error:
            yield Problem(("model", "pretrained"), error.what, error.fix)

    def texts(self, row: Row) -> Sequence[str]:
        o = self.options
        return [text for name in self._text_columns() for text in several_texts.texts_in(row[name], o.listed_negatives)]

    @property
    def _most_texts(self) -> int:
        """How many texts a row has at most."""
        return len(self._text_columns()) + max(self.options.listed_negatives - 1, 0)

    def text(self, row: Row) -> str:
        return "\n".join(self.texts(row))

    def input_text(self, row: Row) -> str:
        """The query; the text with a class; the two texts of a scored pair, in either order."""
        return "\n".join(sorted(self.texts(row))) if self.options.label_column else str(row[self.options.anchor_column])

    def prepare_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Let the tokenizer keep the prompts, and cut texts where the base model's repository says."""
        sentence_transformers_files.set_prompts(tokenizer, self.options.query_prompt, self.options.document_prompt)

    def encode(
        self, rows: Sequence[Row], tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[EncodedRow]:
        query, document = (
            sentence_transformers_files.prompt_before(tokenizer, "query"),
            sentence_transformers_files.prompt_before(tokenizer, "document"),
        )
        prompts = [query, *[query if self._has_scores else document] * (self._most_texts - 1)]
        every, limit = [self.texts(row) for row in rows], min(max_length, tokenizer.model_max_length)
        found = zip(rows, every, several_texts.tokenize_rows(every, prompts, tokenizer, limit), strict=True)
        return [EncodedRow([self._example(row, texts, tokens)], is_cut) for row, texts, (tokens, is_cut) in found]

    def _example(self, row: Row, texts: Sequence[str], tokens: Example) -> Example:
        example, label = {"row_id": row["row_id"], **tokens}, self.options.label_column
        if self._has_scores:
            return example | {"labels": float(row[str(label)])}
        if self.options.grade_column:
            example["grade"] = float(row[self.options.grade_column])
        numbers = several_texts.number_texts(texts, self._most_texts)
        numbers += several_texts.number_texts([str(row[label])], 1) if label else []
        return example | {f"text_{i}": number for i, number in enumerate(numbers)}

    def collate(self, examples: Sequence[Example], tokenizer: Tokenizer) -> dict[str, torch.Tensor]:
        """As the base class, with `texts`, the numbers of the texts of each row, and its `grade`, if it has one, (B, 1)."""
        examples = [several_texts.in_order(examples[0]), *examples[1:]]  # the first one says the order
        batch = pad_batch(examples, tokenizer)
        if "grade" in examples[0]:
            batch["grade"] = torch.tensor([[one["grade"]] for one in examples], dtype=torch.float64)
        names = [name for name in examples[0] if name.startswith("text_")]
        return batch | ({"texts": torch.tensor([[e[name] for name in names] for e in examples])} if names else {})

    # Model and training

    def prepare_model(
        self, model: PreTrainedModel, tokenizer: Tokenizer, state: ObjectiveState, new: Collection[str]
    ) -> None:
        """Keep in the model's configuration how its tokens become a vector."""
        sentence_transformers_files.parts_of(model.config, self.options.pooling)

    def check_model(self, model: PreTrainedModel) -> None:
        size = getattr(model.config, sentence_transformers_files.KEY)["dimension"]
        if too_large := [one for one in self.options.matryoshka_dims if one > size]:
            what = f"has {', '.join(map(str, too_large))}, and the model's vectors have {size} numbers"
            raise RecipeError("objective.matryoshka_dims", what, f"use at most {size}")

    def embed(self, model: Any, batch: Mapping[str, Any]) -> torch.Tensor:
        """Return the vectors of the M texts of B rows, (B, M, D)."""
        return sentence_transformers_files.embed_batch(model, batch)

    def global_loss(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of G rows, a sum over `matryoshka_dims`; `labels` are the scores (G,), or numbers of texts and class (G, L)."""
        o, losses = self.options, []
        for vectors in contrastive_loss.over_dimensions(embeddings, o.matryoshka_dims):
            if self._has_scores:
                losses.append(contrastive_loss.cosent_loss(vectors, labels, scale=o.scale))
            elif o.label_column:
                losses.append(contrastive_loss.supervised_contrastive_loss(vectors[:, 0], labels[:, -1], scale=o.scale))
            else:
                ways = o.both_directions
                losses.append(
                    contrastive_loss.multiple_negatives_loss(vectors, labels, scale=o.scale, both_directions=ways)
                )
        return torch.stack(losses).sum()

    # Scores and metrics

    def score_names(self, state: ObjectiveState) -> Sequence[str]:
        """Of a query its metrics, whether it counts, cosine and number; then what all other queries lose or gain without the row's documents."""
        return ("predicted", "given") if self._has_scores else (*_OF_QUERY, "cosine", "query", *_AS_DOCUMENT)

    def score_outputs(self, model: PreTrainedModel, batch: Mapping[str, Any], tokenizer: Tokenizer) -> ScoredBatch:
        """Scored pairs: their cosines and scores, (B,). Otherwise the vectors (B, M, D), and the numbers of the M texts and the class, (B, L).

        The scores are what `scores_of_split` needs: vectors of length 1, and the scores of pairs or the numbers of texts.
        """
        vectors = F.normalize(self.embed(model, batch), dim=-1)
        given = batch["labels"][:, None] if self._has_scores else batch["texts"]
        grades = [batch["grade"]] if "grade" in batch else []
        measured = torch.cat([vectors.flatten(1).double(), given.double(), *grades], 1)
        if self._has_scores:
            return ScoredBatch(measured, vectors[:, :2].double().prod(1).sum(1), batch["labels"])
        return ScoredBatch(measured, vectors, batch["texts"], predictions=vectors)

    def _divide(self, measured: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the vectors (N, T, D) of the T texts of rows, and what else `score_batch` measured."""
        texts, own = self._most_texts, bool(self.options.label_column) + bool(self.options.grade_column)
        size = (measured.shape[1] - (1 if self._has_scores else texts + own)) // texts
        return measured[:, : texts * size].reshape(-1, texts, size), measured[:, texts * size :]

    def scores_of_split(
        self, measured: NDArray[np.float64], state: ObjectiveState, documents: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        vectors, given = self._divide(measured)
        cosines = vectors[:, :2].prod(1).sum(1, keepdims=True)
        if self._has_scores:
            return np.concatenate([cosines, given], 1)
        if self.options.label_column:
            found, changes = measure_classes(vectors[:, 0], given[:, 1])
            return np.concatenate([found, found[:, :1], np.arange(len(given))[:, None], changes], 1)
        texts = vectors.shape[1]
        grades = given[:, texts] if self.options.grade_column else None
        found, changes = measure_pairs(vectors, given[:, :texts], documents, grades)
        return np.concatenate([found, cosines, given[:, :1], changes], 1)

    @property
    def vector_space(self) -> VectorSpace:  # type: ignore[override]
        """How documents are embedded, and which vectors of two models can be compared."""
        ranks_documents = self.options.label_column is None
        column = self.options.document_column or self._text_columns()[1] if ranks_documents else None
        most = self.options.validation_documents
        return VectorSpace(column, self._encode_documents, self._vectors_of_texts, most)

    def _encode_documents(self, texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> list[Example]:
        before, limit = (
            sentence_transformers_files.prompt_before(tokenizer, "document"),
            min(max_length, tokenizer.model_max_length),
        )
        found = tokenize_texts_truncated([before + text for text in texts], tokenizer, limit)
        return [
            {"row_id": i, "input_ids": ids, "text_0": hash_group_value(text.strip())}
            for i, (text, (ids, _)) in enumerate(zip(texts, found, strict=True))
        ]

    def _vectors_of_texts(self, measured: NDArray[np.float64]) -> NDArray[np.float64]:
        vectors, given = self._divide(measured)
        flat = vectors.reshape(-1, vectors.shape[2])
        numbers, place = np.unique(given[:, : vectors.shape[1]], return_index=True)
        # scored pairs have no numbers of texts
        return flat if self._has_scores else flat[place[numbers != several_texts.NO_TEXT]]

    def statistics(self, scores: ScoreColumns, state: ObjectiveState) -> Sums:
        """Of the first row of a query, `_OF_QUERY`; of each row, what its documents change for other queries, (N, 5) each.

        A row that is left out, or drawn again, takes its documents along. The changes have the mean 0: the metrics of rows are those of
        their queries.
        """
        if self._has_scores:
            return {"rows": np.ones(len(scores["given"]))}
        first = np.unique(scores["query"], return_index=True)[1]
        of_queries = np.zeros((len(scores["query"]), len(_OF_QUERY)))
        of_queries[first] = np.stack([scores[name][first] for name in _OF_QUERY], 1)
        changes = center_changes(np.stack([scores[name] for name in _AS_DOCUMENT], 1))
        return {"queries": of_queries, "documents": changes}

    def row_error(self, scores: ScoreColumns) -> NDArray[np.float64]:
        """How far the ranks of cosine and score are from each other; else how far a query is from NDCG 1, and then from its positive."""
        if self._has_scores:
            return rank_distance(scores["predicted"], scores["given"])
        return 1 - scores["ndcg_at_10"] + 1e-3 * (1 - scores["cosine"])

    def own_slices(self) -> Mapping[str, Callable[[Row], str]]:
        return (
            {} if self._has_scores else {"query length": lambda row: name_length(str(row[self.options.anchor_column]))}
        )

    def describe_scores(self, scores: Mapping[str, float], state: ObjectiveState) -> dict[str, str]:
        if self._has_scores:
            return {"expected": f"{scores['given']:g}", "predicted": f"cosine {scores['predicted']:.3f}"}
        return {"predicted": f"NDCG@10 {scores['ndcg_at_10']:.3f}, cosine {scores['cosine']:.3f}"}
