"""publish: send the model that the gate has blessed, with tokenizer and model card, to a Hub, as exactly one commit.

With `publish.approval`, propose it there as a pull request, which a person merges or closes. No run waits for that.

The receipt says what was published where. It is kept in git and not in DVC's cache, which could restore it without publishing
anything. If the gate keeps the champion, nothing is sent, and the receipt says why. DVC deletes the receipt before this stage
runs; the log of the recipe keeps all of them.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from params import GateRefusedError, ModelError, RecipeError, load
from params.dvc_files import Inputs, check_earlier_stages
from params.foundation.artifacts import Artifacts, whole_folder
from params.schema import AdapterForm, Evaluation, Model, ObjectiveChoice, Publish
from tasks import digests
from tasks.evaluation.receipt_log import log_receipt, log_verdict
from tasks.evaluation.report import Blessing, Champion, EvaluationReport
from tasks.hub_client.connection import chosen_endpoint, experiment, open_repository
from tasks.hub_client.receipt import Receipt
from tasks.ingestion.report import IngestReport
from tasks.publishing import base_model, release_form
from tasks.stages import read_report, save_report
from tasks.training.report import TrainingReport
from trainer import objectives
from trainer.model.adapters import BaseModel
from trainer.objectives.bases.objective import Objective

if TYPE_CHECKING:
    from tasks.publishing.exactly_once import PublishedRelease
    from tasks.publishing.proposal import Proposal

logger = logging.getLogger(__name__)


def publish(
    artifacts: Artifacts,
    *,
    seed: int,
    objective: ObjectiveChoice,
    model: Model,
    evaluation: Evaluation,
    publish: Publish,
    inputs: Inputs,
) -> Receipt:
    """Publish the model of an evaluated run if the gate has blessed it, and nothing was edited since the run's stages ran.

    An experiment of DVC publishes nothing, and says so.

    Raises:
        GateRefusedError: the gate refuses the model.
        ModelError: the blessing is for something else, a file must not be published, or the release answers otherwise than it was
            judged.
        StaleBlessingError: another model was published since the evaluation.
        InputsChangedError: the recipe or the code was edited since an earlier stage ran, or since `inputs` were read.
        HubRefusedError: no token, no access, or the tag holds something else.
        TransientError: the Hub gives no clear answer; nothing is lost, the next run publishes.
    """
    if publish.adapter != "merged" and (found := base_model.problem(model)):
        raise RecipeError("publish.adapter", *found)
    blessing, releases = read_report(artifacts, Blessing), digests.release_digests(artifacts)
    if publish.adapter not in releases:
        what = "the adapters are not there by themselves: the base model lacks layers that they do not hold, its commit was not known"
        what += " when they were trained, or an older version of Evergreen trained them"
        raise ModelError(str(artifacts.adapter), what, "run the train stage again, or remove publish.adapter")
    recipe = digests.recipe_digest(seed=seed, objective=objective, model=model, evaluation=evaluation)
    _check_blessing(artifacts, blessing, model=releases["merged"], recipe=recipe, repo_id=publish.repo_id)
    if name := experiment():
        unpublished = _experiment_receipt(name, artifacts, blessing, publish)
        save_report(unpublished, artifacts.receipt)
        return unpublished
    evaluated = read_report(artifacts, EvaluationReport)
    if blessing.verdict == "refuse":
        _withdraw_proposals(artifacts, blessing, publish)
        endpoint = chosen_endpoint(publish.endpoint)
        log_verdict(artifacts, "refused", blessing, evaluated, repo_id=publish.repo_id, endpoint=endpoint)
        fix = "read the report; change the data, the training or evaluation.gate"
        raise GateRefusedError(
            str(artifacts.blessing), f"the gate refuses the model: {'; '.join(blessing.reasons)}", fix
        )
    may_change_form = blessing.is_champion and len(releases) > 1 and not publish.dry_run
    receipt: Receipt | None = None
    if blessing.verdict == "publish" or may_change_form:
        built = objectives.build(objective)
        receipt = _publish_model(artifacts, blessing, publish, built, inputs, releases=releases)
    if receipt is None:
        _withdraw_proposals(artifacts, blessing, publish)
        receipt = _keep_champion(blessing)
    for reason in receipt.reasons:
        logger.info("publish: %s: %s", receipt.status, reason)
    log_receipt(artifacts, receipt, blessing, evaluated)  # first: a stage that was killed in between logs it only once
    save_report(receipt, artifacts.receipt)
    return receipt


def _check_blessing(artifacts: Artifacts, blessing: Blessing, *, model: str, recipe: str, repo_id: str) -> None:
    """Refuse a blessing that was given for something else."""
    different = [
        what
        for what, blessed, current in (
            ("model", blessing.model, model),
            ("data", blessing.data, digests.data_digest(artifacts)),
            ("recipe", blessing.recipe, recipe),
            ("repository", blessing.champion.repo_id if blessing.champion else repo_id, repo_id),
        )
        if blessed != current
    ]
    if different:
        what = f"the blessing is for another {' and '.join(different)}"
        raise ModelError(str(artifacts.blessing), what, "run the evaluate stage again: it writes a new blessing")


def _experiment_receipt(name: str, artifacts: Artifacts, blessing: Blessing, publish: Publish) -> Receipt:
    """Return the receipt of an experiment of DVC: whatever the verdict, nothing is published, and no log says so."""
    logger.info("publish: %s is an experiment, so nothing is published; the verdict is `%s`", name, blessing.verdict)
    for reason in blessing.reasons:
        logger.info("publish: %s", reason)
    fix = f"`dvc exp apply {name}` and `evergreen run {artifacts.recipe}` publish it, if the gate agrees"
    return Receipt(
        status="dry-run",
        reasons=(*blessing.reasons, f"it is the experiment {name}, which publishes nothing; {fix}"),
        repo_id=publish.repo_id,
        endpoint=chosen_endpoint(publish.endpoint),
        commit=None,
        tag=None,
        publish_id=None,
    )


def _keep_champion(blessing: Blessing) -> Receipt:
    champion = blessing.champion
    assert champion is not None, "there is a champion to keep"
    return Receipt(
        status="kept",
        reasons=blessing.reasons,
        repo_id=champion.repo_id,
        endpoint=champion.endpoint,
        commit=champion.commit,
        tag=champion.tag,
        publish_id=None,
    )


def _withdraw_proposals(artifacts: Artifacts, blessing: Blessing, publish: Publish) -> None:
    if publish.approval == "none":
        return
    from tasks.publishing.proposal import withdraw_proposals

    reason = f"The gate no longer lets this model replace the published one: {'; '.join(blessing.reasons)}"
    with open_repository(artifacts, repo_id=publish.repo_id, endpoint=publish.endpoint, to_write=True) as repository:
        withdraw_proposals(repository, artifacts.recipe, reason)


def _publish_model(
    artifacts: Artifacts,
    blessing: Blessing,
    publish: Publish,
    objective: Objective[Any],
    inputs: Inputs,
    *,
    releases: Mapping[AdapterForm, str],
) -> Receipt | None:
    """Publish the model in the form that the recipe asks for; None if main holds it so, and nothing is to be published."""
    check_earlier_stages("publish", artifacts)
    writes = not publish.dry_run
    with open_repository(artifacts, repo_id=publish.repo_id, endpoint=publish.endpoint, to_write=writes) as opened:
        from tasks.publishing.description import describe
        from tasks.publishing.exactly_once import publish_release
        from tasks.publishing.proposal import propose_release
        from tasks.publishing.release import plan_release
        from tasks.publishing.served import check_served

        replaced = blessing.champion
        if writes:
            if publish.adapter != "merged":
                base_model.require_readable(opened, BaseModel.of(artifacts.adapter), private=publish.private)
            replaced = release_form.replaced_model(opened, blessing, publish, releases)
            if replaced and (
                replaced.weights == releases[publish.adapter]
                or release_form.is_rolled_back(opened, blessing, publish, releases)
            ):
                return None
        folder = artifacts.staged_release
        with whole_folder(folder) as staging:
            _assemble(artifacts, publish, objective, staging, replaced)
        inputs.check()  # the release holds the recipe as it is now
        training = read_report(artifacts, TrainingReport)
        release = plan_release(
            folder,
            repo_id=publish.repo_id,
            tag=None,
            private=publish.private,
            made_from={
                "run": training.run,
                "data_sha256": read_report(artifacts, IngestReport).data_sha256,
                "git_commit": training.git_commit,
                "replaces": replaced.commit if replaced else None,
            },
        )
        reasons = blessing.reasons if blessing.verdict == "publish" else ()
        if replaced != blessing.champion or blessing.is_champion:
            reasons += (f"the model was published in another form; publish.adapter is `{publish.adapter}`",)
        check_served(artifacts, folder, release, blessed=releases[publish.adapter], objective=objective)
        receipt = Receipt(
            status="dry-run",
            reasons=reasons,
            repo_id=publish.repo_id,
            endpoint=chosen_endpoint(publish.endpoint),
            commit=None,
            tag=release.tag,
            publish_id=release.publish_id,
        )
        where = f"{publish.repo_id} on {receipt.endpoint}"
        if publish.dry_run:
            logger.info("publish: dry run: %d files would go to %s", len(release.files), where)
        else:
            logger.info("publish: %s to %s", release.tag, where)
            repository = replace(opened, timeout_s=publish.timeout_s, log=lambda line: logger.info("publish: %s", line))
            replaces = replaced.weights if replaced else None
            if publish.approval == "none":
                done: PublishedRelease | Proposal = publish_release(repository, release, replaces=replaces)
            else:
                evaluated = read_report(artifacts, EvaluationReport)
                description = describe(artifacts, blessing, evaluated, reasons=reasons, replaced=replaced)
                done = propose_release(
                    repository,
                    release,
                    recipe=artifacts.recipe,
                    description=description,
                    replaces=replaces,
                    weights=() if blessing.is_champion else releases.values(),
                )
            receipt = _with_result(receipt, done)
    shutil.rmtree(folder)
    return receipt


def _with_result(receipt: Receipt, done: PublishedRelease | Proposal) -> Receipt:
    """Return the receipt of a release that was published or proposed."""
    from tasks.publishing.proposal import Proposal

    if not isinstance(done, Proposal):
        superseded = ("it was published before, and main holds another model now",) if done.superseded else ()
        reasons = (*receipt.reasons, *superseded)
        return receipt.model_copy(update={"status": "published", "commit": done.commit, "reasons": reasons})
    is_open = done.status == "open"
    reason = f"pull request {done.number} {'waits for approval' if is_open else 'was closed'}"
    status = "proposed" if is_open else "rejected"
    reasons = (*receipt.reasons, reason)
    return receipt.model_copy(update={"status": status, "reasons": reasons, "pull_request": done.number})


def is_there(artifacts: Artifacts, publish: Publish) -> bool:
    """Whether the Hub still holds what the receipt says."""
    receipt = read_report(artifacts, Receipt)
    if receipt.status == "dry-run":
        return publish.dry_run
    if (receipt.endpoint, receipt.repo_id) != (chosen_endpoint(publish.endpoint), publish.repo_id):
        return False
    with open_repository(artifacts, repo_id=publish.repo_id, endpoint=publish.endpoint) as repository:
        if receipt.commit is not None:
            return repository.holds(receipt.commit)
        from tasks.publishing.proposal import WAITING, status_of

        assert receipt.pull_request is not None, receipt
        status = status_of(repository, receipt.pull_request)
        return status in WAITING if receipt.status == "proposed" else status == "closed"


def is_current(artifacts: Artifacts, publish: Publish) -> bool:
    """Whether the blessing is about what the Hub holds now: the same champion, or the blessed model itself.

    Raises:
        ModelError: there is no blessing.
        HubRefusedError, TransientError: the Hub refuses, or gives no clear answer.
    """
    blessing = read_report(artifacts, Blessing)
    with open_repository(artifacts, repo_id=publish.repo_id, endpoint=publish.endpoint) as repository:
        head = repository.head()
    champion = blessing.champion
    if head is None:
        return champion is None
    if blessing.is_in_release(head.weights):
        return True
    endpoint = chosen_endpoint(publish.endpoint)
    return champion is not None and (champion.endpoint, champion.weights) == (endpoint, head.weights)


def _assemble(
    artifacts: Artifacts, publish: Publish, objective: Objective[Any], folder: Path, replaced: Champion | None
) -> None:
    """Collect the files of a release: the model, the record of how it was made, its data's profile, the card, the report.

    Rows of the data are quoted only if the repository is private. A public release has the profile, from which numbers can be
    read, only if the recipe sets `validation.drift`.
    """
    from tasks.publishing import provenance
    from tasks.publishing.model_card import PICTURES, write_card
    from tasks.report.chart_data import card_pictures
    from tasks.report.page import render

    max_length = read_report(artifacts, EvaluationReport).max_length
    release_form.copy_model(artifacts, publish.adapter, folder, max_length=max_length)
    record = provenance.provenance(artifacts, publish.adapter)
    (folder / provenance.FILE).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    asks_for_drift = "drift" in load(artifacts.recipe_path).validation.model_fields_set
    if artifacts.data_profile.exists() and (publish.private or asks_for_drift):
        shutil.copy(artifacts.data_profile, folder)
    pictures = card_pictures(artifacts)
    for name, picture in pictures.items():
        (folder / name).write_bytes(picture)
    (folder / "report.html").write_text(render(artifacts, timings=None, quote_rows=publish.private), encoding="utf-8")
    card = write_card(
        artifacts,
        publish,
        pipeline_tag=objective.pipeline_tag,
        auto_class=objective.auto_class,
        call=objective.call_arguments,
        cuts=objective.reader_cuts,
        replaced=replaced,
        pictures=[name for name in PICTURES if name in pictures],
        has_report=True,
        record=record,
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
