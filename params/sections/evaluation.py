"""The section about evaluation: metrics, slices, suites, and what the gate asks of a model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeFloat, PositiveFloat
from pydantic import model_validator as validate_model

from params.sections.base import (
    CallOrName,
    Direction,
    NonNegativeInt,
    PositiveInt,
    Section,
    conflict_error,
    from_text,
    require_one,
)
from params.sections.data import RowsFromFiles, RowsFromHubDataset, files_from_text, whole_source


class OwnMetrics(Section):
    """Your own metrics, computed in every evaluation besides those of the objective."""

    function: CallOrName
    """Function of transformers.EvalPrediction that returns a value for each metric in `directions`. It gets the whole
    split; `predictions` are the outputs of `preprocess_logits`, or else what the objective predicts (docs/training.md)."""
    directions: dict[str, Direction]
    """The names of the metrics, and whether the smallest (`min`) or the largest (`max`) value is best."""
    preprocess_logits: CallOrName | None = None
    """Function of (logits, labels) that reduces the logits of a batch, which saves memory. Default: what the objective predicts."""


class SliceBy(Section):
    """A way to divide the evaluated rows into slices, each with metrics of its own."""

    column: str | None = None
    """Column with the name of each row's slice. Give either this or `function`."""
    function: CallOrName | None = None
    """Function of a row (a mapping of column to value) that returns the name of its slice. Needs `name`."""
    name: str | None = None
    """Title of the slices in reports. Default: the column."""

    @validate_model(mode="after")
    def _has_one_way(self) -> SliceBy:
        require_one(self, "column", "function")
        if self.function is not None and self.name is None:
            raise conflict_error("a `function` needs a `name`", "add `name:`, the title of the slices in reports")
        return self

    @property
    def title(self) -> str:
        """Title of the slices in reports."""
        return str(self.name or self.column)


class Gate(Section):
    """What a model must achieve to be published. docs/gate.md says how often the decision is wrong."""

    metric: str | None = None
    """Metric that is compared with the champion's. It must be comparable across tokenizers. Default: the objective's
    `main_metric`."""
    gain: NonNegativeFloat | None = None
    """Smallest improvement over the champion, in units of the metric: the confidence interval of the improvement must lie
    above it. Default: 0, unless you give `margin`."""
    margin: PositiveFloat | None = None
    """Largest deterioration from the champion, in units of the metric: the confidence interval of the improvement must
    lie above minus this. Give either this or `gain`."""
    floors: dict[str, float] = {}
    """Metrics and the values that a model must reach, whatever the champion's are. For a metric whose smallest value is
    best, the value that it must not exceed."""
    slice_floors: dict[str, float] = {}
    """The same for every slice of at least `min_slice_rows` rows. A model is refused if a slice misses its value by more
    than chance explains."""
    label_floors: dict[Literal["precision", "recall", "f1"], float | dict[str, float]] = {}
    """Precision, recall or F1 that each label of a classifier must reach, or some by name: `{recall: {threat: 0.9}}`. A model is refused
    if a label misses its value by more than chance explains."""
    slice_margin: PositiveFloat | None = None
    """Largest deterioration of `metric` on any slice, or of what slices have in place of it (docs/gate.md). The champion stays
    if a slice deteriorates by more than that, and by more than chance explains."""
    known_margin: PositiveFloat | None = None
    """Largest deterioration of the same on the held-out rows that the champion's release already had. A model that gains on new
    rows and loses more than that on known ones, by more than chance explains, has forgotten: the champion stays."""
    min_slice_rows: PositiveInt = 30
    """Slices with fewer rows are shown but not judged."""
    confidence: Annotated[float, Field(gt=0.5, lt=1.0)] = 0.95
    """Confidence level of all intervals and tests. Tests of slices are corrected for their number (Holm 1979)."""
    over: Literal["release", "test_rows"] = "release"
    """What `confidence` holds for: each comparison, or all comparisons on the same held-out rows together."""
    comparisons: Annotated[int, Field(gt=0, le=1000)] | None = None
    """How many comparisons the held-out rows are meant for, with `over: test_rows`: each has an equal part of the error.
    Default: 12."""
    resamples: Annotated[int, Field(ge=200, le=100_000)] = 2000
    """Bootstrap resamples per interval."""

    @validate_model(mode="after")
    def _has_one_threshold(self) -> Gate:
        if self.gain is not None and self.margin is not None:
            what = "`gain` (must be better) and `margin` (may be worse) exclude each other"
            raise conflict_error(what, "remove one of them")
        if self.comparisons is not None and self.over == "release":
            what = "`comparisons` has no effect without `over: test_rows`"
            raise conflict_error(what, "add `over: test_rows`, or remove it")
        return self

    @property
    def planned_comparisons(self) -> int:
        """How many comparisons share the error of `confidence`."""
        return 1 if self.over == "release" else self.comparisons or 12

    @property
    def comparison_confidence(self) -> float:
        """Confidence of one comparison and of the intervals; tests of slices only protect the champion and keep theirs."""
        return self.confidence if self.over == "release" else 1 - (1 - self.confidence) / self.planned_comparisons

    @property
    def bar(self) -> float:
        """Value that the lower end of the improvement's confidence interval must exceed."""
        return -self.margin if self.margin is not None else self.gain or 0.0


def _require_fixed(source: RowsFromFiles | RowsFromHubDataset) -> RowsFromFiles | RowsFromHubDataset:
    if isinstance(source, RowsFromHubDataset) and not source.is_pinned:
        raise conflict_error(f"{source.revision} is a branch, which moves", "write the full hash of a commit")
    if isinstance(source, RowsFromFiles) and source.refresh:
        raise conflict_error("rows that every model must get right do not change by themselves", "remove `refresh`")
    return source


class Suite(Section):
    """Rows that a model must get right to be published, besides the test split. They have the columns of the objective."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
    """Name in the report, and of the folder of its rows."""
    source: Annotated[
        RowsFromFiles | RowsFromHubDataset,
        Field(discriminator="kind"),
        AfterValidator(_require_fixed),
        whole_source,
        files_from_text,
    ]
    """Path or glob of its rows, or the keys of a source of kind `files` or `hub`, of one commit, with `train` alone."""
    must: Annotated[float, Field(gt=0.0, le=1.0), BeforeValidator(lambda own: 1.0 if own == "all" else own)] = 1.0
    """The smallest share of the rows that the model must get right; `all` is 1."""
    matches: str | None = None
    """Column with a regular expression that is to be found in the text that the model generates for the row. Default: the
    objective says which rows are right; a generated text is, if it equals that of the row except for white space around it."""
    function: CallOrName | None = None
    """Function of a row and of the text that the model generates for it, which returns whether that is right."""
    max_new_tokens: PositiveInt | None = None
    """Longest generated text in tokens. Default: that of the call on the model card."""

    @validate_model(mode="after")
    def _has_one_way(self) -> Suite:
        if self.matches and self.function:
            raise conflict_error("`matches` and `function` both say what is right", "remove one of them")
        return self


class Evaluation(Section):
    """How the trained model is evaluated, and what it must achieve."""

    metrics: OwnMetrics | None = None
    """Your own metrics; `training.best_metric` may name one."""
    split: Literal["test", "validation"] = "test"
    """Split that the model is evaluated on."""
    compare_untrained: bool = True
    """Also evaluate the model as it was before training. The first release must be better than that."""
    slices: list[Annotated[SliceBy, from_text("column")]] = []
    """Slices to evaluate: names of columns, or `{name: ..., function: package.module:name}`."""
    worst_rows: NonNegativeInt = 20
    """Number of rows with the worst predictions to list."""
    suites: list[Suite] = []
    """Rows that the model must get right to be published, by name: `{name: greetings, source: data/greetings.csv, must: all}`."""
    gate: Gate = Gate()
    """What the model must achieve to be published."""

    @validate_model(mode="after")
    def _has_names_once(self) -> Evaluation:
        names = [suite.name.lower() for suite in self.suites]
        if twice := [name for name in names if names.count(name) > 1]:
            raise conflict_error(f"two suites are called {twice[0]}", "give each a name of its own")
        return self
