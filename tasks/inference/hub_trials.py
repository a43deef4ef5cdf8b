"""Answers for the pages of a local Hub: reads the model from the Hub's own folder, and keeps the last ones in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from params import EvergreenError
from tasks.hub_client.connection import open_local
from tasks.hub_server.trials import TrialAnswer, TrialError
from tasks.inference.answer import Answer
from tasks.inference.published_model import download
from tasks.inference.tried_model import AnswerOptions, TriedModel

_KEPT = 2
"""Models in memory."""
_OPTIONS = AnswerOptions()


class HubTrials:
    """Answers texts by the models in the folder of a local Hub. The Hub asks one thing at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._models: dict[tuple[str, str], TriedModel] = {}
        """The one that answered last comes last."""

    def __call__(self, repo_id: str, commit: str, text: str) -> TrialAnswer:
        """Return what the model of a commit answers.

        Raises:
            TrialError: it cannot be loaded, or cannot answer.
        """
        try:
            return _as_trial(self._model(repo_id, commit).answer(text, _OPTIONS))
        except EvergreenError as error:
            raise TrialError(f"{error.where}: {error.what}") from error

    def _model(self, repo_id: str, commit: str) -> TriedModel:
        key = (repo_id, commit)
        found = self._models.pop(key, None)
        if found is None:
            while len(self._models) >= _KEPT:
                del self._models[next(iter(self._models))]  # before the next one takes memory
            with open_local(self._folder, repo_id) as repository:
                files = download(repository, commit)
            found = TriedModel.load(files.folder, files.where)
        self._models[key] = found
        return found


def _as_trial(answer: Answer) -> TrialAnswer:
    rows: Sequence[tuple[str, str]] = ()
    if answer.labels is not None:
        rows = [(label.name, f"{label.probability:.3f}") for label in answer.labels]
    elif answer.spans is not None:
        rows = [(f"{span.label}: {span.text}", f"{span.probability:.3f}") for span in answer.spans]
    pieces: Sequence[tuple[str, str]] = ()
    if answer.generated is not None:
        pieces = [(answer.generated, "")]
    elif answer.spans is not None:
        pieces = list(answer.pieces())
    return TrialAnswer(pieces, rows, answer.note or "")
