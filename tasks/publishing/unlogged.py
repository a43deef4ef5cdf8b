"""What has happened on the Hub and is in no log: a decision on a proposal while a run trained, a release whose run was lost."""

from __future__ import annotations

import json
import logging
from datetime import datetime

from tasks.digests import PROVENANCE
from tasks.evaluation.release_events import ReleaseEvent, append_release_event, log_found_release, read_release_events
from tasks.hub_client.release_file import ReleaseRecord
from tasks.publishing.candidate import Candidate
from tasks.publishing.provenance import MAX_BYTES

logger = logging.getLogger(__name__)


def undecided_proposal(candidate: Candidate) -> ReleaseEvent | None:
    """Return the last proposal of this recipe if the log does not say what became of it."""
    events = [one for one in read_release_events(candidate.artifacts) if one.repo_id == candidate.publish.repo_id]
    decided = {one.publish_id for one in events if one.event in {"published", "rejected"}}
    proposed = [one for one in events if one.event == "proposed"][-1:]
    return next((one for one in proposed if one.publish_id not in decided), None)


def log_decision(candidate: Candidate) -> None:
    """Log what a person has decided on the last proposal of another model: no receipt says it, since this run has begun."""
    from tasks.publishing.proposal import ReleaseProposals

    proposed = undecided_proposal(candidate)
    if proposed is None or not proposed.pull_request or candidate.publish.dry_run:
        return
    if proposed.weights == candidate.blessing.model:  # the receipt will say it
        return
    with candidate.open() as repository:
        decision = ReleaseProposals(repository, candidate.artifacts.recipe).decision(proposed.pull_request)
    if decision:
        logger.info("publish: %s", decision.note)
        reasons = (*proposed.reasons, decision.note)
        made = {"event": decision.status, "commit": decision.commit, "reasons": reasons}
        append_release_event(candidate.artifacts, proposed.model_copy(update=made))


def log_champion_without_line(candidate: Candidate) -> None:
    """Log the release of the champion if this recipe has published it and the log does not know it: its run's record was lost."""
    champion, artifacts = candidate.blessing.champion, candidate.artifacts
    logged = {one.commit for one in read_release_events(artifacts) if one.event in {"published", "rollback"}}
    if champion is None or champion.commit in logged or candidate.publish.dry_run:
        return

    def look() -> tuple[ReleaseRecord, datetime] | None:
        record = ReleaseRecord.of(repository, champion.commit)
        provenance = record and repository.read(champion.commit, PROVENANCE, max_bytes=MAX_BYTES)
        if not record or not provenance or json.loads(provenance)["recipe"]["name"] != artifacts.recipe:
            return None
        times = {commit.commit_id: commit.created_at for commit in repository.history()}
        return (record, times[champion.commit]) if champion.commit in times else None

    with candidate.open() as repository:
        if found := repository.retry_until_clear(look):
            logger.warning("publish: logs the release %s, whose run left no line", champion.tag or champion.commit)
            log_found_release(artifacts, champion, publish_id=found[0].publish_id, time=found[1])
