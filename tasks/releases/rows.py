"""The rows of a release, brought into its clone: from DVC, else from their source; and the model of another recipe it starts from.

The release's record of dvc.lock names them; the project's cache and remotes may hold them. DVC runs as a command.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from params import DataError, ModelError, TransientError
from params.dvc_files import RECIPES
from params.foundation.artifacts import SPLITS, Artifacts
from tasks.releases.clone import Clone, RecordedRecipe, ReproducibleRelease
from trainer.data import shards

logger = logging.getLogger(__name__)


def fetch_base_model(clone: Clone, release: ReproducibleRelease) -> None:
    """Bring the model of another recipe that the recipe starts from: from DVC by the recorded lock, else from this project."""
    base = (release.record.recipe.dvc_item or {}).get("base", "").rstrip("/")
    if not (maker := re.fullmatch(r"runs/([A-Za-z0-9][\w.-]*)/model", base)):
        return
    here, target = clone.original / base, clone.project / base
    is_link = target.is_symlink()  # to this project's, which may have been trained since
    if (target.exists() and not is_link) or not target.parent.resolve().is_relative_to(clone.folder):
        return  # it is in git, or the recipe names a folder around it
    target.unlink(missing_ok=True)
    if _fetch(clone, release, f"train@{release.record.recipe.name}", "deps", maker=f"train@{maker[1]}", path=base):
        logger.info("reproduce: the base model, %s, is in DVC's cache", base)
        return
    if not here.is_dir():
        what = f"it starts from {base}, which is neither in this project nor in DVC's cache or remotes"
        fix = f"bring the folder as it was at commit {release.record.git_commit}: `dvc pull train@{maker[1]}` there"
        raise ModelError(release.where, what, fix)
    logger.warning("reproduce: DVC does not have %s: taking this project's, which may have been trained since", base)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    target.symlink_to(here.resolve())


def fetch_rows(clone: Clone, made: Artifacts, release: ReproducibleRelease) -> None:
    """Bring the rows of the release into the clone: from DVC by the recorded lock, else by running ingest."""
    stage, rows, recorded = f"ingest@{made.recipe}", f"runs/{made.recipe}/raw", release.record.data

    def changes() -> list[str]:
        found = []
        for split in SPLITS:
            folder, then = made.raw / split, recorded.sha256.get(split, "missing")
            now = shards.folder_sha256(folder) if folder.is_dir() else "missing"
            if now != then:
                found.append(f"{split} was {then[:12]} and is {now[:12]}")
        return found

    if _fetch(clone, release, stage, "outs", maker=stage, path=rows) and not changes():
        logger.info("reproduce: the rows are in DVC's cache")
        return
    logger.info("reproduce: DVC does not have the rows: running ingest")
    shutil.rmtree(made.raw, ignore_errors=True)
    clone.stage("ingest", made.recipe)
    if changed := changes():
        what = f"the source no longer gives the rows of the release: {'; '.join(changed)}"
        fix = f"restore revision {recorded.revision} of the source, or the rows in DVC's cache or remote"
        raise DataError(release.where, what, fix)


def _fetch(clone: Clone, release: ReproducibleRelease, stage: str, kind: str, *, maker: str, path: str) -> bool:
    """Whether DVC has restored an output of the stage `maker` in the clone, from the project's cache or remotes.

    The record of `stage` in dvc.lock has its hash, among its `outs` or `deps`.
    """
    entry = ((release.record.dvc_lock or {}).get("stages") or {}).get(stage) or {}
    md5 = next((str(one.get("md5")) for one in entry.get(kind) or () if one.get("path") == path), "")
    settings, original = clone.project / ".dvc", clone.original
    if not re.fullmatch(r"[0-9a-f]{32}(\.dir)?", md5) or not settings.is_dir() or not (original / ".dvc").is_dir():
        return False
    lock = {"schema": "2.0", "stages": {maker: {"cmd": "", "outs": [{"path": path, "hash": "md5", "md5": md5}]}}}
    (clone.project / "dvc.lock").write_text(json.dumps(lock), encoding="utf-8")
    _add_item(clone.project, release.record.recipe)
    for name in ("config", "config.local"):
        if (original / ".dvc" / name).is_file():
            shutil.copy(original / ".dvc" / name, settings / name)
    try:
        clone.dvc("config", "--local", "cache.dir", clone.dvc("cache", "dir", at=original).strip())
        with contextlib.suppress(TransientError):
            clone.dvc("checkout", "--quiet", path)
            return True
        remotes = [line.split() for line in clone.dvc("remote", "list", at=original).splitlines() if line.strip()]
        for name, url, *_ in remotes:  # a URL relative to .dvc would lead elsewhere in the clone
            clone.dvc("remote", "modify", "--local", name, "url", url)
        if remotes:
            clone.dvc("pull", "--quiet", path)
    except TransientError as error:
        logger.info("reproduce: %s", error.what)
        return False
    return bool(remotes)


def _add_item(project: Path, recipe: RecordedRecipe) -> None:
    """Add the recipe to those of DVC if it was not committed there; at first, the list was in dvc.yaml."""
    path = project / RECIPES if (project / RECIPES).is_file() else project / "dvc.yaml"
    content: Any = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    recipes = content["recipes"] if path.name == RECIPES.name else content["vars"][0]["recipes"]
    if recipe.dvc_item and recipe.name not in recipes:
        recipes[recipe.name] = recipe.dvc_item
        YAML(typ="safe").dump(content, path)
