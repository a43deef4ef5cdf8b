"""Time that a save blocks the training loop, here and in transformers.Trainer, in alternating runs.

    python -m benchmarks.save_stall [rounds]

It also measures the total cost of a save, as the difference between the same steps with and without saves, because the
thread that writes uses the processors while the loop runs. Trainer's own save neither flushes to disk nor computes hashes.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.tables import environment, print_table, spread
from benchmarks.workload import Kind, language_model, sequences, trainer

STEPS, EVERY, HIDDEN, LAYERS = 24, 4, 512, 8


def run(kind: Kind, *, saves: bool) -> tuple[list[float], float, float]:
    """Return the seconds that each save blocked, those of the whole training, and the MiB of a checkpoint's tensors."""
    with tempfile.TemporaryDirectory() as folder:
        every = EVERY if saves else 10 * STEPS
        made = trainer(
            kind,
            Path(folder) / "run",
            sequences(2 * STEPS, 16),
            language_model(HIDDEN, LAYERS),
            max_steps=STEPS + 1,
            save_steps=every,
            per_device_train_batch_size=1,
            save_total_limit=None if kind == "ours" else 2,
        )
        start = time.perf_counter()
        made.train()
        seconds = time.perf_counter() - start
        size = 3 * sum(p.nbytes for p in made.model.parameters()) / 2**20
        return made.stalls_s[1:-1], seconds, size


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print(environment(rounds), flush=True)
    stalls: dict[Kind, list[float]] = {"ours": [], "plain": []}
    costs: dict[Kind, list[float]] = {"ours": [], "plain": []}
    for number in range(rounds):
        for kind in ("plain", "ours"):
            found, with_saves, size = run(kind, saves=True)  # without the first and last save
            _, without, _ = run(kind, saves=False)
            stalls[kind] += found
            costs[kind].append((with_saves - without) / (STEPS // EVERY))
            print(
                f"round {number + 1}, {kind:>5}: stall {1000 * statistics.median(found):7.1f} ms, "
                f"total cost {1000 * costs[kind][-1]:7.1f} ms per save of {size:.0f} MiB",
                file=sys.stderr,
            )
    rows = []
    for name, seconds in (("stops the loop for", stalls), ("costs in all", costs)):
        rows.append([name, *(spread((1000 * s for s in seconds[kind]), 0) for kind in ("ours", "plain"))])
    print_table((f"a save of {size:.0f} MiB", "ms here", "ms, plain Trainer"), rows)


if __name__ == "__main__":
    main()
