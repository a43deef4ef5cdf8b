"""What has happened on the Hub and is in no log: a decision on a proposal while a run trained, a release whose run was lost."""

from __future__ import annotations

import contextlib
import json
import logging
from datetime import datetime
from typing import Any

from tasks.digests import PROVENANCE
from tasks.hub_client.release_file import ReleaseRecord
from tasks.hub_client.repository import HubRepository, tree_weights_digest
from tasks.publishing.candidate import Candidate
from tasks.publishing.provenance import MAX_BYTES
from tasks.release_log.events import ReleaseEvent, append_release_event, read_release_events

logger = logging.getLogger(__name__)
_LOOKED_AT = 30  # commits of main, the newest
_NO_LINE = "its run left no line in this log; this one was made from the release itself"


def undecided_proposal(candidate: Candidate) -> ReleaseEvent | None:
    """Return the last proposal of this recipe if the log does not say what became of it."""
    repo_id = candidate.publish.repo_id.casefold()
    events = [one for one in read_release_events(candidate.artifacts) if one.repo_id.casefold() == repo_id]
    decided = {one.publish_id for one in events if one.event in {"published", "rejected"}}
    proposed = [one for one in events if one.event == "proposed"][-1:]
    return next((one for one in proposed if one.publish_id not in decided), None)


def log_decision(candidate: Candidate) -> None:
    """Log what a person has decided on the last proposal of another model: no receipt says it, since this run has begun."""
    from tasks.publishing.proposal import ReleaseProposals

    proposed, blessing = undecided_proposal(candidate), candidate.blessing
    if proposed is None or not proposed.pull_request or candidate.publish.dry_run:
        return
    if proposed.weights == blessing.model and blessing.verdict == "publish":  # the receipt will say it
        return
    with candidate.open() as repository:
        decision = ReleaseProposals(repository, candidate.artifacts.recipe).decision(proposed.pull_request)
        time = repository.time_of(decision.commit) if decision and decision.commit else None
    if decision:
        logger.info("publish: %s", decision.note)
        made = {"event": decision.status, "commit": decision.commit, "reasons": (*proposed.reasons, decision.note)}
        append_release_event(candidate.artifacts, proposed.model_copy(update=made), time)


def log_releases_without_line(candidate: Candidate) -> None:
    """Log this recipe's releases and rollbacks on main since the last that the log knows: their records may have been lost."""
    from tasks.hub_client.main_history import read_main_commits

    champion, artifacts = candidate.blessing.champion, candidate.artifacts
    logged = {one.commit for one in read_release_events(artifacts) if one.event in {"published", "rollback"}}
    if champion is None or champion.commit in logged or candidate.publish.dry_run:
        return
    with candidate.open() as repository:
        commits = [one.commit_id for one in repository.retry_until_clear(repository.history)[:_LOOKED_AT]]
        new = next((number for number, commit in enumerate(commits) if commit in logged), len(commits))
        for one in reversed(read_main_commits(repository, last=new)):
            if one.kind == "other" or not (made := _own_release(repository, one.commit, artifacts.recipe)):
                continue
            made |= {"event": "published", "reasons": [_NO_LINE]}
            if one.kind == "rollback":
                made = {"event": one.kind, "reasons": [one.why], "by": one.by, "tag": one.to}
            made |= {"repo_id": candidate.publish.repo_id, "endpoint": candidate.endpoint, "commit": one.commit}
            logger.warning("publish: logs the %s %s, which left no line", one.kind, made["tag"])
            append_release_event(artifacts, ReleaseEvent(**made), datetime.fromisoformat(one.date))


def _own_release(repository: HubRepository, commit: str, recipe: str) -> dict[str, Any]:
    """Return what a line says of the release that a commit holds; nothing if `recipe` has not published it."""

    def look() -> dict[str, Any]:
        record = ReleaseRecord.of(repository, commit)
        provenance = record and repository.read(commit, PROVENANCE, max_bytes=MAX_BYTES)
        with contextlib.suppress(ValueError, TypeError, LookupError):  # somebody has made it by hand
            if record and json.loads(provenance or b"{}")["recipe"]["name"] == recipe:
                weights = tree_weights_digest(repository.tree(commit))
                return {"tag": record.tag, "publish_id": record.publish_id, "weights": weights}
        return {}

    return repository.retry_until_clear(look)
