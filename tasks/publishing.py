"""publish: the trained model, its tokenizer and a model card, to a Hub, as exactly one commit.

The Hub is the one in the folder .hub/, served on this machine for as long as the stage runs, unless HF_ENDPOINT or the
recipe names another. The receipt says what is where; it is small, lives in git and never in DVC's cache, from which it
could come back without anything having been published.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from params import HubRefusedError
from params.artifacts import Artifacts, whole_folder
from params.schema import ObjectiveChoice, Publish
from tasks.stages import Report, save_report
from trainer import objectives

if TYPE_CHECKING:
    from huggingface_hub import HfApi

logger = logging.getLogger(__name__)
LOCAL = "local"
LOCAL_FOLDER = ".hub"
LOCAL_TOKEN = "hf_local"  # noqa: S105 (opens the Hub of this machine to this machine, and nothing else)


class Receipt(Report):
    """What was published where."""

    verdict: Literal["published", "kept", "dry-run"]
    repo_id: str
    endpoint: str
    """Address of the Hub, or `local` for the one in .hub/."""
    commit: str | None
    tag: str
    publish_id: str
    """Hash of all that was published."""


def publish(artifacts: Artifacts, *, publish: Publish, objective: ObjectiveChoice) -> Receipt:
    """Publish the model of an evaluated run.

    Raises:
        HubRefusedError: no token, no access, or the tag is taken by something else.
        TransientError: the Hub cannot be reached; nothing is lost, the next run publishes.
        ModelError: the release holds what must not be published.
    """
    folder = artifacts.scratch / "release"
    with whole_folder(folder) as staging:
        _assemble(artifacts, publish, objectives.build(objective), staging)
    with open_hub(artifacts, publish) as (api, endpoint):
        from tasks.exactly_once import plan_release, publish_release

        source = json.loads(artifacts.report("ingest").read_text(encoding="utf-8"))
        training = json.loads(artifacts.report("train").read_text(encoding="utf-8"))
        release = plan_release(
            folder,
            repo_id=publish.repo_id,
            tag=None,
            private=publish.private,
            provenance={"run": training["run"], "data_sha256": source["data_sha256"]},
        )
        commit = None
        if publish.dry_run:
            logger.info(
                "publish: dry run: %d files would go to %s on %s", len(release.files), publish.repo_id, endpoint
            )
        else:
            logger.info("publish: %s to %s on %s", release.tag, publish.repo_id, endpoint)
            published = publish_release(
                api, release, deadline_s=publish.timeout_s, log=lambda line: logger.info("publish: %s", line)
            )
            commit = published.commit
    shutil.rmtree(folder)
    receipt = Receipt(
        verdict="dry-run" if publish.dry_run else "published",
        repo_id=publish.repo_id,
        endpoint=endpoint,
        commit=commit,
        tag=release.tag,
        publish_id=release.publish_id,
    )
    save_report(receipt, artifacts.receipt)
    return receipt


def is_there(artifacts: Artifacts, publish: Publish) -> bool:
    """Whether the Hub still holds what the receipt says.

    Raises:
        HubRefusedError, TransientError: the Hub gave no answer to that.
    """
    receipt = json.loads(artifacts.receipt.read_text(encoding="utf-8"))
    if receipt["verdict"] != "published":
        return True
    with open_hub(artifacts, publish) as (api, endpoint):
        from tasks.exactly_once import remote_holds

        return endpoint == receipt["endpoint"] and remote_holds(api, receipt["repo_id"], receipt["commit"])


def chosen_endpoint(publish: Publish) -> str:
    """The Hub's address, or `local`: the recipe's, else HF_ENDPOINT, else the Hub of this machine."""
    return os.environ.get("HF_ENDPOINT", LOCAL) if publish.endpoint == LOCAL else publish.endpoint


@contextlib.contextmanager
def open_hub(artifacts: Artifacts, publish: Publish) -> Iterator[tuple[HfApi, str]]:
    """The client of the chosen Hub, and the Hub's name in receipts; the local one runs inside the block.

    Raises:
        HubRefusedError: there is no token for a Hub elsewhere.
    """
    endpoint = chosen_endpoint(publish)
    if endpoint != LOCAL:
        from huggingface_hub import HfApi, get_token

        token = get_token()
        if not token and not publish.dry_run:
            raise HubRefusedError(endpoint, "there is no token", "set HF_TOKEN, or log in with `hf auth login`")
        yield HfApi(endpoint=endpoint, token=token), endpoint
        return
    from huggingface_hub import HfApi, constants

    from tasks.hub import LocalHub

    owner = publish.repo_id.split("/")[0]
    xet_off, constants.HF_HUB_DISABLE_XET = constants.HF_HUB_DISABLE_XET, True  # the local Hub has no such storage
    try:
        with LocalHub(artifacts.root / LOCAL_FOLDER, tokens={LOCAL_TOKEN: owner}) as hub:
            yield HfApi(endpoint=hub.endpoint, token=LOCAL_TOKEN), LOCAL
    finally:
        constants.HF_HUB_DISABLE_XET = xet_off


def _assemble(artifacts: Artifacts, publish: Publish, objective: objectives.Objective[Any], folder: Path) -> None:
    """Put together what is published: the model's folder, and the card."""
    from tasks.model_card import write_card

    shutil.copytree(artifacts.model, folder, dirs_exist_ok=True)
    card = write_card(
        artifacts, publish, pipeline_tag=objective.pipeline_tag, auto_class=objective.model_class().__name__
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


def serve(folder: Path, *, port: int) -> None:
    """Serve the Hub in `folder` on this machine until it is interrupted."""
    from tasks.hub import LocalHub

    with LocalHub(folder, tokens={LOCAL_TOKEN: "local"}, port=port) as hub:
        print(f"The Hub in {folder} is at {hub.endpoint}. To load a model from it:\n")
        print(f"  HF_ENDPOINT={hub.endpoint} HF_TOKEN={LOCAL_TOKEN} HF_HUB_DISABLE_XET=1 python")
        print(
            '  >>> AutoTokenizer.from_pretrained("owner/name", revision="a tag or commit")\n\nCtrl-C stops it.',
            flush=True,
        )
        hub.serve_forever()
