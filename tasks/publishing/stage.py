"""publish: send the model that the gate has blessed, with tokenizer and model card, to a Hub, as exactly one commit.

The stage first plans the release: what, where, in whose place and why. Then one of three senders carries the plan out: a dry run
only says it, others publish it directly or, with `publish.approval`, propose it as a pull request, which a person merges or closes.
No run waits for that.

The receipt says what was published where. It is kept in git and not in DVC's cache, which could restore it without publishing
anything. If the gate keeps the champion, nothing is sent, and the receipt says why. DVC deletes the receipt before this stage
runs; the log of the recipe keeps all of them.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from datetime import datetime

from params import GateRefusedError
from params.foundation.artifacts import Artifacts
from params.schema import Model, ObjectiveChoice, Publish
from params.sections.evaluation import Evaluation
from tasks.evaluation.verdict_log import log_receipt, log_verdict
from tasks.hub_client.connection import current_dvc_experiment, name_of_hub
from tasks.hub_client.lost_releases import refuse_lost_releases
from tasks.publishing.candidate import Candidate, require_readable_base_model
from tasks.publishing.unlogged import log_decision, log_releases_without_line, undecided_proposal
from tasks.release_log.receipt import Receipt
from tasks.stage_inputs import StageInputsSnapshot, check_earlier_stages_unchanged
from tasks.stages import log_reasons, save_report
from trainer.model.adapters import BaseModelReference

logger = logging.getLogger(__name__)


def publish(
    artifacts: Artifacts,
    *,
    seed: int,
    objective: ObjectiveChoice,
    model: Model,
    evaluation: Evaluation,
    publish: Publish,
    inputs: StageInputsSnapshot,
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
    candidate = Candidate(artifacts, publish, objective)
    candidate.check(seed=seed, model=model, evaluation=evaluation)
    blessing, evaluated, endpoint = candidate.blessing, candidate.evaluated, candidate.endpoint
    repo_id = publish.repo_id
    if name := current_dvc_experiment():
        why = f"{name} is an experiment, so nothing is published; the verdict is `{blessing.verdict}`"
        fix = f"`dvc exp apply {name}` and `evergreen run {artifacts.recipe}` publish it, if the gate agrees"
        reasons = (*blessing.reasons, f"it is the experiment {name}, which publishes nothing; {fix}")
        dry_run = Receipt(status="dry-run", reasons=reasons, repo_id=repo_id, endpoint=endpoint)
        for line in (why, *blessing.reasons):
            logger.info("publish: %s", line)
        save_report(dry_run, artifacts.receipt)
        return dry_run
    log_decision(candidate)
    log_releases_without_line(candidate)
    if blessing.verdict == "refuse":
        _withdraw_proposals(candidate)
        log_verdict(artifacts, "refused", blessing, evaluated, repo_id=repo_id, endpoint=endpoint)
        what = f"the gate refuses the model: {'; '.join(blessing.reasons)}"
        fix = "read the report; change the data, the training or evaluation.gate"
        raise GateRefusedError(str(artifacts.blessing), what, fix)
    may_change_form = blessing.is_champion and len(candidate.forms) > 1 and not publish.dry_run
    receipt: Receipt | None = None
    time: datetime | None = None
    if blessing.verdict == "publish" or may_change_form:
        check_earlier_stages_unchanged("publish", artifacts)
        receipt, time = _release(candidate, inputs)
    if receipt is None:
        _withdraw_proposals(candidate)
        assert blessing.champion is not None, "there is a champion to keep"
        place = blessing.champion.model_dump(exclude={"weights", "learned_until"})
        receipt = Receipt(status="kept", reasons=blessing.reasons, **place)
    log_reasons(logger, "publish", receipt.status, receipt.reasons)
    log_receipt(artifacts, receipt, blessing, evaluated, time)  # first: a stage that was killed logs it only once
    save_report(receipt, artifacts.receipt)
    return receipt


def _withdraw_proposals(candidate: Candidate) -> None:
    if candidate.publish.dry_run or (candidate.publish.approval == "none" and not undecided_proposal(candidate)):
        return
    from tasks.publishing.proposal import ReleaseProposals

    reason = f"The gate no longer lets this model replace the published one: {'; '.join(candidate.blessing.reasons)}"
    with candidate.open() as repository:
        ReleaseProposals(repository, candidate.artifacts.recipe).withdraw(reason)


def _release(candidate: Candidate, inputs: StageInputsSnapshot) -> tuple[Receipt | None, datetime | None]:
    """Plan the release, and send it; return what became of it, and when, by the Hub's clock.

    There is no receipt if main holds it, or somebody rolled back from it.
    """
    time: datetime | None = None
    from tasks.hub_client.main_history import MainHistory
    from tasks.publishing.assembly import assemble_and_plan_release
    from tasks.publishing.exactly_once import publish_release
    from tasks.publishing.proposal import ReleaseProposals
    from tasks.publishing.release_plan import ReleaseOutcome

    publish, hub, artifacts = candidate.publish, name_of_hub(candidate.endpoint), candidate.artifacts
    if publish.dry_run:
        release = assemble_and_plan_release(candidate, candidate.blessing.champion, inputs)
        logger.info("publish: dry run: %d files would go to %s on %s", len(release.files), release.repo_id, hub)
        outcome = ReleaseOutcome("dry-run")
    else:
        with candidate.open() as repository:
            patient = replace(
                repository, timeout_s=publish.timeout_s, log=lambda line: logger.info("publish: %s", line)
            )
            main = MainHistory.read(patient)
            refuse_lost_releases(artifacts, main, candidate.endpoint, weights=candidate.forms.values())
            if publish.adapter != "merged":
                require_readable_base_model(
                    repository, BaseModelReference.of(artifacts.adapter), private=publish.private
                )
            replaced = candidate.replaced(repository)
            if replaced and (replaced.weights == candidate.weights or candidate.is_rolled_back(main)):
                return None, None
            candidate.check_ancestors(main)
            release = assemble_and_plan_release(candidate, replaced, inputs)
            logger.info("publish: %s to %s on %s", release.tag, release.repo_id, hub)
            if publish.approval == "none":
                outcome = publish_release(patient, release)
                if undecided_proposal(candidate):
                    reason = f"The recipe asks for no approval any more: {release.tag} was published."
                    ReleaseProposals(patient, artifacts.recipe).withdraw(reason)
            else:
                outcome = ReleaseProposals(patient, artifacts.recipe).propose(release)
            time = repository.time_of(outcome.commit) if outcome.commit else None
    shutil.rmtree(artifacts.staged_release)
    receipt = Receipt(
        status=outcome.status,
        reasons=(*release.reasons, *([outcome.note] if outcome.note else [])),
        repo_id=release.repo_id,
        endpoint=candidate.endpoint,
        commit=outcome.commit,
        tag=release.tag,
        pull_request=outcome.pull_request,
        publish_id=release.publish_id,
    )
    return receipt, time
