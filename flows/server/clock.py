"""The time of Prefect's server, which may differ from that of this machine.

`evergreen watch` has the server find lost runs: runs of which no event came for a while. The server compares the times that events carry
with its own clock. States of runs carry the server's time, but heartbeats carry the time of the machine that runs the flow.
If its clock is wrong by more than the wait, a healthy run would be taken for a lost one. So heartbeats carry the server's time,
which each of its answers has in the header Date (RFC 9110, section 6.6.1).
"""

from __future__ import annotations

import ssl
import time
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpx
import prefect.flow_engine
from prefect.events import Event, emit_event
from prefect.settings import get_current_settings

from flows.child_process import Logger
from tasks.report.formatting import format_duration

HEARTBEAT: Final = "prefect.flow-run.heartbeat"
_ANSWER_S: Final = 5.0
_KNOWN_S: Final = 30.0
"""How long an answer holds: the start of a run needs the time several times within seconds, and heartbeats come every minute."""
_LEFT_OUT: Final = timedelta(seconds=0.5)
"""What the header, which has whole seconds, leaves out on average."""
_EXACT: Final = timedelta(seconds=2)
"""Smaller differences are not corrected: the header has whole seconds, and an answer takes a moment."""
_REMARKABLE: Final = timedelta(seconds=30)
"""Larger differences are worth a warning."""
_last_known, _until_s = timedelta(), 0.0


def clock_difference() -> timedelta:
    """Return how far this machine's clock is ahead of the server's; negative if it is behind.

    While the server does not answer, it is the last one known, at first none.
    """
    global _last_known, _until_s  # noqa: PLW0603  # of this process, like the clock
    api = get_current_settings().api
    if not api.url or time.monotonic() < _until_s:
        return _last_known
    _until_s = time.monotonic() + _KNOWN_S
    try:
        trusted = ssl.create_default_context(cafile=api.ssl_cert_file) if api.ssl_cert_file else True
        asked = datetime.now(UTC)
        answer = httpx.get(
            f"{api.url}/health", timeout=_ANSWER_S, verify=False if api.tls_insecure_skip_verify else trusted
        )
        here = asked + (datetime.now(UTC) - asked) / 2
        found = here - parsedate_to_datetime(answer.headers["date"]) - _LEFT_OUT
        _last_known = timedelta() if abs(found) < _EXACT else found
    except (httpx.HTTPError, httpx.InvalidURL, OSError, KeyError, ValueError):
        pass
    return _last_known


def server_time() -> datetime:
    """Return the server's time, in UTC; that of this machine if the server has never answered."""
    return datetime.now(UTC) - clock_difference()


def clock_warning() -> str:
    """Return a sentence about a difference that is worth one; else nothing."""
    found = clock_difference()
    if abs(found) < _REMARKABLE:
        return ""
    side = "ahead of" if found > timedelta() else "behind"
    what = f"this machine's clock is {format_duration(abs(found).total_seconds())} {side} that of Prefect's server"
    return f"{what}: set both by NTP (docs/operation.md, Clocks)"


def warn_of_clock_difference(log: Logger) -> None:
    if warning := clock_warning():
        log.warning("%s", warning)


def send_heartbeats_with_server_time() -> None:
    """Let the heartbeats of this process's flow runs carry the server's time. Prefect has no setting for it."""
    prefect.flow_engine.emit_event = _emit_event  # type: ignore[attr-defined]


def _emit_event(event: str, *args: Any, **fields: Any) -> Event | None:
    if event == HEARTBEAT:
        fields["occurred"] = server_time()
    return emit_event(event, *args, **fields)
