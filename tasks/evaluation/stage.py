"""evaluate: score the candidate, the model before training and the champion on the same rows, and judge.

    model/, tokens/, rows/ -> evaluation/metrics.json     the metrics of each model, for `dvc metrics`
                              evaluation/details.json     intervals, comparisons, slices, worst rows, calibration
                              evaluation/scores/          the scores of every row by row_id, one file per model
                              evaluation/blessing.json    whether the model may be published, and why
                              evaluation/plots/           for `dvc plots`
                              review.csv                  rows whose labels people should look at

The Hub says which model is published. DVC cannot watch that: the blessing therefore names the champion and never comes
from DVC's cache, and the flow evaluates again when another model has been published since.
"""

from __future__ import annotations

import csv
import gc
import json
import logging
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from params import ModelError
from params.foundation.artifacts import Artifacts, replace_folder_atomically
from params.schema import Launch, Model, ObjectiveChoice
from params.sections.evaluation import Evaluation
from tasks import digests
from tasks.evaluation import champion, gate
from tasks.evaluation.analysis import EvaluationAnalysis
from tasks.evaluation.plan import EvaluationPlan, plan_evaluation_and_encode
from tasks.evaluation.report import Blessing, EvaluationDetails, EvaluationReport, HeldOutRowUse
from tasks.evaluation.row_use import ComparisonId, hash_rows_of_split, make_row_sketch, measure_row_use
from tasks.evaluation.scoring import ScoredModel, score_rows, without_rows
from tasks.evaluation.settings_of_untrained import choose_settings
from tasks.evaluation.verdict_log import log_verdict
from tasks.hub_client.connection import resolve_hub_endpoint
from tasks.hub_client.repository_name import RepositoryName, name_repository
from tasks.lineage.ancestors import read_start_of_training
from tasks.measurement import Measurement, list_measurements, rows_judged
from tasks.release_log.events import Verdict, read_release_events_of_project
from tasks.stages import log_reasons, save_report
from trainer.data.tokens import Sequences
from trainer.loop.metrics import EvaluationMetrics
from trainer.start import ReleaseReference

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
    releases, data = digests.weights_digest_by_form(artifacts), digests.validated_rows_digest(artifacts)
    where = resolve_hub_endpoint(endpoint)
    published = champion.fetch_champion(artifacts, repo_id=repo_id, endpoint=endpoint, weights=releases.values())
    is_champion = published.champion is not None and published.champion.weights in releases.values()
    has_champion = published.champion is not None and not is_champion
    measurements = list_measurements()
    with replace_folder_atomically(artifacts.evaluation) as folder:
        plan = plan_evaluation_and_encode(
            artifacts,
            seed=seed,
            objective=objective,
            model=model,
            evaluation=evaluation,
            launch=launch,
            published=published,
            folder=folder / ".texts",
        )
        scored = score_models_and_write(plan, measurements, folder)
        shutil.rmtree(folder / ".texts", ignore_errors=True)
        details = _measure(EvaluationAnalysis(plan, scored), measurements)
        is_compared = evaluation.compare_untrained or published.champion is not None
        start = _find_best_start(artifacts, published.champion) if is_compared else None
        use: HeldOutRowUse | None = None
        sketch: tuple[str, ...] = ()
        if details.comparisons and not (is_champion or start):
            own = (name_repository(where, repo_id), releases["merged"])
            use, sketch = _find_row_use(artifacts, plan, scored["model"], own, data)
        judged = gate.JudgedModel(
            metric=plan.metric,
            metrics=scored["model"].metrics,
            has_champion=has_champion,
            is_champion=is_champion,
            rolled_back=published.rolled_back_reason,
            distrusted_ancestor=published.distrusted_ancestor,
            best_start=start,
            row_use=use,
        )
        verdict, reasons = gate.judge_candidate(evaluation.gate, judged, details)
        reasons += [
            f"it is not known of all held-out rows whether the model has learned from them: {why}"
            for why in plan.unknown
        ]
        blessing = Blessing(
            verdict=verdict,
            reasons=tuple(reasons),
            metric=plan.metric,
            first_release=not is_champion and not has_champion,
            confidence=evaluation.gate.comparison_confidence,
            row_use=use,
            model=releases["merged"],
            releases=tuple(releases.values()),
            data=data,
            recipe=digests.evaluation_recipe_digest(seed=seed, objective=objective, model=model, evaluation=evaluation),
            champion=published.champion,
            **rows_judged(details, measurements),
        )
        report = _report_metrics(plan, scored, verdict)
        _write_comparison_plot(scored, folder / "plots")
        save_report(details, folder / artifacts.report("details").name)
        save_report(blessing, folder / artifacts.blessing.name)
        save_report(report, folder / artifacts.report("evaluate").name)
        log_verdict(artifacts, "verdict", blessing, report, repo_id=repo_id, endpoint=where, row_sketch=sketch)
    _finish(artifacts, measurements, details)
    log_reasons(logger, "evaluate", verdict, reasons)
    return report


def _measure(analysis: EvaluationAnalysis, measurements: Sequence[Measurement[Any]]) -> EvaluationDetails:
    """Return what follows from the scores, and what else was measured."""
    details = analysis.details()
    for one in measurements:
        finding = one.measure(analysis, details)
        if finding is not None:
            details = details.with_findings(finding)
    return details


def _finish(artifacts: Artifacts, measurements: Sequence[Measurement[Any]], details: EvaluationDetails) -> None:
    """Write what measurements leave beside the folder of the evaluation, and log what they say."""
    for one in measurements:
        one.finish(artifacts, details.findings(one.kind))
    for one in measurements:
        for sentence in one.sentences(details.findings(one.kind)):
            logger.info("evaluate: %s", sentence)


def _find_row_use(
    artifacts: Artifacts, plan: EvaluationPlan, model: ScoredModel, own: tuple[RepositoryName, str], data: str
) -> tuple[HeldOutRowUse | None, tuple[str, ...]]:
    """Return how often earlier comparisons used the held-out rows, and the sketch of those that this one uses; nothing if nobody asks.

    `own` are the repository and the weights of the candidate, `data` is the digest of the rows.
    """
    if plan.settings.gate.over != "test_rows":
        return None, ()
    champion = plan.published.champion
    comparison = ComparisonId(*own, champion.commit if champion else None, data, plan.metric)
    hashes = hash_rows_of_split(plan.rows, model.scores.row_ids, plan.resampler.objective)
    use = measure_row_use(plan.settings.gate, hashes, read_release_events_of_project(artifacts), comparison)
    # When the rows are used up, the model cannot pass, so the comparison spends no error.
    return use, () if use.is_up else make_row_sketch(hashes["words"])


def _report_metrics(plan: EvaluationPlan, scored: Mapping[str, ScoredModel], verdict: Verdict) -> EvaluationReport:
    metrics = {name: dict(one.metrics) for name, one in scored.items()}
    return EvaluationReport(
        split=plan.settings.split,
        rows=len(scored["model"].scores),
        champion_rows=len(scored["champion"].scores) if "champion" in scored else None,
        learned=plan.learned_by_candidate,
        learned_by_champion_alone=len(plan.learned["model"]) - plan.learned_by_candidate,
        learned_validation=plan.learned_validation,
        unknown=list(plan.unknown),
        known_until=plan.known_until,
        sequences=scored["model"].sequences,
        metric=plan.metric,
        verdict=verdict,
        model=metrics["model"],
        untrained=metrics.get("untrained"),
        champion=metrics.get("champion"),
        max_length=plan.compared_length,
        judged_length=plan.compared_length or plan.models[0].reader.max_length,
    )


def _write_comparison_plot(scored: Mapping[str, ScoredModel], folder: Path) -> None:
    """Write the values of all metrics and models, for `dvc plots`."""
    folder.mkdir()
    with (folder / "comparison.csv").open("w", newline="", encoding="utf-8") as file:
        values = csv.writer(file)
        values.writerow(["model", "metric", "value"])
        for model, one in scored.items():
            if model != "compared":
                values.writerows([model, metric, value] for metric, value in one.metrics.items())


def _find_best_start(artifacts: Artifacts, champion: ReleaseReference | None) -> gate.BestStart | None:
    """Return what the training started from if no step of it was better.

    By its weights it may be another model than its start: a head that has grown, thresholds that were chosen.
    """
    path = artifacts.report("train")
    trained = json.loads(path.read_bytes()) if path.exists() else None
    if not trained or trained["best_step"]:
        return None
    release = read_start_of_training(artifacts)
    is_champion = bool(release and champion and release.commit == champion.commit)
    name = "the model before training"
    if release:
        name = f"the published model, {release.name}" if is_champion else f"the earlier release {release.name}"
    return gate.BestStart(name, is_champion, str(trained.get("best_metric", "best_metric")))


def score_models_and_write(
    plan: EvaluationPlan, measurements: Sequence[Measurement[Any]], folder: Path
) -> dict[str, ScoredModel]:
    """Score the models of a plan one after another, so that only one is in memory at a time, and write their scores."""
    split, resampler, scored = plan.settings.split, plan.resampler, dict[str, ScoredModel]()
    (folder / "scores").mkdir()
    for one in plan.models:
        sequences, network = without_rows(Sequences(one.sequences), plan.learned[one.name]), one.load()
        objective, tokenizer, own = one.reader.objective, one.reader.tokenizer, plan.settings.metrics
        accumulator = EvaluationMetrics(objective, state=resampler.state, tokenizer=tokenizer, metrics=own)
        if one.name == "untrained":
            choose_settings(plan, network, one)
        scores = score_rows(
            network,
            sequences,
            metrics=accumulator,
            batch_size=plan.batch_size,
            batch_tokens=plan.batch_tokens,
            name=one.name,
            groups=plan.groups,
            documents=one.documents(plan.documents),
        )
        for measurement in measurements:
            measurement.look(plan, one, network, scores)
        del network
        gc.collect()
        scores.write(folder / "scores" / f"{one.name}.parquet")
        metrics = accumulator.compute() | resampler.metrics(scores)
        if bad := [metric for metric, value in metrics.items() if not math.isfinite(value)]:
            what = f"{', '.join(bad)} is not finite"
            raise ModelError(f"{one.name} on {split}", what, "fix evaluation.metrics.function")
        values = ", ".join(f"{metric} {value:.4f}" for metric, value in metrics.items())
        logger.info("evaluate: %s on %d rows of %s: %s", one.name, len(scores), split, values)
        scored[one.name] = ScoredModel(scores, metrics, len(sequences))
    if unused := len(plan.rows) - len(plan.learned["model"]) - len(scored["model"].scores):
        message = "evaluate: %d of %d rows give nothing to score within the limit of tokens, and do not count"
        logger.warning(message, unused, len(plan.rows))
    return scored
