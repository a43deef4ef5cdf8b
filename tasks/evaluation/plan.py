"""What an evaluation does, decided before a model is loaded: which models, which rows up to which limits, and what is compared."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from params import ModelError
from params.foundation.artifacts import Artifacts
from params.schema import Launch, Model, ObjectiveChoice
from params.sections.base import Direction
from params.sections.evaluation import Evaluation
from tasks.evaluation import champion
from tasks.evaluation.copies import group_with_copies
from tasks.evaluation.reading import ComparableInputs, ModelTokenization
from tasks.evaluation.scoring import RowGroups
from tasks.evaluation.statistics import Resampler
from tasks.known_rows.rows import ComparedColumns
from tasks.lineage.ancestors import read_start_of_training
from tasks.lineage.learned_rows import HeldOutRows, LearnedRows, list_unknown, rows_before_training, rows_of_release
from tasks.shards.kept_work import ShardWorkers
from tasks.shards.split_rows import SplitRows
from tasks.stages import read_report
from tasks.tokenization.encoding import find_documents
from tasks.tokenization.report import TokenizationReport
from trainer import objectives
from trainer.data import tokens
from trainer.loop.own_metric_names import refuse_metrics_computed_twice
from trainer.model.network import build_untrained_model, load_trained_model
from trainer.objectives.bases.lazy_imports import PreTrainedModel
from trainer.objectives.bases.metrics.metric import directions
from trainer.objectives.bases.objective import Example, Objective, ObjectiveState
from trainer.start import ReleaseReference

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlannedModel:
    name: str
    """`model`, `untrained` or `champion`; `compared`: the candidate on the text that the champion can read, too, if that is less
    than it reads by itself.
    """
    load: Callable[[], PreTrainedModel]
    reader: ModelTokenization
    sequences: Path
    """The rows as it reads them."""

    def documents(self, texts: Sequence[str]) -> list[Example]:
        """Return the documents of a corpus as the model reads them, the longest first."""
        objective, limit = self.reader.objective, self.reader.max_length
        if not texts or objective.vector_space is None:
            return []
        found = objective.vector_space.encode_documents(texts, self.reader.tokenizer, limit)
        return sorted(found, key=objective.length, reverse=True)


@dataclass(frozen=True)
class EvaluationPlan:
    settings: Evaluation
    objective_name: str
    resampler: Resampler
    """With the objective and what it learned."""
    batch_size: int
    batch_tokens: int
    """Most tokens of a batch: those of `batch_size` sequences as long as in training, which fit into memory."""
    metric: str
    """The metric that decides."""
    directions: Mapping[str, Direction]
    """Whether the smallest or the largest value of each metric is best."""
    rows: SplitRows
    train: Path
    """The sequences of the train split."""
    validation: Path
    """Those of the validation split, as training reads them."""
    features: Path
    """What an earlier run made of them for the review of labels."""
    groups: RowGroups | None
    """Rows that are one observation: those of a group (`data.group_by`), and equal ones."""
    copies: int
    """How many rows of the split are equal to an earlier one of it."""
    models: tuple[PlannedModel, ...]
    """In this order, the candidate first."""
    load_untrained: Callable[[], PreTrainedModel]
    documents: list[str]
    """Those of `data.corpus`; empty without one."""
    text: ComparableInputs
    """What candidate and champion both read."""
    learned: Mapping[str, NDArray[np.int64]]
    """By the name of each model, the row_ids that do not count for it: it has learned from them, itself or through what it started from.
    Those of the champion do not count for the comparison, so they have the candidate's, too. `other_rows` is the candidate with the inputs of others.
    """
    learned_by_candidate: int
    """How many rows the candidate has learned from through what it started from. Those that only the champion knows do not count for an
    objective that looks at several rows at once, either."""
    learned_validation: int
    """Rows of the validation split that the candidate has learned from through what it started from."""
    unknown: tuple[str, ...]
    """Why it may have learned from others: what the candidate started from does not say it."""
    known_until: str
    """The time of the newest row that what the candidate started from has learned from; empty if its rows had no times."""
    artifacts: Artifacts
    published: champion.ChampionStatus

    @property
    def compared_length(self) -> int | None:
        """Most tokens of a text that the candidate reads, if the champion has a say in it."""
        return None if self.text.is_cut else self.text.limit

    @property
    def compares_with_champion(self) -> bool:
        """Whether there are rows that the champion has not learned from, if there is a champion."""
        return len(self.learned.get("champion", ())) < len(self.rows)

    def can_compare(self, metric: str) -> bool:
        """Whether a metric can be compared with the champion's."""
        return metric not in self.text.incomparable


def plan_evaluation_and_encode(
    artifacts: Artifacts,
    *,
    seed: int,
    objective: ObjectiveChoice,
    model: Model,
    evaluation: Evaluation,
    launch: Launch,
    published: champion.ChampionStatus,
    folder: Path,
) -> EvaluationPlan:
    """Decide what is scored and compared; rows that are to be encoded once more go into `folder`.

    Raises:
        ModelError: candidate and champion cannot be compared.
        RecipeError: one of the recipe's own metrics is one of the objective's.
    """
    built, state = objectives.build_objective(objective), tokens.read_objective_state(artifacts.tokens)
    refuse_metrics_computed_twice(evaluation.metrics, built)
    learned, gate = read_report(artifacts, TokenizationReport), evaluation.gate
    metric = gate.metric or built.main_metric
    extra = evaluation.metrics.directions if evaluation.metrics else {}
    rows = SplitRows(artifacts.rows / evaluation.split)
    own = ModelTokenization.of_candidate(artifacts, built)
    held_out = HeldOutRows(rows, ComparedColumns.of(rows, built, ()))
    groups, copies = group_with_copies(rows, built)
    with ShardWorkers(artifacts, "evaluate", launch) as workers:
        encoding = _Encoding(rows, state, folder, workers)
        by_itself = artifacts.tokens / evaluation.split
        if own.max_length != learned.max_length and not learned.splits[evaluation.split].is_whole:
            by_itself = encoding.encode(own, None, "released")
        other = _read_champion(published, objective, own, rows)
        text = encoding.compare(own, other, published)
    if published.champion and other:
        _check_comparable(text, metric, own, published.champion, len(rows))
    before = held_out.without_times_of_other_data(rows_before_training(artifacts, model, held_out.columns))
    learned_before = held_out.learned_by(before)
    _check_rows_are_left(artifacts, held_out, learned_before)
    left_out = _find_learned_rows(before, learned_before, built, held_out, published)
    has_rows = len(left_out.get("champion", ())) < len(rows)
    load_untrained = partial(
        build_untrained_model, model, objective=built, state=state, tokenizer=own.tokenizer, seed=seed
    )
    models = _list_own_models(
        own,
        text,
        by_itself,
        load_model=partial(load_trained_model, artifacts.model, built.model_class()),
        load_untrained=load_untrained if evaluation.compare_untrained else None,
    )
    if published.champion and other and has_rows:
        network = partial(champion.load_champion, other.folder, other.objective, state, published.champion)
        models.append(PlannedModel("champion", network, other, text.champion or text.own or by_itself))
    for one in models:
        one.reader.objective.set_reference(load_untrained)
    return EvaluationPlan(
        settings=evaluation,
        objective_name=objective.name,
        resampler=Resampler(built, state, resamples=gate.resamples, confidence=gate.comparison_confidence, seed=seed),
        batch_size=launch.eval_batch_size,
        batch_tokens=launch.eval_batch_size * learned.max_length,
        metric=metric,
        directions={**directions(built.metrics), **extra},
        rows=rows,
        train=artifacts.tokens / "train",
        validation=artifacts.tokens / "validation",
        features=artifacts.features,
        groups=groups,
        copies=copies,
        models=tuple(models),
        load_untrained=load_untrained,
        documents=_read_documents(artifacts, built),
        text=text,
        learned=left_out,
        learned_by_candidate=len(learned_before),
        learned_validation=_count_learned_validation_rows(artifacts, before, held_out.columns),
        unknown=list_unknown(before),
        known_until=max((one.until for one in before), default=""),
        artifacts=artifacts,
        published=published,
    )


@dataclass(frozen=True)
class _Encoding:
    """The rows of the split, and where they are encoded once more."""

    rows: SplitRows
    state: ObjectiveState
    folder: Path
    workers: ShardWorkers

    def encode(self, own: ModelTokenization, limit: int | None, name: str) -> Path:
        return own.encode(self.rows, own.encoder(limit, self.state), self.folder / name, self.workers)

    def compare(
        self, own: ModelTokenization, other: ModelTokenization | None, published: champion.ChampionStatus
    ) -> ComparableInputs:
        """Return what candidate and champion both read; without one, what the candidate's release keeps reading."""
        if other:
            return ComparableInputs.find(own, other, self.rows, self.state, folder=self.folder, workers=self.workers)
        if published.max_length <= own.max_length:
            return ComparableInputs()
        # It was judged at a longer limit than that of the recipe, and its release keeps it.
        limit = own.encoder(published.max_length, self.state).max_length
        return ComparableInputs(limit, self.encode(own, published.max_length, "own"))


def _read_champion(
    published: champion.ChampionStatus, objective: ObjectiveChoice, own: ModelTokenization, rows: SplitRows
) -> ModelTokenization | None:
    """Return how the champion reads rows; None if there is none, or it is the candidate."""
    if not (published.champion and published.folder):
        return None
    settings: Any = {"max_length": own.max_length, "champion": published.champion, "columns": rows.schema.names}
    return champion.build_champion_reader(published.folder, objective, **settings)


def _list_own_models(
    own: ModelTokenization,
    text: ComparableInputs,
    by_itself: Path,
    *,
    load_model: Callable[[], PreTrainedModel],
    load_untrained: Callable[[], PreTrainedModel] | None,
) -> list[PlannedModel]:
    """Return the candidate, once more where it is compared on other text than it reads by itself, and the untrained model if it is asked for."""
    sequences = text.own or by_itself
    if not text.is_cut:
        by_itself = sequences
    models = [PlannedModel("model", load_model, own, by_itself)]
    if sequences != by_itself:
        models.append(PlannedModel("compared", load_model, own, sequences))
    if load_untrained:
        models.append(PlannedModel("untrained", load_untrained, own, by_itself))
    return models


def _read_documents(artifacts: Artifacts, built: Objective[Any]) -> list[str]:
    """Return the documents of `data.corpus`, in the order of the rows; none without one."""
    found = find_documents(artifacts.rows, built)
    if not (found and built.vector_space):
        return []
    column = str(built.vector_space.document_column)
    return [str(row[column]) for row in found.rows([column])]


def _check_rows_are_left(artifacts: Artifacts, held_out: HeldOutRows, learned_before: NDArray[np.int64]) -> None:
    """Raise a ModelError if the candidate has learned from all held-out rows; log how many there are."""
    every = len(held_out.rows)
    if every and len(learned_before) == every:
        start = read_start_of_training(artifacts)
        through = f"the release that its training started from, {start.name}," if start else "its base model"
        what = f"no held-out row is left to judge the model on: {through} has learned from all {every}"
        fix = "hold out newer rows, or keep `seed` and `data.split` as they were; or set model.start: base for one run"
        raise ModelError(str(held_out.rows.folder), what, fix)
    if len(learned_before):
        told = "evaluate: %d of %d rows do not count: the candidate has learned from them through what it started from"
        logger.info(told, len(learned_before), every)


def _find_learned_rows(
    before: Sequence[LearnedRows],
    learned_before: NDArray[np.int64],
    built: Objective[Any],
    held_out: HeldOutRows,
    published: champion.ChampionStatus,
) -> dict[str, NDArray[np.int64]]:
    """Return which rows do not count for each model, by its name.

    `before` are what the candidate had learned from before its training, and `learned_before` the held-out rows among these.
    """
    every = len(held_out.rows)
    found = dict.fromkeys(("model", "compared", "untrained", "other_rows"), learned_before)
    if published.champion and published.folder:
        release = rows_of_release(published.folder, published.champion.name, held_out.columns)
        theirs = held_out.learned_by([*before, release])
        for reason in release.unknown:
            logger.info("evaluate: it is not known of all rows whether the champion has learned from them: %s", reason)
        if len(theirs):
            told = "evaluate: %d of %d rows do not count in the comparison: one of the two has learned from them"
            logger.info(told, len(theirs), every)
        found["champion"] = theirs
        looks_at_others = bool(built.group_score) or objectives.overrides_method(built, "scores_of_split")
        if looks_at_others and len(theirs) < every:  # the others must be the same for both
            found = dict.fromkeys(found, theirs)
    return found


def _count_learned_validation_rows(
    artifacts: Artifacts, before: Sequence[LearnedRows], columns: ComparedColumns
) -> int:
    """Return how many rows that chose the best step the candidate knows through what it started from, and log it."""
    validation = SplitRows(artifacts.rows / "validation")
    found = len(HeldOutRows(validation, columns).learned_by(before))
    if found:
        told = "evaluate: the candidate has learned from %d of %d validation rows, which chose its best step, through what it started from"
        logger.warning(told, found, len(validation))
    return found


def _check_comparable(
    text: ComparableInputs, metric: str, own: ModelTokenization, published: ReleaseReference, rows: int
) -> None:
    """Refuse a metric that cannot be compared with the champion's, and log what is compared."""
    if metric in text.incomparable:
        what = f"the champion has another tokenizer or other settings of it, and {metric} cannot be compared between tokenizers"
        if own.objective.metrics[metric].restated:
            share = f"{len(text.unwritten)} of {rows} rows"
            what = f"the champion reads rows in another way, and of {share} one of the two does not have to say all, such as upper case"
        known = directions(own.objective.metrics)
        fix = "keep the tokenizer, or publish to another repository (publish.repo_id)"
        if others := ", ".join(name for name in known if name not in text.incomparable):
            fix = f"set evaluation.gate.metric to one of {others}, or {fix}"
        raise ModelError(published.where, what, fix)
    if text.limit:
        logger.info("evaluate: candidate and champion are compared on texts of up to %d tokens", text.limit)
    for ids, how in ((text.left_out, "read"), (text.unwritten, "said")):
        if len(ids):
            logger.info("evaluate: %d of %d rows are not %s as a whole by both, and do not count", len(ids), rows, how)
