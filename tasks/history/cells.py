"""The texts that say what a run did: for the terminal, for a Markdown table in Prefect, and for the page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal

from tasks.history.run_log import Outcome, RunEntry
from tasks.measurement import with_history
from tasks.report import formatting

Tone = Literal["good", "note", "bad", "plain"]
TONES: Final[dict[Outcome, Tone]] = {
    "published": "good",
    "proposed": "good",
    "rejected": "note",
    "kept": "note",
    "dry-run": "plain",
    "evaluated": "plain",
    "unchanged": "plain",
    "rolled back": "note",
    "cancelled": "note",
    "budget spent": "note",
    "refused": "bad",
    "failed": "bad",
    "crashed": "bad",
}
_MAX_REASON = 300
_MAX_PARAGRAPH = 600
_MAX_TERMINAL = 100


def start_time_text(run: RunEntry) -> str:
    return run.started.strftime("%Y-%m-%d %H:%M")


def outcome_reason(run: RunEntry) -> str:
    """Return why a run ended as it did, on one line; empty if there is nothing to say."""
    if run.error:
        place = f"{run.error.where}: " if run.error.where else ""
        return formatting.format_one_line(f"{run.error.type}: {place}{run.error.what}", _MAX_REASON)
    to = f"to {run.tag} " if run.outcome == "rolled back" and run.tag else ""
    return formatting.format_one_line(to + "; ".join(run.reasons), _MAX_REASON)


def outcome_reasons_and_fixes(run: RunEntry) -> list[str]:
    """Return why a run ended as it did, and how to fix it."""
    found = [*run.reasons]
    if run.error:
        found = [outcome_reason(run), *([f"fix: {run.error.fix}"] if run.error.fix else [])]
    elif run.outcome == "rolled back":
        found = [outcome_reason(run)]
    return [formatting.truncate_and_escape_invisible(each, _MAX_PARAGRAPH) for each in found]


def gain_and_interval_texts(run: RunEntry) -> tuple[str, str]:
    """Return the gain over the champion or the model before training, and its interval; empty if there was no comparison."""
    found = run.evaluated
    if found is None or formatting.finite_or_none(found.gain) is None:
        return "", ""
    ends = formatting.format_interval(found.gain_low, found.gain_high, signed=True)
    return formatting.format_signed_gain(found.gain, found.gain_low, found.gain_high), ends


def valid_row_count_text(run: RunEntry) -> str:
    """Return the number of rows that passed validation."""
    passed = sum(count for split, count in run.rows.items() if split != "quarantined")
    return formatting.format_number(passed) if run.rows else ""


def measured_words(run: RunEntry) -> dict[str, str]:
    """Return what the run has measured in a few words by the heading of each column; empty where it has not."""
    return {one.history_column: run.measured(one.name) for one in with_history()}


def age_text(seconds: float) -> str:
    """Return how long ago something was, for example `12 days`, `5 h` or `20 min`."""
    for unit, length in (("day", 86_400), ("h", 3_600), ("min", 60)):
        count = int(seconds // length)
        if count >= 2 or (count == 1 and unit != "day"):
            return formatting.count_with_noun(count, unit) if unit == "day" else f"{count} {unit}"
    return "less than a minute"


def longest_stage_text(run: RunEntry) -> str:
    """Return the stage that took longest, for example `train 1 h 2 min`; empty if none took a second."""
    name, stage = max(run.stages.items(), key=lambda item: item[1].seconds, default=("", None))
    return f"{name} {formatting.format_duration(stage.seconds)}" if stage and stage.seconds >= 1 else ""


def runs_terminal_table(runs: Sequence[RunEntry]) -> list[str]:
    """Return one line for each run, with a heading."""
    headings = _headings()
    table = [headings, *(_cells(run) for run in runs)]
    widths = [max(len(row[column]) for row in table) for column in range(len(headings))]
    used = [column for column in range(len(headings)) if any(row[column] for row in table[1:])]
    return ["  ".join(row[column].ljust(widths[column]) for column in used).rstrip() for row in table]


def runs_markdown_table(runs: Sequence[RunEntry]) -> str:
    cells = [[re.sub(r"[\\`*_{}\[\]<>()#+\-!|]", r"\\\g<0>", cell) for cell in _cells(run)] for run in runs]
    headings = _headings()
    table = [headings, ["---"] * len(headings), *cells]
    return "\n".join(f"| {' | '.join([row[0], *row[2:]])} |" for row in table)  # the recipe is known


def _headings() -> tuple[str, ...]:
    measured = (one.history_column for one in with_history())
    return "when (UTC)", "recipe", "outcome", "metric", "gain", "rows", *measured, "time", "cost", "why"


def _cells(run: RunEntry) -> tuple[str, ...]:
    difference, ends = gain_and_interval_texts(run)
    found = run.evaluated
    return (
        start_time_text(run),
        run.recipe,
        run.outcome,
        f"{formatting.format_one_line(found.metric, 40)} {formatting.format_number(found.value)}" if found else "",
        f"{difference} ({ends})" if ends else difference,
        valid_row_count_text(run),
        *(formatting.format_one_line(word, 60) for word in measured_words(run).values()),
        "" if run.seconds is None else formatting.format_duration(run.seconds),
        "" if run.cost is None else formatting.format_money(run.cost),
        formatting.format_one_line(outcome_reason(run), _MAX_TERMINAL),
    )


def outcome_counts_text(runs: Sequence[RunEntry]) -> str:
    """Return how many runs there were, and how they ended, for example `12 runs: 3 published, 9 kept`."""
    ended = Counter(run.outcome for run in runs)
    parts = [f"{ended[outcome]} {outcome}" for outcome in TONES if outcome in ended]
    return f"{formatting.count_with_noun(len(runs), 'run')}: {', '.join(parts)}" if parts else "no run"
