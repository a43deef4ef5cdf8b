"""Progress as log lines every few seconds, for a terminal and for the log of a flow run."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

logger = logging.getLogger(__name__)
T = TypeVar("T")


def progress(items: Iterable[T], *, what: str, total: int | None = None, every_s: float = 5.0) -> Iterator[T]:
    """Yield `items`, and log their count every `every_s` seconds.

    `what` is a plural noun for the log line, such as `rows`. Work shorter than `every_s` logs nothing.
    """
    start = last = time.monotonic()
    for count, item in enumerate(items):
        now = time.monotonic()
        if count and now - last >= every_s:  # no rate is known before the first item is done
            last = now
            if total:
                left_s = (now - start) / count * (total - count)
                logger.info("%s: %d of %d (%.0f%%), %.0f s left", what, count, total, 100 * count / total, left_s)
            else:
                logger.info("%s: %d", what, count)
        yield item
