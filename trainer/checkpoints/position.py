"""The position of a checkpoint: where its run continues, in addition to what Trainer itself stores."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from params import CheckpointError

POSITION = "position.json"
"""File in a checkpoint."""


@dataclass(frozen=True)
class Position:
    """Where a run continues."""

    order: dict[str, int]
    """Position in the order of the rows, see trainer.data.order."""
    stream: dict[str, Any] | None
    """State of the stream, for streamed data."""
    losses: list[float]
    """Training loss of each process since the last log line, in total."""
    last_logged_step: int
    lacks_evaluation: bool
    """Whether the evaluation at this step is still to be done."""
    finished: bool
    """Whether the run ended with this checkpoint."""
    processes: int
    """Number of processes that wrote the checkpoint."""

    def loss_of(self, process: int, processes: int) -> float:
        """Return the loss of a process since the last log line; on another number of processes, the mean of all."""
        return self.losses[process] if processes == len(self.losses) else sum(self.losses) / len(self.losses)

    def save(self, checkpoint: Path) -> None:
        """Write it to a checkpoint's folder."""
        (checkpoint / POSITION).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")

    @classmethod
    def load(cls, checkpoint: Path) -> Position:
        """Read it from a checkpoint's folder; CheckpointError if it is missing or damaged."""
        try:
            return cls(**json.loads((checkpoint / POSITION).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            what = f"its position in the data cannot be read: {error!r}"
            raise CheckpointError(str(checkpoint), what, "resume from another one") from error
