"""The profile of the rows that a model learned from: what a later run needs to see whether its new rows are like them.

A release carries it as one Parquet file (not by that suffix: the Hub's client warns of data sets in a model's
repository). It holds no text: labels, words and whole rows are hashes. What was measured on the same row stands apart:
each column of the data is sorted by itself, so that no row can be put together again.

Who can change a repository decides what is in its files, so a profile has limits. One that breaks a rule is as good as none: drift
compares with nothing, and its report says which file of which revision is wrong.
"""

from __future__ import annotations

import contextlib
import io
import json
import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pydantic
from numpy.typing import NDArray

from params import HubRefusedError, TransientError
from params.foundation.artifacts import MAX_BYTES, PROFILE, Artifacts
from tasks.known_rows.rows import (
    BUCKETS,
    MAX_FEATURES,
    MAX_KNOWN,
    MAX_LABELS,
    MAX_SAMPLED,
    WRITTEN_FORM,
    ComparedColumns,
    RowScan,
    SampledRows,
    SmallestHashes,
    label_hash,
)

SCHEMA: Final = 2
_READABLE: Final = (1, SCHEMA)
"""Profiles of schema 1 do not know the held-out rows."""
_MAX_MEMORY: Final = 512 << 20
"""Most bytes of memory that reading it may take: few bytes of a file can stand for very many values."""
_MAX_RECORDS: Final = 4_000
"""Measures of all columns together: each takes time, however little it holds."""
_DAMAGE: Final = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError)
_PATIENCE_S: Final = 15.0
"""How long to wait for each answer of the Hub if the run can do without it."""
_PUBLIC: Final = "a public release has one if the recipe sets validation.drift"
_KEY: Final = b"evergreen.profile"
_SCHEMA: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("column", pa.string()),
        ("hashes", pa.list_(pa.uint64())),
        ("values", pa.list_(pa.float64())),
        ("features", pa.list_(pa.list_(pa.uint32()))),
        ("groups", pa.list_(pa.uint64())),
    ]
)
_PLACES: Final[Mapping[str, tuple[str, Any]]] = {"label": ("hashes", np.uint64), "text": ("features", list)}
"""Where the values of a measure are, if not with the `values`, and their type."""
Kind = Literal["label", "length", "number", "text"]


@dataclass(frozen=True)
class SampledMeasure:
    """One measure of N sampled rows."""

    kind: Kind
    column: str
    """Empty for `text`, which is all columns together."""
    values: Any
    """(N,) hashes of labels, or numbers; of `text`, the list of the features of each row. Of lists of labels, all of them, (M,)."""
    groups: NDArray[np.uint64] | None
    """(N,) numbers or hashes of the rows' groups; None if each row is on its own. The labels of one list are a group, too."""

    def sorted(self) -> Self:
        """Return the same values in ascending order, groups numbered anew: nothing links them to another measure."""
        if self.kind == "text":
            order: Any = sorted(range(len(self.values)), key=lambda i: self.values[i])
            values: Any = [self.values[i] for i in order]
        else:
            order = np.argsort(self.values, kind="stable")
            values = self.values[order]
        groups = None
        if self.groups is not None:
            _, first, numbers = np.unique(self.groups[order], return_index=True, return_inverse=True)
            groups = np.argsort(np.argsort(first)).astype(np.uint64)[numbers]
        return type(self)(self.kind, self.column, values, groups)

    def is_valid(self) -> bool:
        """Whether the values are those of rows. Of lists of labels, a row has several labels or none."""
        is_one_a_row = 0 < len(self.values) <= MAX_SAMPLED or self.kind == "label"
        if not is_one_a_row or (self.groups is not None and len(self.groups) != len(self.values)):
            return False
        if self.kind == "text":
            return all(
                isinstance(row, list)
                and len(row) <= MAX_FEATURES
                and all(isinstance(feature, int) and feature < BUCKETS for feature in row)
                for row in self.values
            )
        return self.kind == "label" or (self.kind in {"length", "number"} and bool(np.isfinite(self.values).all()))


def measure_sampled_rows(rows: SampledRows) -> Iterator[SampledMeasure]:
    """Yield what is compared of some rows."""
    for column, labels in rows.labels.items():
        hashes = np.array([label_hash(label) for own in labels for label in own], np.uint64)
        groups, counts = rows.groups, [len(own) for own in labels]
        if groups is not None or max(counts, default=1) > 1:
            each = np.arange(len(labels), dtype=np.uint64) if groups is None else groups
            groups = np.repeat(each, counts)
        yield SampledMeasure("label", column, hashes, groups)
    for column, lengths in rows.lengths.items():
        yield SampledMeasure("length", column, lengths, rows.groups)
    for column, numbers in rows.numbers.items():
        present = np.isfinite(numbers)
        if present.any():
            groups = None if rows.groups is None else rows.groups[present]
            yield SampledMeasure("number", column, numbers[present], groups)
    yield SampledMeasure("text", "", rows.features, rows.groups)


@dataclass(frozen=True)
class DataProfile:
    """What is known of the rows that a model learned from."""

    rows: int
    content: list[str]
    """The columns whose values tell two rows apart."""
    is_whole: bool
    """Whether `known` has all rows."""
    known: NDArray[np.uint64]
    """The smallest content hashes, ascending."""
    labels: Mapping[str, Mapping[int, int]]
    """Number of rows by hash of the label, for each label column."""
    samples: tuple[SampledMeasure, ...]
    held_out: SmallestHashes | None = None
    """The rows that were held out when the model learned, by their content hashes; None in a profile of an earlier version."""
    form: int = WRITTEN_FORM
    """The form of all content hashes, see `tasks.known_rows.rows`."""

    @classmethod
    def of(
        cls, scanned: RowScan, columns: ComparedColumns, sampled: SampledRows, held_out: SmallestHashes | None = None
    ) -> Self:
        """Make the profile of rows; `sampled` are those with the smallest hashes."""
        assert len(sampled.row_ids) == min(len(scanned.smallest.hashes), MAX_SAMPLED)
        # a column with very many labels has none
        found = tuple(
            one.sorted() for one in measure_sampled_rows(sampled) if one.kind != "label" or one.column in scanned.labels
        )
        smallest = scanned.smallest
        whole, known = smallest.is_whole, smallest.hashes
        return cls(scanned.rows, columns.content, whole, known, scanned.labels, found, held_out, columns.form)

    def is_new(self, hashes: NDArray[np.uint64]) -> tuple[NDArray[np.bool_], int]:
        """Return which rows are certainly not among those of the profile, and of how many rows that is known."""
        decidable = _decidable(hashes, self.known, is_whole=self.is_whole)
        return decidable & ~np.isin(hashes, self.known), int(decidable.sum())

    def tell_ages(self, hashes: NDArray[np.uint64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which rows certainly are, and which certainly are not, among those that the model learned from or was judged on."""
        assert self.held_out is not None
        known = np.isin(hashes, self.known) | np.isin(hashes, self.held_out.hashes)
        decidable = _decidable(hashes, self.known, is_whole=self.is_whole)
        decidable &= _decidable(hashes, self.held_out.hashes, is_whole=self.held_out.is_whole)
        return known, ~known & decidable

    def has_measured(self, sample: SampledMeasure) -> bool:
        """Whether a measure can be one of these rows."""
        return sample.is_valid() and (sample.kind != "label" or sample.column in self.labels)

    def save(self, path: Path) -> None:
        """Write the profile; equal profiles give equal bytes."""
        records: list[dict[str, Any]] = [{"kind": "known", "hashes": self.known}]
        records += [{"kind": "held out", "hashes": self.held_out.hashes}] if self.held_out else []
        for column, counts in self.labels.items():
            codes = sorted(counts)
            numbers = np.array([counts[code] for code in codes], float)
            hashes = np.array(codes, np.uint64)
            records.append({"kind": "label counts", "column": column, "hashes": hashes, "values": numbers})
        for one in self.samples:
            place, _ = _PLACES.get(one.kind, ("values", float))
            records.append({"kind": one.kind, "column": one.column, place: one.values, "groups": one.groups})
        header = {"schema": SCHEMA, "rows": self.rows, "content": self.content, "is_whole": self.is_whole}
        header["form"] = self.form
        header["held_out_is_whole"] = self.held_out is None or self.held_out.is_whole
        schema = _SCHEMA.with_metadata({_KEY: json.dumps(header).encode()})
        pq.write_table(pa.Table.from_pylist(records, schema=schema), path, compression="zstd")

    @classmethod
    def load(cls, content: bytes) -> Self:
        """Read a profile.

        Raises:
            ValueError: it is damaged, or another version of Evergreen wrote it.
        """
        try:
            with limit_memory(_MAX_MEMORY):
                file = pq.ParquetFile(io.BytesIO(content))
                found = json.loads(file.schema_arrow.metadata[_KEY])
                if found["schema"] not in _READABLE:
                    problem = f"it has schema {found['schema']!r:.20}, not {SCHEMA}"
                elif not file.schema_arrow.equals(_SCHEMA):
                    problem = "it is damaged: its columns are not those of a profile"
                elif file.metadata.num_rows > _MAX_RECORDS:
                    problem = f"it holds {file.metadata.num_rows:,} measures, more than a profile may have"
                else:
                    profile = cls._of_records(_Header.model_validate(found), file.read(use_threads=False))
                    problem = next(_problems(profile), "")
        except MemoryError as error:
            raise ValueError("it holds more than a profile may have") from error
        except _DAMAGE as error:
            raise ValueError(f"it is damaged: {type(error).__name__}") from error
        if problem:
            raise ValueError(problem)
        return profile

    @classmethod
    def _of_records(cls, header: _Header, table: pa.Table) -> Self:
        known, labels, measures = np.empty(0, np.uint64), dict[str, Mapping[int, int]](), list[SampledMeasure]()
        held_out = None
        for i in range(len(table)):  # one by one: Python's numbers take far more memory
            (record,) = table.slice(i, 1).to_pylist()
            if record["kind"] == "known":
                known = np.array(record["hashes"], np.uint64)
            elif record["kind"] == "held out":
                held_out = SmallestHashes(np.array(record["hashes"], np.uint64), is_whole=header.held_out_is_whole)
            elif record["kind"] == "label counts":
                counts = map(int, record["values"])  # fails for what is not finite
                labels[record["column"]] = dict(zip(record["hashes"], counts, strict=True))
            else:
                place, kind = _PLACES.get(record["kind"], ("values", float))
                values = record[place] if record["kind"] == "text" else np.array(record[place], kind)
                groups = None if record["groups"] is None else np.array(record["groups"], np.uint64)
                measures.append(SampledMeasure(record["kind"], record["column"], values, groups))
        known_of = (header.rows, header.content, header.is_whole, known, labels, tuple(measures), held_out)
        return cls(*known_of, header.form)


def _decidable(hashes: NDArray[np.uint64], smallest: NDArray[np.uint64], *, is_whole: bool) -> NDArray[np.bool_]:
    """Return of which rows it is known whether they are among those with the `smallest` hashes."""
    return np.ones(len(hashes), bool) if is_whole else hashes <= smallest[-1]


def _problems(profile: DataProfile) -> Iterator[str]:
    """Find what `save` does not write."""
    of_rows = [profile.known]
    if profile.held_out:
        of_rows.append(profile.held_out.hashes)
    for hashes in of_rows:
        is_ascending = (hashes[1:] > hashes[:-1]).all()
        if not 0 < len(hashes) <= MAX_KNOWN or not is_ascending:
            yield "it is damaged: its hashes of rows are none, too many, or not in order"
    for column, counts in profile.labels.items():
        if len(counts) > MAX_LABELS or any(count < 0 for count in counts.values()):
            yield f"it is damaged: its counts of the labels of {column!r:.80} are too many, or negative"
    if len({(one.kind, one.column) for one in profile.samples}) < len(profile.samples):
        yield "it is damaged: it measures something twice"
    yield from (
        f"it is damaged: its {one.kind!r:.80} of {one.column!r:.80} is not a measure of its rows"
        for one in profile.samples
        if not profile.has_measured(one)
    )


def read_profile(content: bytes | None, release: str, columns: list[str]) -> tuple[DataProfile | None, str]:
    """Return what a release knows of the rows that it learned from, if these columns tell its rows apart, and why it says nothing."""
    if content is None:
        return None, f"{release} has no profile of its rows ({PROFILE}); {_PUBLIC}"
    try:
        found = DataProfile.load(content)
    except ValueError as error:
        return None, f"{PROFILE} of {release} cannot be read: {error}"
    learned = ", ".join(found.content)
    return (found, "") if found.content == columns else (None, f"{release} learned from other columns: {learned}")


def fetch_published_profile(
    artifacts: Artifacts, columns: list[str], *, repo_id: str, endpoint: str, must_answer: bool
) -> tuple[DataProfile | None, str | None, str]:
    """Return what `read_profile` finds in the published release, its tag or commit, and why either is not there.

    Raises:
        HubRefusedError, TransientError: the Hub refuses or gives no clear answer, and it `must_answer`.
    """
    from tasks.hub_client.connection import LOCAL, local_hub_folder, open_repository, resolve_hub_endpoint

    nothing = None, None, f"no model was published yet as {repo_id}"
    revision = None
    try:
        if resolve_hub_endpoint(endpoint) == LOCAL and not local_hub_folder(artifacts).exists():
            return nothing
        with open_repository(artifacts, repo_id=repo_id, endpoint=endpoint) as opened:
            repository = opened if must_answer else replace(opened, timeout_s=_PATIENCE_S)
            head = repository.head()
            if head is None:
                return nothing
            revision = head.tag or head.commit
            content = repository.retry_until_clear(
                partial(repository.read, head.commit, PROFILE, max_bytes=MAX_BYTES[PROFILE])
            )
    except (HubRefusedError, TransientError) as error:
        if must_answer:
            raise
        if revision is None or isinstance(error, TransientError):
            return None, None, f"the Hub did not say which model is published ({error.where}: {error.what})"
        return None, revision, f"{PROFILE} of {revision} cannot be read: {error.what}"
    profile, reason = read_profile(content, revision, columns)
    return profile, revision, reason


class _Header(pydantic.BaseModel, strict=True):
    rows: Annotated[int, pydantic.Field(ge=1)]
    content: list[str]
    is_whole: bool
    held_out_is_whole: bool = True
    form: Literal[1, 2] = 1


@contextlib.contextmanager
def limit_memory(size: int) -> Iterator[None]:
    """Let this process take at most `size` more bytes inside the block; what asks for more gets a MemoryError."""
    before, held = resource.getrlimit(resource.RLIMIT_DATA), psutil.Process().memory_info()
    most = getattr(held, "data", held.vms) + size  # only Linux has `data`
    most = min(limit for limit in (most, *before) if limit != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
