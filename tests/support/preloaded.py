"""Imported last by the process that tests.support.forked forks from: what every process would do, it does once."""

import gc
import inspect
import sys

inspect.getmodule(sys._getframe())  # remembers the files of all modules, which pydantic's docstrings ask for
gc.collect()
gc.freeze()  # no collection in a forked process looks at what was imported
