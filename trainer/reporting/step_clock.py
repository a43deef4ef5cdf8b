"""What the steps of a training take: a callback that the recipe of a rehearsal names."""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback


@dataclass(frozen=True)
class ProcessTimings:
    """What one process of a training took."""

    steps_s: list[float]
    steps_cpu_s: list[float]
    """CPU time of each step: of all threads together."""
    threads: int
    """Threads that compute."""
    eval_rows_per_s: list[float]
    memory_bytes: int
    gpu_memory_bytes: int


class StepClock(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Writes what the steps of a training take to a file; the recipe of a rehearsal names it among its callbacks."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._start = self._start_cpu = 0.0
        self._steps: list[float] = []
        self._steps_cpu: list[float] = []
        self._rows_per_s: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the clock."""
        self._start, self._start_cpu = time.monotonic(), time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop the clock."""
        self._steps.append(time.monotonic() - self._start)
        self._steps_cpu.append(time.process_time() - self._start_cpu)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, float], **_: Any) -> None:
        """Note the speed of an evaluation."""
        self._rows_per_s += [value for name, value in metrics.items() if name == "eval_samples_per_second"]

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write it all."""
        if state.is_world_process_zero:
            import torch

            found = ProcessTimings(
                steps_s=self._steps,
                steps_cpu_s=self._steps_cpu,
                threads=torch.get_num_threads(),
                eval_rows_per_s=self._rows_per_s,
                memory_bytes=_memory_bytes(),
                gpu_memory_bytes=_gpu_memory_bytes(),
            )
            self._path.write_text(json.dumps(asdict(found)), encoding="utf-8")


def _memory_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _gpu_memory_bytes() -> int:
    import torch

    return int(torch.cuda.max_memory_reserved()) if torch.cuda.is_available() else 0
