"""Seconds and peak memory of the stages that prepare data, with one process and with two; and after 1 % of rows were added.

    python -m benchmarks.data_stages [rows] [folder of a tokenizer]

The rows have about 120 bytes; some are blank, too short, without a label or twice there. Memory is the proportional set size of
a stage's processes together. Without a tokenizer's folder, one of 8,000 tokens is trained on some of the rows first.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from params.artifacts import Artifacts
from params.schema import Data, Expectation, Launch, ObjectiveChoice, Tokenization, TrainTokenizer, Validation
from trainer.data.shards import digest

STAGES = ("ingest", "validate", "tokenize")
LABELS, WORDS = 77, 20_000


def rows(count: int, start: int = 0) -> Iterator[dict[str, str | None]]:
    """Yield rows; one in 500 has a fault."""
    words = [f"{'bcdfghklmnprstvz'[i % 16]}{'aeiou'[i % 5]}{i:x}" for i in range(WORDS)]
    for number in range(start, start + count):
        chance = random.Random(number if number % 1000 else 0)  # every thousandth row is the same
        text = " ".join(chance.choices(words, k=chance.randint(12, 24)))
        fault = number % 2500
        yield {
            "text": {0: "", 500: "ab", 1000: None}.get(fault, text),
            "label": None if fault == 1500 else f"intent {number % LABELS}",
        }


def write(path: Path, count: int, *, start: int = 0) -> None:
    """Append rows to a file of JSON lines."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(row)}\n" for row in rows(count, start))


def run(stage: str, root: Path, tokenizer: str, workers: int) -> None:
    """Run one stage in this process."""
    artifacts, launch = Artifacts("rows", root), Launch(micro_batch_size=1, data_workers=workers)
    objective = ObjectiveChoice(name="sequence_classification")
    if stage == "ingest":
        from tasks.ingestion.stage import ingest

        source = {"kind": "files", "train": "rows.jsonl"}
        shares = {"validation": 0.05, "test": 0.05}
        ingest(artifacts, data=Data.model_validate({"source": source, "split": shares}), seed=0)
    elif stage == "validate":
        from tasks.validation.stage import validate

        expectations = [
            Expectation(type="expect_column_values_to_be_unique", column="text"),
            Expectation(type="expect_column_value_lengths_to_be_between", column="text", min_value=5, max_value=500),
        ]
        validation = Validation(expectations=expectations)
        hub = {"repo_id": "benchmarks/rows", "endpoint": "local"}
        validate(artifacts, seed=0, validation=validation, objective=objective, launch=launch, **hub)
    else:
        from tasks.tokenization.stage import tokenize

        tokenization = Tokenization.model_validate(
            {"max_length": 96, "tokenizer": {"kind": "pretrained", "path": tokenizer}}
        )
        tokenize(artifacts, tokenization=tokenization, objective=objective, launch=launch)


def measure(stage: str, root: Path, tokenizer: str, workers: int) -> tuple[float, float]:
    """Return the seconds and the peak memory in MiB of a stage in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.data_stages", "--stage", stage, str(root), tokenizer, str(workers)]
    begin, peak = time.monotonic(), 0
    process = psutil.Popen(command)
    while process.poll() is None:
        used = 0
        for one in [process, *_children(process)]:
            with contextlib.suppress(psutil.Error):
                used += one.memory_full_info().pss
        peak = max(peak, used)
        time.sleep(0.1)
    if process.returncode:
        sys.exit(f"{stage} ended with {process.returncode}")
    return time.monotonic() - begin, peak / 2**20


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
    with tempfile.TemporaryDirectory(prefix="data_stages") as folder:
        root = Path(folder)
        tokenizer = sys.argv[2] if len(sys.argv) > 2 else own_tokenizer(root / "tokenizer")
        write(root / "rows.jsonl", count)
        print(f"{'stage':<24}{'processes':>10}{'seconds':>10}{'peak MiB':>10}", flush=True)
        made = {}
        for workers in (1, 2):
            for stage in STAGES:
                seconds, peak = measure(stage, root, tokenizer, workers)
                print(f"{stage:<24}{workers:>10}{seconds:>10.1f}{peak:>10.0f}", flush=True)
            artifacts = Artifacts("rows", root)
            folders = (artifacts.raw, artifacts.rows, artifacts.tokens)
            made[workers] = [digest(one / split) for one in folders for split in ("train", "validation", "test")]
        print(f"equal bytes with one process and two: {made[1] == made[2]}", flush=True)
        write(root / "rows.jsonl", count // 100, start=count)
        for stage in STAGES:
            seconds, peak = measure(stage, root, tokenizer, 2)
            print(f"{f'{stage}, 1 % more rows':<24}{2:>10}{seconds:>10.1f}{peak:>10.0f}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--stage"]:
        run(sys.argv[2], Path(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
    else:
        main()
