"""Great Expectations, imported without databases, clouds and charts, which frames do not need; statistics come when a check uses them.

It would log hundreds of lines at import; its errors are in its results, or raised.
"""

import logging

from trainer.runtime.imports import defer, left_empty, left_out
from trainer.runtime.memory import without_collections

logging.getLogger("great_expectations").setLevel(logging.CRITICAL)
logging.getLogger("great_expectations.data_context.types.base").disabled = True  # sets its own level
defer("scipy.stats")
with left_out("sqlalchemy", "google"), left_empty("altair"), without_collections():
    import great_expectations  # noqa: F401
