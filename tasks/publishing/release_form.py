"""The forms of a model with adapters, `publish.adapter`: what a release in one holds, and what it replaces.

The gate judges a model, not a form. So a model that is published already is published again in another form without being compared,
by one commit for each change of the recipe. Nobody trains anew for that.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from params import StaleBlessingError
from params.foundation.artifacts import ADAPTER, Artifacts
from params.schema import AdapterForm, Publish
from tasks.evaluation.report import Blessing, Champion
from tasks.hub_client.connection import chosen_endpoint

if TYPE_CHECKING:
    from tasks.hub_client.repository import Repository


def copy_model(artifacts: Artifacts, form: AdapterForm, folder: Path, *, max_length: int | None = None) -> None:
    """Copy the model that a release in a form holds, with its tokenizer, into `folder`.

    `max_length`: the tokens up to which it was evaluated, if that is another limit than its tokenizer's. Then its release does not cut shorter.
    """
    if form == "adapter":
        shutil.copytree(artifacts.adapter, folder, dirs_exist_ok=True)
        shutil.copytree(artifacts.tokenizer, folder, dirs_exist_ok=True)
    else:
        ignored = shutil.ignore_patterns(ADAPTER) if form == "merged" else None
        shutil.copytree(artifacts.model, folder, dirs_exist_ok=True, ignore=ignored)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_bytes())
    if max_length and max_length > config.get("model_max_length", max_length):
        path.write_text(json.dumps(config | {"model_max_length": max_length}, indent=2) + "\n", encoding="utf-8")


def replaced_model(
    repository: Repository, blessing: Blessing, publish: Publish, releases: Mapping[AdapterForm, str]
) -> Champion | None:
    """Return the model that a release replaces: the champion, or this very model in another form, if main holds that.

    If it has the weights of the release, nothing is to be published. After the release has landed, the result is the same, so that
    the release is found. `releases` are the digests of this model's releases.
    """
    champion = blessing.champion
    if len(releases) == 1:
        return champion
    other = repository.newest_other(releases[publish.adapter], since=champion.commit if champion else None)
    if other is None or other.weights not in releases.values():
        return champion
    return Champion(
        endpoint=chosen_endpoint(publish.endpoint),
        repo_id=publish.repo_id,
        commit=other.commit,
        tag=other.tag,
        weights=other.weights,
    )


def is_rolled_back(
    repository: Repository, blessing: Blessing, publish: Publish, releases: Mapping[AdapterForm, str]
) -> bool:
    """Whether somebody rolled back from the form of the published model that the recipe asks for.

    Raises:
        StaleBlessingError: the model itself was rolled back since its evaluation.
    """
    from tasks.hub_client.release_log import rolled_back_reason

    if repository.head() is None:
        return False
    asked = [releases[publish.adapter]]
    reason = rolled_back_reason(repository, asked) or rolled_back_reason(repository, releases.values())
    if reason and not blessing.is_champion:
        fix = "evaluate again: `evergreen evaluate ...`, or start the flow, which does both"
        raise StaleBlessingError(repository.where, f"the model was rolled back since its evaluation, {reason}", fix)
    return reason is not None
