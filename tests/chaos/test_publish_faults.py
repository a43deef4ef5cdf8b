"""A release is one commit, one tag and the planned files, whatever fails, commits in between or is killed.

`make test` runs a few schedules, `make chaos` many. EVERGREEN_CHAOS_PUBLISHES sets their number, EVERGREEN_CHAOS_SEED their
choice. A failure names the seed of its schedule; EVERGREEN_CHAOS_PUBLISH=<seed> runs this schedule alone.
"""

from __future__ import annotations

import multiprocessing.forkserver
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.publish_faults import PUBLISHES, SEED, TOKEN, Campaign, schedule
from tests.support.faulty_hub import FaultyHub, quick_client

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")
SINGLE_SEED = os.environ.get("EVERGREEN_CHAOS_PUBLISH")


@pytest.fixture
def campaign(tmp_path: Path) -> Iterator[Campaign]:
    """A campaign with a fork server of its own: tests.support.forked has another one in this process."""
    server = multiprocessing.forkserver._forkserver
    other = dict(vars(server))
    vars(server).clear()
    server.__init__()
    with quick_client(), FaultyHub(tmp_path / "hub", tokens={TOKEN: "alice"}) as hub:
        yield Campaign(hub, tmp_path)
    server._stop()
    vars(server).update(other)


@pytest.mark.timeout(60 + 4 * PUBLISHES)
def test_release_lands_exactly_once_despite_faults(campaign: Campaign, summary_lines: list[str]) -> None:
    started = time.monotonic()
    seeds = [int(SINGLE_SEED)] if SINGLE_SEED else range(SEED * 1_000_000, SEED * 1_000_000 + PUBLISHES)
    for seed in seeds:
        planned = schedule(seed)
        try:
            campaign.run(planned)
        except AssertionError as error:
            pytest.fail(f"EVERGREEN_CHAOS_PUBLISH={seed}: {error}\n{planned}")
    summary_lines.append(
        f"{len(seeds)} publications with EVERGREEN_CHAOS_SEED={SEED}, in {time.monotonic() - started:.0f} s: "
        + ", ".join(f"{count} {what}" for what, count in campaign.tally.items())
    )
    tally = campaign.tally
    assert tally["landed"] + tally["stale"] == len(seeds)
    if not SINGLE_SEED:
        assert min(tally[what] for what in ("landed", "killed", "faults met", "foreign commits")) > 0
