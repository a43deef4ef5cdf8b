"""Run the train stage of the tiny recipe in the working directory, and keep a copy of the run's folder."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from tasks import __main__ as command_line
from tasks.training import stage

_collect = stage._collect


def keep_and_collect(artifacts: Any, job: Any) -> Any:
    """Copy the folder with all checkpoints, which the stage deletes at its end."""
    shutil.copytree(job.folder, Path(sys.argv[1]))
    return _collect(artifacts, job)


stage._collect = keep_and_collect
sys.exit(command_line.main(["train", "params/tiny.yaml"]))
