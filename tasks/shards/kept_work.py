"""The work of a stage on shards. It is kept for the next run: rows that were there before cost no work again.

    .scratch/<recipe>/shards/<stage>/<key>/result     what the work returned
                                           /<n>       the n-th file that it wrote

The key is a hash of all that the work depends on: the shard and the settings, as the work says them, the stage's code, and the versions of
libraries. Files can change at any time, so the work compares the bytes that it reads with the hash that its key has, and fails if they
differ; and a process keeps nothing if the code has changed by the time that it has imported it. An entry is there as soon as its shard is done, so a stage that was killed goes on with the others. What a run did not use is
deleted at its end.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, Protocol, Self, TypeVar

from params.dvc_files import Inputs, file_state
from params.foundation.artifacts import Artifacts, link_or_copy
from params.foundation.hashing import file_sha256
from params.schema import Launch
from tasks.shards.executor import Workers, versions

logger = logging.getLogger(__name__)
_RESULT: Final = "result"


class Work(Protocol):
    """What is to be done on one shard; a process gets it as a pickle."""

    @property
    def key(self) -> str:
        """All that the result depends on besides code: the hash of the shard, and settings."""

    @property
    def files(self) -> Sequence[Path]:
        """The files that the work may write."""


WorkT = TypeVar("WorkT", bound=Work)
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class ShardWorkers:
    """Does the work of one stage on shards; to be used as a context.

    Args:
        artifacts: of the run.
        stage: its name.
        launch: says where the work is done.
        inputs: of the stage. Without them, or if they name no code, nothing is kept, because other code may give other results.
        imports: modules that the work needs.
    """

    def __init__(
        self,
        artifacts: Artifacts,
        stage: str,
        launch: Launch,
        inputs: Inputs | None = None,
        *,
        imports: Sequence[str] = (),
    ) -> None:
        folder = artifacts.shards / stage
        self._stage = stage
        self._workers = Workers(launch, folder, imports)
        self._cache = _Cache(folder, artifacts.root, tuple(inputs.code.items())) if inputs and inputs.code else None
        self._used: set[str] = set()

    def __enter__(self) -> Self:
        self._workers.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._workers.__exit__(*error)
        if error[0] is None and self._cache:
            self._cache.drop_all_but(self._used)

    def expect(self, shards: int) -> None:
        """Begin with the imports for work on so many shards, while this process does something else."""
        self._workers.expect(shards)

    def map(self, function: Callable[[ItemT], ResultT], items: Sequence[ItemT], *, what: str) -> Iterator[ResultT]:
        """Yield `function(item)` of each item, in order, as `Workers.map` does it; nothing is kept."""
        return self._workers.map(function, items, what=f"{self._stage}: {what}")

    def run(self, function: Callable[[WorkT], ResultT], works: Sequence[WorkT], *, what: str) -> Iterator[ResultT]:
        """Yield `function(work)` of each, in order; that of earlier runs, with its files, where nothing has changed.

        Args:
            function: a function of a module, or a `functools.partial` of one; its result can be pickled.
            works: the work on each shard.
            what: a plural noun for the log, such as `shards`.

        Raises:
            KilledError: a process was killed while it worked on the same shard for the third time.
            RecipeError, TransientError: the cluster cannot be used.
            EvergreenError: the error of the first shard that has one.
        """
        if not self._cache:
            yield from self.map(function, works, what=what)
            return
        self._used.update(self._cache.entry(work).name for work in works)
        found = 0
        for result, is_found in self.map(partial(_find_or_do, function, self._cache), works, what=what):
            found += is_found
            yield result
        if found:
            logger.info("%s: %d of %d %s are those of an earlier run", self._stage, found, len(works), what)


def _find_or_do(function: Callable[[WorkT], ResultT], cache: _Cache, work: WorkT) -> tuple[ResultT, bool]:
    """Return what the work gives, and whether an earlier run did it."""
    with contextlib.suppress(LookupError):
        return cache.find(work), True
    result = function(work)
    cache.keep(work, result)
    return result, False


@dataclass(frozen=True)
class _Cache:
    folder: Path
    root: Path
    code: tuple[tuple[str, str], ...]
    """The files of the code that the work depends on, below `root`, each with its state."""

    def entry(self, work: Work) -> Path:
        return self.folder / _digest([work.key, _code_digest(self.code)])

    def find(self, work: Work) -> Any:
        """Return what the work gave, and put its files where they belong.

        Raises:
            LookupError: it is not there, or damaged.
        """
        entry = self.entry(work)
        try:
            digest, _, content = (entry / _RESULT).read_bytes().partition(b"\n")
            if hashlib.sha256(content).hexdigest() != digest.decode():
                raise LookupError(entry)
            hashes: dict[int, str]
            result, hashes = pickle.loads(content)  # noqa: S301 - this project wrote it
            if any(file_sha256(entry / str(number)) != sha256 for number, sha256 in hashes.items()):
                raise LookupError(entry)
            for number in hashes:
                assert not work.files[number].exists(), f"other work wrote {work.files[number]}"
                work.files[number].parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(entry / str(number), work.files[number])
        except (OSError, UnicodeDecodeError) as error:
            for file in work.files:  # equal work in another process has just replaced the entry
                file.unlink(missing_ok=True)
            raise LookupError(entry) from error
        return result

    def keep(self, work: Work, result: Any) -> None:
        """Keep what the work gave. Without room on the disk nothing is kept; the work is done in any case."""
        if not _is_there(self.root, self.code):
            return  # this process may have imported other code
        entry = self.entry(work)
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            partial_entry = Path(tempfile.mkdtemp(prefix=".", dir=self.folder))
            try:
                hashes = {}
                for number, file in enumerate(work.files):
                    if file.exists():
                        link_or_copy(file, partial_entry / str(number))
                        hashes[number] = file_sha256(file)
                content = pickle.dumps((result, hashes))
                digest = hashlib.sha256(content).hexdigest()
                (partial_entry / _RESULT).write_bytes(digest.encode() + b"\n" + content)
                shutil.rmtree(entry, ignore_errors=True)
                partial_entry.rename(entry)
            finally:
                shutil.rmtree(partial_entry, ignore_errors=True)

    def drop_all_but(self, names: set[str]) -> None:
        for entry in self.folder.iterdir() if self.folder.exists() else ():
            if not entry.is_dir():  # the function of a stage that was killed
                entry.unlink(missing_ok=True)
            elif entry.name not in names:
                shutil.rmtree(entry, ignore_errors=True)


@lru_cache(maxsize=4)
def _code_digest(code: tuple[tuple[str, str], ...]) -> str:
    """Return a hash of the code and the versions that work depends on."""
    return _digest([dict(code), versions()])


@lru_cache(maxsize=4)
def _is_there(root: Path, code: tuple[tuple[str, str], ...]) -> bool:
    """Whether files of code have these states. A process asks once, when it has imported them."""
    return all(file_state(root / path) == state for path, state in code)


def settings_key(**settings: Any) -> str:
    """Return a hash of settings that JSON can hold."""
    return _digest(settings)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
