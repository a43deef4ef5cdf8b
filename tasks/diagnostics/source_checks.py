"""Whether a recipe's sources can be read, and have the columns that it names."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from params import EvergreenError, Problem
from params.foundation.artifacts import SPLITS
from params.importing import find_named_source_files, import_by_name
from params.problems import Key, suggestion
from params.schema import ObjectiveChoice, Training
from params.sections.data import RowsFromFiles, RowsFromFunction
from params.sections.evaluation import Evaluation
from tasks.ingestion.function import find_imports_beyond_ingest
from tasks.ingestion.row_choice import RowChoice
from tasks.ingestion.sample import take_rows
from tasks.ingestion.source import naming_source, open_source, wait_for_answers
from tasks.measurements.suites.judging import why_not_judged
from trainer import objectives
from trainer.conflicts import find_weight_conflicts
from trainer.loop.batch import total_steps
from trainer.objectives.bases.objective import Objective

logger = logging.getLogger(__name__)


def _first_columns(source: Any, key: str) -> list[str] | Problem | None:
    """Return the columns of the first rows of the source at a key, or why it cannot be read; None if that takes a query or a download."""
    try:
        with naming_source(key):
            opened, choice = open_source(source), RowChoice.of(key, source)
            if isinstance(source.where, str):
                import_by_name(source.where, f"{key}.where")
            if not isinstance(source, RowsFromFiles | RowsFromFunction):
                return None
            head = next(iter(opened.batches("train")), None)
            if head is None:
                return []
            choice.check_names(take_rows(head).names)  # a missing name explains what goes wrong with the choice
            found = take_rows(head, choice)
            return [*choice.named(found.batch).rows.schema.names]
    except EvergreenError as error:
        default = {"files": "train", "function": "function", "sql": "url"}.get(source.kind, "repo_id")
        return Problem.of(error, (*key.split("."), default))


def _find_lacking(source: Any, where: str, key: Key, names: Sequence[str], hint: str = "") -> Iterator[Problem]:
    """Find why a source cannot be read, or which of these columns its first rows lack."""
    columns = _first_columns(source, where)
    if isinstance(columns, Problem):
        yield columns
    elif columns is not None:
        for name in (name for name in names if name not in columns):
            yield Problem(key, f"has no column `{name}`", suggestion(name, columns, "columns") + hint)


def find_corpus_problems(method: Objective[Any], data: Any) -> Iterator[Problem]:
    """Find what is wrong with `data.corpus`: an objective that takes none, or a column that its first rows do not have."""
    space = method.vector_space
    if data.corpus and space and space.document_column:
        hint = "; objective.document_column names it"
        yield from _find_lacking(data.corpus, "data.corpus", ("data", "corpus"), [space.document_column], hint)
    elif data.corpus:
        what = "has no effect: the objective, with these options, ranks no documents"
        yield Problem(("data", "corpus"), what, "remove it")


def find_missing_columns(objective: ObjectiveChoice, data: Any, evaluation: Evaluation) -> Iterator[Problem]:
    """Find columns that the first rows of a source do not have."""
    found = {key: _first_columns(source, f"data.{key}") for key, source in data.row_sources.items()}
    yield from (columns for columns in found.values() if isinstance(columns, Problem))
    known = {key: columns for key, columns in found.items() if isinstance(columns, list)}
    is_one = len(found) == 1
    needed, sliced = _needed_columns(objective, data), _sliced_columns(evaluation)
    for source, columns in known.items():
        yield from _find_lacking_of_source(source, columns, [*needed, *(sliced if is_one else ())], is_one=is_one)
    if len(known) == len(found) > 1:
        every = sorted({name for columns in known.values() for name in columns})
        for key, column in sliced:
            if column not in every:
                yield Problem(key, f"no source has a column `{column}`", suggestion(column, every, "columns"))


def _needed_columns(objective: ObjectiveChoice, data: Any) -> list[tuple[Key, str]]:
    """Return the columns that each source needs, with the keys that name them."""
    needed: list[tuple[Key, str | None]] = [(("data", "group_by"), column) for column in data.group_by]
    needed += [(("data", "time_column"), data.time_column)]
    needed += [(("data", "split", "stratify"), data.split.stratify)]
    if not objectives.find_option_problems(objective):
        needed += [(("objective",), column) for column in objectives.build_objective(objective).columns()]
    return [(key, column) for key, column in needed if column is not None]


def _sliced_columns(evaluation: Evaluation) -> list[tuple[Key, str]]:
    slices = enumerate(evaluation.slices)
    return [(("evaluation", "slices", i), own.column) for i, own in slices if own.column is not None]


def _find_lacking_of_source(
    source: str, columns: Sequence[str], needed: Sequence[tuple[Key, str]], *, is_one: bool
) -> Iterator[Problem]:
    where = "the source" if source == "source" else f"data.{source}"
    elsewhere = "" if is_one else f"; or give one of its columns this name by `columns` of {where}"
    for key, column in needed:
        if column not in columns:
            hint = "; the objective's `..._column` options name it" if key == ("objective",) else ""
            fix = suggestion(column, columns, "columns") + hint + elsewhere
            yield Problem(key, f"{where} has no column `{column}`", fix)


def find_correction_problems(method: Objective[Any], data: Any) -> Iterator[Problem]:
    """Find what is wrong with `data.corrections`: rows without a label, or columns that the first corrections lack."""
    from tasks.validation import corrections

    has_some = data.corrections and not wait_for_answers(data.corrections)
    columns = _first_columns(data.corrections, "data.corrections") if has_some else None
    if isinstance(columns, Problem):
        yield columns
    elif columns is not None:
        try:
            corrections.find_columns(method, columns)
        except EvergreenError as error:
            yield Problem(("data", "corrections"), error.what, error.fix)


def find_suite_problems(
    objective: ObjectiveChoice, method: Objective[Any], evaluation: Evaluation
) -> Iterator[Problem]:
    """Find suites that this objective cannot judge, and columns that their first rows do not have."""
    for number, suite in enumerate(evaluation.suites):
        key: Key = ("evaluation", "suites", number)
        if found := why_not_judged(method, objective.name, suite):
            yield Problem(key, *found)
        needed = [*method.columns(), *filter(None, [suite.matches])]
        yield from _find_lacking(suite.source, f"evaluation.suites.{number}.source", (*key, "source"), needed)


def find_weight_problems(method: Objective[Any], data: Any, training: Training) -> list[Problem]:
    """Find why the sources cannot have the weights that they have."""
    has_weights = any(source.weight != 1 for source in data.row_sources.values())
    return [*find_weight_conflicts(method, training)] if has_weights else []


def warn_of_torn_groups(method: Objective[Any], data: Any) -> tuple[()]:
    """Say if `data.split` would part rows that the objective's metrics look at together, such as the documents of a query."""
    columns = method.group_columns
    has_all = all(source.held_out == {*SPLITS} - {"train"} for source in data.row_sources.values())
    if not has_all and columns and not {*columns} & {*data.group_by}:
        names = ", ".join(columns)
        what = "check: rows with the same `%s` may come into several splits, where a query is learned from and scored by a part of its rows: %s"
        logger.warning(what, names, f"set `data.group_by: [{names}]`")
    return ()


def warn_of_long_warmup(training: Training, data: Any, method: Objective[Any]) -> tuple[()]:
    """Say if a training ends before its warm-up. Without `max_steps`, the steps follow from the rows of local files."""
    warmup = int(training.warmup_steps)
    if warmup < 1:
        return ()
    rows = 0 if training.max_steps else _count_training_rows(data, method)
    if (rows or training.max_steps) and warmup >= (steps := total_steps(training, rows)):
        what = "check: training.warmup_steps is %d, and the training has about %d steps: it ends before its learning rate is reached"
        logger.warning(what, warmup, steps)
    return ()


def _count_training_rows(data: Any, method: Objective[Any]) -> int:
    """Return about how many rows are trained on, of local files; 0 if that is not known."""
    if not isinstance(data.source, RowsFromFiles) or data.split.by == "time":
        return 0
    if isinstance(method.advice, str) or method.advice.reads_running_text:
        return 0  # a row may give several sequences
    rows = 0
    with contextlib.suppress(EvergreenError, OSError):
        rows = sum(index.rows for index in open_source(data.source).indexes("train") or ())
    for split in ("validation", "test"):
        rows -= 0 if split in data.source.patterns else int(rows * getattr(data.split, split))
    return rows


def find_read_paths(root: Path, source: Any) -> dict[str, str]:
    """Return the paths of the files or the code that a source reads, with the keys that name them."""
    found = {pattern: split for split, pattern in source.patterns.items()} if isinstance(source, RowsFromFiles) else {}
    for key, name in (("function", getattr(source, "function", "")), ("where", source.where)):
        code = [path for _, path in find_named_source_files(name)] if isinstance(name, str) else []
        code += [path for module in code for path in find_imports_beyond_ingest(module).values()]
        found |= {path.relative_to(root).as_posix(): key for path in code if path.is_relative_to(root)}
    return found
