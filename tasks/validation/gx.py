"""Great Expectations, imported without databases, clouds and charts, which frames do not need; statistics come when a check uses them.

It would log hundreds of lines at import; its errors are in its results, or raised.
"""

import logging

from trainer.runtime.imports import defer_import, hide_packages_in_block
from trainer.runtime.memory import import_without_gc

logging.getLogger("great_expectations").setLevel(logging.CRITICAL)
logging.getLogger("great_expectations.data_context.types.base").disabled = True  # sets its own level
defer_import("scipy.stats")
with hide_packages_in_block("sqlalchemy", "google", stubs=["altair"]), import_without_gc():
    import great_expectations  # noqa: F401
