"""Time from the start of train() to its first step, resumed at a low and at a high step, in alternating runs.

python -m benchmarks.resume_time [high step]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.tables import environment, print_table, spread
from benchmarks.workload import language_model, sequences, trainer

ROUNDS = 5


def build_trainer(folder: Path, steps: int, data: Any) -> Any:
    """Return a trainer of a very small model, for `steps` steps of one epoch."""
    return trainer(
        "ours",
        folder,
        data,
        language_model(16, 1),
        max_steps=steps,
        save_steps=10**9,
        per_device_train_batch_size=1,
    )


def main() -> None:
    high = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    print(environment(ROUNDS), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        data = sequences(2 * high, 4)
        steps = (10, high)
        for step in steps:
            print(f"training to step {step}", file=sys.stderr)
            build_trainer(Path(folder) / str(step), step, data).train()
        taken: dict[int, list[float]] = {step: [] for step in steps}
        for _ in range(ROUNDS):
            for step in steps:
                again = build_trainer(Path(folder) / f"{step}-again", step + 1, data)
                start = time.perf_counter()
                again.train(resume_from_checkpoint=str(Path(folder) / str(step) / f"checkpoint-{step}"))
                taken[step].append(again.first_step_s - start)
    rows = [(f"step {step:,}", spread((1000 * s for s in taken[step]), 0)) for step in steps]
    print_table(("resumed at", "ms to the first step"), rows)


if __name__ == "__main__":
    main()
