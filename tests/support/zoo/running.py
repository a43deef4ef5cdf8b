"""Cells of the zoo in processes forked from one that has imported the libraries; a cell that hangs or crashes fails alone."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from math import inf
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from tests.support import forked
from tests.support.zoo.cells import Cell, try_cell

_READS_PADDING: Final = "its convolutions read padding, so answers depend on the batch, and check refuses it"
_READS_THE_END: Final = (
    "its head reads the last position, which is padding for the shorter choices, and check refuses it"
)
REASONS: Final[dict[str, str]] = {
    **dict.fromkeys(("convbert-question_answering", "convbert-question_answering-lora"), _READS_PADDING),
    **dict.fromkeys(("roformer-multiple_choice", "roformer-multiple_choice-lora"), _READS_THE_END),
}
"""Cells that fail, and why a user would accept it."""
_LIMIT_S: Final = 600.0
_ERROR: Final = "error.txt"


def run_cells(cells: Sequence[Cell], *, processes: int, start_within_s: float = inf) -> Iterator[tuple[Cell, str]]:
    """Try cells side by side, and yield each with what went wrong; empty if nothing did. Later, none is started any more."""
    begun = time.monotonic()
    waiting, running = list(cells), dict[BaseProcess, tuple[Cell, Path, float]]()
    while waiting or running:
        if running and time.monotonic() - begun > start_within_s:
            waiting.clear()
        while waiting and len(running) < processes:
            cell, folder = waiting.pop(0), Path(tempfile.mkdtemp(prefix="zoo-"))
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
            process = forked.start(_try, cell, environment=environment, folder=folder, output=folder / "output.txt")
            running[process] = (cell, folder, time.monotonic())
        connection.wait([process.sentinel for process in running], 1.0)
        for process, (cell, folder, start) in list(running.items()):
            is_late = time.monotonic() - start > _LIMIT_S
            if process.exitcode is None and not is_late:
                continue
            if process.exitcode is None:
                process.kill()
                process.join()
            error = folder / _ERROR
            told = error.read_text(encoding="utf-8") if error.exists() else f"ended with {process.exitcode}"
            yield cell, "" if process.exitcode == 0 else told
            del running[process]
            shutil.rmtree(folder, ignore_errors=True)


def _try(cell: Cell) -> None:
    try:
        try_cell(cell, Path.cwd())
    except BaseException as error:
        told = " ".join(f"{type(error).__name__}: {error}".split())[:600]
        where = traceback.extract_tb(error.__traceback__)[-1]
        Path(_ERROR).write_text(f"{told} ({Path(where.filename).name}:{where.lineno})", encoding="utf-8")
        raise
