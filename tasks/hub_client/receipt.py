"""The report of the publish stage: what a run has published, and where."""

from __future__ import annotations

from typing import ClassVar, Literal

from tasks.stages import Report


class Receipt(Report):
    """What is published where."""

    saved_as: ClassVar[str] = "publish"
    verdict: Literal["published", "kept", "dry-run"]
    reasons: tuple[str, ...]
    """Why, in the gate's words."""
    repo_id: str
    endpoint: str
    """Address of the Hub, or `local` for the one in .hub/."""
    commit: str | None
    """Of this release or, if the champion was kept, the champion's."""
    tag: str | None
    publish_id: str | None
    """Hash of all that was published."""
