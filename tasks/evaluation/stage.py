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
from params.artifacts import Artifacts, whole_folder
from params.schema import Direction, Evaluation, Launch, Model, ObjectiveChoice
from tasks import digests
from tasks.drift.report import ChampionConfidence, DriftReport
from tasks.evaluation import champion, gate
from tasks.evaluation.analysis import Analysis
from tasks.evaluation.champion_confidence import measure_confidence, reason_against
from tasks.evaluation.groups import RowGroups
from tasks.evaluation.receipt_log import log_verdict, read_entries
from tasks.evaluation.report import Blessing, Champion, EvaluationReport, RowUse
from tasks.evaluation.row_use import ComparisonId, RowHashes, row_use
from tasks.evaluation.scoring import ScoredModel, ScoredModels, score
from tasks.evaluation.statistics import Resampler
from tasks.hub_client.connection import chosen_endpoint
from tasks.shard_work import ShardWorkers
from tasks.split_rows import SplitRows
from tasks.stages import read_report, save_report
from tasks.tokenization.encoding import Encoder, encode_splits
from tasks.validation.report import ValidationReport
from trainer import objectives
from trainer.data import tokens
from trainer.loop.metrics import EvaluationMetrics
from trainer.model.network import trained_model, untrained_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from trainer.objectives.bases.objective import Objective, ObjectiveState

logger = logging.getLogger(__name__)
_NO_LIMIT = 1_000_000
"""A tokenizer without a maximum length has a `model_max_length` above this."""


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
    with whole_folder(artifacts.evaluation) as folder:
        rows = SplitRows(artifacts.rows / evaluation.split)
        groups = RowGroups.read(rows)
        scorer = _Scorer(artifacts, built, state, model, evaluation, seed, launch, resampler, rows, groups, folder)
        scored = scorer.score_all(published, _read_drift(artifacts))
        details = Analysis(built, state, evaluation, rows, resampler, scored).details()
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
            sequences=len(tokens.read_split(artifacts.tokens, evaluation.split)),
            metric=scored.metric,
            verdict=verdict.verdict,
            model=metrics["model"],
            untrained=metrics.get("untrained"),
            champion=metrics.get("champion"),
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
    objective: Objective[Any]
    state: ObjectiveState
    model: Model
    evaluation: Evaluation
    seed: int
    launch: Launch
    resampler: Resampler
    rows: SplitRows
    groups: RowGroups | None
    folder: Path

    def score_all(self, published: champion.PublishedModel, drift: DriftReport | None) -> ScoredModels:
        (self.folder / "scores").mkdir()
        tokenizer = tokens.read_tokenizer(self.artifacts.tokens)
        metric = self.evaluation.gate.metric or self.objective.main_metric
        own = self.evaluation.metrics.directions if self.evaluation.metrics else {}
        directions = {**self.objective.metrics, **self.objective.evaluate_only_metrics, **own}

        def load_untrained() -> PreTrainedModel:
            return untrained_model(
                self.model, objective=self.objective, state=self.state, tokenizer=tokenizer, seed=self.seed
            )

        self.objective.set_reference(load_untrained)
        model = self._score(
            "model", lambda: trained_model(self.artifacts.model, self.objective.model_class()), tokenizer
        )
        untrained = None
        if self.evaluation.compare_untrained:
            untrained = self._score("untrained", load_untrained, tokenizer)
        scored_champion, same_tokens = None, True
        reason = reason_against(self.objective, drift, published)
        confidence = ChampionConfidence(reason=reason)
        if published.champion and published.folder:
            network, other_tokenizer = champion.load(published.folder, self.objective, self.state, published.champion)
            same_tokens = champion.reads_alike(other_tokenizer, tokenizer)
            if not same_tokens and metric in self.objective.tokenizer_dependent:
                raise self._incomparable(published.champion, metric, directions)
            encoder = self._encoder(other_tokenizer, tokenizer.model_max_length)
            folder = None if same_tokens else self._encode(encoder)
            scored_champion = self._score("champion", lambda: network, other_tokenizer, folder)
            if folder:
                shutil.rmtree(folder)
            if drift and not reason:
                confidence = measure_confidence(
                    network,
                    encoder,
                    drift,
                    scored_champion.scores,
                    train=SplitRows(self.artifacts.rows / "train"),
                    batch_size=self.launch.eval_batch_size,
                    split=self.evaluation.split,
                    seed=self.seed,
                    folder=self.folder / ".new_rows",
                )
        return ScoredModels(metric, directions, model, untrained, scored_champion, same_tokens, confidence)

    def _incomparable(self, published: Champion, metric: str, directions: dict[str, Direction]) -> ModelError:
        others = sorted(self.objective.tokenizer_dependent)
        what = f"the champion has another tokenizer, and {metric} cannot be compared between tokenizers"
        fix = f"set evaluation.gate.metric to another metric than {', '.join(others)}"
        if len(others) == len(directions):
            fix = "keep the tokenizer, or publish to another repository (publish.repo_id)"
        return ModelError(f"{published.endpoint}/{published.repo_id}", what, fix)

    def _encoder(self, tokenizer: PreTrainedTokenizerBase, default_length: int) -> Encoder:
        """Return what encodes rows with the champion's tokenizer."""
        length = tokenizer.model_max_length
        return Encoder(self.objective, tokenizer, length if length < _NO_LIMIT else default_length, self.state)

    def _encode(self, encoder: Encoder) -> Path:
        """Encode the split with the champion's tokenizer, and return the folder of the tokens."""
        folder = self.folder / ".champion_tokens"
        folder.mkdir()
        split = self.evaluation.split
        with ShardWorkers(self.artifacts, "evaluate", self.launch) as workers:
            done = encode_splits({split: self.rows}, folder, encoder, workers)
        encoded = done[split].statistics
        message = "evaluate: the champion's tokenizer gives %d sequences; %d rows are truncated and %d unused"
        logger.info(message, encoded.sequences, encoded.truncated_rows, encoded.unused_rows)
        return folder

    def _score(
        self,
        name: str,
        load: Callable[[], PreTrainedModel],
        tokenizer: PreTrainedTokenizerBase,
        folder: Path | None = None,
    ) -> ScoredModel:
        """Score one model; `folder` holds the split's tokens, by default those of the tokenize stage."""
        split = self.evaluation.split
        network = load()
        accumulator = EvaluationMetrics(
            self.objective, state=self.state, tokenizer=tokenizer, metrics=self.evaluation.metrics
        )
        scores = score(
            network,
            tokens.read_split(folder or self.artifacts.tokens, split),
            objective=self.objective,
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
        return ScoredModel(scores, metrics)


def _write_plot_data(folder: Path, metrics: dict[str, dict[str, float]]) -> None:
    folder.mkdir()
    with (folder / "comparison.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "metric", "value"])
        writer.writerows([name, metric, value] for name, values in metrics.items() for metric, value in values.items())
