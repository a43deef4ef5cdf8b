"""Times of rows, as `data.time_column` has them: microseconds since 1970, in UTC."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from tasks.shards.split_rows import NUMBER, values_of_column

NO_TIME: Final = np.iinfo(np.int64).min
"""Stands for a time that is missing or cannot be read."""
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_SECONDS: Final = (1e8, 1e10)
_MILLISECONDS: Final = (1e11, 1e13)
"""Numbers that can only be seconds or milliseconds of the years 1973 to 2286."""


def microseconds(value: dt.timedelta) -> int:
    return value // dt.timedelta(microseconds=1)


def time_of_value(value: Any) -> int:
    """Return the time that a value says, or `NO_TIME`. A text without a zone is one of UTC."""
    if isinstance(value, str):
        text = value.strip()
        try:
            value = float(text) if re.fullmatch(NUMBER, text) else dt.datetime.fromisoformat(text)
        except ValueError:
            return NO_TIME
    if isinstance(value, dt.datetime):
        return microseconds((value if value.tzinfo else value.replace(tzinfo=dt.UTC)) - _EPOCH)
    if isinstance(value, dt.date):
        return microseconds(value - _EPOCH.date())
    for unit, (least, most) in ((1e6, _SECONDS), (1e3, _MILLISECONDS)):
        if isinstance(value, int | float) and not isinstance(value, bool) and least <= value < most:
            return round(value * unit)
    return NO_TIME


def read_times(column: pa.ChunkedArray | pa.Array) -> NDArray[np.int64]:
    """Return the time of each value, (N,), or `NO_TIME`."""
    if types.is_timestamp(column.type) or types.is_date(column.type):
        zone = column.type.tz if types.is_timestamp(column.type) else None
        numbers = column.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64())
        return np.asarray(numbers.fill_null(NO_TIME).to_numpy(), np.int64)
    return np.fromiter(map(time_of_value, values_of_column(column)), np.int64, len(column))


def iso_text(time_us: int) -> str:
    """Return a time as people read it, in UTC."""
    return (_EPOCH + dt.timedelta(microseconds=int(time_us))).isoformat()
