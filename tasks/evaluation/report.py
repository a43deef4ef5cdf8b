"""What the evaluate stage reports: metrics.json, details.json and blessing.json, as types."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, isfinite, log2
from typing import ClassVar, Literal, Self

from pydantic import Field, TypeAdapter, model_validator

from params.sections.base import Direction
from tasks.release_log.events import Verdict
from tasks.stages import Number, Report, ReportWithFindings
from trainer.start import ReleaseReference

Opponent = Literal["champion", "untrained", "other_rows"]
"""What the candidate is compared with: a model, or itself with the inputs of other rows (`tasks.measurements.other_rows`)."""
_OPPONENTS: Mapping[Opponent, str] = {
    "champion": "the champion's",
    "untrained": "before training",
    "other_rows": "with the inputs of other rows",
}
_FEW_GROUPS = 30
"""With fewer groups, or a tenth of the rows in one of them, groups tell clearly less than as many independent rows."""


def format_confidence_level(confidence: float) -> str:
    """Return a confidence level as a percentage, such as `95%` or `99.58%`."""
    return f"{100 * confidence:.4g}%"


def min_interval_observations(confidence: float) -> int:
    """Return how many rows or groups an interval needs: so many that winning on all of them is as rare as the error of one end.

    Half of all models that are no better win on the first of them, a quarter on the first two, and so on (the sign test; 6 at 95%).
    """
    return ceil(log2(2 / (1 - confidence)) - 1e-9)


class EvaluationReport(Report):
    """Metrics of the held-out split."""

    saved_as: ClassVar[str] = "evaluate"
    split: str
    rows: int
    """Those that count for the candidate: it has not learned from them, nor has any model that it goes back to."""
    champion_rows: int | None = None
    """Those of them that count for the champion, too; None without one, or if none is left."""
    learned: int = 0
    """Held-out rows that do not count, because the candidate has learned from them through what it started from."""
    learned_by_champion_alone: int = 0
    """Others that do not count for the candidate, because the champion has learned from them: metrics that look at several rows at once need the
    same rows for both."""
    learned_validation: int = 0
    """Rows of the validation split that it has learned from in the same way: they count when the best step is chosen, which may be too late a one."""
    unknown: list[str] = Field(default=[])
    """Why it may have learned from more of them: what it started from does not say it."""
    known_until: str = ""
    """The time of the newest row that what it started from has learned from, if its rows had times."""
    sequences: int
    metric: str
    """The metric that decides."""
    verdict: Verdict
    """The gate's."""
    model: dict[str, Number]
    """Metrics of the best weights of the training."""
    untrained: dict[str, Number] | None
    """Metrics of the model before training, on the same rows."""
    champion: dict[str, Number] | None
    """Metrics of the published model, on the same rows without those that it has learned from."""
    max_length: int | None = None
    """Most tokens of a text that the candidate read, if they are those of a comparison; None if it kept its own limits."""
    judged_length: int | None = None
    """Up to how many tokens of a text it was judged in any case; None in a report of an earlier version."""

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        named = {"model": self.model, "champion": self.champion, "untrained": self.untrained}
        return {name: metrics for name, metrics in named.items() if metrics is not None}

    @property
    def summary(self) -> str:
        """The verdict; the flow says the reasons at its end."""
        return f"the gate says {self.verdict}"


class ConfidenceInterval(Report):
    low: Number
    high: Number


class HeavyRow(Report):
    """A row, or a group of rows, with much of the weight that all rows have in a metric, such as a third of all tokens."""

    row_id: int
    """The row, or that with the most weight of its group."""
    rows: int
    """How many rows the group has; 1 of a row by itself."""
    share: Number

    @property
    def sentence(self) -> str:
        """Return, for example, `row 17 has 34%`."""
        group = f" and {self.rows - 1} more of its group have" if self.rows > 1 else " has"
        return f"row {self.row_id}{group} {100 * self.share:.3g}%"


class MetricComparison(Report):
    """The difference of a metric between the candidate and another model on the same rows."""

    against: Opponent
    metric: str
    gain: Number
    """How much better the candidate is, whatever the metric's direction; negative if it is worse."""
    low: Number
    """Lower end of the gain's interval; not finite if there are too few observations for one."""
    high: Number
    p_value: Number | None
    """The p-value of McNemar's test, where the metric is a share of rows that are independent."""
    rows: int
    left_out: int = 0
    """Rows that do not count, because one of the models cannot read or write all of their text."""
    learned: int = 0
    """Rows that do not count, because one of the models has learned from them, itself or through what it started from."""
    learned_by_candidate: int = 0
    """Those of them that the candidate has learned from."""
    groups: int | None = None
    """How many groups the rows are of, by `data.group_by` or because they are equal; None if each row is on its own."""
    largest_group: int | None = None
    """How many of the rows are of one group, at most; None in a report of an earlier version, too."""
    heavy: list[HeavyRow] = Field(default=[])
    """The rows that decide, the heaviest first (`tasks.evaluation.heavy_rows`); empty if none has much of the weight."""
    counted: int | None = None
    """How many of the rows, or groups, the metric is about; None in a report of an earlier version."""

    def sentence(self, confidence: float) -> str:
        """Return, for example, `accuracy is 0.031 worse than the champion's (95% interval 0.022 to 0.041 worse)`."""
        other = _OPPONENTS[self.against]
        side, sign = ("better", 1) if self.gain >= 0 else ("worse", -1)
        low, high = sorted((sign * self.low, sign * self.high))
        text = f"{self.metric} is {abs(self.gain):.4g} {side} than {other}"
        if self.learned:
            text += f" on {self.rows} rows, without the {self.learned} that {self.who_learned}"
        if not self.has_interval:
            few = f"too few of {self._counted()} count in it for a {format_confidence_level(confidence)} interval"
            return f"{text}, but {self.too_few(confidence) or few}"
        text += f" ({format_confidence_level(confidence)} interval {low:.4g} to {high:.4g} {side}"
        if self.p_value is not None:
            text += f"; McNemar p = {self.p_value:.2g}" if self.p_value > 1e-12 else "; McNemar p < 1e-12"
        if self.groups is not None:
            text += f"; {self.rows} rows of {self.groups} groups"
        if self.left_out:
            rows = "1 row does" if self.left_out == 1 else f"{self.left_out} rows do"
            text += f"; {rows} not count, of which one of the models does not read or write all"
        return text + ")"

    @property
    def who_learned(self) -> str:
        """Who has learned from the rows that do not count for that."""
        if not self.learned_by_candidate:
            return "the champion has learned from"
        if self.learned_by_candidate == self.learned:
            return "the candidate has learned from through what it started from"
        if self.against == "untrained":
            return "the candidate has learned from through what it started from, or the champion has"
        return "one of the two has learned from, itself or through what it started from"

    @property
    def has_interval(self) -> bool:
        """Whether there are enough observations for one."""
        return isfinite(self.low) and isfinite(self.high)

    def too_few(self, confidence: float) -> str:
        """Return why so few observations cannot show a gain; empty if they may."""
        least = min_interval_observations(confidence)
        there = self.rows if self.groups is None else self.groups
        counted = there if self.counted is None else self.counted
        if counted >= least:
            return ""
        which = self._counted() if counted == there else f"{counted} of {self._counted()} that count in it"
        return f"{which} cannot show it: a {format_confidence_level(confidence)} interval needs at least {least}"

    @property
    def few_groups(self) -> str:
        """Why the interval is wide although there are rows: few groups, or one with many of the rows; empty if that is not so."""
        if self.groups is None or self.largest_group is None:
            return ""
        if self.groups >= _FEW_GROUPS and self.largest_group * 10 <= self.rows:
            return ""
        return f"the interval is wide because the rows are of {self.groups} groups, the largest of {self.largest_group} rows"

    @property
    def heavy_rows(self) -> str:
        """Which rows decide, because they have much of the weight; empty if none has."""
        if not self.heavy:
            return ""
        rows = ", ".join(one.sentence for one in self.heavy)
        return f"few rows decide {self.metric}: {rows} of the weight of {self.rows} rows"

    def _counted(self) -> str:
        rows = f"{self.rows} row{'s' if self.rows != 1 else ''}"
        return rows if self.groups is None else f"{self.groups} group{'s' if self.groups != 1 else ''} ({rows})"


class SliceResult(Report):
    slice_by: str
    """The column or function that names each row's slice."""
    slice: str
    rows: int
    metric: str
    value: Number
    low: Number | None
    """Lower end of the interval; None if the slice has too few rows to be judged."""
    high: Number | None
    champion: Number | None
    """The champion's value."""
    compared_rows: int | None = None
    """How many of the rows that value and the gain are of, if not of all; None in a report of an earlier version, too."""
    gain: Number | None
    """How much better the candidate is than the champion."""
    gain_low: Number | None
    gain_high: Number | None
    floor_p_value: Number | None
    """Probability of a value at least this bad, if the candidate were just at the floor."""
    margin_p_value: Number | None
    """Probability of a fall at least this large, if the true one were just the margin."""


class EvaluationDetails(ReportWithFindings):
    """What an evaluation reports beside the metrics."""

    saved_as: ClassVar[str] = "details"
    confidence: float
    """Confidence of all intervals: that of the comparison that decides."""
    resamples: int
    directions: dict[str, Direction]
    intervals: dict[str, dict[str, ConfidenceInterval]]
    """By model and metric."""
    comparisons: list[MetricComparison]
    slices: list[SliceResult]
    documents: int = 0
    """How many documents `data.corpus` adds to those that the queries of the split search."""
    copies: int = 0
    """Held-out rows that are equal to an earlier one: with it, they are one observation."""
    learned_rows: int = 0
    """Held-out rows that candidate or champion have learned from: they do not count in comparisons of the two."""
    learned_by_candidate: int = 0
    """Those of them that the candidate has learned from: they count for none of its metrics."""
    own_slices: list[SliceResult] = Field(default=[])
    """The metric that decides, by what the objective shows it by (`Objective.own_slices`); empty in a report of an earlier version."""

    def copies_sentence(self, split: str) -> str:
        what = f"1 row of {split} is a copy of another"
        if self.copies > 1:
            what = f"{self.copies:,} rows of {split} are copies of others"
        return f"{what}: equal rows count as one group."


class HeldOutRowUse(Report):
    """How often earlier comparisons have used the held-out rows, with `evaluation.gate.over: test_rows`."""

    uses: float
    """How often the average row was used. A comparison at another confidence counts by its error."""
    comparisons: int
    """How many comparisons the rows are meant for."""

    @property
    def left(self) -> float:
        """How many comparisons are left; this one needs one."""
        return self.comparisons - self.uses

    @property
    def is_up(self) -> bool:
        """Whether the rows are used up. The shares that `uses` adds up are rounded."""
        return self.left < 1 - 1e-6

    def sentence(self) -> str:
        """Return, for example, `earlier comparisons used the held-out rows 7.0 of 12 times`."""
        return f"earlier comparisons used the held-out rows {self.uses:.1f} of {self.comparisons} times"


class Blessing(ReportWithFindings):
    """Whether the candidate may be published and why, with the hashes of what this is about.

    It also has the hashes of the rows that measurements read beside the splits, under their names.
    """

    saved_as: ClassVar[str] = "blessing"
    verdict: Verdict
    reasons: tuple[str, ...]
    metric: str
    """The metric that decides."""
    first_release: bool
    """Whether no model has been published before."""
    confidence: float | None = None
    """Confidence of the comparison that decided; None in a blessing of an earlier version."""
    row_use: HeldOutRowUse | None = None
    """None with `over: release`, and where nothing was compared."""
    model: str
    """Digest of the candidate's weights."""
    releases: tuple[str, ...] = ()
    """Digests of the weights of its releases, in each form that it can be published in (`publish.adapter`)."""
    data: str
    """Digest of the validated rows."""
    recipe: str
    """Digest of the recipe's sections that the evaluation depends on."""
    champion: ReleaseReference | None

    @model_validator(mode="after")
    def _check_hashes(self) -> Self:
        TypeAdapter(dict[str, dict[str, str]]).validate_python(self.model_extra or {}, strict=True)
        return self

    @property
    def judged_rows(self) -> Mapping[str, Mapping[str, str]]:
        """By measurement: the hashes of the rows that it has judged beside the splits, by the names of these rows."""
        return self.model_extra or {}

    def is_in_release(self, weights: str) -> bool:
        """Whether a release whose weights have this digest holds the candidate, in whatever form."""
        return weights in (self.model, *self.releases)

    @property
    def is_champion(self) -> bool:
        """Whether the candidate is the published model, in whatever form."""
        return self.champion is not None and self.is_in_release(self.champion.weights)
