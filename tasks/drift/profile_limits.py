"""What a profile that comes from a Hub may hold: who can change a repository decides what is in its files.

A profile that breaks a rule is as good as none: drift compares with nothing, and its report says which file of which revision is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, Self

import numpy as np
import pydantic

from tasks.drift.profile_pages import memory_of
from tasks.drift.rows import BUCKETS, MAX_FEATURES, MAX_KNOWN, MAX_LABELS, MAX_SAMPLED

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from numpy.typing import NDArray

MAX_BYTES: Final = 32 << 20
"""Most bytes of the file, and of its content before compression; a profile takes less than half of them."""
_MAX_RECORDS: Final = 4_000
"""Measures of all columns together."""
_MAX_VALUES: Final = 8_000_000
"""Most values of all measures together."""
_MAX_STRING: Final = 10_000
"""Bytes of the name of a column."""


class Header(pydantic.BaseModel, strict=True):
    """The header of a profile."""

    rows: Annotated[int, pydantic.Field(ge=1)]
    content: Annotated[list[str], pydantic.Field(max_length=_MAX_RECORDS)]
    is_whole: bool

    @classmethod
    def of(cls, found: object) -> Self:
        """Return a header; ValueError if it is none."""
        try:
            return cls.model_validate(found)
        except pydantic.ValidationError as error:
            raise ValueError(f"it is damaged: {error.error_count()} of its fields are not what they must be") from None


def check_size(metadata: pq.FileMetaData, content: bytes) -> None:
    """Check how much a file holds before it is read: few bytes can stand for very many equal values, or for long strings.

    Raises:
        ValueError: too much, or pages that `Profile.save` does not write.
    """
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    _check_size(
        metadata.num_rows, sum(one.num_values for one in columns), sum(one.total_uncompressed_size for one in columns)
    )
    _check_size(metadata.num_rows, *memory_of(metadata, content))


def _check_size(rows: int, values: int, size: int) -> None:
    if rows > _MAX_RECORDS or values > _MAX_VALUES or size > MAX_BYTES:
        what = f"{rows:,} measures with {values:,} values and {size / 1e6:,.1f} MB"
        raise ValueError(f"it holds {what}, more than a profile may have")


def check_strings(table: pa.Table) -> None:
    """Check the length of strings, which are in dictionaries: each may occur in every row.

    Raises:
        ValueError: one is too long.
    """
    import pyarrow.compute as pc

    dictionaries = [chunk.dictionary for column in table.columns for chunk in column.chunks]
    longest = max((pc.max(pc.binary_length(one)).as_py() or 0 for one in dictionaries), default=0)
    if longest > _MAX_STRING:
        raise ValueError(f"it holds a name of {longest:,} bytes, more than a profile may have")


class Measured(Protocol):
    """One measure of a profile, see `tasks.drift.profile.Sample`."""

    @property
    def kind(self) -> str: ...
    @property
    def column(self) -> str: ...
    @property
    def values(self) -> Any: ...
    @property
    def groups(self) -> NDArray[np.uint64] | None: ...


def check(known: NDArray[np.uint64], labels: Mapping[str, Mapping[int, int]], samples: Sequence[Measured]) -> None:
    """Check that a profile holds what `Profile.save` writes; the arguments are its fields.

    Raises:
        ValueError: it does not.
    """
    for problem in _problems(known, labels, samples):
        raise ValueError(f"it is damaged: {problem}")


def _problems(
    known: NDArray[np.uint64], labels: Mapping[str, Mapping[int, int]], samples: Sequence[Measured]
) -> Iterator[str]:
    if not 0 < len(known) <= MAX_KNOWN or not (known[1:] > known[:-1]).all():
        yield "its hashes of rows are none, too many, or not in order"
    for column, counts in labels.items():
        if len(counts) > MAX_LABELS or any(count < 0 for count in counts.values()):
            yield f"its counts of the labels of {column!r:.80} are too many, or negative"
    measures = [(one.kind, one.column) for one in samples]
    if len(set(measures)) < len(measures):
        yield "it measures something twice"
    for one in samples:
        if not _is_sample(one, labels):
            yield f"its {one.kind!r:.80} of {one.column!r:.80} is not a measure of its rows"


def _is_sample(one: Measured, labels: Mapping[str, Mapping[int, int]]) -> bool:
    # Of lists of labels, a row has several labels or none.
    is_one_a_row = 0 < len(one.values) <= MAX_SAMPLED or one.kind == "label"
    if not is_one_a_row or (one.groups is not None and len(one.groups) != len(one.values)):
        return False
    match one.kind:
        case "label":
            return one.column in labels
        case "length" | "number":
            return bool(np.isfinite(one.values).all())
        case "text":
            return all(
                isinstance(row, list)
                and len(row) <= MAX_FEATURES
                and all(isinstance(feature, int) and feature < BUCKETS for feature in row)
                for row in one.values
            )
        case _:
            return False
