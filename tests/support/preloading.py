"""Imported first by the process that tests.support.forked forks from: its imports take a quarter less without collections."""

import contextlib
import gc
import os

gc.disable()

# peft imports bitsandbytes, which would import torch's compiler for four functions: 500 modules, and a second
os.environ["TORCHDYNAMO_DISABLE"] = "1"
with contextlib.suppress(ImportError):
    import bitsandbytes  # noqa: F401
del os.environ["TORCHDYNAMO_DISABLE"]
