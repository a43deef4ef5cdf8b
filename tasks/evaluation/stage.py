"""evaluate: score the model, the model before training and the published one on the same rows, and judge.

    model/, tokens/, rows/ -> evaluation/metrics.json     the figures of each, for `dvc metrics`
                              evaluation/details.json     intervals, comparisons, slices, the worst rows, calibration
                              evaluation/scores/          the scores of every row by row_id, one file a model
                              evaluation/blessing.json    may the model be published, and why (tasks.evaluation.gate)
                              evaluation/plots/           for `dvc plots`

Which model is published, the Hub says. DVC cannot watch that, so the blessing names it, is never taken from DVC's cache, and
the flow has it renewed when another model has been published since.
"""

from __future__ import annotations

import csv
import gc
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from params import ModelError
from params.artifacts import Artifacts, whole_folder
from params.schema import Direction, Evaluation, Launch, Model, ObjectiveChoice
from tasks import digests
from tasks.evaluation import champion, gate
from tasks.evaluation.analysis import Assessment
from tasks.evaluation.gate import Champion
from tasks.evaluation.scoring import Scores, score
from tasks.evaluation.statistics import Resampler
from tasks.stages import Report, save_report
from tasks.tokenization.encoding import Encoder, encode_split
from trainer import objectives
from trainer.data import tokens
from trainer.loop.metrics import Figures
from trainer.model.network import trained_model, untrained_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from trainer.objectives.bases.objective import Objective, State

logger = logging.getLogger(__name__)
_ENDLESS = 1_000_000
"""A tokenizer without a longest sequence says so with a number above this."""


class EvaluationReport(Report):
    """Figures of the held-out split."""

    saved_as: ClassVar[str] = "evaluate"
    split: str
    rows: int
    sequences: int
    metric: str
    """The one that decides."""
    verdict: str
    model: dict[str, float]
    """Of the best weights that training reached."""
    untrained: dict[str, float] | None
    """Of the model before training, on the same rows."""
    champion: dict[str, float] | None
    """Of the published model, on the same rows."""


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
    """Compute the figures of the held-out split, and whether the model may be published.

    Raises:
        ModelError: a model cannot be loaded, or a score is not finite.
        RecipeError: the gate or a slice asks for what there is not.
        HubRefusedError, TransientError: the Hub does not say what is published.
        StorageError: the disk is full; the earlier evaluation is as it was.
    """
    learned = objectives.build(objective)
    weights = digests.model_digest(artifacts)
    published = champion.fetch(artifacts, repo_id=repo_id, endpoint=endpoint, weights=weights)
    with whole_folder(artifacts.evaluation) as folder:
        bench = _Bench(artifacts, learned, model, evaluation, seed, launch.eval_batch_size, folder / "scores")
        bench.score_all(published)
        metric = evaluation.gate.metric or learned.main_metric
        details = Assessment(
            objective=learned,
            state=bench.state,
            evaluation=evaluation,
            rows=artifacts.rows / f"{evaluation.split}.parquet",
            resampler=bench.resampler,
            scores=bench.scores,
            known=bench.figures["model"],
            directions=bench.directions,
            reads_alike=bench.reads_alike,
        ).details(metric)
        verdict = gate.judge(
            evaluation.gate,
            metric=metric,
            directions=details.directions,
            figures=bench.figures["model"],
            comparisons=details.comparisons,
            parts=details.slices,
            has_champion=published.champion is not None,
            is_champion=published.champion is not None and published.champion.weights == weights,
            rolled_back_reason=published.rolled_back_reason,
        )
        blessing = gate.Blessing(
            **verdict.model_dump(),
            model=weights,
            data=digests.data_digest(artifacts),
            recipe=digests.recipe_digest(seed=seed, objective=objective, model=model, evaluation=evaluation),
            champion=published.champion,
        )
        report = EvaluationReport(
            split=evaluation.split,
            rows=len(bench.scores["model"]),
            sequences=len(tokens.read_split(artifacts.tokens, evaluation.split)),
            metric=metric,
            verdict=verdict.verdict,
            model=bench.figures["model"],
            untrained=bench.figures.get("untrained"),
            champion=bench.figures.get("champion"),
        )
        _write_comparison(folder / "plots", bench.figures)
        save_report(details, folder / "details.json")
        save_report(blessing, folder / artifacts.blessing.name)
        save_report(report, folder / artifacts.report("evaluate").name)
    for reason in verdict.reasons:
        logger.info("evaluate: %s: %s", verdict.verdict, reason)
    return report


@dataclass
class _Bench:
    """The models that are compared, and what came of each."""

    artifacts: Artifacts
    objective: Objective[Any]
    model: Model
    evaluation: Evaluation
    seed: int
    batch_size: int
    folder: Path
    scores: dict[str, Scores] = field(default_factory=dict)
    figures: dict[str, dict[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state: State = tokens.read_state(self.artifacts.tokens)
        self.tokenizer = tokens.read_tokenizer(self.artifacts.tokens)
        own = self.evaluation.metrics.directions if self.evaluation.metrics else {}
        self.directions: dict[str, Direction] = {
            **self.objective.metrics,
            **self.objective.evaluate_only_metrics,
            **own,
        }
        self.resampler = Resampler(
            self.objective,
            self.state,
            resamples=self.evaluation.gate.resamples,
            confidence=self.evaluation.gate.confidence,
            seed=self.seed,
        )
        self.reads_alike = True

    def score_all(self, published: champion.PublishedModel) -> None:
        """Score the models one after another; only one is in memory at a time."""
        self.folder.mkdir()
        self.objective.set_reference(self._untrained)
        self._score("model", lambda: trained_model(self.artifacts.model, self.objective), self.tokenizer)
        if self.evaluation.compare_untrained:
            self._score("untrained", self._untrained, self.tokenizer)
        if published.champion and published.folder:
            self._score_champion(published.champion, published.folder)

    def _untrained(self) -> PreTrainedModel:
        return untrained_model(
            self.model, objective=self.objective, state=self.state, tokenizer=self.tokenizer, seed=self.seed
        )

    def _score_champion(self, champ: Champion, folder: Path) -> None:
        """Score the champion on the same rows, read by its own tokenizer."""
        network, tokenizer = champion.load(folder, self.objective, self.state, champ)
        self.reads_alike = champion.reads_alike(tokenizer, self.tokenizer)
        if not self.reads_alike:
            self._refuse_per_token(champ)
        self._score("champion", lambda: network, tokenizer)

    def _refuse_per_token(self, champ: Champion) -> None:
        metric = self.evaluation.gate.metric or self.objective.main_metric
        if metric in self.objective.tokenizer_dependent:
            what = f"the champion has another tokenizer, and {metric} does not compare between tokenizers"
            fix = f"set evaluation.gate.metric to another than {', '.join(sorted(self.objective.tokenizer_dependent))}"
            if len(self.objective.tokenizer_dependent) == len(self.directions):
                fix = "keep the tokenizer, or publish to another repository (publish.repo_id)"
            raise ModelError(f"{champ.endpoint}/{champ.repo_id}", what, fix)

    def _score(self, name: str, load: Callable[[], PreTrainedModel], tokenizer: PreTrainedTokenizerBase) -> None:
        split = self.evaluation.split
        target = self.folder / f".{name}.arrow"
        if tokenizer is self.tokenizer or self.reads_alike:
            sequences = tokens.read_split(self.artifacts.tokens, split)
        else:
            longest = min(tokenizer.model_max_length, _ENDLESS)
            longest = self.tokenizer.model_max_length if longest == _ENDLESS else longest
            encode_split(self.artifacts, split, target, Encoder(self.objective, tokenizer, longest, self.state))
            sequences = tokens.read_split(self.folder, target.stem)
        network = load()
        counted = Figures(self.objective, state=self.state, tokenizer=tokenizer, metrics=self.evaluation.metrics)
        scores = score(
            network,
            sequences,
            objective=self.objective,
            figures=counted,
            batch_size=self.batch_size,
            what=name,
        )
        del network
        gc.collect()
        target.unlink(missing_ok=True)
        scores.write(self.folder / f"{name}.parquet")
        self.scores[name] = scores
        self.figures[name] = counted.compute() | self.resampler.figures(scores)
        if bad := [metric for metric, value in self.figures[name].items() if not math.isfinite(value)]:
            raise ModelError(f"{name} on {split}", f"{', '.join(bad)} not finite", "mend evaluation.metrics.function")
        told = ", ".join(f"{metric} {value:.4f}" for metric, value in self.figures[name].items())
        logger.info("evaluate: %s on %s: %s", name, split, told)


def _write_comparison(folder: Path, figures: dict[str, dict[str, float]]) -> None:
    folder.mkdir()
    with (folder / "comparison.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "metric", "value"])
        writer.writerows([name, metric, value] for name, values in figures.items() for metric, value in values.items())
