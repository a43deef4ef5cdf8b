"""Seconds and peak memory of the stages that prepare data, with one process on one CPU and with two; and after 1 % more rows.

    python -m benchmarks.data_stages [rows] [processes, such as 1,2] [sources] [folder of a tokenizer]

The rows have about 120 bytes; some are blank, too short, without a label or twice there. Memory is the proportional set size of
a stage's processes together. `longest` is the CPU time of the stage's own process and of the busiest of the others: what the stage would
take, at most, if it had the machine to itself. With `flow`, a stage is forked with its libraries, as the flow does. With several sources, each has an equal part of the rows, and the 1 % come to the last. Without a tokenizer's folder, one of 8,000 tokens is trained on some of the rows first.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from flows.child_process import MODULES_OF_STAGES
from params.foundation.artifacts import SPLITS, Artifacts
from params.schema import Launch, ObjectiveChoice
from params.sections.data import Data
from params.sections.rows import Expectation, Tokenization, TrainTokenizer, Validation
from tasks.stage_inputs import StageInputsSnapshot
from trainer.data.shards import folder_sha256
from trainer.runtime import fork_server
from trainer.runtime.lifetime import run_and_end
from trainer.runtime.memory import reduce_garbage_collection

STAGES = ("ingest", "validate", "tokenize")
LABELS, WORDS = 77, 20_000


def rows(count: int, start: int = 0) -> Iterator[dict[str, str | None]]:
    """Yield rows; one in 500 has a fault. `start` is a multiple of 1,000."""
    words = np.array([f"{'bcdfghklmnprstvz'[i % 16]}{'aeiou'[i % 5]}{i:x}" for i in range(WORDS)], object)
    for first in range(start, start + count, 1000):
        chance = np.random.default_rng(first)
        texts, lengths = words[chance.integers(0, WORDS, (1000, 24))], chance.integers(12, 25, 1000)
        for number in range(first, min(first + 1000, start + count)):
            fault = number % 2500
            text = " ".join(texts[number - first, : lengths[number - first]])
            yield {
                "text": {0: "", 500: "ab", 1000: None, 2000: "the same text in several rows"}.get(fault, text),
                "label": None if fault == 1500 else f"intent {number % LABELS}",
            }


def write(path: Path, count: int, *, start: int = 0) -> None:
    """Append rows to a file of JSON lines."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(row)}\n" for row in rows(count, start))


def run(stage: str, folder: str, tokenizer: str, workers: str) -> None:
    """Run one stage in this process, which looks for garbage as that of a stage does."""
    reduce_garbage_collection()
    root = Path(folder)
    artifacts, launch = Artifacts("rows", root), Launch(micro_batch_size=1, data_workers=int(workers))
    inputs = StageInputsSnapshot(
        stage, artifacts, {}, {"benchmarks": {"data_stages.py": ""}}
    )  # with code, work is kept
    objective = ObjectiveChoice(name="sequence_classification")
    if stage == "ingest":
        from tasks.ingestion.stage import ingest

        sources = {path.stem: {"kind": "files", "train": path.name} for path in sorted(root.glob("rows*.jsonl"))}
        shares = {"validation": 0.05, "test": 0.05}
        read = {"sources": sources} if len(sources) > 1 else {"source": sources["rows0"]}
        data = Data.model_validate({**read, "split": shares})
        ingest(artifacts, data=data, seed=0, launch=launch, inputs=inputs)
    elif stage == "validate":
        from tasks.validation.stage import validate

        expectations = [
            Expectation(type="expect_column_values_to_be_unique", column="text"),
            Expectation(type="expect_column_value_lengths_to_be_between", column="text", min_value=5, max_value=500),
        ]
        validation = Validation(expectations=expectations)
        validate(
            artifacts,
            seed=0,
            validation=validation,
            objective=objective,
            repo_id="benchmarks/rows",
            endpoint="local",
            launch=launch,
            inputs=inputs,
        )
    else:
        from tasks.tokenization.stage import tokenize

        tokenization = Tokenization.model_validate(
            {"max_length": 96, "tokenizer": {"kind": "pretrained", "path": tokenizer}}
        )
        tokenize(artifacts, tokenization=tokenization, objective=objective, launch=launch, inputs=inputs)


def measure(stage: str, root: Path, tokenizer: str, workers: int) -> str:
    """Run a stage in a process of its own, and return its seconds, seconds of CPU, and the peak of its memory in MiB.

    With one worker, it has one CPU. Of a stage that is forked, only the seconds are known.
    """
    command = [sys.executable, "-m", "benchmarks.data_stages", "--stage", stage, str(root), tokenizer, str(workers)]
    begin, peak, cpu = time.monotonic(), 0, dict[int, float]()
    process = psutil.Popen(command)
    if workers == 1:
        process.cpu_affinity(process.cpu_affinity()[:1])  # or a tokenizer's threads would use all of them
    while process.poll() is None:
        used = 0
        for one in [process, *_children(process)]:
            with contextlib.suppress(psutil.Error):
                used += one.memory_full_info().pss
                cpu[one.pid] = sum(one.cpu_times()[:2])
        peak = max(peak, used)
        time.sleep(0.1)
    if process.returncode:
        sys.exit(f"{stage} ended with {process.returncode}")
    seconds, own = time.monotonic() - begin, cpu.pop(process.pid)
    if fork_server.VARIABLE in os.environ:
        return f"{seconds:>10.1f}"
    longest = own + max(cpu.values(), default=0.0)
    return f"{seconds:>10.1f}{own + sum(cpu.values()):>10.1f}{longest:>10.1f}{peak / 2**20:>10.0f}"


def _children(process: psutil.Popen) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        found: list[psutil.Process] = process.children(recursive=True)
        return found
    return []


def own_tokenizer(folder: Path) -> str:
    """Train a tokenizer on some rows, and return its folder."""
    from tasks.tokenization.tokenizers import train_tokenizer

    texts = (row["text"] or "" for row in itertools.islice(rows(10_000), 10_000))
    choice = TrainTokenizer(kind="train", vocab_size=8000)
    train_tokenizer(texts, choice).save_pretrained(folder)
    return str(folder)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    processes = [int(text) for text in sys.argv[2].split(",")] if len(sys.argv) > 2 else [1, 2]
    sources = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    with tempfile.TemporaryDirectory(prefix="data_stages") as folder:
        root = Path(folder)
        tokenizer = sys.argv[4] if len(sys.argv) > 4 else own_tokenizer(root / "tokenizer")
        each = count // sources // 1000 * 1000
        for number in range(sources):
            write(root / f"rows{number}.jsonl", each, start=number * each)
        time.sleep(3)  # a flow takes longer to start: ingest remembers no look at a file that has just changed
        print(f"{'stage':<24}{'processes':>10}{'seconds':>10}{'CPU':>10}{'longest':>10}{'peak MiB':>10}", flush=True)
        artifacts, made = Artifacts("rows", root), []
        for workers in processes:
            shutil.rmtree(artifacts.shards, ignore_errors=True)
            for stage in STAGES:
                print(f"{stage:<24}{workers:>10}{measure(stage, root, tokenizer, workers)}", flush=True)
            folders = (artifacts.raw, artifacts.rows, artifacts.tokens)
            made.append([folder_sha256(one / split) for one in folders for split in SPLITS])
        print(f"equal bytes with {processes} processes: {all(one == made[0] for one in made)}", flush=True)
        for number, what in enumerate(("1 % more rows", "again, flow")):
            more = count // 100_000 * 1000
            write(root / f"rows{sources - 1}.jsonl", more, start=count + number * more)
            time.sleep(3)
            with fork_server.running(dict(os.environ), MODULES_OF_STAGES) if number else contextlib.nullcontext():
                time.sleep(30 * number)  # it imports the libraries
                for stage in STAGES:
                    found = measure(stage, root, tokenizer, processes[-1])
                    print(f"{f'{stage}, {what}':<24}{processes[-1]:>10}{found}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--stage"]:
        fork_server.hand_over("benchmarks.data_stages", "run", *sys.argv[2:])
        run_and_end(partial(run, *sys.argv[2:]))
    else:
        main()
