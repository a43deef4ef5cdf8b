"""What the steps of a training take: a callback that the recipe of a rehearsal names."""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from transformers import TrainerCallback


@dataclass
class ProcessMeasurements:
    steps_s: list[float] = field(default_factory=list)
    steps_cpu_s: list[float] = field(default_factory=list)
    """CPU time of each step: of all threads together."""
    threads: int = 0
    """Threads that compute."""
    eval_rows_per_s: list[float] = field(default_factory=list)
    memory_bytes: int = 0
    gpu_memory_bytes: int = 0


class StepClock(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Writes what the steps of a training take to a file; can leave out the evaluation before the first step."""

    def __init__(self, path: str, *, evaluates_first: bool = True) -> None:
        self._path, self._evaluates_first = Path(path), evaluates_first
        self._start = self._start_cpu = 0.0
        self._took = ProcessMeasurements()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        args.eval_on_start = args.eval_on_start and self._evaluates_first

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._start, self._start_cpu = time.monotonic(), time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._took.steps_s.append(time.monotonic() - self._start)
        self._took.steps_cpu_s.append(time.process_time() - self._start_cpu)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, float], **_: Any) -> None:
        """Note the speed of an evaluation."""
        self._took.eval_rows_per_s += [metrics[name] for name in metrics if name == "eval_samples_per_second"]

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            import torch

            unit = 1 if sys.platform == "darwin" else 2**10
            self._took.threads = torch.get_num_threads()
            self._took.memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
            self._took.gpu_memory_bytes = torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0
            self._path.write_text(json.dumps(asdict(self._took)), encoding="utf-8")
