"""evaluate: score the model, the model before training and the published one on the same rows, and judge.

    model/, tokens/, rows/ -> evaluation/metrics.json     the figures of each, for `dvc metrics`
                              evaluation/details.json     intervals, comparisons, slices, the worst rows, calibration
                              evaluation/scores/          the scores of every row by row_id, one file a model
                              evaluation/blessing.json    may the model be published, and why (tasks.gate)
                              evaluation/plots/           for `dvc plots`

Which model is published, the Hub says. DVC cannot watch that, so the blessing names it, is never taken from DVC's cache, and
the flow has it renewed when another model has been published since.
"""

from __future__ import annotations

import csv
import gc
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import binomtest, norm

from params import ModelError, RecipeError
from params.artifacts import Artifacts, whole_folder
from params.schema import Evaluation, Launch, Model, ObjectiveChoice
from tasks import champion, gate
from tasks.gate import Champion, Comparison, Direction, Part
from tasks.resampling import Resampler, mcnemar
from tasks.scoring import Scores, score
from tasks.slicing import divisions, texts
from tasks.stages import Report, save_report
from tasks.tokenization import Encoder, write_split
from trainer import modeling, objectives, tokens
from trainer.figures import Figures

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from trainer.objectives import Objective, State

logger = logging.getLogger(__name__)
_LONGEST_TEXT = 2000
"""Characters that are kept of a row's text."""
_ENDLESS = 1_000_000
"""A tokenizer without a longest sequence says so with a number above this."""


class Interval(Report):
    """Where a figure would be on other rows like these."""

    low: float
    high: float


class WorstRow(Report):
    """A row on which the model does badly."""

    row_id: int
    text: str
    badness: float
    """How badly, in the unit of the objective's first score."""
    notes: dict[str, str]


class Details(Report):
    """What people want to know of an evaluation beside its figures."""

    confidence: float
    resamples: int
    directions: dict[str, Direction]
    intervals: dict[str, dict[str, Interval]]
    """By model and metric."""
    comparisons: list[Comparison]
    slices: list[Part]
    worst: list[WorstRow]
    calibration: list[dict[str, float]] | None


class EvaluationReport(Report):
    """Figures of the held-out split."""

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
    weights = gate.model_digest(artifacts)
    published = champion.fetch(artifacts, repo_id=repo_id, endpoint=endpoint, weights=weights)
    with whole_folder(artifacts.evaluation) as folder:
        bench = _Bench(artifacts, learned, model, evaluation, seed, launch.eval_batch_size, folder / "scores")
        bench.score_all(published)
        metric = evaluation.gate.metric or learned.main_metric
        details = bench.details(metric)
        verdict = gate.judge(
            evaluation.gate,
            metric=metric,
            directions=details.directions,
            figures=bench.figures["model"],
            comparisons=details.comparisons,
            parts=details.slices,
            has_champion=published.champion is not None,
            is_champion=published.champion is not None and published.champion.weights == weights,
            taken_back=published.taken_back,
        )
        blessing = gate.Blessing(
            **verdict.model_dump(),
            model=weights,
            data=gate.data_digest(artifacts),
            recipe=gate.recipe_digest(seed=seed, objective=objective, model=model, evaluation=evaluation),
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
            **self.objective.held_out_metrics,
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

    def score_all(self, published: champion.Published) -> None:
        """Score the models one after another; only one is in memory at a time."""
        self.folder.mkdir()
        self.objective.start_from(self._untrained)
        self._score("model", lambda: modeling.trained_model(self.artifacts.model, self.objective), self.tokenizer)
        if self.evaluation.compare_untrained:
            self._score("untrained", self._untrained, self.tokenizer)
        if published.champion and published.folder:
            self._score_champion(published.champion, published.folder)

    def _untrained(self) -> PreTrainedModel:
        return modeling.untrained_model(
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
        if metric in self.objective.per_token:
            what = f"the champion has another tokenizer, and {metric} does not compare between tokenizers"
            fix = f"set evaluation.gate.metric to another than {', '.join(sorted(self.objective.per_token))}"
            if len(self.objective.per_token) == len(self.directions):
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
            write_split(self.artifacts, split, target, Encoder(self.objective, tokenizer, longest, self.state))
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

    def details(self, metric: str) -> Details:
        """Intervals, comparisons and what else is told of the scores."""
        self._check_gate(metric)
        own, settings = self.scores["model"], self.evaluation.gate
        intervals = {}
        comparisons: list[Comparison] = []
        for name, scores in self.scores.items():
            (resampled,) = self.resampler.resampled([scores])
            intervals[name] = {m: _interval(self.resampler, values) for m, values in resampled.items()}
            if name != "model":
                comparisons += self._comparisons(name, own, scores)
        worst = np.argsort(-self.objective.badness(own.columns), kind="stable")[: self.evaluation.worst]
        return Details(
            confidence=settings.confidence,
            resamples=settings.resamples,
            directions=self.directions,
            intervals=intervals,
            comparisons=comparisons,
            slices=list(self._slices(metric)),
            worst=self._worst(worst),
            calibration=self.objective.calibration(self.resampler.totals(own), self.state) or None,
        )

    def _check_gate(self, metric: str) -> None:
        """Only the model's figures tell which of its metrics there are, and which have intervals."""
        settings = self.evaluation.gate
        known, resampled = self.figures["model"], self.resampler.figures(self.scores["model"])
        for key, name, among in (
            ("metric", metric, resampled),
            *(("floors", name, known) for name in settings.floors),
            *(("slice_floors", name, resampled) for name in settings.slice_floors),
        ):
            if name not in among:
                raise RecipeError(
                    f"evaluation.gate.{key}", f"there is no {name} to judge by", f"use one of {', '.join(among)}"
                )

    def _comparable(self, name: str) -> list[str]:
        """Metrics in which a model compares with this one."""
        per_token = frozenset() if name == "untrained" or self.reads_alike else self.objective.per_token
        return [metric for metric in self.resampler.figures(self.scores[name]) if metric not in per_token]

    def _comparisons(self, name: str, own: Scores, other: Scores) -> Iterator[Comparison]:
        own, other = _same_rows(own, other)
        mine, theirs = self.resampler.figures(own), self.resampler.figures(other)
        resampled = self.resampler.resampled([own, other])
        for metric in self._comparable(name):
            sign = 1.0 if self.directions[metric] == "max" else -1.0
            interval = _interval(self.resampler, sign * (resampled[0][metric] - resampled[1][metric]))
            right = [self.objective.outcomes(metric, scores.columns) for scores in (own, other)]
            yield Comparison(
                against="champion" if name == "champion" else "untrained",
                metric=metric,
                gain=sign * (mine[metric] - theirs[metric]),
                low=interval.low,
                high=interval.high,
                p_value=None if right[0] is None or right[1] is None else mcnemar(right[0], right[1]),
                rows=len(own),
            )

    def _slices(self, metric: str) -> Iterator[Part]:
        champ = self.scores.get("champion")
        own = self.scores["model"]
        if champ is not None:
            own, champ = _same_rows(own, champ)
        rows = self.artifacts.rows / f"{self.evaluation.split}.parquet"
        metrics = dict.fromkeys((metric, *self.evaluation.gate.slice_floors))
        for division, parts in divisions(rows, self.evaluation.slices, own.row_ids):
            for part, places in parts.items():
                theirs = champ.take(places) if champ is not None else None
                yield from self._part(division, part, own.take(places), theirs, metrics)

    def _part(
        self, division: str, part: str, own: Scores, champ: Scores | None, metrics: Mapping[str, None]
    ) -> Iterator[Part]:
        settings, resampler = self.evaluation.gate, self.resampler
        judged = len(own) >= settings.slice_rows
        value = resampler.figures(own)
        other = resampler.figures(champ) if champ is not None else None
        resampled = resampler.resampled([own, champ] if champ is not None else [own]) if judged else None
        for metric in metrics:
            sign = 1.0 if self.directions[metric] == "max" else -1.0
            compares = other is not None and metric in self._comparable("champion")
            gain = sign * (value[metric] - other[metric]) if other is not None and compares else None
            interval = gain_interval = below_floor = below_margin = None
            if resampled is not None:
                interval = _interval(resampler, resampled[0][metric])
                if (floor := settings.slice_floors.get(metric)) is not None:
                    right = self.objective.outcomes(metric, own.columns)
                    below_floor = _below(sign * (value[metric] - floor), resampled[0][metric], right, floor)
                if gain is not None:
                    gains = sign * (resampled[0][metric] - resampled[1][metric])
                    gain_interval = _interval(resampler, gains)
                    if settings.slice_margin is not None and metric == next(iter(metrics)):
                        below_margin = _below(gain + settings.slice_margin, gains)
            yield Part(
                division=division,
                part=part,
                rows=len(own),
                metric=metric,
                value=value[metric],
                low=interval.low if interval else None,
                high=interval.high if interval else None,
                champion=other[metric] if other is not None and compares else None,
                gain=gain,
                gain_low=gain_interval.low if gain_interval else None,
                gain_high=gain_interval.high if gain_interval else None,
                below_floor=below_floor,
                below_margin=below_margin,
            )

    def _worst(self, places: NDArray[np.int64]) -> list[WorstRow]:
        own = self.scores["model"]
        badness = self.objective.badness(own.columns)
        ids = [int(own.row_ids[place]) for place in places]
        found = texts(self.artifacts.rows / f"{self.evaluation.split}.parquet", ids, self.objective.text)
        return [
            WorstRow(
                row_id=row_id,
                text=found[row_id][:_LONGEST_TEXT],
                badness=float(badness[place]),
                notes=self.objective.notes(own.row(int(place)), self.state),
            )
            for row_id, place in zip(ids, places, strict=True)
        ]


def _same_rows(one: Scores, other: Scores) -> tuple[Scores, Scores]:
    """The rows of which both models could make something, which depends on their tokenizers."""
    if np.array_equal(one.row_ids, other.row_ids):
        return one, other
    _, places, others = np.intersect1d(one.row_ids, other.row_ids, assume_unique=True, return_indices=True)
    return one.take(places), other.take(others)


def _below(
    distance: float, resampled: NDArray[np.float64], right: NDArray[np.bool_] | None = None, floor: float = 0.0
) -> float:
    """Probability of a value so far below a limit, if it were just at it: exact for shares of rows, else normal.

    Args:
        distance: the value above the limit; negative if it is below.
        resampled: (R,), for its standard error.
        right: (n,), the rows that a share counts.
        floor: of the share.
    """
    if right is not None and 0 < floor < 1:
        return float(binomtest(int(right.sum()), len(right), floor, alternative="less").pvalue)
    error = float(np.nanstd(resampled))
    if error == 0:
        return float(distance >= 0)
    return float(norm.cdf(distance / error))


def _interval(resampler: Resampler, resampled: NDArray[np.float64]) -> Interval:
    low, high = resampler.interval(resampled)
    return Interval(low=low, high=high)


def _write_comparison(folder: Path, figures: dict[str, dict[str, float]]) -> None:
    folder.mkdir()
    with (folder / "comparison.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "metric", "value"])
        writer.writerows([name, metric, value] for name, values in figures.items() for metric, value in values.items())
