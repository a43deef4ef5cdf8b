"""The champion: the published model, which is scored beside the one that may replace it."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from params import ModelError, RecipeError, TransientError
from params.foundation.artifacts import Artifacts
from params.schema import ObjectiveChoice
from tasks.digests import PROVENANCE, ReleaseRecord
from tasks.evaluation.reading import ModelTokenization
from tasks.hub_client.connection import fetch_model_once, open_repository, resolve_hub_endpoint
from tasks.hub_client.lost_releases import refuse_lost_releases
from trainer import objectives
from trainer.model.adapters import PEFT_TASKS, BaseModelReference, is_adapter_folder
from trainer.model.limits import find_position_limits_in, find_reading_limit
from trainer.objectives.bases.lazy_imports import PreTrainedModel, PreTrainedTokenizerBase, transformers
from trainer.objectives.bases.network.position_limits import NO_LIMIT
from trainer.objectives.bases.objective import Objective, ObjectiveState
from trainer.objectives.bases.release_reading import ReleaseReading
from trainer.objectives.bases.vectors.sentence_transformers_files import MODULES
from trainer.runtime.library_errors import as_remote_code_error, panics_as_errors
from trainer.runtime.model_files import check_safe_to_load
from trainer.start import ReleaseReference

if TYPE_CHECKING:
    from tasks.hub_client.repository import HubRepository

logger = logging.getLogger(__name__)
_HEADS = re.compile(r"For(?!ConditionalGeneration$|PreTraining$)\w+$|(?<!LMHead)Model$")
"""Ends of the names of architectures that have one head, or none; the other ones may be loaded by classes of other names."""


@dataclass(frozen=True)
class ChampionStatus:
    """What the Hub says about the champion and about the model in question."""

    champion: ReleaseReference | None
    folder: Path | None
    """The champion's files on this machine."""
    rolled_back_reason: str | None
    """Why the model in question was rolled back after an earlier release; None if it was not."""
    distrusted_ancestor: str | None = None
    """Why the model in question is not to be published: a release that it goes back to was rolled back; None if none was."""
    max_length: int = 0
    """The tokens up to which the model in question was judged, if it is the champion."""


def fetch_champion(artifacts: Artifacts, *, repo_id: str, endpoint: str, weights: Collection[str]) -> ChampionStatus:
    """Find the champion, and download it unless it exists locally, or is the model in question.

    `weights` are the digests of that model's releases, in each form that it can be published in.

    Raises:
        HubRefusedError: the Hub does not know what the recipe's log says was published there.
    """
    with open_repository(artifacts, repo_id=repo_id, endpoint=endpoint) as repository:
        from tasks.evaluation.rolled_back_ancestors import why_ancestor_is_distrusted
        from tasks.hub_client.main_history import MainHistory

        main, where = MainHistory.read(repository), resolve_hub_endpoint(endpoint)
        refuse_lost_releases(artifacts, main, where, weights=weights)
        head = main.head()
        champion = ReleaseReference(endpoint=where, repo_id=repo_id, **vars(head)) if head else None
        if champion and champion.weights in weights:
            return ChampionStatus(champion, None, None, max_length=_released_limit(repository, champion))
        files = fetch_model_once(artifacts, repository, champion.commit) if champion else None
        distrusted = why_ancestor_is_distrusted(artifacts, main, where)
        return ChampionStatus(champion, files, main.find_rollback_reason(weights), distrusted)


def _released_limit(repository: HubRepository, champion: ReleaseReference) -> int:
    """Return up to how many tokens of a text the champion was judged; 0 if it does not say."""
    from tasks.hub_client.repository import MAX_SETTINGS_BYTES

    for name, key in ((PROVENANCE, "max_length"), ("tokenizer_config.json", "model_max_length")):
        read = partial(repository.read, champion.commit, name, max_bytes=MAX_SETTINGS_BYTES)
        content = repository.retry_until_clear(read)
        with translate_champion_errors(champion):
            if found := int(json.loads(content or b"{}").get(key) or 0):
                return found if found < NO_LIMIT else 0
    return 0


def build_champion_reader(
    folder: Path, choice: ObjectiveChoice, *, max_length: int, champion: ReleaseReference, columns: Collection[str]
) -> ModelTokenization:
    """Return how the champion, whose files are in `folder`, reads rows with these `columns`: with its own tokenizer and recorded options.

    `choice` is the candidate's objective, and `max_length` its limit, for a champion without one.

    Raises:
        ModelError: it cannot read rows of this recipe.
    """
    with translate_champion_errors(champion), panics_as_errors():
        check_safe_to_load(folder, adapter=True)
        objective, options, judged = objectives.build_objective(choice), None, None
        if made := ReleaseRecord.of(folder):
            _check_objective(objective, made, choice.name)
            if made.objective.name == choice.name:
                options, judged = made.objective.options, made.max_length
        tokenizer: PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        objective = objective.as_released(options)
        if lacking := sorted(objective.columns().keys() - set(columns)):
            raise ValueError(f"its prompt needs the column {lacking[0]!r}, which the rows do not have")
        objective.prepare_tokenizer(tokenizer)
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        if objective.reads_as_its_release:
            limit = find_reading_limit(folder)
        elif not (limit := judged or 0):  # of an earlier version, or not of ours
            own = int(tokenizer.model_max_length)
            limit = min(own if own < NO_LIMIT else max_length, find_position_limits_in(folder).most or NO_LIMIT)
        return ModelTokenization(objective, tokenizer, folder, limit, champion.where)


def load_champion(
    folder: Path, objective: Objective[Any], state: ObjectiveState, champion: ReleaseReference
) -> PreTrainedModel:
    """Load the champion, with this run's labels. An adapter is merged into its base model.

    Raises:
        ModelError: it is a model for another task.
    """
    from trainer.model import network

    with translate_champion_errors(champion):
        model = network.load_trained_model(folder, objective.model_class())
        _check_head(objective, folder, model)
        own = objective.model_config(state)
        if "problem_type" in own and (made := ReleaseRecord.of(folder)) and _find_class(made) is type(objective):
            model.config.problem_type = own["problem_type"]  # earlier versions left that of the base model
        return objective.remap_labels(model, state)


def _find_class(made: ReleaseRecord) -> type[Objective[Any]] | None:
    """Return the objective that a release was trained by; None if it is not one of this project."""
    with contextlib.suppress(RecipeError):
        return objectives.import_objective_class(made.objective.name)
    return None


def _check_objective(objective: Objective[Any], made: ReleaseRecord, name: str) -> None:
    """Raise a ValueError if a release was trained by an objective whose outputs mean something else than those of `objective`."""
    own, other = type(objective), _find_class(made)
    whole = [
        one
        for one in own.mro()
        if issubclass(one, ReleaseReading) and one is not ReleaseReading and not inspect.isabstract(one)
    ]
    if other is None or issubclass(other, tuple(whole)):  # both are, or extend, the same objective
        return
    if own.auto_class != other.auto_class or objectives.overrides_method(objective, "remap_labels"):
        raise ValueError(
            f"it was trained by {made.objective.name}, whose answers mean something else than those of {name}"
        )


def _check_head(objective: Objective[Any], folder: Path, model: PreTrainedModel) -> None:
    """Raise a ValueError if a model was saved with another head: some architectures have heads of several tasks under the same names."""
    if is_adapter_folder(folder):
        named, wanted = BaseModelReference.of(folder).task, PEFT_TASKS.get(objective.pipeline_tag)
        is_other = wanted is not None and named in {*PEFT_TASKS.values()} - {wanted}
    else:
        named = next(iter(model.config.architectures or ()), "")
        makes_vectors = objective.vector_space is not None and (folder / MODULES).exists()  # by the body alone
        # early LLaMAs write their name so
        is_other = named.lower() != type(model).__name__.lower() and bool(_HEADS.search(named)) and not makes_vectors
    if is_other:
        raise ValueError(f"it is a {named}, and not a {type(model).__name__}")


@contextlib.contextmanager
def translate_champion_errors(champion: ReleaseReference) -> Iterator[None]:
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
        raise as_remote_code_error(champion.where, error) or ModelError(champion.where, what + why, fix) from error
