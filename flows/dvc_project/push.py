"""`python -m flows.dvc_project.push <recipe>`: send what the recipe's stages have made to the default DVC remote."""

from __future__ import annotations

import sys
from typing import Any

from flows.dvc_project.remote import DvcRemote
from flows.dvc_project.stage import run_action_for_exit_status
from flows.dvc_project.update import find_import_stages_to_refresh
from params import RemoteRefusedError
from params.foundation.stages import STAGES
from trainer.runtime.memory import reduce_garbage_collection


def push_recipe_outputs(repo: Any, recipe: str) -> None:
    """Send what dvc.lock records of a recipe, with the imported files that it refreshes, and say how much was new."""
    remote = DvcRemote.of(repo)
    if not remote:
        what = "keeps versions of files, which cannot be sent without a change of dvc.lock"
        fix = "use a remote without version_aware and worktree"
        raise RemoteRefusedError("the default DVC remote", what, fix)
    with repo.lock:
        stages = [stage for name in STAGES for stage in repo.stage.collect(f"{name}@{recipe}")]
        stages += [stage for stage in find_import_stages_to_refresh(repo, recipe) if stage.outs_cached()]
        print(f"record: {remote} got {remote.push(stages)} new objects", flush=True)


if __name__ == "__main__":
    reduce_garbage_collection()
    sys.exit(run_action_for_exit_status(push_recipe_outputs, sys.argv[1]))
