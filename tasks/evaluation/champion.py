"""The champion: the published model, which is scored beside the one that may replace it."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from params import ModelError, TransientError
from params.foundation.artifacts import Artifacts, replace_folder_atomically
from params.schema import ObjectiveChoice
from tasks.digests import PROVENANCE
from tasks.evaluation.reading import ModelInputReader
from tasks.evaluation.report import Champion
from tasks.hub_client.connection import chosen_endpoint, open_repository
from tasks.tokenization.tokenizers import NO_LIMIT
from trainer import objectives
from trainer.runtime.library_errors import remote_code_error
from trainer.runtime.model_files import check_model_files

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from tasks.hub_client.repository import Repository
    from trainer.objectives.bases.objective import Objective, ObjectiveState

logger = logging.getLogger(__name__)


class _Record(BaseModel):
    """The part of `evergreen-provenance.json` that is needed here."""

    objective: ObjectiveChoice


@dataclass(frozen=True)
class ChampionStatus:
    """What the Hub says about the champion and about the model in question."""

    champion: Champion | None
    folder: Path | None
    """The champion's files on this machine."""
    rolled_back_reason: str | None
    """Why the model in question was rolled back after an earlier release; None if it was not."""
    max_length: int = 0
    """The tokens up to which the model in question was judged, if it is the champion."""


def fetch(artifacts: Artifacts, *, repo_id: str, endpoint: str, weights: Collection[str]) -> ChampionStatus:
    """Find the champion, and download it unless it exists locally, or is the model in question.

    `weights` are the digests of that model's releases, in each form that it can be published in.
    """
    with open_repository(artifacts, repo_id=repo_id, endpoint=endpoint) as repository:
        from tasks.hub_client.release_log import rolled_back_reason

        head = repository.head()
        if head is None:
            return ChampionStatus(None, None, None)
        champion = Champion(
            endpoint=chosen_endpoint(endpoint), repo_id=repo_id, commit=head.commit, tag=head.tag, weights=head.weights
        )
        if champion.weights in weights:
            return ChampionStatus(champion, None, None, _released_limit(repository, champion))
        reason = rolled_back_reason(repository, weights)
        folder = artifacts.champion / champion.commit
        if not folder.exists():
            shutil.rmtree(folder.parent, ignore_errors=True)
            logger.info("evaluate: downloading the champion, %s of %s", champion.tag or champion.commit, repo_id)
            with replace_folder_atomically(folder) as staging:
                repository.download_model(champion.commit, staging)
                shutil.rmtree(staging / ".cache", ignore_errors=True)  # the client's notes on the download
        return ChampionStatus(champion, folder, reason)


def _released_limit(repository: Repository, champion: Champion) -> int:
    """Return how many tokens of a text the champion's tokenizer reads; 0 if it does not say."""
    from tasks.hub_client.repository import MAX_SETTINGS_BYTES

    def read() -> bytes | None:
        return repository.read(champion.commit, "tokenizer_config.json", max_bytes=MAX_SETTINGS_BYTES)

    content = repository.retry_until_clear(read) or b"{}"
    with champion_errors(champion):
        found = int(json.loads(content).get("model_max_length", 0))
        return found if found < NO_LIMIT else 0


def champion_reading(
    folder: Path, choice: ObjectiveChoice, *, max_length: int, champion: Champion, columns: Collection[str]
) -> ModelInputReader:
    """Return how the champion reads rows: with its own tokenizer, and the options that its release records.

    Args:
        folder: its files.
        choice: what the candidate learns.
        max_length: the candidate's, for a champion without one.
        champion: for messages.
        columns: of the rows.

    Raises:
        ModelError: it cannot read rows of this recipe.
    """
    from transformers import AutoTokenizer

    with champion_errors(champion):
        check_model_files(folder, adapter=True)
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        objective = objectives.build(choice).as_released(_released_options(folder, choice.name))
        if lacking := sorted(objective.columns().keys() - set(columns)):
            raise ValueError(f"its prompt needs the column {lacking[0]!r}, which the rows do not have")
        objective.prepare_tokenizer(tokenizer)
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        own = int(tokenizer.model_max_length)
        return ModelInputReader(objective, tokenizer, folder, own if own < NO_LIMIT else max_length, champion.where)


def load(folder: Path, objective: Objective[Any], state: ObjectiveState, champion: Champion) -> PreTrainedModel:
    """Load the champion, with this run's labels. An adapter is merged into its base model.

    Raises:
        ModelError: it is a model for another task.
    """
    from trainer.model import network

    with champion_errors(champion):
        return objective.remap_labels(network.load_trained_model(folder, objective.model_class()), state)


@contextlib.contextmanager
def champion_errors(champion: Champion) -> Iterator[None]:
    """Turn what goes wrong with the champion into a ModelError that names it."""
    try:
        yield
    except TransientError:
        raise
    except Exception as error:
        what = f"the champion, {champion.tag or champion.commit}, cannot be scored: "
        fix = "if it is a model for another task, publish to another repository (publish.repo_id)"
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, ValidationError):
            wrong = "; ".join(f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in error.errors())
            why = f"its {PROVENANCE} cannot be used: {wrong}"
            fix = "roll back to a release that Evergreen has made, or publish to another repository (publish.repo_id)"
        raise remote_code_error(champion.where, error) or ModelError(champion.where, what + why, fix) from error


def _released_options(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the options of the objective `name` that a release records; None if it records none, or another objective."""
    path = folder / PROVENANCE
    if not path.exists():
        return None
    found = _Record.model_validate_json(path.read_bytes()).objective
    return found.options if found.name == name else None
