"""Run the train stage of the tiny recipe in the working directory, and copy the run's folder to the path that is given."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from tasks import commands as command_line
from tasks.training import stage

_collect = stage._collect


def copy_and_collect(artifacts: Any, arms: Any, commit: str | None) -> Any:
    """Copy the folder with all checkpoints before the stage deletes it."""
    shutil.copytree(arms[0].folder, Path(sys.argv[1]))
    return _collect(artifacts, arms, commit)


stage._collect = copy_and_collect
sys.exit(command_line.main(["train", "params/tiny.yaml"]))
