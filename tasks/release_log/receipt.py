"""The report of the publish stage."""

from __future__ import annotations

from typing import ClassVar, Literal

from tasks.stages import Report

Status = Literal["published", "proposed", "rejected", "kept", "dry-run"]
"""What became of a model.

`proposed`: its pull request waits for a person; `rejected`: somebody closed that pull request; `kept`: the champion stays.
"""


class Receipt(Report):
    saved_as: ClassVar[str] = "publish"
    status: Status
    reasons: tuple[str, ...]
    """The gate's reasons."""
    repo_id: str
    endpoint: str
    """Address of the Hub, or `local` for the one in .hub/."""
    commit: str | None = None
    """The commit of this release, or of the champion if it was kept; None if nothing was published."""
    tag: str | None = None
    pull_request: int | None = None
    """Number of the pull request that proposed the release."""
    publish_id: str | None = None
    """Hash of the release's content; None if the champion was kept."""

    @property
    def summary(self) -> str:
        """What became of the model; the flow says the reasons at its end."""
        return self.status
