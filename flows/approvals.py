"""What a person has decided about a proposed release, found out without a run of the flow."""

from __future__ import annotations

import logging

from flows import stages
from flows.locks import recipe_lock
from params import EvergreenError
from params.artifacts import Artifacts
from tasks.hub_client.receipt import Receipt
from tasks.stages import read_report

logger = logging.getLogger(__name__)


def record_decision(artifacts: Artifacts) -> None:
    """If the pull request of a recipe's last release was merged or closed, run the publish stage, which records it.

    A decision that cannot be recorded now, because the recipe was edited for example, is logged; the next run records it.
    """
    if not artifacts.receipt.exists() or read_report(artifacts, Receipt).status != "proposed":
        return
    try:
        with recipe_lock(artifacts, logger):
            stages.run_if_decided(artifacts, logger)
    except EvergreenError as error:
        logger.warning("%s: the next run records what became of its pull request: %s", artifacts.recipe, error)
