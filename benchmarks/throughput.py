"""Steps per second of EvergreenTrainer and of transformers.Trainer on the same work, in alternating runs.

    python -m benchmarks.throughput [rounds]

The work: a small language model, two micro-batches per step, no evaluation, and only a last save, which is not timed.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.workload import Kind, environment, sequences, trainer

STEPS = 30


def run(kind: Kind) -> float:
    """Return the optimizer steps per second, from the first step to the save after the last one."""
    with tempfile.TemporaryDirectory() as folder:
        made = trainer(
            kind,
            Path(folder) / "run",
            sequences(16 * STEPS, 128),
            hidden=192,
            layers=4,
            max_steps=STEPS,
            save_steps=10**9,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
        )
        made.train()
        return STEPS / float(made.last_save_s - made.first_step_s)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(environment(), flush=True)
    rates: dict[Kind, list[float]] = {"ours": [], "plain": []}
    for number in range(rounds):
        kinds: tuple[Kind, ...] = ("plain", "ours") if number % 2 else ("ours", "plain")
        for kind in kinds:
            rates[kind].append(run(kind))
            print(f"round {number + 1}, {kind:>5}: {rates[kind][-1]:.2f} steps per second", flush=True)
    ours, plain = statistics.median(rates["ours"]), statistics.median(rates["plain"])
    print(f"{ours:.2f} steps per second, Trainer {plain:.2f}: {ours / plain:.3f}x (goal 1.0)")


if __name__ == "__main__":
    main()
