"""evaluate: score the candidate, the model before training and the champion on the same rows, and judge.

    model/, tokens/, rows/ -> evaluation/metrics.json     the metrics of each model, for `dvc metrics`
                              evaluation/details.json     intervals, comparisons, slices, worst rows, calibration
                              evaluation/scores/          the scores of every row by row_id, one file per model
                              evaluation/blessing.json    whether the model may be published, and why
                              evaluation/plots/           for `dvc plots`

The Hub says which model is published. DVC cannot watch that: the blessing therefore names the champion and never comes
from DVC's cache, and the flow evaluates again when another model has been published since.
"""

from __future__ import annotations

import csv
import gc
import logging
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from params import ModelError
from params.foundation.artifacts import Artifacts, replace_folder_atomically
from params.schema import Evaluation, Launch, Model, ObjectiveChoice
from tasks import digests
from tasks.drift.report import ChampionConfidence, DriftReport
from tasks.evaluation import champion, gate
from tasks.evaluation.analysis import ModelAnalyzer
from tasks.evaluation.champion_confidence import measure_confidence, reason_not_comparable
from tasks.evaluation.groups import RowGroups
from tasks.evaluation.reading import CommonText, ModelInputReader
from tasks.evaluation.receipt_log import log_verdict, read_entries
from tasks.evaluation.report import Blessing, Champion, EvaluationReport, RowUse
from tasks.evaluation.row_use import ComparisonId, RowHashes, row_use
from tasks.evaluation.scoring import ScoredModel, ScoredModels, score
from tasks.evaluation.statistics import Resampler
from tasks.hub_client.connection import chosen_endpoint
from tasks.shards.kept_work import ShardWorkers
from tasks.shards.split_rows import SplitRows
from tasks.stages import read_report, save_report
from tasks.validation.report import ValidationReport
from trainer import objectives
from trainer.data import tokens
from trainer.loop.metrics import EvaluationMetrics
from trainer.model.network import load_trained_model, untrained_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from trainer.objectives.bases.objective import Objective

logger = logging.getLogger(__name__)


def evaluate(
    artifacts: Artifacts,
    *,
    seed: int,
    objective: ObjectiveChoice,
    model: Model,
    evaluation: Evaluation,
    repo_id: str,
    endpoint: str,
    launch: Launch,
) -> EvaluationReport:
    """Compute the metrics of the held-out split, and decide whether the model may be published.

    Raises:
        ModelError: a model cannot be loaded, or a score is not finite.
        RecipeError: the gate names a metric that does not exist, or a slice cannot be formed.
        HubRefusedError, TransientError: the Hub does not say which model is published.
        StorageError: the disk is full; the earlier evaluation is unchanged.
    """
    built, state = objectives.build(objective), tokens.read_state(artifacts.tokens)
    settings = evaluation.gate
    resampler = Resampler(
        built, state, resamples=settings.resamples, confidence=settings.comparison_confidence, seed=seed
    )
    releases = digests.release_digests(artifacts)
    weights, data, where = releases["merged"], digests.data_digest(artifacts), chosen_endpoint(endpoint)
    published = champion.fetch(artifacts, repo_id=repo_id, endpoint=endpoint, weights=releases.values())
    is_champion = published.champion is not None and published.champion.weights in releases.values()
    with replace_folder_atomically(artifacts.evaluation) as folder:
        rows = SplitRows(artifacts.rows / evaluation.split)
        scorer = _Scorer(artifacts, objective, model, evaluation, launch, resampler, rows, RowGroups.read(rows), folder)
        scored = scorer.score_all(published, _read_drift(artifacts))
        details = ModelAnalyzer(built, state, evaluation, rows, resampler, scored).details()
        use: RowUse | None = None
        sketch: tuple[str, ...] = ()
        if settings.over == "test_rows" and details.comparisons and not is_champion:
            hashes = RowHashes.read(rows, scored.model.scores.row_ids, built)
            commit = published.champion.commit if published.champion else None
            comparison = ComparisonId(repo_id, where, weights, commit, data, scored.metric)
            use = row_use(settings, hashes, read_entries(artifacts), comparison)
            # When the rows are used up, the model cannot pass, so the comparison spends no error.
            sketch = () if use.is_up else hashes["inputs"].sketch()
        verdict = gate.judge(
            settings,
            scored,
            comparisons=details.comparisons,
            slices=details.slices,
            is_champion=is_champion,
            rolled_back_reason=published.rolled_back_reason,
            row_use=use,
        )
        blessing = Blessing(
            **verdict.model_dump(),
            model=weights,
            releases=tuple(releases.values()),
            data=data,
            recipe=digests.recipe_digest(seed=seed, objective=objective, model=model, evaluation=evaluation),
            champion=published.champion,
        )
        metrics = {name: dict(one.metrics) for name, one in scored}
        report = EvaluationReport(
            split=evaluation.split,
            rows=len(scored.model.scores),
            sequences=scored.model.sequences,
            metric=scored.metric,
            verdict=verdict.verdict,
            model=metrics["model"],
            untrained=metrics.get("untrained"),
            champion=metrics.get("champion"),
            max_length=scored.text.limit if scored.text and not scored.text.is_cut else None,
        )
        _write_plot_data(folder / "plots", metrics)
        save_report(details, folder / artifacts.report("details").name)
        save_report(blessing, folder / artifacts.blessing.name)
        save_report(report, folder / artifacts.report("evaluate").name)
        log_verdict(artifacts, "verdict", blessing, report, repo_id=repo_id, endpoint=where, row_sketch=sketch)
    if scored.confidence:
        logger.info("evaluate: %s", scored.confidence.sentence)
    for reason in verdict.reasons:
        logger.info("evaluate: %s: %s", verdict.verdict, reason)
    return report


def _read_drift(artifacts: Artifacts) -> DriftReport | None:
    return read_report(artifacts, ValidationReport).drift if artifacts.report("validate").exists() else None


@dataclass(frozen=True)
class _Scorer:
    """Scores models on the held-out split, one after another: only one is in memory at a time."""

    artifacts: Artifacts
    choice: ObjectiveChoice
    model: Model
    evaluation: Evaluation
    launch: Launch
    resampler: Resampler
    rows: SplitRows
    groups: RowGroups | None
    folder: Path

    def score_all(self, published: champion.ChampionStatus, drift: DriftReport | None) -> ScoredModels:
        (self.folder / "scores").mkdir()
        objective, state, seed = self.resampler.objective, self.resampler.state, self.resampler.seed
        tokenizer = tokens.read_tokenizer(self.artifacts.tokens)
        metric = self.evaluation.gate.metric or objective.main_metric
        extra = self.evaluation.metrics.directions if self.evaluation.metrics else {}
        directions = {**objective.metrics, **objective.evaluate_only_metrics, **extra}
        own = ModelInputReader(objective, tokenizer, self.artifacts.model, tokenizer.model_max_length, "the candidate")
        other, text = self._read_both(own, published, metric)

        def load_untrained() -> PreTrainedModel:
            return untrained_model(self.model, objective=objective, state=state, tokenizer=tokenizer, seed=seed)

        objective.set_reference(load_untrained)
        sequences = by_itself = self.artifacts.tokens / self.evaluation.split
        if text and text.own:
            sequences, by_itself = text.own, by_itself if text.is_cut else text.own

        def load_model() -> PreTrainedModel:
            return load_trained_model(self.artifacts.model, objective.model_class())

        model = self._score("model", load_model, own, by_itself)
        compared = self._score("compared", load_model, own, sequences).scores if sequences != by_itself else None
        untrained = None
        if self.evaluation.compare_untrained:
            untrained = self._score("untrained", load_untrained, own, by_itself)
        if unused := len(self.rows) - len(model.scores):
            message = "evaluate: %d of %d rows give nothing to score within the limit of tokens, and do not count"
            logger.warning(message, unused, len(self.rows))
        scored_champion = None
        reason = reason_not_comparable(objective, drift, published)
        confidence = ChampionConfidence(reason=reason)
        if other and text and published.champion:
            other.objective.set_reference(load_untrained)
            network = champion.load(other.folder, other.objective, state, published.champion)
            scored_champion = self._score("champion", lambda: network, other, text.champion or sequences)
            if drift and not reason:
                confidence = measure_confidence(
                    network,
                    other.encoder(text.limit, state),
                    drift,
                    scored_champion.scores,
                    train=SplitRows(self.artifacts.rows / "train"),
                    batch_size=self.launch.eval_batch_size,
                    split=self.evaluation.split,
                    seed=seed,
                    folder=self.folder / ".new_rows",
                )
        shutil.rmtree(self.folder / ".texts", ignore_errors=True)
        return ScoredModels(metric, directions, model, untrained, scored_champion, text, confidence, compared)

    def _read_both(
        self, own: ModelInputReader, published: champion.ChampionStatus, metric: str
    ) -> tuple[ModelInputReader | None, CommonText | None]:
        """Return how the champion reads rows, and what both models read of them; None without a champion to compare with."""
        found, folder = published.champion, self.folder / ".texts"
        if not found or not published.folder:
            if published.max_length <= own.max_length:
                return None, None
            # It was judged at a longer limit than that of the recipe, and its release keeps it.
            folder.mkdir()
            encoder = own.encoder(published.max_length, self.resampler.state)
            with ShardWorkers(self.artifacts, "evaluate", self.launch) as workers:
                return None, CommonText(encoder.max_length, own.encode(self.rows, encoder, folder / "own", workers))
        names = set(self.rows.schema.names)
        other = champion.champion_reading(
            published.folder, self.choice, max_length=own.max_length, champion=found, columns=names
        )
        folder.mkdir()
        with ShardWorkers(self.artifacts, "evaluate", self.launch) as workers:
            text = CommonText.find(own, other, self.rows, self.resampler.state, folder=folder, workers=workers)
        if metric in text.incomparable:
            raise self._incomparable(found, metric, own.objective, text)
        if text.limit:
            logger.info("evaluate: candidate and champion are compared on texts of up to %d tokens", text.limit)
        for rows, why in (
            (text.left_out, "are not read as a whole by both"),
            (text.unwritten, "are not said as a whole by both"),
        ):
            if len(rows):
                logger.info("evaluate: %d of %d rows %s, and do not count", len(rows), len(self.rows), why)
        return other, text

    def _incomparable(
        self, published: Champion, metric: str, objective: Objective[Any], text: CommonText
    ) -> ModelError:
        what = f"the champion has another tokenizer or other settings of it, and {metric} cannot be compared between tokenizers"
        if metric in objective.restated:
            share = f"{len(text.unwritten)} of {len(self.rows)} rows"
            what = f"the champion reads rows in another way, and of {share} one of the two does not have to say all, such as upper case"
        known = {**objective.metrics, **objective.evaluate_only_metrics}
        others = [name for name in known if name not in text.incomparable]
        fix = "keep the tokenizer, or publish to another repository (publish.repo_id)"
        if others:
            fix = f"set evaluation.gate.metric to one of {', '.join(others)}, or {fix}"
        return ModelError(f"{published.endpoint}/{published.repo_id}", what, fix)

    def _score(
        self, name: str, load: Callable[[], PreTrainedModel], reading: ModelInputReader, folder: Path
    ) -> ScoredModel:
        """Score one model on the sequences in a folder, which are those that it reads."""
        split, sequences = self.evaluation.split, tokens.Sequences(folder)
        network = load()
        accumulator = EvaluationMetrics(
            reading.objective, state=self.resampler.state, tokenizer=reading.tokenizer, metrics=self.evaluation.metrics
        )
        scores = score(
            network,
            sequences,
            objective=reading.objective,
            metrics=accumulator,
            batch_size=self.launch.eval_batch_size,
            name=name,
            groups=self.groups,
        )
        del network
        gc.collect()
        scores.write(self.folder / "scores" / f"{name}.parquet")
        metrics = accumulator.compute() | self.resampler.metrics(scores)
        if bad := [metric for metric, value in metrics.items() if not math.isfinite(value)]:
            raise ModelError(f"{name} on {split}", f"{', '.join(bad)} is not finite", "fix evaluation.metrics.function")
        values = ", ".join(f"{metric} {value:.4f}" for metric, value in metrics.items())
        logger.info("evaluate: %s on %s: %s", name, split, values)
        return ScoredModel(scores, metrics, len(sequences))


def _write_plot_data(folder: Path, metrics: dict[str, dict[str, float]]) -> None:
    folder.mkdir()
    with (folder / "comparison.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "metric", "value"])
        writer.writerows([name, metric, value] for name, values in metrics.items() for metric, value in values.items())
