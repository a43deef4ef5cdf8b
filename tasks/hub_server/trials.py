"""Models of this Hub that answer texts on its pages, if whoever starts the Hub gives something that answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tasks.hub_server.errors import HubError

MAX_CHARACTERS = 4000
"""Most characters of a text."""


@dataclass(frozen=True)
class TrialAnswer:
    """What a model answers, as a page shows it."""

    pieces: Sequence[tuple[str, str]] = ()
    """Text in pieces, each with the label that marks it; empty for text without a mark."""
    rows: Sequence[tuple[str, str]] = ()
    """Lines of a table, such as a class and its probability."""
    note: str = ""


class TrialError(Exception):
    """A model cannot answer; the message is for the user."""


MayRead = Callable[[str], bool]
"""Whether who asks may read a model's repository, `namespace/name`."""
AnswerFunction = Callable[[str, str, str, MayRead], TrialAnswer]
"""Answers a text: takes `namespace/name`, a commit, the text, and which other repositories it may read for that.

It raises TrialError, and is called by one thread at a time. It must limit its time and memory itself.
"""


_busy = threading.Lock()
"""Held for an answer: it takes the processor and the memory of this machine."""


def ask_model(ask: AnswerFunction, repo_id: str, commit: str, text: str, may_read: MayRead) -> TrialAnswer:
    """Return what the model of a commit answers. HubError 422 if it cannot, 503 while another answer is made."""
    if not text.strip():
        raise HubError(422, "Write a text first")
    if len(text) > MAX_CHARACTERS:
        raise HubError(422, f"The text has {len(text)} characters, more than {MAX_CHARACTERS}")
    if not _busy.acquire(blocking=False):
        raise HubError(503, "A model is answering somebody else: try again in a moment")
    try:
        return ask(repo_id, commit, text, may_read)
    except TrialError as error:
        raise HubError(422, str(error)) from None
    finally:
        _busy.release()
