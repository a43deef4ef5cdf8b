"""A training that is killed at write points of a save and at random times ends with the same bytes as the golden run.

`make test` sends a few kills, and forks trainings that end by themselves; `make chaos` sends many, and forks none.
EVERGREEN_CHAOS_KILLS sets their number, EVERGREEN_CHAOS_SEED their choice.
"""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.campaign import IS_LONG, KILLS, SEED, WRITE_POINTS, Campaign, plan, table
from tests.chaos.victims import Victim

STEPS = {
    "training.max_steps": 600 if IS_LONG else 60,
    "training.save_steps": 5,
    "training.eval_steps": 20,
    "training.logging_steps": 7,
    "training.learning_rate": 1e-3,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "with two processes": {"launch.num_processes": 2, "launch.micro_batch_size": 2},
    "from a stream, with a loader worker": {"training.streaming": True, "launch.dataloader_workers": 1},
    "with packing": {},
    "with two processes, by length, with loader workers": {
        "objective.packing": False,
        "training.group_by_length": True,
        "launch.num_processes": 2,
        "launch.micro_batch_size": 2,
        "launch.dataloader_workers": 1,
        "training.arguments": {"dataloader_persistent_workers": True},
    },
}
"""All of them train with dropout."""


@pytest.mark.timeout(120 + 30 * KILLS)
def test_run_killed_anywhere_ends_like_the_golden_run(tmp_path: Path, summary_lines: list[str]) -> None:
    variants = VARIANTS if IS_LONG else {"with packing": VARIANTS["with packing"]}
    victims = [Victim(tmp_path / str(i), STEPS | changes) for i, changes in enumerate(variants.values())]
    campaigns = [Campaign(name, victim) for name, victim in zip(variants, victims, strict=True)]
    kills = plan(random.Random(SEED), KILLS, [victim.processes for victim in victims])
    started = time.monotonic()
    try:
        with ThreadPoolExecutor(min(len(victims), os.cpu_count() or 1, 2)) as threads:
            list(threads.map(Campaign.run, campaigns, kills))
    finally:
        for victim in victims:
            victim.project.end()
        elapsed_s = time.monotonic() - started
        summary_lines.append(f"kills planned with EVERGREEN_CHAOS_SEED={SEED}, carried out in {elapsed_s:.0f} s")
        summary_lines += table(campaigns)
    tallies = [tally for campaign in campaigns for tally in campaign.tallies.values()]
    assert not [mismatch for tally in tallies for mismatch in tally.mismatches]
    assert sum(tally.kills for tally in tallies) == KILLS
    assert all(campaign.finished for campaign in campaigns)
    if IS_LONG:
        hit = {kind for campaign in campaigns for kind, tally in campaign.tallies.items() if tally.kills}
        assert set(WRITE_POINTS) <= hit
