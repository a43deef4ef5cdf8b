"""The section about data: the sources of rows, and how the rows are split."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator
from pydantic import model_validator as validate_model

from params.sections.base import (
    IMPORTABLE,
    Importable,
    PositiveInt,
    Section,
    check_repo_id,
    conflict_error,
    require_one,
)

SplitName = Literal["train", "validation", "test"]
_HOURS = {"h": 1, "d": 24, "w": 24 * 7}


def span_of_time(text: str) -> dt.timedelta:
    """Return the span that a text such as `7d` says; ValueError if it says none."""
    if not (found := re.fullmatch(r"(\d{1,5})([hdw])", text)) or not int(found[1]):
        raise ValueError(f"{text!r} is no span of time")
    return dt.timedelta(hours=int(found[1]) * _HOURS[found[2]])


def _check_span(value: object) -> str:
    try:
        span_of_time(str(value))
    except ValueError as error:
        raise conflict_error(str(error), "write hours, days or weeks, such as 12h, 7d or 4w") from None
    return str(value)


def _check_share_or_span(value: object) -> float | str:
    if isinstance(value, str):
        return _check_span(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1:
        return float(value)
    fix = "write a share from 0 to below 1, such as 0.05, or with `by: time` a span, such as 7d"
    raise conflict_error(f"{value!r} is no share of the rows", fix)


def _check_date(value: object) -> str:
    try:
        return dt.datetime.fromisoformat(str(value)).isoformat()
    except ValueError:
        raise conflict_error(f"{value!r} is no date", "write one such as 2026-01-31") from None


def _check_filter(value: object) -> dict[str, list[Any]] | str:
    """Return a filter with a list of values for each column, or the name of a function."""
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        found = {name: own if isinstance(own, list) else [own] for name, own in value.items()}
        if not any(isinstance(one, dict | list) for own in found.values() for one in own):
            return found
    elif isinstance(value, str) and re.fullmatch(IMPORTABLE, value):
        return value
    fix = "write columns with a value or a list of values, such as `{language: [en, de]}`, or `package.module:name`"
    raise conflict_error(f"{value!r} is no filter of rows", fix)


def _check_new_columns(value: dict[str, str]) -> dict[str, str]:
    """Refuse names that rows have of their own."""
    if reserved := sorted({"", "row_id", "_row"} & value.keys()):
        raise conflict_error(f"no column can be called {reserved[0]!r}", "choose another name")
    return value


Span = Annotated[str, PlainValidator(_check_span)]
"""A span of time: hours, days or weeks, such as 12h, 7d or 4w."""
ShareOrSpan = Annotated[float | str, PlainValidator(_check_share_or_span)]


class ChosenRows(Section):
    """Which rows of a source are taken, and what their columns are called; all of it can be left out."""

    columns: Annotated[dict[str, str], AfterValidator(_check_new_columns)] = {}
    """Columns that the source calls otherwise: `{text: body}`; or a template of its columns, `{text: "{title}\\n{body}"}`. The others
    keep their names."""
    where: Annotated[dict[str, list[Any]] | str, PlainValidator(_check_filter)] = {}
    """Take only rows with these values in columns of the source, `{language: [en, de]}`, or for which a function of the row
    returns true, `package.module:name`."""
    max_rows: PositiveInt | None = None
    """Take at most so many rows: those with the smallest hashes of their content, so most stay the same as rows come."""
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """With several sources: how often an epoch learns from each row. With 0.25, an epoch has a quarter of them, at least one, the next
    one the next quarter."""
    splits: list[SplitName] | None = None
    """With several sources: the splits that the rows may go to. Default: all."""

    @property
    def held_out(self) -> set[str]:
        """The held-out splits that the source has rows of its own for."""
        return getattr(self, "patterns", {}).keys() - {"train"}


class _SplitPatterns(ChosenRows):
    """Where a source has the rows of each split: paths or globs, relative to the root of the project or of the dataset."""

    train: str
    """Path or glob of the training rows, such as `data/train-*.parquet`; `data.split` takes the missing splits from them."""
    validation: str | None = None
    """Path or glob of the rows that choose the best checkpoint."""
    test: str | None = None
    """Path or glob of the held-out rows that the model is evaluated on."""

    @property
    def patterns(self) -> dict[str, str]:
        """The path or glob of each split that the source has."""
        patterns = {"train": self.train, "validation": self.validation, "test": self.test}
        return {split: pattern for split, pattern in patterns.items() if pattern is not None}


class RowsFromFiles(_SplitPatterns):
    """Rows from local files. The suffix says the format: .csv, .tsv, .jsonl, .json, .parquet or .txt.

    Those of text may be compressed (.gz, .bz2, .zst). A .csv file has commas, semicolons, tabs or vertical bars, as its header says.
    """

    kind: Literal["files"]
    text_unit: Literal["line", "paragraph", "file"] = "paragraph"
    """What one row of a .txt file is. Blank lines separate paragraphs."""
    refresh: bool = False
    """Bring files that `dvc import`, `dvc import-url` or `dvc import-db` brought up to date in every run of the flow, as
    `dvc update` does, if they have changed where they come from; see `launch.keep_rows_hours`."""


class RowsFromHubDataset(_SplitPatterns):
    """Rows from a dataset repository on a Hub: of one commit, or the newest of a branch."""

    kind: Literal["hub"]
    repo_id: Annotated[str, AfterValidator(check_repo_id)]
    """Repository, as `owner/name`."""
    revision: Annotated[str, Field(pattern=r"^\w[\w./-]*$")]
    """Full commit hash, or a branch such as `main`: then the flow asks in every run whether it has a new commit, see
    `launch.keep_rows_hours`. The run's report names the commit."""
    endpoint: Annotated[str, Field(pattern=r"^https?://[^/\s@]+(/\S*)?$")] | None = None
    """URL of the Hub. Default: the one that huggingface_hub uses."""

    @property
    def is_pinned(self) -> bool:
        """Whether `revision` is a commit, which does not move."""
        return bool(re.fullmatch("[0-9a-f]{40}", self.revision))


class RowsFromSql(ChosenRows):
    """Rows from a query. The flow repeats it in every run (`launch.keep_rows_hours`): DVC cannot watch a database."""

    kind: Literal["sql"]
    url: str
    """SQLAlchemy URL. `${NAME}` stands for an environment variable, which keeps passwords out of the recipe."""
    query: str
    """SELECT statement that returns the rows. Give it an ORDER BY: training depends on the order of the rows."""


class RowsFromFunction(ChosenRows):
    """Rows that a Python function yields."""

    kind: Literal["function"]
    function: Importable
    """`package.module:name` of a function that yields one dict per row."""
    arguments: dict[str, Any] = {}
    """Keyword arguments of the function."""
    refresh: bool = False
    """Call the function in every run of the flow, even if no file that DVC watches has changed; see
    `launch.keep_rows_hours`."""


Source = Annotated[RowsFromFiles | RowsFromHubDataset | RowsFromSql | RowsFromFunction, Field(discriminator="kind")]
SourceT = TypeVar("SourceT", bound=ChosenRows)


def _without_splits(source: SourceT) -> SourceT:
    if source.held_out:
        raise conflict_error("has no splits: all of it is of use to every split", "keep only its `train`")
    if source.weight != 1 or source.splits is not None:
        what = "has a `weight` or `splits`, which say how the sources of `data.sources` differ"
        raise conflict_error(what, "remove them")
    return source


whole_source = AfterValidator(lambda source: source and _without_splits(source))
"""Refuse keys that say how rows go to splits, of a source whose rows go to none."""
files_from_text = BeforeValidator(lambda own: {"kind": "files", "train": own} if isinstance(own, str) else own)
"""Let a path or glob stand for the files of a source without splits."""


class Split(Section):
    """How to split rows that come without a split."""

    by: Literal["hash", "time"] = "hash"
    """`hash`: a hash of its content decides, so a row stays in its split. `time`: the newest rows are held out, see `data.time_column`."""
    validation: ShareOrSpan = 0.05
    """Share of the rows for the validation split, which chooses the best checkpoint. Unused with a validation file. By time: a span such
    as 7d, which ends where that of the test split begins."""
    test: ShareOrSpan = 0.05
    """Share of the rows for the test split, which the model is evaluated on. Unused with a test file. By time: a span such as 7d, which
    ends with the newest row."""
    stratify: str | None = None
    """A column, such as the label. Each of its values has at least one training row: if all rows of a label would be held out,
    the last of them goes to `train`. It moves back when a later one comes; all others keep their split."""

    @validate_model(mode="after")
    def _has_values_of_one_kind(self) -> Split:
        for name in ("validation", "test"):
            if isinstance(getattr(self, name), str) != (self.by == "time"):
                fix = (
                    f"write a span of time, such as `{name}: 7d`"
                    if self.by == "time"
                    else "add `by: time`, or write a share"
                )
                raise conflict_error(f"`{name}` is {getattr(self, name)}, and the rows are split by {self.by}", fix)
        if self.by == "time" and self.stratify:
            raise conflict_error("`stratify` would learn from the newest rows, which `by: time` holds out", "remove it")
        return self


class Data(Section):
    """Where the rows come from, and how they are split. Give either `source` or `sources`."""

    source: Source | None = None
    """The source of the rows."""
    sources: dict[str, Source] | None = None
    """Several sources by names of your choice, such as `base` and `feedback`. A column `source` says which one a row is from."""
    corpus: Annotated[Source | None, whole_source, files_from_text] = None
    """Documents among which the held-out queries have to find theirs, for objectives that rank documents: a path or glob, or
    the keys of a source without held-out splits. Default: the documents of the held-out rows."""
    corrections: Annotated[RowsFromFiles | None, whole_source, files_from_text] = None
    """Labels that replace those of the source, such as review.csv with its column `corrected_label` filled in: a path or glob, or the keys
    of a source of kind `files` with `train` alone. A pattern may match no file yet: then no label is corrected."""
    split: Split = Split()
    time_column: str | None = None
    """Column with the time of each row: an ISO 8601 text, of UTC if it names no zone, a date, a timestamp, or Unix seconds or
    milliseconds. Validation sets rows aside whose time is missing, unreadable or later than tomorrow."""
    window: Span | None = None
    """Take only rows that are at most so much older than the newest one, such as 90d."""
    since: Annotated[str, PlainValidator(_check_date)] | None = None
    """Take only rows from this date on, such as 2026-01-31."""
    group_by: list[str] = []
    """Columns whose equal values say that rows belong together, such as those of one customer. `split` keeps them in one
    split, validation sets training rows aside whose group is in a held-out split of the source, and the gate counts them as one
    observation. A row that has no value in any of them (null, NaN or blank text) is on its own. Default: each row is on its own."""

    @property
    def row_sources(self) -> dict[str, Source]:
        """The sources of rows by their keys below `data`, in the order of their names: `source`, or for example `sources.feedback`."""
        several = {f"sources.{name}": source for name, source in sorted((self.sources or {}).items())}
        return several or ({"source": self.source} if self.source else {})

    @property
    def whole_sources(self) -> dict[str, Source]:
        """The sources whose rows go to no split: `corpus` and `corrections`."""
        named = {"corpus": self.corpus, "corrections": self.corrections}
        return {name: source for name, source in named.items() if source}

    @property
    def all_sources(self) -> dict[str, Source]:
        return self.row_sources | self.whole_sources

    @validate_model(mode="after")
    def _fits_together(self) -> Data:
        require_one(self, "source", "sources")
        for what, fix in (*self._conflicts(), *self._conflicts_of_sources()):
            raise conflict_error(what, fix)
        return self

    def _conflicts(self) -> Iterator[tuple[str, str]]:
        if self.group_by and self.split.stratify:
            what = "`split.stratify` moves single rows, and rows of one group (`group_by`) must stay in one split"
            yield what, "remove one of the two keys"
        if not self.time_column and (self.split.by == "time" or self.window or self.since):
            yield "`split.by: time`, `window` and `since` need the time of each row", "name its column as `time_column`"
        if self.window and self.since:
            yield "`window` and `since` both say how old a row may be", "remove one of them"
        if self.sources == {}:
            yield "`sources` is empty", "name a source, or write `source`"
        for name in self.sources or {}:
            if not re.fullmatch("[a-z][a-z0-9_]{0,39}", name):
                yield f"{name!r} cannot name a source", "write a small letter, and then small letters, digits and `_`"

    def _conflicts_of_sources(self) -> Iterator[tuple[str, str]]:
        for key, source in self.row_sources.items():
            yield from self._conflicts_of_source(key, source)
        for split in ("train", "validation", "test"):
            if all(source.splits and split not in source.splits for source in self.row_sources.values()):
                yield f"no source may feed the {split} split", "add it to the `splits` of one of them"

    def _conflicts_of_source(self, key: str, source: Source) -> Iterator[tuple[str, str]]:
        own = key if source.splits is None else source.splits
        if key == "source" and (source.weight != 1 or own != key):
            what = f"`{key}` has a `weight` or `splits`, which say how several sources differ"
            yield what, "remove them, or write `sources`"
        if not own:
            yield f"the `splits` of `{key}` is empty", "name a split, or remove the source"
        if own != key and (lacking := source.held_out - {*own}):
            what = f"`{key}` has {', '.join(sorted(lacking))} rows, and its `splits` not"
            yield what, "add the split, or remove the key"
        if self.split.by == "time" and source.held_out:
            what = f"`{key}` has held-out rows of its own, and `split.by: time` holds out the newest"
            yield what, "give all files as `train`, or remove `by: time`"
        if self.split.stratify and own != key and "train" not in own:
            what = f"`split.stratify` moves rows to train, where `{key}` may have none"
            yield what, f"remove `split.stratify`, or let the `splits` of `{key}` have train"
