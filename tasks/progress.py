"""Progress that a person can follow in a terminal and in a flow run's log: a line every few seconds, no control codes."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

logger = logging.getLogger(__name__)
T = TypeVar("T")


def progress(items: Iterable[T], *, what: str, total: int | None = None, every_s: float = 5.0) -> Iterator[T]:
    """Yield `items`, and log how many have gone by every `every_s` seconds.

    Args:
        items: anything to iterate over.
        what: the noun of the log line, in the plural: `rows`, `batches`.
        total: how many there will be, when known.
        every_s: seconds between lines; work that ends sooner logs nothing.
    """
    start = last = time.monotonic()
    for count, item in enumerate(items):
        now = time.monotonic()
        if count and now - last >= every_s:  # of the first alone nothing is known but that it takes long
            last = now
            if total:
                left_s = (now - start) / count * (total - count)
                logger.info("%s: %d of %d (%.0f%%), %.0f s left", what, count, total, 100 * count / total, left_s)
            else:
                logger.info("%s: %d", what, count)
        yield item
