"""Imported first by the process that tests.support.forked forks from: its imports take a quarter less without collections."""

import gc

gc.disable()
