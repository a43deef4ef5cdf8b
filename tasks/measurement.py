"""A measurement: something that a run measures beside the metrics of its models, with all that follows from it.

Each is a subclass of `Measurement`, in a module of the folder tasks/measurements, or in `measurement.py` of a folder there. Nothing
lists them. The stages, the gate, the report page, the model card and the log of runs ask all of them in turn, and know none by name;
docs/measurements.md says how to add one.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from tasks.stages import ReportT

if TYPE_CHECKING:
    from params.foundation.artifacts import Artifacts
    from params.sections.evaluation import Gate
    from tasks.evaluation.analysis import EvaluationAnalysis
    from tasks.evaluation.plan import EvaluationPlan, PlannedModel
    from tasks.evaluation.report import EvaluationDetails
    from tasks.evaluation.scoring import RowScores
    from tasks.report.run_results import RunResults
    from trainer.objectives.bases.lazy_imports import PreTrainedModel

_FOLDER = "tasks.measurements"


@dataclass(frozen=True)
class PageSection:
    """A section of the report page."""

    id: str
    title: str
    """In the list of sections at the top of the page."""
    html: str


class Measurement(Generic[ReportT]):
    """What is asked of a measurement. Each method does nothing by default: a measurement has those that it needs.

    An instance measures one run: `look` may keep in it what `measure` needs.
    """

    kind: type[ReportT]
    """What it finds. The fields are keys of evaluation/details.json; each has a default, which stands for a report without it."""
    place: ClassVar[int] = 100
    """Its place among the others, on the page and wherever they are asked in turn; those of one place go by name."""

    def look(self, plan: EvaluationPlan, model: PlannedModel, network: PreTrainedModel, scores: RowScores) -> None:
        """Look at a model while it is in memory: first the candidate, last the champion. `scores` are those of the evaluated rows."""

    def measure(self, analysis: EvaluationAnalysis, earlier: EvaluationDetails) -> ReportT | None:
        """Return what it finds, after all models were scored; None for nothing. `earlier` has what those before it have found."""
        return None

    def sentences(self, found: ReportT) -> Iterable[str]:
        """Return what the log of the evaluate stage says."""
        return ()

    def refusals(self, found: ReportT, gate: Gate) -> Iterable[str]:
        """Return why the candidate must not be published at all, whatever is published now."""
        return ()

    def rows_read(self, artifacts: Artifacts) -> Mapping[str, str] | None:
        """Return a hash of each set of rows that it reads beside the splits, by name: the blessing is for these rows alone."""
        return None

    def page_section(self, found: ReportT, results: RunResults, *, quote_rows: bool) -> PageSection | None:
        """Return its section of the report page, which quotes rows of the data only if `quote_rows`."""
        return None

    @property
    def name(self) -> str:
        """The name of its module or folder."""
        return type(self).__module__.removesuffix(".measurement").rpartition(".")[2]


def list_measurements() -> list[Measurement[Any]]:
    """Return a new instance of each measurement, in their order."""
    return sorted((one() for one in _classes()), key=lambda one: (one.place, one.name))


def rows_read(artifacts: Artifacts) -> dict[str, Mapping[str, str]]:
    """Return the hashes of the rows that measurements read beside the splits, by the names of the measurements that read some."""
    found = {one.name: one.rows_read(artifacts) for one in list_measurements()}
    return {name: rows for name, rows in found.items() if rows is not None}


@functools.cache
def _classes() -> list[type[Measurement[Any]]]:
    package, found = importlib.import_module(_FOLDER), list[type[Measurement[Any]]]()
    for each in pkgutil.iter_modules(package.__path__, f"{_FOLDER}."):
        module = importlib.import_module(f"{each.name}.measurement" if each.ispkg else each.name)
        own = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
        found += [one for one in own if issubclass(one, Measurement)]
    return found
