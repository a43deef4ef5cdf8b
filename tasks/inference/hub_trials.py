"""Answers for the pages of a local Hub: reads the model from the Hub's own folder, and lets a process of its own answer."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

from params import EvergreenError
from params.foundation.artifacts import link_or_copy
from tasks.hub_client.connection import open_local_repository
from tasks.hub_server.trials import MayRead, TrialAnswer, TrialError
from tasks.inference import trial_process
from tasks.inference.bounds import TIMEOUT_S, memory_share
from tasks.inference.published_model import MAIN, DownloadedModel, fetch_model_from_repository
from trainer.model.adapters import CONFIG, BaseModelReference, is_adapter_folder

_END_S = 2.0
"""For the process to end by itself."""
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


class HubModelAnswerer:
    """Answers texts by the models in the folder of a local Hub, inside a `with` block. The Hub asks one thing at a time.

    `timeout_s`: for one answer, the loading of the model included. `memory_bytes`: for the models; None: half of this machine's.
    """

    def __init__(self, folder: Path, *, timeout_s: float = TIMEOUT_S, memory_bytes: int | None = None) -> None:
        self._folder = folder
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes or memory_share()
        self._own = tempfile.TemporaryDirectory(prefix="evergreen-try-", ignore_cleanup_errors=True)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._own.cleanup()

    def __call__(self, repo_id: str, commit: str, text: str, may_read: MayRead) -> TrialAnswer:
        """Return what the model of a commit answers.

        Raises:
            TrialError: it cannot be loaded, or cannot answer; or `may_read` forbids its base model.
        """
        try:
            files = self._download(repo_id, commit)
            key, folder = f"{repo_id}@{files.commit}", files.folder
            if is_adapter_folder(folder):
                base = self._base(files, may_read)
                key, folder = f"{key} on {base.repo_id}@{base.commit}", self._with_base(folder, base.folder)
        except EvergreenError as error:
            raise TrialError(f"{error.where}: {error.what}") from error
        found = self._ask({"key": key, "folder": str(folder), "where": files.where, "text": text})
        if "error" in found:
            raise TrialError(str(found["error"]))
        return TrialAnswer(**found)

    def _download(self, repo_id: str, revision: str) -> DownloadedModel:
        with open_local_repository(self._folder, repo_id) as repository:
            return fetch_model_from_repository(repository, revision)

    def _base(self, files: DownloadedModel, may_read: MayRead) -> DownloadedModel:
        """Return the base model of an adapter, which must be a whole model on this Hub: its name may be any path, too."""
        base = BaseModelReference.of(files.folder)
        if not _REPOSITORY.fullmatch(base.name) or not may_read(base.name):
            what = f"its base model, {base.name}, is not on this Hub, or you may not see it"
            raise TrialError(f"{files.where}: {what}; `evergreen try` in a shell takes base models from elsewhere")
        found = self._download(base.name, base.revision or MAIN)
        if is_adapter_folder(found.folder):
            raise TrialError(f"{files.where}: its base model, {base.name}, is an adapter itself")
        return found

    def _with_base(self, adapter: Path, base: Path) -> Path:
        """Return a folder with an adapter that names its base model by its folder on this machine."""
        folder = Path(self._own.name, "adapter")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for path in adapter.iterdir():
            if path.is_file() and path.name != CONFIG:
                link_or_copy(path.resolve(), folder / path.name)
        config = json.loads((adapter / CONFIG).read_bytes()) | {"base_model_name_or_path": str(base), "revision": None}
        (folder / CONFIG).write_text(json.dumps(config), encoding="utf-8")
        return folder

    def _ask(self, request: dict[str, str]) -> dict[str, Any]:
        if self._process is None or self._process.poll() is not None:
            own = Path(self._own.name)
            self._process = trial_process.start_trial_process(
                own, timeout_s=self._timeout_s, memory_bytes=self._memory_bytes
            )
        asked, told = self._process.stdin, self._process.stdout
        assert asked is not None
        assert told is not None
        try:
            asked.write(json.dumps(request) + "\n")
            asked.flush()
            if line := told.readline():
                found: dict[str, Any] = json.loads(line)
                return found
        except OSError:
            pass
        is_late = self._end() == -signal.SIGALRM
        why = f"it took longer than {self._timeout_s:.0f} s" if is_late else "it may have needed too much memory"
        raise TrialError(f"{request['where']}: the process that lets it answer has ended: {why}")

    def _end(self) -> int | None:
        """End the process, and return its exit status."""
        process, self._process = self._process, None
        if process is None:
            return None
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # what was not sent yet
                pipe.close()  # type: ignore[union-attr]
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_END_S)
        process.kill()
        return process.wait()
