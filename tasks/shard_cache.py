"""What was made of a shard, kept for the next run of a stage: rows that were there before cost no work again.

    .scratch/<recipe>/shards/<stage>/<key>/result.json      what the work returned
                                           /data            the file that it wrote, if it wrote one

The key is a hash of all that the work depends on: the shard, its columns, the stage's settings and code, and the versions of
libraries. An entry is there as soon as its shard is done, so a stage that was killed goes on behind the shards that it had done.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Self

from params.hashing import file_sha256

_LIBRARIES: Final = ("great_expectations", "numpy", "pandas", "pyarrow", "tokenizers", "transformers")
_RESULT, _DATA = "result.json", "data"


@dataclass(frozen=True)
class ShardCache:
    """The entries of one stage, for work with the same settings."""

    folder: Path
    settings: str
    """Hash of all that the work depends on besides its shard."""

    @classmethod
    def of(cls, folder: Path, **settings: Any) -> Self:
        """Return the cache in `folder` for work with these settings, which JSON can hold."""
        versions = {name: version(name) for name in _LIBRARIES}
        return cls(folder, _digest([settings, versions]))

    def find(self, shard: str, target: Path) -> Any:
        """Return what was made of a shard, and put the file of it at `target`; None if it is not there.

        Args:
            shard: hash of the shard.
            target: where to put the file, if there is one.
        """
        entry = self._entry(shard)
        with contextlib.suppress(OSError, ValueError):
            kept = json.loads((entry / _RESULT).read_text(encoding="utf-8"))
            if kept["data"] is None:
                return kept["result"]
            if file_sha256(entry / _DATA) == kept["data"]:
                _link(entry / _DATA, target)
                return kept["result"]
        return None

    def keep(self, shard: str, result: Any, target: Path) -> None:
        """Keep what was made of a shard: a result that JSON can hold, and the file at `target` if there is one.

        Without room on the disk nothing is kept; the work is done in any case.
        """
        entry = self._entry(shard)
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=".", dir=self.folder))
            try:
                data = file_sha256(target) if target.exists() else None
                if data:
                    _link(target, partial / _DATA)
                (partial / _RESULT).write_text(json.dumps({"result": result, "data": data}), encoding="utf-8")
                shutil.rmtree(entry, ignore_errors=True)
                partial.rename(entry)
            finally:
                shutil.rmtree(partial, ignore_errors=True)

    def drop_others(self, shards: Iterable[str]) -> None:
        """Delete all entries but those of these shards with these settings."""
        kept = {self._entry(shard).name for shard in shards}
        for entry in self.folder.iterdir() if self.folder.exists() else ():
            if entry.name not in kept:
                shutil.rmtree(entry, ignore_errors=True)

    def _entry(self, shard: str) -> Path:
        return self.folder / _digest([shard, self.settings])


def _link(source: Path, target: Path) -> None:
    """Give a file a second name, which takes no space; where that cannot be done, copy it."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
