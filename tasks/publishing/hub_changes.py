"""What the flow asks before it believes DVC: whether the Hub still is as a stage left it. DVC cannot watch a Hub."""

from __future__ import annotations

from params.foundation.artifacts import Artifacts
from params.schema import Publish, Start
from tasks.evaluation.report import Blessing
from tasks.hub_client.connection import open_repository, resolve_hub_endpoint
from tasks.hub_client.main_history import MainHistory, read_main_commits
from tasks.hub_client.repository import HubRepository
from tasks.publishing.proposal import WAITING
from tasks.release_log.receipt import Receipt
from tasks.stages import read_report
from trainer.start import read_pinned_start


def why_receipt_is_outdated(artifacts: Artifacts, publish: Publish) -> str | None:
    """Return what speaks against the receipt: a dry run, another repository, or a Hub that holds something else; None if nothing does."""
    receipt = read_report(artifacts, Receipt)
    if receipt.status == "dry-run":
        return None if publish.dry_run else "the last release was a dry run, such as that of an experiment"
    if (receipt.endpoint, receipt.repo_id) != (resolve_hub_endpoint(publish.endpoint), publish.repo_id):
        return f"the last release went to {receipt.repo_id} on the Hub {receipt.endpoint}"
    with open_repository(artifacts, repo_id=publish.repo_id, endpoint=publish.endpoint) as repository:
        if receipt.commit is not None:
            is_held = repository.holds(receipt.commit)
        else:
            assert receipt.pull_request is not None, receipt
            status = fetch_pull_request_status(repository, receipt.pull_request)
            is_held = status in WAITING if receipt.status == "proposed" else status == "closed"
    return None if is_held else "the Hub no longer holds what the receipt says"


def why_start_is_outdated(artifacts: Artifacts, publish: Publish, start: Start) -> str | None:
    """Return why the pinned start is no longer one: people have rolled back from it; None if they have not."""
    if not (pinned := read_pinned_start(artifacts, start)):
        return None
    with open_repository(artifacts, repo_id=publish.repo_id, endpoint=publish.endpoint) as repository:
        found = MainHistory.read(repository).find_rolled_back([pinned.weights])
    return next((f"the pinned start is {one.sentence}" for one in found.values()), None)


def why_blessing_is_outdated(artifacts: Artifacts, publish: Publish) -> str | None:
    """Return why the blessing is not about what the Hub holds now: neither the same champion, nor the blessed model itself."""
    blessing = read_report(artifacts, Blessing)
    with open_repository(artifacts, repo_id=publish.repo_id, endpoint=publish.endpoint) as repository:
        head = repository.head()
    compared = blessing.champion and (blessing.champion.endpoint, blessing.champion.weights)
    now = head and (resolve_hub_endpoint(publish.endpoint), head.weights)
    if compared == now or (head and blessing.is_in_release(head.weights)):
        return None
    return "another model has been published since the comparison"


def describe_later_release(artifacts: Artifacts) -> str | None:
    """Say what main holds in the place of the receipt's release, such as that of a rollback; None if it still holds that.

    Raises:
        HubRefusedError, TransientError: the Hub does not say.
    """
    receipt = read_report(artifacts, Receipt)
    if receipt.commit is None:
        return None
    with open_repository(artifacts, repo_id=receipt.repo_id, endpoint=receipt.endpoint) as repository:
        head = repository.head()
        if head is None or head.commit == receipt.commit:
            return None
        now = read_main_commits(repository, last=1)[0]
    if now.kind == "rollback":
        return f"{receipt.repo_id} {now.to}, by a rollback: {now.by}: {now.why} (revision {now.commit})"
    return f"{receipt.repo_id} {head.tag or now.commit}: {now.title} (revision {now.commit})"


def fetch_pull_request_status(repository: HubRepository, number: int) -> str | None:
    """Return the status of a pull request: `open`, `draft`, `closed` or `merged`; None if it is not there."""
    proposals = repository.retry_until_clear(
        lambda: list(repository.api.get_repo_discussions(repository.id, discussion_type="pull_request"))
    )
    return next((one.status for one in proposals if one.num == number), None)
