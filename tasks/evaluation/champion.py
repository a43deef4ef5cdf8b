"""The champion: the model that is published now, to be scored beside the one that wants its place."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from params import ModelError, TransientError
from params.artifacts import Artifacts, whole_folder
from tasks.evaluation.gate import Champion
from tasks.hub_client.connection import open_hub

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from trainer.objectives.bases.objective import Objective, State

logger = logging.getLogger(__name__)
_FILES = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]
"""What a model and its tokenizer consist of: never code, never pictures."""


@dataclass(frozen=True)
class Published:
    """What is known of the Hub."""

    champion: Champion | None
    folder: Path | None
    """Its files on this machine."""
    rolled_back_reason: str | None
    """Why the model in question was rolled back after an earlier release; None if it was not."""


def fetch(artifacts: Artifacts, *, repo_id: str, endpoint: str, weights: str) -> Published:
    """Find the champion, and download it unless it is the model with the digest `weights`, or is here already.

    Raises:
        HubRefusedError, TransientError: the Hub does not say what is published.
    """
    with open_hub(artifacts, repo_id=repo_id, endpoint=endpoint) as (api, chosen):
        from tasks.hub_client.release_log import rolled_back_reason
        from tasks.hub_client.repository import head

        found = head(api, repo_id)
        if found is None:
            return Published(None, None, None)
        champion = Champion(endpoint=chosen, repo_id=repo_id, commit=found.commit, tag=found.tag, weights=found.weights)
        if champion.weights == weights:
            return Published(champion, None, None)
        why = rolled_back_reason(api, repo_id, weights)
        folder = artifacts.champion / champion.commit
        if not folder.exists():
            shutil.rmtree(folder.parent, ignore_errors=True)
            logger.info("evaluate: downloading the champion, %s of %s", champion.tag or champion.commit, repo_id)
            with whole_folder(folder) as staging:
                _download(api, champion, staging)
        return Published(champion, folder, why)


def _download(api: HfApi, champion: Champion, folder: Path) -> None:
    from tasks.hub_client.faults import CLIENT_ERRORS, bounded_client, explain, refusal

    with bounded_client():
        try:
            api.snapshot_download(champion.repo_id, revision=champion.commit, local_dir=folder, allow_patterns=_FILES)
        except CLIENT_ERRORS as error:
            where = f"{champion.endpoint}/{champion.repo_id}"
            unclear = TransientError(where, f"the champion: {explain(error, api)}", "try again later")
            raise (refusal(error, api, champion.repo_id) or unclear) from None
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the client's notes about the download


def load(
    folder: Path, objective: Objective[Any], state: State, champion: Champion
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The champion and its tokenizer, answering in the terms of this run.

    Raises:
        ModelError: it is a model for another task.
    """
    from transformers import AutoTokenizer

    from trainer.model import network

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
        objective.prepare_tokenizer(tokenizer)
        model = objective.remap_labels(network.trained_model(folder, objective), state)
    except Exception as error:
        what = f"the champion, {champion.tag or champion.commit}, cannot be scored: {type(error).__name__}: {error}"
        fix = "if it is a model for another task, publish to another repository (publish.repo_id)"
        raise ModelError(f"{champion.endpoint}/{champion.repo_id}", what, fix) from error
    return model, tokenizer


def reads_alike(one: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> bool:
    """Whether two tokenizers make the same tokens of every text."""
    return bool(
        _rules(one) == _rules(other)
        and one.chat_template == other.chat_template
        and one.model_max_length == other.model_max_length
        and (one.eos_token_id, one.pad_token_id) == (other.eos_token_id, other.pad_token_id)
    )


def _rules(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    rules: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    return {name: rule for name, rule in rules.items() if name not in {"truncation", "padding"}}  # of its last call
