"""Who has signed in with a browser. A session lets a browser read what its user may read, and nothing else.

A user signs in with a token, or by a link that this process has made and that works once. The cookie holds a random
name of the session, not the token; sessions are kept in memory and end with the process, or after half a day.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Mapping

_LIFETIME_S = 12 * 3600
_MOST_SESSIONS = 1000


class Sessions:
    """The sessions of one running Hub.

    Args:
        cookie: the name of the cookie. A browser sends cookies to every port of a host: each Hub needs its own.
    """

    def __init__(self, cookie: str) -> None:
        self.cookie = cookie
        self._lock = threading.Lock()
        self._sessions: dict[str, tuple[str, float]] = {}
        self._invitations: dict[str, str] = {}

    def open(self, user: str) -> str:
        """Begin a session; the return value is the cookie's."""
        name = secrets.token_urlsafe(32)
        now = time.monotonic()
        with self._lock:
            living = [(key, found) for key, found in self._sessions.items() if found[1] > now]
            self._sessions = dict(living[-_MOST_SESSIONS + 1 :])
            self._sessions[_digest(name)] = (user, now + _LIFETIME_S)
        return name

    def user(self, cookies: Mapping[str, str]) -> str | None:
        """The user of the session that a request's cookies name."""
        with self._lock:
            user, end = self._sessions.get(_digest(cookies.get(self.cookie, "")), (None, 0.0))
        return user if end > time.monotonic() else None

    def close(self, cookies: Mapping[str, str]) -> None:
        """End the session that a request's cookies name."""
        with self._lock:
            self._sessions.pop(_digest(cookies.get(self.cookie, "")), None)

    def invite(self, user: str) -> str:
        """A secret by which somebody can begin a session as `user`, once."""
        secret = secrets.token_urlsafe(32)
        with self._lock:
            self._invitations[_digest(secret)] = user
        return secret

    def accept(self, secret: str) -> str | None:
        """The user of an invitation, which is used up by this; None when it was used before, or never made."""
        with self._lock:
            return self._invitations.pop(_digest(secret), None)


def _digest(secret: str) -> str:
    """Looked up in place of the secret, so that the time taken says nothing about it."""
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()
