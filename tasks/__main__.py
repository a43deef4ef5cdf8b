"""`python -m tasks <command>`: the commands of tasks.commands.

DVC runs each stage by it. The stage ends with DVC from its first instruction on; the imports of the commands take longer.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from trainer.reporting.signs_of_life import start_signs_of_life
from trainer.runtime import fork_server
from trainer.runtime.lifetime import die_with_parent, run_and_end
from trainer.runtime.memory import reduce_garbage_collection


def _dvc_processes() -> list[int]:
    """Return the ids of the processes that have started a stage, says DVC; empty if that cannot be read."""
    try:
        writers = json.loads(Path(".dvc/tmp/rwlock").read_text(encoding="utf-8"))["write"]
        return [int(writer["pid"]) for writer in writers.values()]
    except (OSError, ValueError, KeyError):
        return []


def main() -> int:
    """Run a command in this process, and return its exit status."""
    start_signs_of_life(" ".join(sys.argv[1:2]) or "evergreen")
    reduce_garbage_collection()
    from tasks import commands

    return commands.main()


if __name__ == "__main__":
    if "DVC_STAGE" in os.environ:
        die_with_parent(ancestors=_dvc_processes())
    fork_server.hand_over("tasks.__main__", "main")
    run_and_end(main)
