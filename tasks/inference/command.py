"""`evergreen try`: the answers of one published model, or of two side by side."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from params import DataError
from tasks.inference.answer import ModelAnswer
from tasks.inference.bounds import bounded_step
from tasks.inference.published_model import DownloadedModel, ModelReference, fetch_published_model
from tasks.inference.tried_model import AnsweringModel, AnswerOptions
from trainer.model.adapters import is_adapter_folder
from trainer.reporting import signs_of_life
from trainer.runtime.imports import hide_packages

_GAP = "  |  "
_Bounds = Callable[[str, str], contextlib.AbstractContextManager[None]]
"""Limits a step of a model, which is named by where the model is and by what it does."""


def try_model(
    name: str,
    texts: Sequence[str],
    *,
    against: str | None,
    options: AnswerOptions,
    as_json: bool = False,
    is_bounded: bool = True,
) -> None:
    """Print what a published model answers to texts, or to the lines of standard input.

    Unless `is_bounded` is off, loading it and each answer may take so much time and memory as for the pages of a Hub.

    Raises:
        RecipeError: the name is of no recipe and no repository.
        HubRefusedError, TransientError: nothing is published there, or the Hub gives no clear answer.
        ModelError: the model cannot be loaded, fails, or takes too much time or memory.
        DataError: there is no text, or one is too long.
    """
    asked = ModelReference.parse(name)
    names = [asked, asked.other(against)] if against else [asked]
    _leave_standard_output_to_answers()
    signs_of_life.note(f"try: fetches {name}")
    files = [fetch_published_model(Path(), one) for one in names]
    bounded = bounded_step if is_bounded else _unbounded
    models = _load_models(files, bounded)
    if len(texts) > 1 and not options.among and all(model.reads_several for model in models):
        texts, options = texts[:1], replace(options, among=tuple(texts[1:]))
    signs_of_life.note("try: answers")
    for text in texts or _standard_input():
        answers = [_answer(model, text, options, bounded) for model in models]
        told = json.dumps(_as_json(files, answers)) if as_json else "\n".join(_shown(files, answers))
        print(told, flush=True)


def _load_models(files: Sequence[DownloadedModel], bounded: _Bounds) -> list[AnsweringModel]:
    if not any(_needs_more(one.folder) for one in files):
        hide_packages("peft", "torchao")
    signs_of_life.note("try: loads the model")
    models = []
    for one in files:
        with bounded(one.where, "loading it"):
            models.append(AnsweringModel.load(one.folder, one.where))
    return models


def _answer(model: AnsweringModel, text: str, options: AnswerOptions, bounded: _Bounds) -> ModelAnswer:
    with bounded(model.where, "an answer"):
        return model.answer(text, options)


def _leave_standard_output_to_answers() -> None:
    for handler in logging.root.handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
            handler.setStream(sys.stderr)


def _unbounded(_: str, __: str) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def read_lines(path: Path) -> tuple[str, ...]:
    """Return the lines of a file that hold text; DataError if there are none."""
    try:
        found = tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(str(path), f"cannot be read: {error}", "name a text file in UTF-8") from error
    if not found:
        raise DataError(str(path), "holds no text", "write one text per line")
    return found


def _needs_more(folder: Path) -> bool:
    """Whether a model needs peft or torchao, which take seconds to import: it has adapters or quantized weights."""
    config = folder / "config.json"
    is_quantized = config.exists() and "quantization_config" in config.read_text(encoding="utf-8", errors="replace")
    return is_quantized or is_adapter_folder(folder)


def _standard_input() -> Iterator[str]:
    """Yield the lines of standard input that hold text."""
    if sys.stdin is None or sys.stdin.isatty():
        print("Write a text and press Enter; Ctrl-D ends.", file=sys.stderr, flush=True)
    found = False
    lines = iter(sys.stdin or ())
    while True:
        with signs_of_life.no_signs_of_life():  # somebody types
            line = next(lines, None)
        if line is None:
            break
        if text := line.strip():
            found = True
            yield text
    if not found:
        raise DataError("standard input", "holds no text", 'write: evergreen try NAME "a text", or pipe lines into it')


def _as_json(files: Sequence[DownloadedModel], answers: Sequence[ModelAnswer]) -> dict[str, Any]:
    found = []
    for one, answer in zip(files, answers, strict=True):
        fields = {name: value for name, value in asdict(answer).items() if name != "text" and value is not None}
        found.append({"repo_id": one.repo_id, "commit": one.commit, "tag": one.tag, **fields})
    body: dict[str, Any] = {"text": answers[0].text, "answers": found}
    return body | ({"differ": answers[0].said != answers[-1].said} if len(answers) > 1 else {})


def _shown(files: Sequence[DownloadedModel], answers: Sequence[ModelAnswer]) -> Iterator[str]:
    """Yield the lines of one answer, or of two in columns that share the width of the terminal."""
    yield f"> {' '.join(answers[0].text.split())}"
    if len(answers) == 1:
        yield from answers[0].lines()
    else:
        width = max(20, (shutil.get_terminal_size().columns - len(_GAP)) // 2)
        columns = [
            [
                *textwrap.wrap(one.where, width),
                "-" * width,
                *(part for line in answer.lines() for part in textwrap.wrap(line, width)),
            ]
            for one, answer in zip(files, answers, strict=True)
        ]
        for left, right in zip_longest(*columns, fillvalue=""):
            yield f"{left.ljust(width)}{_GAP}{right}".rstrip()
        yield "the answers are the same" if answers[0].said == answers[1].said else "the answers differ"
    yield ""
