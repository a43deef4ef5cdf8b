"""The process in which models answer for the pages of a Hub: a line of JSON in, a line of JSON out.

Whoever may upload to the Hub decides what is loaded here: a chat template may loop for ever, a model may ask for any amount of
memory. So the kernel ends this process when an answer takes too long, and gives it no more memory than its share. It has no token,
no network address of a Hub, and an environment and a working directory of its own (`start_trial_process`).
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tasks.inference.answer import ModelAnswer
    from tasks.inference.tried_model import AnsweringModel

KEPT: Final = 2  # models in memory
_INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "OMP_", "GOMP_", "MKL_")
"""Beginnings of the names of variables that this process needs. No others: they may hold tokens and passwords."""


def start_trial_process(folder: Path, *, timeout_s: float, memory_bytes: int) -> subprocess.Popen[str]:
    """Start the process. It ends when its standard input is closed, so with the process that has started it."""
    environment = {name: value for name, value in os.environ.items() if name.startswith(_INHERITED)}
    here = {"HOME": str(folder), "HF_HOME": str(folder), "PYTHONPATH": str(Path(__file__).parents[2])}
    quiet = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TOKENIZERS_PARALLELISM": "false"}
    return subprocess.Popen(
        [sys.executable, "-m", __spec__.name, str(timeout_s), str(memory_bytes)],
        cwd=folder,
        env=environment | here | quiet,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def main(timeout_s: float, memory_bytes: int, requests: IO[str], answers: IO[str]) -> None:
    """Answer requests until there are no more; SIGALRM ends the process if one takes longer."""
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    models: dict[str, Any] = {}
    for line in requests:
        signal.setitimer(signal.ITIMER_REAL, timeout_s)
        answer = _answer(models, json.loads(line))
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(answer), file=answers, flush=True)


def _answer(models: dict[str, Any], request: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a `TrialAnswer`, or what is wrong as `error`. The model that answered last comes last in `models`."""
    from params import EvergreenError
    from tasks.inference.tried_model import AnswerOptions

    try:
        answer = _find_or_load(models, request).answer(request["text"], AnswerOptions())
    except EvergreenError as error:
        return {"error": f"{error.where}: {error.what}"}
    except Exception as error:  # noqa: BLE001 - whoever made the model decides what it raises
        models.clear()
        return {"error": f"{request['where']}: {type(error).__name__}: {error}"}
    return {"pieces": _pieces(answer), "rows": list(_rows(answer)), "note": answer.note or ""}


def _find_or_load(models: dict[str, Any], request: Mapping[str, str]) -> AnsweringModel:
    from tasks.inference.tried_model import AnsweringModel

    key = request["key"]
    found: AnsweringModel | None = models.pop(key, None)
    if found is None:
        while len(models) >= KEPT:
            del models[next(iter(models))]  # before the next one takes memory
        found = AnsweringModel.load(Path(request["folder"]), request["where"])
    models[key] = found
    return found


def _pieces(answer: ModelAnswer) -> list[tuple[str, str]]:
    if answer.generated is not None:
        return [(answer.generated, "")]
    return [] if answer.spans is None else list(answer.pieces())


def _rows(answer: ModelAnswer) -> Iterator[tuple[str, str]]:
    """Yield what is listed, each with its number."""
    for label in answer.labels or ():
        yield label.name, f"{label.probability:.3f}"
    for span in answer.spans or ():
        yield f"{span.label}: {span.text}", f"{span.probability:.3f}"
    for near in answer.near or ():
        yield near.text, f"{near.cosine:.3f}"
    for ranked in answer.ranked or ():
        yield ranked.text, f"{ranked.probability:.3f}"
    for number in answer.numbers or ():
        yield number.name, number.shown


if __name__ == "__main__":
    asked, told = sys.stdin, os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    main(float(sys.argv[1]), int(sys.argv[2]), asked, told)
