"""Imported last by the process that tests.support.forked forks from: what every process would do, it does once."""

import functools
import gc
import importlib
import io
import os
import ssl
import weakref

from matplotlib.figure import Figure
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

from tests.support import forked_project

forked_project.import_all()
imports_of = importlib.import_module("params.importing").directly_imported_files
for package in forked_project.PACKAGES:
    for file in (forked_project.ROOT / package).rglob("*.py"):
        list(imports_of(file, forked_project.ROOT))  # a stage hashes what the code that decides the weights imports

ssl.create_default_context = functools.cache(ssl.create_default_context)  # as in conftest.py
os.fsync = lambda _: None

get_checkpoint_conversion_mapping("llama")  # compiles a thousand patterns, for all models together
figure = Figure()
figure.add_subplot(title="finds the font, and what writes a picture").plot([1, 2])
for kind in ("svg", "png"):
    figure.savefig(io.BytesIO(), format=kind)

for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
    if finalizer.peek()[1].__module__ == "torch.library":
        finalizer.atexit = False  # they take 0.07 s at the end of each process
gc.freeze()  # no collection in a forked process looks at what was imported
gc.set_threshold(10_000, 50, 50)  # collections would take a fifteenth of the time
gc.enable()
