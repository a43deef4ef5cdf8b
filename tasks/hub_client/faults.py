"""What an error of the Hub client means: refused for good, or worth another attempt, and after which wait.

No message made here holds the token or the signature of an upload URL.
"""

from __future__ import annotations

import json
import re

import httpx2
from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import (
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RevisionNotFoundError,
)

from params.foundation.errors import EvergreenError, HubRefusedError, StorageError
from params.foundation.secrets import without_secrets
from tasks.hub_client.time_limits import HubBusyError, RequestDeadlineError

_UNCLEAR_STATUSES = frozenset({408, 409, 412, 425, 429})
"""With these, and all from 500 on, the request may have landed, or may succeed on the next attempt."""
_DISK_FULL = 507
_EXPIRED_STATUSES = frozenset({400, 403, 404, 410})
"""Worth another attempt in an upload: its URL is signed for a limited time, and the parts of a large file are gone once
they were joined, perhaps by an earlier attempt whose answer was lost. The next attempt asks for new URLs."""
_LONGEST_BACKOFF_S = 30.0


class InconsistentStateError(Exception):
    """The Hub's state contradicts its answers."""


# HfHubHTTPError is an httpx2 error. KeyError and ValueError: the answer is not the expected JSON.
_NETWORK_ERRORS = (httpx2.HTTPError, httpx2.InvalidURL, OSError, RuntimeError)
CLIENT_ERRORS = (*_NETWORK_ERRORS, InconsistentStateError, HubBusyError, RequestDeadlineError, ValueError, KeyError)
"""What a call of the client may raise because of the Hub or the network."""


def as_permanent_error(error: BaseException, api: HfApi, where: str) -> EvergreenError | None:
    """Return the error for what the Hub would refuse again; None when another attempt may succeed."""
    cause, uploading = _root_cause(error)
    namespace = where.split("/")[-2]
    fix = ""
    if isinstance(cause, EvergreenError):
        return cause
    if isinstance(cause, HfHubHTTPError):
        status = cause.response.status_code
        if status == _DISK_FULL:
            return StorageError(where, describe_without_secrets(error, api), "free space there, then run this again")
        expired = uploading and status in _EXPIRED_STATUSES
        if status not in _UNCLEAR_STATUSES and status < 500 and not expired:
            fixes = {
                401: "set HF_TOKEN to a valid token with write access, or run `hf auth login`",
                403: f"give the token write access to {namespace}, or publish to a namespace that it may write",
                404: _fix_of_missing(cause, where),
            }
            fix = fixes.get(status, "correct what the message names")
    elif isinstance(cause, OfflineModeIsEnabled):
        fix = "unset HF_HUB_OFFLINE"
    elif isinstance(cause, (httpx2.LocalProtocolError, httpx2.UnsupportedProtocol, httpx2.InvalidURL)):
        fix = "correct the endpoint (HF_ENDPOINT) or the token (HF_TOKEN)"
    elif isinstance(cause, ValueError) and not isinstance(cause, json.JSONDecodeError):
        fix = "correct what the message names"
    return HubRefusedError(where, describe_without_secrets(error, api), fix) if fix else None


def _fix_of_missing(cause: HfHubHTTPError, where: str) -> str:
    """Return what to do where there is no such repository or revision. In a Hub that is a folder, a token sees all of its owner."""
    *hub, namespace, name = where.split("/")
    if isinstance(cause, RevisionNotFoundError):
        return f"name a tag, a commit or a branch of {namespace}/{name}: `evergreen releases` lists the releases of your recipes"
    if "://" not in where:
        what = f"there is no {namespace}/{name} in {hub[0]} yet: `evergreen run` with a recipe that publishes to it makes it"
        return f"{what}; if it is on another Hub, name that (HF_ENDPOINT, publish.endpoint)"
    return f"check that {namespace} exists, that {namespace}/{name} was published, and that the token may see it"


def _root_cause(error: BaseException) -> tuple[BaseException, bool]:
    """Return the error behind an upload's RuntimeError or a download's missing file, and whether it is from an upload."""
    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, HfHubHTTPError):
        return error.__cause__, False
    if isinstance(error, RuntimeError) and error.__cause__ is not None:
        return error.__cause__, True
    return error, False


def retry_delay(error: BaseException, attempt: int) -> float:
    """Return the seconds to wait after attempt number `attempt` (from 0): what the Hub asks for, or a backoff."""
    cause, _ = _root_cause(error)
    backoff_s = float(min(_LONGEST_BACKOFF_S, 0.5 * 2 ** min(attempt, 10)))
    return max(backoff_s, cause.wait_s) if isinstance(cause, HubBusyError) else backoff_s


def describe_without_secrets(error: BaseException, api: HfApi) -> str:
    """Describe an error without the token and without the signature of an upload URL."""
    cause, uploading = _root_cause(error)
    if isinstance(cause, HfHubHTTPError):
        request = cause.response.request
        message = cause.server_message or cause.response.reason_phrase
        text = f"{cause.response.status_code} {message} ({request.method} {request.url.path})"
    else:
        text = f"{type(cause).__name__}: {cause}"
    if uploading:
        text = f"{error} {text}"
    token = api.token or get_token()
    if isinstance(token, str) and token.strip():
        text = text.replace(token, "***").replace(token.strip(), "***")
    return without_secrets(text)


def refuse_malformed_token(api: HfApi, where: str) -> None:
    """Check the token before it is sent: the HTTP library quotes one that it cannot send."""
    token = get_token() if api.token in (None, True) else api.token
    if isinstance(token, str) and not re.fullmatch(r"[\x21-\x7e]+", token):
        what = "the token holds white space or other characters that no token has"
        raise HubRefusedError(where, what, "copy it again, without the line end")
