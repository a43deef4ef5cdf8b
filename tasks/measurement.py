"""A measurement: something that a run measures beside the metrics of its models, with all that follows from it.

Each is a subclass of `Measurement`, in a module of the folder tasks/measurements, in `measurement.py` of a folder there, or brought by an
installed package. Nothing lists them. The stages, the gate, the report page, the model card and the log of runs ask all of them in turn, and know none by name;
docs/add-a-measurement.md says how to add one.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from params import RecipeError
from params.foundation.plugins import find_plugins
from tasks.stages import Report, ReportT, ReportWithFindings

if TYPE_CHECKING:
    from params.foundation.artifacts import Artifacts
    from params.sections.evaluation import Gate, Suite
    from params.sections.rows import Validation
    from tasks.evaluation.analysis import EvaluationAnalysis
    from tasks.evaluation.plan import EvaluationPlan, PlannedModel
    from tasks.evaluation.report import EvaluationDetails, SliceResult
    from tasks.evaluation.scoring import RowScores
    from tasks.report.run_results import RunResults
    from tasks.shards.kept_work import ShardWorkers
    from tasks.validation.raw_rows import Positions, RawRows
    from trainer.objectives.bases.lazy_imports import PreTrainedModel
    from trainer.objectives.bases.objective import Objective

_FOLDER, _GROUP = "tasks.measurements", "evergreen.measurements"


@dataclass(frozen=True)
class PageSection:
    """A section of the report page."""

    id: str
    title: str
    """In the list of sections at the top of the page."""
    html: str


@dataclass(frozen=True)
class CardChart:
    """A chart of the model card."""

    file: str
    told: str
    """The text for those who do not see it."""


@dataclass(frozen=True)
class ValidatedRows:
    """The rows that validate has kept, and what it knows of them."""

    artifacts: Artifacts
    folder: Path
    """Will be `Artifacts.validated`; it has the rows of the splits."""
    workers: ShardWorkers
    objective: Objective[Any]
    validation: Validation
    suites: Sequence[Suite]
    raw: RawRows
    set_aside: Positions
    """Of the raw rows."""
    seed: int
    repo_id: str
    endpoint: str


@dataclass(frozen=True)
class RowFindings:
    """What a measurement has found in the validated rows."""

    found: Report
    """Its fields become keys of validated/validation.json."""
    stops: str = ""
    """Why the stage must end; empty if it goes on."""
    fix: str = ""


class Measurement(Generic[ReportT]):
    """What is asked of a measurement. Each method does nothing by default: a measurement has those that it needs.

    An instance measures one run: `look` may keep in it what `measure` needs.
    """

    kind: type[ReportT]
    """What it finds. The fields are keys of evaluation/details.json; each has a default, which stands for a report without it."""
    place: ClassVar[int] = 100
    """Its place among the others, on the page and wherever they are asked in turn; those of one place go by name."""

    card_chart: ClassVar[CardChart | None] = None
    history_column: ClassVar[str] = ""
    """The heading of its column in the table of runs; empty if it has none."""

    def measure_rows(self, validated: ValidatedRows) -> RowFindings | None:
        """Return what it finds in the rows while validate runs; it may add files to `validated.folder`."""
        return None

    def validation_section(self, report: ReportWithFindings) -> str:
        """Return its section of the page of the validate stage, as HTML; empty if it has none."""
        return ""

    def look(self, plan: EvaluationPlan, model: PlannedModel, network: PreTrainedModel, scores: RowScores) -> None:
        """Look at a model while it is in memory: first the candidate, last the champion. `scores` are those of the evaluated rows."""

    def measure(self, analysis: EvaluationAnalysis, earlier: EvaluationDetails) -> ReportT | None:
        """Return what it finds, after all models were scored; None for nothing. `earlier` has what those before it have found."""
        return None

    def finish(self, artifacts: Artifacts, found: ReportT) -> None:
        """Write what it leaves beside the folder of the evaluation, once that is in its place."""

    def sentences(self, found: ReportT) -> Iterable[str]:
        """Return what the log of the evaluate stage says."""
        return ()

    def run_lines(self, found: ReportT, artifacts: Artifacts) -> Iterable[str]:
        """Return what the summary of a run says at its end."""
        return ()

    def refusals(self, found: ReportT, gate: Gate) -> Iterable[str]:
        """Return why the candidate must not be published at all, whatever is published now."""
        return ()

    def refusals_of_first_release(self, found: ReportT, gate: Gate) -> Iterable[str]:
        """Return why the candidate must not be published if no model is yet."""
        return ()

    def losses(self, found: ReportT, gate: Gate) -> Iterable[str]:
        """Return why the champion stays, though the candidate may be better in the metric that decides."""
        return ()

    def rows_read(self, artifacts: Artifacts) -> Mapping[str, str] | None:
        """Return a hash of each set of rows beside the splits that it reads, by name, as they are now: publish compares."""
        return None

    def rows_judged(self, found: ReportT) -> Mapping[str, str] | None:
        """Return the same hashes of the rows that it has judged, taken while it read them: the blessing is for these alone."""
        return None

    def page_section(self, found: ReportT, results: RunResults, *, quote_rows: bool) -> PageSection | None:
        """Return its section of the report page, which quotes rows of the data only if `quote_rows`."""
        return None

    def comparison_note(self, found: ReportT) -> str:
        """Return what the report page says below the comparison of the models; empty for nothing."""
        return ""

    def slices(self, found: ReportT) -> Sequence[SliceResult]:
        """Return parts of the rows that are shown with the slices of the recipe."""
        return ()

    def data_block(self, results: RunResults, *, quote_rows: bool) -> str:
        """Return what the report page says in its section about the data, as HTML; empty for nothing."""
        return ""

    def card_section(self, found: ReportT, *, is_private: bool) -> str:
        """Return its section of the model card, as Markdown; empty if it has none. Only the card of a private repository quotes rows."""
        return ""

    def draw_card_chart(self, found: ReportT) -> bytes | None:
        """Return `card_chart` as PNG; None if there is nothing to draw."""
        return None

    def card_sentences(self, results: RunResults) -> Sequence[str]:
        """Return what the model card says of the data."""
        return ()

    def history_cell(self, validated: ReportWithFindings | None, details: ReportWithFindings | None) -> str | None:
        """Return what the log of runs keeps under its name, in a few words; a report is None if the run did not get that far."""
        return None

    @property
    def name(self) -> str:
        """The name of its module or folder."""
        return type(self).__module__.removesuffix(".measurement").rpartition(".")[2]


def list_measurements() -> list[Measurement[Any]]:
    """Return a new instance of each measurement, in their order.

    Raises:
        RecipeError: two have one name, by which the blessing and the log of runs know them.
    """
    found = sorted((one() for one in _classes()), key=lambda one: (one.place, one.name))
    for one, other in itertools.combinations(found, 2):
        if one.name == other.name:
            classes = " and ".join(f"{type(each).__module__}.{type(each).__name__}" for each in (one, other))
            raise RecipeError(
                f"measurement {one.name}", f"there are two: {classes}", "rename the module of one of them"
            )
    return found


def with_history() -> list[Measurement[Any]]:
    """Return the measurements that have a column in the table of runs."""
    return [one for one in list_measurements() if one.history_column]


def rows_judged(details: ReportWithFindings, measurements: Sequence[Measurement[Any]]) -> dict[str, Mapping[str, str]]:
    """Return the hashes of the rows beside the splits that were judged, by the names of the measurements that judged some."""
    found = {one.name: one.rows_judged(details.findings(one.kind)) for one in measurements}
    return {name: rows for name, rows in found.items() if rows is not None}


def rows_read(artifacts: Artifacts) -> dict[str, Mapping[str, str]]:
    """Return the hashes of the rows that measurements read beside the splits, by the names of the measurements that read some."""
    found = {one.name: one.rows_read(artifacts) for one in list_measurements()}
    return {name: rows for name, rows in found.items() if rows is not None}


@functools.cache
def _classes() -> list[type[Measurement[Any]]]:
    """Return those of the folder, and those that installed packages bring as entry points in `evergreen.measurements`."""
    package, found = importlib.import_module(_FOLDER), list[type[Measurement[Any]]]()
    for each in pkgutil.iter_modules(package.__path__, f"{_FOLDER}."):
        module = importlib.import_module(f"{each.name}.measurement" if each.ispkg else each.name)
        own = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
        found += [one for one in own if issubclass(one, Measurement)]
    return found + [plugin.load() for plugin in find_plugins(_GROUP).values()]


def forget_measurements() -> None:
    """Look for measurements again when they are next asked for."""
    _classes.cache_clear()
    find_plugins.cache_clear()
