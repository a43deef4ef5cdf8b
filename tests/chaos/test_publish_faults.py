"""Whatever fails, whoever commits in between and whoever is killed: one commit, one tag, the planned files, no half tree.

`make chaos` is the long form, `make test` has the short one; EVERGREEN_CHAOS_PUBLISHES and EVERGREEN_CHAOS_SEED choose
others. A failure names its schedule's own seed: EVERGREEN_CHAOS_PUBLISH=<that> carries out this schedule alone.
"""

from __future__ import annotations

import multiprocessing.forkserver
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.publish_faults import PART_BYTES, PUBLISHES, SEED, TOKEN, Campaign, schedule
from tests.support.faulty_hub import FaultyHub, quick_client

ALONE = os.environ.get("EVERGREEN_CHAOS_PUBLISH")


@pytest.fixture
def campaign(tmp_path: Path) -> Iterator[Campaign]:
    with quick_client(), FaultyHub(tmp_path / "hub", tokens={TOKEN: "alice"}, part_bytes=PART_BYTES) as hub:
        yield Campaign(hub, tmp_path)
    multiprocessing.forkserver._forkserver._stop()


@pytest.mark.timeout(60 + 4 * PUBLISHES)
def test_release_lands_exactly_once_despite_faults(campaign: Campaign, said_at_end: list[str]) -> None:
    started = time.monotonic()
    seeds = [int(ALONE)] if ALONE else range(SEED * 1_000_000, SEED * 1_000_000 + PUBLISHES)
    for seed in seeds:
        planned = schedule(seed)
        try:
            campaign.carry_out(planned)
        except AssertionError as error:
            pytest.fail(f"EVERGREEN_CHAOS_PUBLISH={seed}: {error}\n{planned}")
    said_at_end.append(
        f"{len(seeds)} publications with EVERGREEN_CHAOS_SEED={SEED}, carried out in {time.monotonic() - started:.0f} s: "
        + ", ".join(f"{count} {what}" for what, count in campaign.tally.items())
    )
    tally = campaign.tally
    assert tally["landed"] + tally["stale"] == len(seeds)
    if not ALONE:
        assert min(tally[what] for what in ("landed", "killed", "faults met", "foreign commits")) > 0
