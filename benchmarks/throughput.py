"""Training here beside plain transformers.Trainer: the same work with equal settings, and each with its defaults.

    python -m benchmarks.throughput [rounds]

Equal settings: fixed lengths, one micro-batch per step, no evaluation and no save, with short and long steps, on one process
and on two. Runs alternate, each in processes of its own, which are set up as a worker's are or as those of a plain script. A
ratio above 1 means that a step takes less time here. Seconds of the processors are shown too, because other programs disturb
them less. A rate of floating-point operations is shown as a share of what a large matrix product reaches here.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import torch
from transformers import PreTrainedModel

from benchmarks.tables import environment, print_table, spread
from benchmarks.workload import (
    Kind,
    StepClock,
    classifier,
    in_own_processes,
    language_model,
    sequences,
    set_up,
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
    clock = StepClock()
    with tempfile.TemporaryDirectory() as folder:
        made = trainer(
            kind,
            Path(folder) / "run",
            data,
            work.model(),
            max_steps=work.steps,
            save_steps=10**9,
            per_device_train_batch_size=work.batch // int(os.environ.get("WORLD_SIZE", "1")),
        )
        made.add_callback(clock)
        made.train()
    between = [
        [1000 * (b - a) for a, b in zip(times[WARM_UP:], times[WARM_UP + 1 :], strict=False)]
        for times in (clock.wall_s, clock.cpu_s)
    ]
    return Times(*(statistics.median(one) for one in between))


def measure(kind: Kind, work: str) -> None:
    """Print what one run measures, as JSON."""
    set_up(kind)
    found = asdict(run(kind, next(one for one in (SHORT, LONG) if one.name == work)))
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(found))


def alternate(work: str, rounds: int, processes: int = 1) -> dict[Kind, list[dict[str, float]]]:
    """Run both kinds in turn; the one that begins changes."""
    found: dict[Kind, list[dict[str, float]]] = {"plain": [], "ours": []}
    for number in range(rounds):
        kinds: tuple[Kind, ...] = ("plain", "ours") if number % 2 else ("ours", "plain")
        for kind in kinds:
            found[kind].append(in_own_processes("benchmarks.throughput", kind, work, processes=processes))
    return found


def matrix_product_rate() -> float:
    """Floating-point operations per second of a large matrix product, the most that this machine can do."""
    size, rates = 2048, []
    a, b = torch.rand(size, size), torch.rand(size, size)
    for _ in range(7):
        start = time.perf_counter()
        a @ b
        rates.append(2 * size**3 / (time.perf_counter() - start))
    return max(rates)


def rows(rounds: int) -> Iterator[list[str]]:
    """Yield a row of the table for each work and number of processes."""
    limit = matrix_product_rate()
    for processes, work in product((1, PROCESSES), (SHORT, LONG)):
        found = alternate(work.name, rounds, processes)
        step_ms = [times["wall_ms"] for times in found["ours"]]
        parameters = sum(p.numel() for name, p in work.model().named_parameters() if "embed" not in name)
        rate = 6 * parameters * work.batch * work.length / (statistics.median(step_ms) / 1000)
        ratios = [
            spread(plain[name] / ours[name] for plain, ours in zip(found["plain"], found["ours"], strict=True))
            for name in ("wall_ms", "cpu_ms")
        ]
        yield [work.name, str(processes), spread(step_ms, 0), *ratios, f"{rate / limit:.0%}"]


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(environment(rounds), flush=True)
    columns = ("steps", "processes", "ms here", "ratio to plain Trainer", "by CPU time", "share of the limit")
    print_table(columns, rows(rounds))


if __name__ == "__main__":
    if sys.argv[1:2] in (["ours"], ["plain"]):
        measure("ours" if sys.argv[1] == "ours" else "plain", sys.argv[2])
    else:
        main()
