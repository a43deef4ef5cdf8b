"""The provenance of a release: everything needed to reproduce its model, as JSON."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Final

from params import RecipeError
from params.dvc_files import is_training_recorded, read_dvc_lock_stages, read_recipes_yaml_item
from params.foundation.artifacts import Artifacts
from params.foundation.stages import UP_TO_TRAIN
from params.schema import AdapterForm
from tasks.digests import PROVENANCE, files_in_release_form, weight_file_hashes
from tasks.evaluation.report import EvaluationReport
from tasks.ingestion.report import IngestReport
from tasks.lineage.ancestors import list_released_ancestors
from tasks.recipes.loading import load
from tasks.stages import read_report
from tasks.training.report import TrainingReport

FILE: Final = PROVENANCE
"""Name of the file in a release."""
MAX_BYTES: Final = 4 << 20
"""Most bytes of such a file: dvc.lock's entries and the recipe take some kilobytes."""
SCHEMA: Final = 1

_PASSWORD = re.compile(r"[A-Za-z][\w+.-]*://[^\s/:@\"']*:(?!\$\{\w+\}@)[^\s/@\"']+@")
"""A password in a URL, unless it is the placeholder of an environment variable."""


def collect_provenance(artifacts: Artifacts, adapter: AdapterForm = "merged") -> dict[str, Any]:
    """Return everything that decided the weights of a trained run, as JSON values: the content of `FILE`.

    `adapter` is the form of the release.

    It has no times, no environment variables, and no paths of this machine except those in the recipe.
    """
    recipe = load(artifacts.recipe_path)
    text = artifacts.recipe_path.read_text(encoding="utf-8")
    if found := _PASSWORD.search(text):
        where = f"params/{artifacts.recipe}.yaml:{1 + text.count(chr(10), 0, found.start())}"
        fix = "write ${NAME} instead, and set the environment variable NAME to the password"
        raise RecipeError(where, "there is a password in a URL, but the recipe is published with the model", fix)
    ingested, trained = read_report(artifacts, IngestReport), read_report(artifacts, TrainingReport)
    start = trained.started_from
    evaluated = read_report(artifacts, EvaluationReport)
    return {
        "schema": SCHEMA,
        "recipe": {
            "name": artifacts.recipe,
            "text": text,
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "dvc_item": read_recipes_yaml_item(artifacts) or None,
        },
        "seed": recipe.seed,
        "objective": recipe.objective.model_dump(mode="json"),
        "max_length": evaluated.judged_length,
        "repo_id": recipe.publish.repo_id,
        "run": trained.run,
        "start": start.model_dump(mode="json") if start else None,
        "goes_back_to": [one.model_dump(mode="json") for one in list_released_ancestors(artifacts)],
        "base_commit": trained.base_commit,
        "starts": dict(trained.arms),
        "git_commit": trained.git_commit,
        "versions": trained.versions,
        "data": {
            "source": ingested.source,
            "revision": ingested.revision,
            "rows": ingested.rows,
            "columns": ingested.columns,
            "sha256": ingested.data_sha256,
            "learned_until": max(ingested.learned_until, start.learned_until if start else "", evaluated.known_until),
            "unknown": list(evaluated.unknown),
            "split": recipe.data.split.by,
        },
        "dvc_lock": _dvc_lock(artifacts),
        "commands": [f"python -m tasks {stage} params/{artifacts.recipe}.yaml" for stage in UP_TO_TRAIN],
        "adapter": adapter,
        "weights": files_in_release_form(adapter, weight_file_hashes(artifacts.model)),
    }


def _dvc_lock(artifacts: Artifacts) -> dict[str, Any] | None:
    """The entries of dvc.lock for the stages that decide the weights; None if DVC did not run these very stages."""
    recorded, run = read_dvc_lock_stages(artifacts.root), f"runs/{artifacts.recipe}"
    stages = {f"{name}@{artifacts.recipe}": recorded.get(f"{name}@{artifacts.recipe}") for name in UP_TO_TRAIN}
    if not all(stages.values()) or not is_training_recorded(artifacts):
        return None

    def md5(stage: str, kind: str, path: str) -> str | None:
        entries = (stages[f"{stage}@{artifacts.recipe}"] or {}).get(kind) or ()
        return next((str(one.get("md5")) for one in entries if one.get("path") == path), None)

    links = (("ingest", "validate", f"{run}/raw"), ("tokenize", "train", f"{run}/tokens"))
    if any(md5(maker, "outs", path) != md5(reader, "deps", path) for maker, reader, path in links):
        return None
    plain: dict[str, Any] = json.loads(json.dumps({"schema": "2.0", "stages": stages}, default=str))
    return plain
