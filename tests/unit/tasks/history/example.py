"""Made histories: runs of every outcome over many nights."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from params.foundation.artifacts import Artifacts
from params.foundation.stages import STAGES
from tasks.history.run_log import DecidingMetric, RunEntry, RunErrorRecord, StageRun
from tasks.history.run_recorder import _KILLED

FIRST = datetime(2026, 1, 1, 3, 0, tzinfo=UTC)
OUTCOMES = ("published", "kept", "kept", "kept", "refused", "failed", "unchanged", "cancelled", "evaluated", "crashed")
WHY = {
    "published": "accuracy is 0.031 better than the champion's (95% interval 0.012 to 0.049 better; McNemar p = 0.0004)",
    "kept": "accuracy is 0.004 worse than the champion's (95% interval 0.021 worse to 0.013 better; McNemar p = 0.61); "
    "the gain's lower end must be above 0",
    "refused": "accuracy 0.412 is below 0.6, the recipe's floor",
    "evaluated": "accuracy is 0.02 better than the champion's (95% interval 0.004 to 0.036 better)",
}
ERROR = RunErrorRecord(
    type="DataError",
    where="validate@tiny: data/sentences.csv",
    what="40 of 300 rows fail expect_column_values_to_not_be_null(column='text')",
    fix="correct these rows, or raise validation.max_quarantined",
)
JUDGED = {"published", "kept", "refused", "evaluated"}
_STOPPED = {"failed": "validate", "cancelled": "train", "crashed": "train"}


def entry(number: int = 1, **changes: object) -> RunEntry:
    """One run: the given night's, published unless changed."""
    started = FIRST + timedelta(days=number)
    fields = {
        "run_id": f"00000000-0000-0000-0000-{number:012}",
        "recipe": "tiny",
        "started": started,
        "ended": started + timedelta(minutes=65),
        "outcome": "published",
        "verdict": "publish",
        "reasons": (WHY["published"],),
        "stages": {stage: StageRun(outcome="ran", seconds=30.0 * (i + 1)) for i, stage in enumerate(STAGES)},
        "rows": {"train": 1000, "validation": 100, "test": 402, "quarantined": 3},
        "evaluated": evaluated(0.8 + number / 1000, 0.78),
        "cost": 2.71,
        "repo_id": "tests/tiny",
        "endpoint": "local",
        "commit": f"{number:040}",
        "tag": f"release-{number:012}",
        "git_commit": "e" * 40,
    }
    return RunEntry.model_validate(fields | changes)


def evaluated(value: float, champion: float | None) -> DecidingMetric:
    gain = None if champion is None else value - champion
    return DecidingMetric(
        metric="accuracy",
        direction="max",
        value=value,
        low=value - 0.02,
        high=value + 0.018,
        champion=champion,
        against="champion" if champion is not None else "untrained",
        gain=0.7 if gain is None else gain,
        gain_low=0.6 if gain is None else gain - 0.012,
        gain_high=0.8 if gain is None else gain + 0.014,
        confidence=0.95,
    )


def runs(
    count: int, *, seed: int = 0, every: timedelta = timedelta(days=1), recipe: str = "tiny", first: datetime = FIRST
) -> list[RunEntry]:
    """Many runs, as chance has it: the first one publishes, and what is published is the champion from then on."""
    chance = random.Random(seed)
    champion: float | None = None
    made = []
    for number in range(count):
        outcome = "published" if champion is None else chance.choice(OUTCOMES)
        started = first + every * number
        stages = _stages(outcome, chance)
        worked = sum(stage.seconds for stage in stages.values())
        value = (champion or 0.72) + {"published": chance.uniform(0.004, 0.02), "refused": -0.3}.get(outcome, 0.0)
        value = min(value + chance.gauss(-0.002, 0.005) * (outcome != "published"), 0.97)
        made.append(
            entry(
                number,
                recipe=recipe,
                started=started,
                ended=started + timedelta(seconds=round(worked) + 5),
                outcome=outcome,
                reasons=(WHY[outcome],) if outcome in WHY else (),
                error={"failed": ERROR, "crashed": _KILLED}.get(outcome),
                stages=stages,
                rows={"train": 1000 + 40 * number, "validation": 100, "test": 402, "quarantined": chance.randint(0, 9)},
                evaluated=evaluated(value, champion) if outcome in JUDGED else None,
                cost=round(worked / 3600 * 2.5, 4),
                tag=f"release-{number:012x}" if outcome == "published" else None,
            )
        )
        champion = value - 0.006 if outcome == "published" else champion  # new rows are harder
    return made


def _stages(outcome: str, chance: random.Random) -> dict[str, StageRun]:
    seconds = {"ingest": 20, "validate": 15, "tokenize": 45, "train": 3000, "evaluate": 240, "publish": 12}
    found = {}
    for stage in STAGES:
        took = round(seconds[stage] * chance.uniform(0.6, 1.6), 2)
        if stage == _STOPPED.get(outcome):
            found[stage] = StageRun(outcome=outcome, seconds=took)
            break
        quiet = outcome == "unchanged" and stage not in {"ingest", "validate"}
        found[stage] = StageRun(outcome="unchanged" if quiet else "ran", seconds=0.04 if quiet else took)
        if stage == "evaluate" and outcome == "evaluated":
            break
    return found


def write(artifacts: Artifacts, entries: Sequence[RunEntry]) -> None:
    """The log of runs with these entries."""
    artifacts.run_log.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{one.model_dump_json()}\n" for one in entries)
    artifacts.run_log.write_text(lines, encoding="utf-8")
