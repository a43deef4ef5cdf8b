"""Training here beside plain transformers.Trainer: the same work with equal settings, and each with its defaults.

    python -m benchmarks.throughput [rounds]

Equal settings: fixed lengths, one micro-batch per step, no evaluation and no save, with short and long steps, on one process
and on two. Runs alternate; a ratio above 1 means that a step takes less time here. Seconds of the processors are shown too,
because other programs disturb them less.

Defaults: a classifier of short texts. Here batches are grouped by length, as in docs/banking77.yaml; plain Trainer takes them
in random order.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel

from benchmarks.workload import (
    Kind,
    StepClock,
    classifier,
    environment,
    language_model,
    question_lengths,
    sequences,
    texts,
    trainer,
)

WARM_UP = 5
"""First steps of a run, which are not counted."""
PROCESSES = 2


@dataclass(frozen=True)
class Times:
    """A run's steps, in milliseconds."""

    wall_ms: float
    cpu_ms: float


@dataclass(frozen=True)
class Work:
    """A model with sequences of one length, a batch per step."""

    name: str
    batch: int
    length: int
    hidden: int
    layers: int
    steps: int

    def model(self) -> PreTrainedModel:
        """Return the model: a classifier for short texts, a language model for long ones."""
        make = classifier if self.length < 64 else language_model
        return make(self.hidden, self.layers)


SHORT = Work("short steps", batch=32, length=16, hidden=192, layers=3, steps=60)
LONG = Work("long steps", batch=16, length=128, hidden=384, layers=5, steps=15)


def run(kind: Kind, work: Work) -> Times:
    """Return the median times of a step with settings that are the same for both kinds."""
    count = work.batch * work.steps
    data = texts([work.length] * count) if work.length < 64 else sequences(count, work.length)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    clock = StepClock()
    with tempfile.TemporaryDirectory() as folder:
        made = trainer(
            kind,
            Path(folder) / "run",
            data,
            work.model(),
            max_steps=work.steps,
            save_steps=10**9,
            per_device_train_batch_size=work.batch // processes,
        )
        made.add_callback(clock)
        made.train()
    between = [
        [1000 * (b - a) for a, b in zip(times[WARM_UP:], times[WARM_UP + 1 :], strict=False)]
        for times in (clock.wall_s, clock.cpu_s)
    ]
    return Times(*(statistics.median(one) for one in between))


def compare(work: Work, rounds: int) -> None:
    """Run both kinds in turn, and print the ratio of their steps."""
    times: dict[Kind, list[Times]] = {"plain": [], "ours": []}
    for number in range(rounds):
        kinds: tuple[Kind, ...] = ("plain", "ours") if number % 2 else ("ours", "plain")
        for kind in kinds:
            times[kind].append(run(kind, work))
    wall = [plain.wall_ms / ours.wall_ms for plain, ours in zip(times["plain"], times["ours"], strict=True)]
    cpu = [plain.cpu_ms / ours.cpu_ms for plain, ours in zip(times["plain"], times["ours"], strict=True)]
    step = statistics.median(one.wall_ms for one in times["plain"])
    if os.environ.get("RANK", "0") == "0":
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        print(
            f"{work.name}, {processes} process{'es' * (processes > 1)}, {step:.0f} ms there: "
            f"{statistics.median(wall):.3f}x ({min(wall):.3f} to {max(wall):.3f}), "
            f"of the processors {statistics.median(cpu):.3f}x",
            flush=True,
        )


def rows_per_second(kind: Kind, rows: int, batch: int = 32) -> float:
    """Return the rows per second of a classifier of short texts over an epoch, with the defaults of each kind."""
    clock = StepClock()
    with tempfile.TemporaryDirectory() as folder:
        made = trainer(
            kind,
            Path(folder) / "run",
            texts(question_lengths(rows)),
            classifier(384, 6),
            group_by_length=True,
            num_train_epochs=1,
            save_steps=10**9,
            per_device_train_batch_size=batch,
        )
        made.add_callback(clock)
        made.train()
    return batch * (len(clock.wall_s) - 1) / (clock.wall_s[-1] - clock.wall_s[0])


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    if "RANK" not in os.environ:
        print(environment(), flush=True)
    for work in (SHORT, LONG):
        compare(work, rounds)
    if "RANK" in os.environ:
        return
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={PROCESSES}"]
    subprocess.run([*launch, "-m", "benchmarks.throughput", str(rounds)], check=True)
    rates: dict[Kind, list[float]] = {"plain": [], "ours": []}
    for _ in range(max(1, rounds // 2)):
        for kind, found in rates.items():
            found.append(rows_per_second(kind, 32 * 50))
    ours, plain = (statistics.median(rates[kind]) for kind in ("ours", "plain"))
    print(f"defaults, short texts: {ours:.0f} rows/s here, {plain:.0f} there: {ours / plain:.2f}x")


if __name__ == "__main__":
    main()
