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
import secrets
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import compress
from operator import not_
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from xxhash import xxh3_128

from params import KilledError
from params.foundation.artifacts import Artifacts, link_or_copy
from params.schema import Launch
from tasks.progress import iterate_with_progress
from tasks.shards import executor
from tasks.stage_inputs import StageInputsSnapshot, file_fingerprint

logger = logging.getLogger(__name__)
_RESULT: Final = "result"
_FEWEST: Final = 4
"""Fewest items for which workers start: to start one takes about as long as to work on a shard."""
_ATTEMPTS: Final = 3
_AHEAD: Final = 2
"""Calls that wait for each process or thread: it never waits for this one, and few results wait to be taken."""


ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class ShardTask(Generic[ItemT]):
    """What is to be done on one shard; a process gets it as a pickle."""

    item: ItemT
    key: str
    """All that the result depends on besides code: the hash of the shard, and settings."""
    files: Sequence[Path] = ()


class ShardWorkers(contextlib.AbstractContextManager["ShardWorkers"]):
    """Does the work of one stage on shards; to be used as a context.

    Processes start when there is work for them, and end with the stage. Without the stage's `inputs`, or if they name no code, nothing is
    kept, because other code may give other results. The modules in `imports` are imported once, and the processes of this machine share them.
    """

    def __init__(
        self,
        artifacts: Artifacts,
        stage: str,
        launch: Launch,
        inputs: StageInputsSnapshot | None = None,
        *,
        imports: Sequence[str] = (),
    ) -> None:
        self._stage = stage
        self._launch = launch
        self._folder = artifacts.shards / stage
        self._imports = imports
        self._processes = launch.data_workers or executor.count_usable_cpus()
        self._open = contextlib.ExitStack()
        self._is_expected = False
        self._submit: Callable[..., Any] | None = None
        """Starts a call, and returns its future."""
        code = tuple(inputs.code.items()) if inputs else ()
        self._cache = _Cache(self._folder, artifacts.root, code) if code else None
        self._used: set[str] = set()

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)  # an error of a cluster becomes ours
        if error[0] is None and self._cache:
            self._cache.drop_all_but(self._used)

    def expect(self, shards: int) -> None:
        """Begin with the imports for work on so many shards, while this process does something else."""
        if not self._launch.data_cluster and self._are_worth(shards):
            executor.start_fork_server(self._imports)
            self._is_expected = True

    def expect_as_before(self) -> None:
        """Begin with the imports if the last run had work for processes."""
        self.expect(sum(1 for _ in self._folder.glob("*")))

    def map(self, function: Callable[[ItemT], ResultT], items: Sequence[ItemT], *, what: str) -> Iterator[ResultT]:
        """Yield `function(item)` of each item, in order; nothing is kept. This process computes them if they are few.

        The function is one of a module, or a `functools.partial` of one; it travels to each process once. `what` is a plural noun for
        the log, such as `shards`.

        Raises:
            KilledError: a process was killed while it computed the same item for the third time.
            RecipeError: the cluster does not exist, or cannot do the work.
            TransientError: the cluster does not answer any more.
            EvergreenError: the error of the first item that has one.
        """
        yield from self._with_progress(self._each(function, items), what, len(items))

    def run(
        self, function: Callable[[ItemT], ResultT], works: Sequence[ShardTask[ItemT]], *, what: str
    ) -> Iterator[ResultT]:
        """Yield `function(work.item)` of each, as `map` does; that of earlier runs, with its files, where nothing has changed."""
        if not self._cache:
            yield from self.map(function, [work.item for work in works], what=what)
            return
        self._used.update(self._cache.entry(work).name for work in works)
        found = 0
        for result, is_found in self._with_progress(self._find_or_do(self._cache, function, works), what, len(works)):
            found += is_found
            yield result
        if found:
            logger.info("%s: %d of %d %s are those of an earlier run", self._stage, found, len(works), what)

    def memory(self, what: str) -> Path | None:
        """Return the file in which the stage's own process may remember `what` for the next run of the same code; None if nothing is kept."""
        if not self._cache or not _is_there(self._cache.root, self._cache.code):
            return None
        entry = self._cache.entry(ShardTask(None, what))
        self._used.add(entry.name)
        return entry

    def _find_or_do(
        self, cache: _Cache, function: Callable[[ItemT], ResultT], works: Sequence[ShardTask[ItemT]]
    ) -> Iterator[tuple[ResultT, bool]]:
        """Yield what each work gives, and whether an earlier run did it. Threads look for that: processes take longer to start."""
        is_kept = [cache.entry(work).exists() for work in works]
        call = partial(cache.find_or_do, function)
        asked = self._each(call, [*compress(works, map(not_, is_kept))])
        cpus = executor.count_usable_cpus()
        with ThreadPoolExecutor(cpus) as threads:
            found = _in_order(lambda work: threads.submit(cache.find, work), [*compress(works, is_kept)], cpus)
            for work, own in zip(works, is_kept, strict=True):
                if not own:
                    yield next(asked)
                elif kept := next(found):
                    yield kept[0], True
                else:  # it is damaged
                    yield from self._elsewhere(call, [work]) if self._are_worth(_FEWEST) else map(call, [work])

    def _with_progress(self, results: Iterator[ResultT], what: str, total: int) -> Iterator[ResultT]:
        for result in iterate_with_progress(results, what=f"{self._stage}: {what}", total=total):
            yield result
            executor.release_memory_if_due()

    def _each(self, function: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> Iterator[ResultT]:
        return self._elsewhere(function, items) if self._are_worth(len(items)) else map(function, items)

    def _are_worth(self, items: int) -> bool:
        """Whether workers start for so many items, or get them if they run or have begun to start."""
        fewest = 2 if self._submit or self._is_expected else _FEWEST
        return items >= fewest and (self._processes > 1 or bool(self._launch.data_cluster))

    def _elsewhere(self, function: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> Iterator[ResultT]:
        path = self._write_function(function)
        try:
            done, attempts = 0, 1
            while done < len(items):
                try:
                    submit = self._submit = self._submit or self._start()
                    call = partial(submit, executor.call_pickled_function, path)
                    for result in _in_order(call, items[done:], self._processes):
                        yield result
                        done, attempts = done + 1, 1
                except BrokenProcessPool:
                    self._open.close()
                    self._submit = None
                    if attempts == _ATTEMPTS:
                        what = f"a process was killed {attempts} times at item {done + 1} of {len(items)}: memory may be short"
                        fix = "lower it, so that fewer processes share the memory"
                        raise KilledError("launch.data_workers", what, fix) from None
                    attempts += 1
                    logger.warning(
                        "a process of the stage was killed; starting again from item %d of %d", done + 1, len(items)
                    )
        finally:
            path.unlink(missing_ok=True)

    def _write_function(self, function: Callable[..., Any]) -> Path:
        """Write a function for the processes; where kept work cannot be written, to a folder that only this machine has."""
        content = pickle.dumps(executor.code_hash_and_versions()) + pickle.dumps(function)
        path = self._folder.absolute() / f".{uuid.uuid4().hex}.function"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError:
            if self._launch.data_cluster:
                raise
            path = Path(tempfile.gettempdir()) / path.name
            path.write_bytes(content)
        return path

    def _start(self) -> Callable[..., Any]:
        if not self._launch.data_cluster:
            executor.start_fork_server(self._imports)
            return self._open.enter_context(executor.start_process_pool(self._processes)).submit
        client = self._open.enter_context(executor.connect_to_cluster(self._launch.data_cluster))
        self._processes = sum(client.nthreads().values())  # type: ignore[no-untyped-call]
        return partial(client.submit, pure=False)


def _in_order(submit: Callable[[Any], Any], items: Sequence[Any], workers: int) -> Iterator[Any]:
    """Yield the results in order, while few calls are not done or not taken; `submit` starts a call, and returns its future."""
    waiting: list[Any] = []
    for item in items:
        waiting.append(submit(item))
        if len(waiting) >= _AHEAD * workers:
            yield waiting.pop(0).result()
    while waiting:
        yield waiting.pop(0).result()


@dataclass(frozen=True)
class _Cache:
    folder: Path
    root: Path
    code: tuple[tuple[str, str], ...]
    """The files of the code that the work depends on, below `root`, each with its state."""

    def entry(self, work: ShardTask[Any]) -> Path:
        return self.folder / _digest([work.key, _code_digest(self.code)])

    def find_or_do(self, function: Callable[[ItemT], ResultT], work: ShardTask[ItemT]) -> tuple[ResultT, bool]:
        """Return what the work gives, and whether an earlier run did it."""
        if found := self.find(work):
            return found[0], True
        result = function(work.item)
        self.keep(work, result)
        return result, False

    def find(self, work: ShardTask[Any]) -> tuple[Any, ...]:
        """Return what the work gave, and put its files where they belong; nothing if it is not there, or damaged."""
        entry = self.entry(work)
        try:
            result, seed, hashes = read_pickle(entry / _RESULT)
            if any(_fast_hash(entry / str(number), seed) != kept for number, kept in hashes.items()):
                return ()
            for number in hashes:
                # A process that was killed at its next work may have written it.
                work.files[number].unlink(missing_ok=True)
                work.files[number].parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(entry / str(number), work.files[number])
        except OSError:
            for file in work.files:  # equal work in another process has just replaced the entry
                file.unlink(missing_ok=True)
            return ()
        return (result,)

    def keep(self, work: ShardTask[Any], result: Any) -> None:
        """Keep what the work gave. Without room on the disk nothing is kept; the work is done in any case."""
        if not _is_there(self.root, self.code):
            return  # this process may have imported other code
        entry = self.entry(work)
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            partial_entry = Path(tempfile.mkdtemp(prefix=".", dir=self.folder))
            try:
                hashes, seed = {}, secrets.randbits(64)
                for number, file in enumerate(work.files):
                    if file.exists():
                        link_or_copy(file, partial_entry / str(number))
                        hashes[number] = _fast_hash(file, seed)
                write_pickle(partial_entry / _RESULT, (result, seed, hashes))
                shutil.rmtree(entry, ignore_errors=True)
                partial_entry.rename(entry)
            finally:
                shutil.rmtree(partial_entry, ignore_errors=True)

    def drop_all_but(self, names: set[str]) -> None:
        """Delete other entries, as far as the folder allows it."""
        with contextlib.suppress(OSError):
            for entry in self.folder.iterdir():
                if entry.name in names:
                    continue
                if entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)
                else:  # also the function of a stage that was killed
                    entry.unlink(missing_ok=True)


def read_pickle(path: Path) -> Any:
    """Return what `write_pickle` wrote; OSError if it is not there, damaged, or of classes that are not there any more."""
    digest, _, content = path.read_bytes().partition(b"\n")
    if hashlib.sha256(content).hexdigest().encode() != digest:
        raise OSError(f"{path} is damaged")
    try:
        return pickle.loads(content)  # noqa: S301 - this project wrote it
    except Exception as error:
        raise OSError(f"{path} cannot be read: {error}") from error


def write_pickle(path: Path, value: Any) -> None:
    """Write a value with its hash, to a folder that may not be there yet."""
    content = pickle.dumps(value)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def _fast_hash(path: Path, seed: int) -> bytes:
    """Return a hash that finds every change by chance or mistake, in a quarter of the time of SHA-256, reading included."""
    found = xxh3_128(seed=seed)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.digest()


@lru_cache(maxsize=4)
def _code_digest(code: tuple[tuple[str, str], ...]) -> str:
    """Return a hash of the code and the versions that work depends on."""
    return _digest([dict(code), executor.shard_library_versions()])


@lru_cache(maxsize=4)
def _is_there(root: Path, code: tuple[tuple[str, str], ...]) -> bool:
    """Whether files of code have these states. A process asks once, when it has imported them."""
    return all(file_fingerprint(root / path) == state for path, state in code)


def hash_settings(**settings: Any) -> str:
    return _digest(settings)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
