"""publish: the model that the gate has blessed, its tokenizer and a model card, to a Hub, as exactly one commit.

The receipt says what is where; it is small, lives in git and never in DVC's cache, from which it could come back without
anything having been published. Where the gate keeps the champion, the receipt says so and why, and nothing is sent.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

from params import ModelError
from params.artifacts import Artifacts, whole_folder
from params.schema import Evaluation, Model, ObjectiveChoice, Publish
from tasks import digests
from tasks.evaluation.gate import Blessing
from tasks.hub_client.connection import open_hub
from tasks.hub_client.receipt import Receipt
from tasks.ingestion.report import IngestReport
from tasks.stages import read_report, save_report
from tasks.training.report import TrainingReport
from trainer import objectives
from trainer.objectives.bases.objective import Objective

logger = logging.getLogger(__name__)


def publish(
    artifacts: Artifacts,
    *,
    seed: int,
    objective: ObjectiveChoice,
    model: Model,
    evaluation: Evaluation,
    publish: Publish,
) -> Receipt:
    """Publish the model of an evaluated run, if the gate has blessed it.

    Raises:
        ModelError: the gate refuses the model, the blessing is another's, or the release holds what must not be published.
        StaleBlessingError: another model was published since the evaluation.
        HubRefusedError: no token, no access, or the tag is taken by something else.
        TransientError: the Hub cannot be reached; nothing is lost, the next run publishes.
    """
    blessing = read_report(artifacts, Blessing)
    recipe = digests.recipe_digest(seed=seed, objective=objective, model=model, evaluation=evaluation)
    _refuse_anothers(artifacts, blessing, recipe=recipe, repo_id=publish.repo_id)
    if blessing.verdict == "refuse":
        fix = "look at the report; change data or training, or what evaluation.gate asks for"
        raise ModelError(str(artifacts.blessing), f"the gate refuses the model: {'; '.join(blessing.reasons)}", fix)
    if blessing.verdict == "keep":
        receipt = _kept(blessing)
    else:
        receipt = _release(artifacts, blessing, publish, objectives.build(objective))
    for reason in receipt.reasons:
        logger.info("publish: %s: %s", receipt.verdict, reason)
    save_report(receipt, artifacts.receipt)
    return receipt


def _refuse_anothers(artifacts: Artifacts, blessing: Blessing, *, recipe: str, repo_id: str) -> None:
    """Take no blessing that was given for something else."""
    other = [
        what
        for what, named, there in (
            ("model", blessing.model, digests.model_digest(artifacts)),
            ("data", blessing.data, digests.data_digest(artifacts)),
            ("recipe", blessing.recipe, recipe),
            ("repository", blessing.champion.repo_id if blessing.champion else repo_id, repo_id),
        )
        if named != there
    ]
    if other:
        what = f"the blessing is for another {' and '.join(other)} than those here"
        raise ModelError(str(artifacts.blessing), what, "run the evaluate stage again, which gives a new one")


def _kept(blessing: Blessing) -> Receipt:
    champion = blessing.champion
    assert champion is not None, "there is a champion to keep"
    return Receipt(
        verdict="kept",
        reasons=blessing.reasons,
        repo_id=champion.repo_id,
        endpoint=champion.endpoint,
        commit=champion.commit,
        tag=champion.tag,
        publish_id=None,
    )


def _release(artifacts: Artifacts, blessing: Blessing, publish: Publish, objective: Objective[Any]) -> Receipt:
    folder = artifacts.staged_release
    with whole_folder(folder) as staging:
        _assemble(artifacts, publish, objective, staging)
    hub = open_hub(artifacts, repo_id=publish.repo_id, endpoint=publish.endpoint, to_write=not publish.dry_run)
    with hub as (api, endpoint):
        from tasks.publishing.exactly_once import plan_release, publish_release

        training = read_report(artifacts, TrainingReport)
        release = plan_release(
            folder,
            repo_id=publish.repo_id,
            tag=None,
            private=publish.private,
            provenance={
                "run": training.run,
                "data_sha256": read_report(artifacts, IngestReport).data_sha256,
                "git_commit": training.git_commit,
                "replaces": blessing.champion.commit if blessing.champion else None,
            },
        )
        commit, reasons = None, blessing.reasons
        if publish.dry_run:
            where = f"{publish.repo_id} on {endpoint}"
            logger.info("publish: dry run: %d files would go to %s", len(release.files), where)
        else:
            logger.info("publish: %s to %s on %s", release.tag, publish.repo_id, endpoint)
            published = publish_release(
                api,
                release,
                replaces=blessing.champion.weights if blessing.champion else None,
                deadline_s=publish.timeout_s,
                log=lambda line: logger.info("publish: %s", line),
            )
            commit = published.commit
            if published.superseded:
                reasons = (*reasons, "it was released before, and main holds another model since")
    shutil.rmtree(folder)
    return Receipt(
        verdict="dry-run" if publish.dry_run else "published",
        reasons=reasons,
        repo_id=publish.repo_id,
        endpoint=endpoint,
        commit=commit,
        tag=release.tag,
        publish_id=release.publish_id,
    )


def is_there(artifacts: Artifacts, publish: Publish) -> bool:
    """Whether the Hub still holds what the receipt says.

    Raises:
        HubRefusedError, TransientError: the Hub gave no answer to that.
    """
    receipt = read_report(artifacts, Receipt)
    if receipt.commit is None:  # a dry run
        return publish.dry_run
    with open_hub(artifacts, repo_id=publish.repo_id, endpoint=publish.endpoint) as (api, endpoint):
        from tasks.hub_client.repository import remote_holds

        return endpoint == receipt.endpoint and remote_holds(api, receipt.repo_id, receipt.commit)


def is_current(artifacts: Artifacts, publish: Publish) -> bool:
    """Whether the blessing is about what the Hub holds now: its champion or, once published, the model itself.

    Raises:
        ModelError: there is no blessing.
        HubRefusedError, TransientError: the Hub does not say what is published.
    """
    blessing = read_report(artifacts, Blessing)
    with open_hub(artifacts, repo_id=publish.repo_id, endpoint=publish.endpoint) as (api, endpoint):
        from tasks.hub_client.repository import head

        found = head(api, publish.repo_id)
        if found is None:
            return blessing.champion is None
        if found.weights == blessing.model:
            return True
        champion = blessing.champion
        return champion is not None and (champion.endpoint, champion.weights) == (endpoint, found.weights)


def _assemble(artifacts: Artifacts, publish: Publish, objective: Objective[Any], folder: Path) -> None:
    """Put together what is published: the model's folder, the record of how it was made, the card, its pictures, the report.

    Rows of the data are quoted only where the repository is private.
    """
    from tasks.publishing import provenance
    from tasks.publishing.model_card import PICTURES, write_card
    from tasks.report.charts import card_pictures
    from tasks.report.page import render

    shutil.copytree(artifacts.model, folder, dirs_exist_ok=True)
    record = provenance.provenance(artifacts)
    (folder / provenance.FILE).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    pictures = card_pictures(artifacts)
    for name, picture in pictures.items():
        (folder / name).write_bytes(picture)
    (folder / "report.html").write_text(render(artifacts, timings=None, quote_rows=publish.private), encoding="utf-8")
    card = write_card(
        artifacts,
        publish,
        pipeline_tag=objective.pipeline_tag,
        auto_class=objective.model_class().__name__,
        pictures=[name for name in PICTURES if name in pictures],
        has_report=True,
        record=record,
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
