"""What the ingest stage reports."""

from __future__ import annotations

from typing import ClassVar

from tasks.stages import Report


class IngestReport(Report):
    """What the ingest stage read."""

    saved_as: ClassVar[str] = "ingest"
    source: str
    """The kind of the source, as in the recipe."""
    revision: str
    """A commit, or a hash of the files, the query or the code: what the rows depend on."""
    rows: dict[str, int]
    columns: dict[str, str]
    """Arrow type of each column."""
    data_sha256: dict[str, str]
    """Hash of each split's files, see trainer.data.shards.folder_sha256; also of `corpus`, `corrections` and `suites/<name>`, if there are any."""
    corpus_revision: str = ""
    """What the documents of `data.corpus` depend on."""

    @property
    def summary(self) -> str:
        """The rows of each split."""
        return ", ".join(f"{count:,} {split}" for split, count in self.rows.items()) + " rows"
