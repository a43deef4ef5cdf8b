"""Every path of a run in one place, and how files are written completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from params.foundation.errors import EvergreenError, StorageError
from params.foundation.stages import stage_of_report

SPLITS = ("train", "validation", "test")
CORPUS = "corpus"  # folder of the documents of `data.corpus`, beside those of the splits
CORRECTIONS = "corrections"  # folder of the rows of `data.corrections`, there, too
SUITES = "suites"  # folder of the folders of `evaluation.suites`, there, too
ADAPTER = "adapter"  # folder of a model with the adapters that are merged into it
PROFILE = "evergreen-data-profile.dat"  # what a release knows of the rows that its model learned from
KNOWN_ROWS = "evergreen-known-rows.dat"  # parts of hashes of each of these rows
MAX_BYTES = {PROFILE: 32 << 20, KNOWN_ROWS: 256 << 20}  # twice what a profile takes, and some forty million rows
GROUP_BY = "evergreen.group_by"
"""Key of the metadata of Parquet files that names, as JSON, the columns by which their rows belong together."""
TIMES = "evergreen.times"
"""The same, of the `column` with the time of each row, the `newest` one, and by what the rows are `split`."""
_STORAGE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG}
KEPT_FOLDER: Final = "EVERGREEN_KEPT_FOLDER"
"""Environment variable with the folder of `Artifacts.kept`, which the flow sets for the stages of a recorded run."""


@dataclass(frozen=True)
class _Below:
    """A path of `Artifacts` below another one."""

    parent: str
    path: str

    def __get__(self, artifacts: Artifacts, _: type[Artifacts]) -> Path:
        folder: Path = getattr(artifacts, self.parent)
        return folder / self.path


@dataclass(frozen=True)
class Artifacts:
    """The paths of one recipe's run, below the project's root.

    A stage reads the artifacts of earlier stages and writes its own folder, which DVC owns. DVC does not know `scratch`:
    it holds what must survive an interrupted stage, and what one process leaves for another.
    """

    recipe: str  # name of the recipe: the name of its file without the suffix
    root: Path = Path()  # the project's root

    @classmethod
    def of_model(cls, path: str, root: Path = Path()) -> Self | None:
        """Return the run that leaves its model in the folder runs/<recipe>/model; None if `path` is no such folder."""
        found = re.fullmatch(r"runs/([A-Za-z0-9][A-Za-z0-9._-]*)/model/?", path)
        return cls(found[1], root) if found else None

    @property
    def recipe_path(self) -> Path:
        return self.root / "params" / f"{self.recipe}.yaml"

    @property
    def run(self) -> Path:
        """Everything that DVC tracks for this recipe."""
        return self.root / "runs" / self.recipe

    @property
    def scratch(self) -> Path:
        """Everything of this recipe that DVC does not track."""
        return self.root / ".scratch" / self.recipe

    @property
    def kept(self) -> Path:
        """What must outlive the project's folder, if that is a clone for one run (`KEPT_FOLDER`); else the same as `scratch`."""
        outside = os.environ.get(KEPT_FOLDER) if self.root in (Path(), Path.cwd()) else None
        return Path(outside, self.recipe) if outside else self.scratch

    checkpoints = _Below("scratch", "checkpoints")  # folders of unfinished runs, one for each key of a run
    champion = _Below("scratch", "champion")  # the published model that evaluate compares with, by its commit
    checked_settings = _Below("kept", "checked-settings")  # a hash of those that transformers has found valid
    command_result = _Below("scratch", "result.json")  # how the command that the flow or `reproduce` started ended
    failed_validation = _Below("scratch", "validation-failed")  # the report of a validation that failed
    features = _Below("scratch", "features")  # what the untrained model makes of train rows, for reviews of labels
    finished_run = _Below("scratch", "finished-run")  # the last finished run, by its key: a longer one goes on from it
    flow_lock = _Below("scratch", "flow.lock")  # held by the flow of this recipe
    log_lock = _Below("kept", "log.lock")  # held by the process that writes to a log
    machines = _Below("scratch", "machines")  # where the machines of one training find each other
    mirror = _Below("scratch", "mirror")  # checkpoints that wait for their upload to a Hub, by key of a run
    mirror_lock = _Below("scratch", "mirror.lock")  # held by the process that uploads checkpoints
    rows_taken = _Below("scratch", "rows-taken")  # when rows of an unwatched source were read that no run has finished
    shards = _Below("scratch", "shards")  # what was made of each shard, for the next run; a folder for each stage
    server_log = _Below("scratch", "prefect-server.log")  # output of the Prefect server that a flow starts for itself
    staged_release = _Below("scratch", "release")  # the files of a release before they are published
    served_release = _Below("scratch", "served-release")  # the release whose files give the answers that were judged
    start_to_pin = _Below("scratch", "start-to-pin.json")  # where a release is made again: what it has started from
    succeeded = _Below("scratch", "succeeded")  # written when a run of the flow succeeds, even if it had nothing to do
    timings = _Below("scratch", "timings")  # what each stage took, `<stage>.json`
    train_lock = _Below("scratch", "train.lock")  # held by the train stage, and by what writes checkpoints for it
    unfinished_runs = _Below("kept", "unfinished-runs")  # `<run id>.json`: the log's entry if that run were killed now
    unrecorded = _Below("kept", "unrecorded")  # the logs, with lines that no branch may have yet and no reset takes
    validation_keys = _Below("scratch", "validation-keys")  # hashes of rows while validate looks for equal ones
    verify_resume = _Below("scratch", "verify-resume")  # the runs that `verify-resume` compares
    verify_resume_lock = _Below("scratch", "verify-resume.lock")  # held by `verify-resume`
    reports = _Below("kept", "reports")  # where a clone is deleted: the reports of runs, a folder for each
    resolved_recipe = _Below("run", "recipe.yaml")  # resolve: the recipe with all of its values, whose keys DVC watches
    raw = _Below("run", "raw")  # ingest: rows as the source gives them, Parquet shards for each split, and source.json
    validated = _Below("run", "validated")  # validate: rows/, profile, validation.json, quarantine.parquet, report.html
    data_profile = _Below("validated", PROFILE)  # validate: shows a later run its drift
    rows = _Below("validated", "rows")  # validate: the rows that passed, a folder of Parquet shards for each split
    start = _Below("validated", "start")  # validate: the published model that the training starts from, if it does
    start_record = _Below("start", "record")  # validate: what the release of that model says of itself and of its rows
    start_choice = _Below("run", "start.json")  # validate: which release a training starts from, and what decided it
    tokens = _Below("run", "tokens")  # tokenize: Arrow shards for each split, tokenizer/, statistics.json and the like
    train_rows = _Below("tokens", KNOWN_ROWS)  # tokenize: which rows a training with these tokens learns from
    tokenizer = _Below("tokens", "tokenizer")  # tokenize: the tokenizer, as transformers saves it
    model = _Below("run", "model")  # train: the best weights, with configuration and tokenizer
    known_rows = _Below(
        "model", KNOWN_ROWS
    )  # train: which rows the model has learned from, itself and through what it started from
    adapter = _Below("model", ADAPTER)  # train: with `model.lora` on a pretrained model, the adapters by themselves
    checkpoint = _Below("run", "checkpoint")  # train: the last full state, from which training can resume
    history = _Below("run", "history")  # train: training.json and the logged curves
    evaluation = _Below("run", "evaluation")  # evaluate: metrics.json, details.json, scores/, plots/ and the blessing
    blessing = _Below("evaluation", "blessing.json")  # evaluate: the gate's verdict, with hashes of what it depends on
    review = _Below("run", "review.csv")  # evaluate: rows whose labels people should look at
    page = _Below("run", "report.html")  # the report of the whole run, one HTML page
    recorded_page = _Below("run", "recorded-report.html")  # the same without rows of the data, in recorded commits only
    receipt = _Below("run", "release/receipt.json")  # publish: what was published where
    release_events = _Below("run", "release/log.jsonl")  # every verdict, receipt, refusal and rollback; only git has it
    run_log = _Below("run", "runs.jsonl")  # every run of the flow that did something; only git has it

    def stage_log(self, stage: str) -> Path:
        """All that the starts of a stage have logged; neither DVC nor git has it."""
        return self.run / "logs" / f"{stage}.log"

    @property
    def logs(self) -> tuple[Path, ...]:
        """The logs that git keeps, JSON lines: where two copies meet, the lines of both stay."""
        return (self.release_events, self.run_log)

    def report(self, name: str) -> Path:
        """The JSON report of a stage by the stage's name, or of the evaluation `details` or `blessing`."""
        return self.run / stage_of_report(name).reports[name]


def fix_missing_model(path: str, root: Path = Path()) -> str | None:
    """Return how to get the model in a folder of runs/; None if no recipe makes it."""
    if not (made := Artifacts.of_model(path, root)) or not made.recipe_path.is_file():
        return None
    run, pull = f"evergreen run {made.recipe} --no-publish", f"dvc pull train@{made.recipe}"
    return f"the recipe {made.recipe} makes it: `{run}`; or fetch it: `{pull}`"


@contextlib.contextmanager
def replace_folder_atomically(target: Path) -> Iterator[Path]:
    """Yield a folder to write into; it replaces `target` only if the block ends without an error, flushed to disk.

    Raises:
        StorageError: the disk is full or read-only; `target` is as it was.
    """
    partial = target.with_name(f".{target.name}.partial")
    with translate_disk_errors(target):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            yield partial
            flush_tree_to_disk(partial)
            old = target.with_name(f".{target.name}.old")
            shutil.rmtree(old, ignore_errors=True)
            if target.exists():
                target.rename(old)
            partial.rename(target)
            flush_path_to_disk(target.parent)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Give a file a second name, which takes no space; where the file system cannot do that, copy it."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def flush_tree_to_disk(folder: Path) -> None:
    """Write a folder's content to the disk itself, so that a loss of power cannot take it back."""
    for path in (*folder.rglob("*"), folder):
        flush_path_to_disk(path)


def flush_path_to_disk(path: Path) -> None:
    """Write one file, or the names in one folder, to the disk itself."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_array(path: Path, array: Any, *, has_header: bool = True) -> None:
    """Write a numpy array as `numpy.save` does, or its values alone.

    numpy's own OSError for a full disk has no number, and would not be known as one; and a copy of a large array may not fit into memory.
    """
    import numpy as np

    values = np.ascontiguousarray(array)
    with path.open("wb") as file:
        if has_header:
            np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(values))
        file.write(values.data)


def write_text_atomically(target: Path, text: str) -> None:
    """Write `text` to `target` in one step: a reader sees the old content or the new, never a part.

    Raises:
        StorageError: the disk is full or read-only; `target` is as it was.
    """
    partial = target.with_name(f".{target.name}.partial")
    with translate_disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(target)
        finally:
            partial.unlink(missing_ok=True)


@contextlib.contextmanager
def translate_disk_errors(target: Path) -> Iterator[None]:
    """Turn errors of a full or read-only disk into a `StorageError` that says how much space is free."""
    try:
        yield
    except EvergreenError:
        raise
    except Exception as error:
        if found := as_storage_error(error, target):
            raise found from error
        raise


def as_storage_error(error: BaseException, target: Path) -> StorageError | None:
    """Return the `StorageError` for an error of a full or read-only disk at `target`; None for any other error.

    safetensors, tokenizers and torch.save give no OSError: they say it in the message only. A contract test fails when
    they change these words. `shutil.Error`, of a folder that is copied, lists what each file's error said.
    """
    from_torch = re.search(r"PytorchStreamWriter failed|unexpected pos \d+ vs|iostream error", str(error))
    number = _number_of_error(error)
    if number in _STORAGE:
        reason = os.strerror(number)
    elif isinstance(error, RuntimeError) and from_torch:
        reason = "the write failed"
    else:
        return None
    place = next(p for p in (target, *target.parents, Path()) if p.exists())
    what = f"cannot be written: {reason} ({shutil.disk_usage(place).free / 2**20:.0f} MiB free on that disk)"
    fix = "free space or permissions there, then run the stage again"
    if number in (errno.EFBIG, None) and resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY:
        fix = "raise the limit of the size of files in this shell, `ulimit -f unlimited`, then run the stage again"
    return StorageError(str(getattr(error, "filename", None) or target), what, fix)


def _number_of_error(error: BaseException) -> int | None:
    """Return the number that the system has given an error; None if it does not have one, or does not say it."""
    if isinstance(error, shutil.Error):
        said = re.findall(r"\[Errno (\d+)\]", str(error))
        return next((found for found in map(int, said) if found in _STORAGE), None)
    if isinstance(error, OSError):
        return error.errno
    from_rust = re.search(r"\(os error (\d+)\)", str(error))
    return int(from_rust[1]) if from_rust else None
