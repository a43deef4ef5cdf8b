"""What the ingest stage reports."""

from __future__ import annotations

from typing import ClassVar

import pydantic

from tasks.stages import Report


def revisions_by_source(revision: str) -> dict[str, str]:
    """Return the revision of each source by its name, which is empty for a single one."""
    pairs = (one.rpartition("=") for one in revision.split())
    return {name: own for name, _, own in pairs}


class IngestReport(Report):
    saved_as: ClassVar[str] = "ingest"
    source: str
    """The kind of the source, as in the recipe."""
    revision: str
    """A commit, or a hash of the files, the query or the code: what the rows depend on. Of several sources, `<name>=<revision>` of each."""
    rows: dict[str, int]
    columns: dict[str, str]
    """Arrow type of each column."""
    data_sha256: dict[str, str]
    """Hash of each split's files, see trainer.data.shards.folder_sha256; also of `corpus`, `corrections` and `suites/<name>`, if there are any."""
    corpus_revision: str = ""
    """What the documents of `data.corpus` depend on."""
    sources: dict[str, dict[str, int]] = pydantic.Field(default_factory=dict)
    """Rows by split of each of several sources."""
    left_out: dict[str, int] = pydantic.Field(default_factory=dict)
    """How many rows were not taken, by the reason."""
    learned_until: str = ""
    """With `data.time_column`, the time of the newest row of the train and validation splits, in UTC."""

    @property
    def summary(self) -> str:
        told, left_out = list[str](), sum(self.left_out.values())
        for split, count in self.rows.items():
            own = ", ".join(f"{rows[split]:,} {name}" for name, rows in self.sources.items() if rows.get(split))
            told.append(f"{count:,} {split}" + (f" ({own})" if own else ""))
        return ", ".join(told) + (f" rows; {left_out:,} left out" if left_out else " rows")
