"""Imported first by the process that tests.support.forked forks from: its imports take a quarter less without collections."""

import contextlib
import gc
import inspect
import os

import jinja2

gc.disable()

# peft imports bitsandbytes, which would import torch's compiler for four functions: 500 modules, and a second
os.environ["TORCHDYNAMO_DISABLE"] = "1"
with contextlib.suppress(ImportError):
    import bitsandbytes  # noqa: F401
del os.environ["TORCHDYNAMO_DISABLE"]

# the templates of pages are compiled once, and not by each process that writes a page
defaults = jinja2.Environment.__init__.__defaults__ or ()
place = [*inspect.signature(jinja2.Environment).parameters].index("bytecode_cache")
assert defaults[place] is None
jinja2.Environment.__init__.__defaults__ = (*defaults[:place], jinja2.FileSystemBytecodeCache(), *defaults[place + 1 :])
