"""Follow one run of the flow, and log it when it ends, however it ends.

with RunRecorder(Artifacts("default"), run_id="...") as run:
    with run.stage("ingest", outcomes):
        outcomes["ingest"] = "ran"

While it goes on, a file in `Artifacts.unfinished_runs` holds the entry that is right if it is killed: the next run finds it, and
knows by the file's lock that nobody writes it any more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self, cast

from params import BudgetSpentError, EvergreenError, ModelError, Recipe, StorageError, TransientError
from params.foundation.artifacts import Artifacts
from params.foundation.file_lock import hold_file_lock
from params.foundation.secrets import without_secrets
from tasks.evaluation.report import Blessing, Opponent
from tasks.history import run_log
from tasks.measurement import with_history
from tasks.release_log.receipt import Receipt
from tasks.report.formatting import finite_or_none
from tasks.report.run_results import RunResults, read_recipe_or_none
from tasks.report.timings import read_timings
from tasks.training.versions import git_commit_with_dirty_mark

logger = logging.getLogger(__name__)
_DONE = {"ran", "restored", "unchanged"}
_WITH_ERROR = {"failed", "budget spent"}
_MAX_TEXT = 2000
"""Characters of an error's text that the log keeps."""
_NOTE_BYTES = 16 << 10
"""Size of the note of a run, whose entry is smaller; spaces follow it."""
_KILLED = run_log.RunErrorRecord(
    type="KilledError",
    where="the flow",
    what="was killed, or stopped with its worker",
    fix="see the logs of the worker and of the machine; the next run continues",
)


class RunRecorder:
    """A run that goes on. Only one of a recipe may exist in a folder at a time: hold the recipe's lock."""

    entry: run_log.RunEntry | None = None
    """What was logged when the run ended; None if it had nothing to do."""

    def __init__(self, artifacts: Artifacts, *, run_id: str, was_stopped: Callable[[str], bool] | None = None) -> None:
        """`was_stopped` says by its id whether a person stopped a run that did not end by itself; by default, this one only."""
        self.artifacts, self.run_id, self.started = artifacts, run_id, run_log.utc_now_to_second()
        self.was_stopped = was_stopped or (lambda stopped: stopped == run_id)
        self.stages: dict[str, run_log.StageRun] = {}
        self._note = artifacts.unfinished_runs / f"{run_id or 'run'}.json"
        self._held = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as held:
            with contextlib.suppress(OSError, StorageError):  # the disk is full, which a stage says better
                held.enter_context(_hold(self._note))
            for note in self.artifacts.unfinished_runs.glob("*.json"):
                with (
                    contextlib.suppress(TransientError),
                    _hold(note) if note != self._note else contextlib.nullcontext(),
                ):
                    self._log_lost_run(note)  # unless it goes on in another clone of the project
            self._prepare_for_a_kill()
            self._held = held.pop_all()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        with self._held, contextlib.suppress(OSError):
            self._log(error)
            if error is None:  # last: it may have no room
                self.artifacts.succeeded.touch()

    def _log(self, error: BaseException | None) -> None:
        """Log the run, which no failure of that fails; what cannot be logged now, the next run finds in the note."""
        try:
            if error or any(one.outcome != "unchanged" for name, one in self.stages.items() if name != "ingest"):
                self.entry = self._entry(error)
                self._write_note(self.entry)
                run_log.append_run(self.artifacts, self.entry)
            _remove(self._note)
        except (EvergreenError, OSError) as failure:
            logger.warning("%s: the run could not be logged; the next one logs it: %s", self.artifacts.run_log, failure)

    @contextlib.contextmanager
    def stage(self, name: str, outcomes: Mapping[str, str]) -> Iterator[None]:
        """Note what the block does in a stage; the block sets the stage's outcome in `outcomes` unless it fails."""
        earlier, start = self.stages.get(name), time.monotonic()
        self.stages[name] = run_log.StageRun(outcome="crashed", seconds=earlier.seconds if earlier else 0.0)
        self._prepare_for_a_kill()
        try:
            yield
            outcome = outcomes[name]
            if earlier and earlier.outcome in _DONE and outcome == "unchanged":  # now, the second time in this run
                outcome = earlier.outcome
        except BaseException as error:
            outcome = "failed" if isinstance(error, Exception) else "cancelled"
            raise
        finally:
            seconds = time.monotonic() - start + (earlier.seconds if earlier else 0.0)
            timing = read_timings(self.artifacts).get(name) if outcome == "ran" else None
            self.stages[name] = run_log.StageRun(
                outcome=cast("Any", outcome),
                seconds=round(seconds, 2),
                last_start_s=round(timing.seconds, 2) if timing else None,
            )

    def _until_now(self, **fields: Any) -> run_log.RunEntry:
        times = {"started": self.started, "ended": run_log.utc_now_to_second(), "stages": self.stages}
        return run_log.RunEntry(run_id=self.run_id, recipe=self.artifacts.recipe, **times, **fields)

    def _prepare_for_a_kill(self) -> None:
        self._write_note(self._until_now(outcome="crashed", error=_KILLED))

    def _write_note(self, entry: run_log.RunEntry) -> None:
        """Write over the note, which takes no further room: the disk may have become full."""
        content = entry.model_dump_json().encode().ljust(_NOTE_BYTES)
        with contextlib.suppress(OSError):
            file = os.open(self._note, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                os.pwrite(file, content, 0)
                os.ftruncate(file, len(content))
            finally:
                os.close(file)

    def _log_lost_run(self, note: Path) -> None:
        try:
            lost = run_log.RunEntry.model_validate_json(note.read_bytes())
            cost = cost_of_run(lost, read_recipe_or_none(self.artifacts))
            is_killed = lost.outcome == "crashed" and lost.run_id
            if is_killed and self.was_stopped(lost.run_id):  # and killed, because it took too long to end
                stages = _with_outcome(lost.stages, "cancelled", instead_of="crashed")
                lost = lost.model_copy(update={"outcome": "cancelled", "error": None, "stages": stages})
            run_log.append_run(self.artifacts, lost.model_copy(update={"cost": cost}))
        except FileNotFoundError:
            return
        except (EvergreenError, OSError) as failure:
            logger.warning(
                "%s: an earlier run could not be logged; the next one tries it: %s", self.artifacts.run_log, failure
            )
            return
        except ValueError:
            logger.warning("%s: ignored, because it is damaged", note)
        if note != self._note:
            _remove(note)

    def _entry(self, error: BaseException | None) -> run_log.RunEntry:
        results = RunResults(self.artifacts)
        receipt = results.receipt if error is None and self._did("publish") else None
        blessing = results.blessing if self._is_done("evaluate") else None
        outcome = self._outcome(error, receipt, blessing)
        if outcome == "crashed":
            self.stages = _with_outcome(self.stages, "crashed", instead_of="cancelled")
        judged, recipe = receipt or blessing, results.recipe
        entry = self._until_now(
            outcome=outcome,
            verdict=blessing.verdict if blessing else None,
            reasons=judged.reasons if judged else (),
            error=_error_of_run(outcome, error),
            evaluated=_evaluated(results, blessing) if blessing else None,
            git_commit=git_commit_with_dirty_mark(self.artifacts.root, recipe) if recipe else None,
            **self._about_rows(results),
            **_about_release(receipt, recipe),
        )
        return entry.model_copy(update={"cost": cost_of_run(entry, recipe)})

    def _about_rows(self, results: RunResults) -> dict[str, Any]:
        validated = results.validated if self._is_done("validate") else None
        details = results.details if self._is_done("evaluate") else None
        found: dict[str, Any] = {one.name: one.history_cell(validated, details) for one in with_history()}
        if validated:
            found["rows"] = {**validated.rows_out, "quarantined": validated.quarantined}
        return found

    def _outcome(
        self, error: BaseException | None, receipt: Receipt | None, blessing: Blessing | None
    ) -> run_log.Outcome:
        if error is None:
            if receipt:
                return receipt.status
            return "evaluated" if "publish" not in self.stages and self._did("evaluate") else "unchanged"
        if not isinstance(error, Exception):
            return "cancelled" if self.was_stopped(self.run_id) else "crashed"
        if isinstance(error, BudgetSpentError):
            return "budget spent"
        is_refused = blessing and blessing.verdict == "refuse" and isinstance(error, ModelError)
        return "refused" if is_refused and "publish" in self.stages else "failed"

    def _is_done(self, stage: str) -> bool:
        """Whether the stage's output is of this run."""
        return stage in self.stages and self.stages[stage].outcome in _DONE

    def _did(self, stage: str) -> bool:
        return self._is_done(stage) and self.stages[stage].outcome != "unchanged"


def _with_outcome(
    stages: Mapping[str, run_log.StageRun], outcome: str, *, instead_of: str
) -> dict[str, run_log.StageRun]:
    return {
        name: one.model_copy(update={"outcome": outcome}) if one.outcome == instead_of else one
        for name, one in stages.items()
    }


def _hold(note: Path) -> AbstractContextManager[None]:
    """Hold the lock of the note of an unfinished run; TransientError if its run goes on."""
    return hold_file_lock(note.with_suffix(".lock"), f"the run {note.stem}")


def _remove(note: Path) -> None:
    """Remove a note whose lock is held: no other run has its name."""
    note.unlink(missing_ok=True)
    note.with_suffix(".lock").unlink(missing_ok=True)


def cost_of_run(entry: run_log.RunEntry, recipe: Recipe | None) -> float | None:
    """Return what a run has cost by `launch.price_per_hour`; None if the recipe gives no price."""
    price = recipe.launch.price_per_hour if recipe else None
    return None if price is None else round((entry.seconds or 0.0) / 3600 * price, 4)


def _about_release(receipt: Receipt | None, recipe: Recipe | None) -> dict[str, Any]:
    """Return where a run publishes, and what it has published."""
    if receipt:
        return {name: getattr(receipt, name) for name in ("repo_id", "endpoint", "commit", "tag")}
    return {"repo_id": recipe.publish.repo_id, "endpoint": recipe.publish.endpoint} if recipe else {}


def _error_of_run(outcome: run_log.Outcome, error: BaseException | None) -> run_log.RunErrorRecord | None:
    if outcome == "crashed":
        return _KILLED
    return _error(error) if error and outcome in _WITH_ERROR else None


def _error(error: BaseException) -> run_log.RunErrorRecord:
    texts = {"where": "", "what": without_secrets(str(error)), "fix": ""}
    if isinstance(error, EvergreenError):
        texts = {"where": error.where, "what": error.what, "fix": error.fix}
    return run_log.RunErrorRecord(type=type(error).__name__, **{name: text[:_MAX_TEXT] for name, text in texts.items()})


def _evaluated(results: RunResults, blessing: Blessing) -> run_log.DecidingMetric | None:
    """Return the metric that decided, with the comparison that the gate used."""
    metric, details = blessing.metric, results.details
    if results.evaluated is None or details is None:
        return None
    against: Opponent = "champion" if blessing.champion else "untrained"
    compared = results.comparison(against, metric)
    low, high = results.interval("model", metric)
    return run_log.DecidingMetric(
        metric=metric,
        direction=details.directions.get(metric),
        value=results.value("model", metric),
        low=low,
        high=high,
        champion=results.value("model" if blessing.is_champion else "champion", metric),
        against=against if compared else None,
        gain=finite_or_none(compared.gain) if compared else None,
        gain_low=finite_or_none(compared.low) if compared else None,
        gain_high=finite_or_none(compared.high) if compared else None,
        confidence=details.confidence,
    )
