"""The champion: the published model, which is scored beside the one that may replace it."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from params import ModelError
from params.artifacts import Artifacts, whole_folder
from tasks.evaluation.report import Champion
from tasks.hub_client.connection import chosen_endpoint, open_repository

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from tasks.hub_client.repository import Repository
    from trainer.objectives.bases.objective import Objective, ObjectiveState

logger = logging.getLogger(__name__)
_FILES = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]
"""The files of a model and its tokenizer: no code and no pictures."""


@dataclass(frozen=True)
class PublishedModel:
    """What the Hub says about the champion and about the model in question."""

    champion: Champion | None
    folder: Path | None
    """The champion's files on this machine."""
    rolled_back_reason: str | None
    """Why the model in question was rolled back after an earlier release; None if it was not."""


def fetch(artifacts: Artifacts, *, repo_id: str, endpoint: str, weights: Collection[str]) -> PublishedModel:
    """Find the champion, and download it unless it is here already, or is the model in question.

    `weights` are the digests of that model's releases, in each form that it can be published in.
    """
    with open_repository(artifacts, repo_id=repo_id, endpoint=endpoint) as repository:
        from tasks.hub_client.release_log import rolled_back_reason

        head = repository.head()
        if head is None:
            return PublishedModel(None, None, None)
        champion = Champion(
            endpoint=chosen_endpoint(endpoint), repo_id=repo_id, commit=head.commit, tag=head.tag, weights=head.weights
        )
        if champion.weights in weights:
            return PublishedModel(champion, None, None)
        reason = rolled_back_reason(repository, weights)
        folder = artifacts.champion / champion.commit
        if not folder.exists():
            shutil.rmtree(folder.parent, ignore_errors=True)
            logger.info("evaluate: downloading the champion, %s of %s", champion.tag or champion.commit, repo_id)
            with whole_folder(folder) as staging:
                _download(repository, champion.commit, staging)
        return PublishedModel(champion, folder, reason)


def _download(repository: Repository, commit: str, folder: Path) -> None:
    def download() -> None:
        repository.refuse_large_settings(commit, repository.tree(commit))
        repository.api.snapshot_download(repository.id, revision=commit, local_dir=folder, allow_patterns=_FILES)

    # A large model may take longer than a look at the Hub.
    replace(repository, cuts_requests=False).retry_until_clear(download)
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the client's notes on the download


def load(
    folder: Path, objective: Objective[Any], state: ObjectiveState, champion: Champion
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the champion and its tokenizer, with this run's labels. An adapter is merged into its base model.

    Raises:
        ModelError: it is a model for another task.
    """
    from transformers import AutoTokenizer

    from trainer.model import network

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
        objective.prepare_tokenizer(tokenizer)
        model = objective.remap_labels(network.trained_model(folder, objective.model_class()), state)
    except Exception as error:
        what = f"the champion, {champion.tag or champion.commit}, cannot be scored: {type(error).__name__}: {error}"
        fix = "if it is a model for another task, publish to another repository (publish.repo_id)"
        raise ModelError(f"{champion.endpoint}/{champion.repo_id}", what, fix) from error
    return model, tokenizer


def reads_alike(one: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> bool:
    """Return whether two tokenizers split every text into the same tokens."""
    return bool(
        _rules(one) == _rules(other)
        and one.chat_template == other.chat_template
        and one.model_max_length == other.model_max_length
        and (one.eos_token_id, one.pad_token_id) == (other.eos_token_id, other.pad_token_id)
    )


def _rules(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    rules: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    return {name: rule for name, rule in rules.items() if name not in {"truncation", "padding"}}  # of its last call
