"""Sessions of browsers. A session lets a browser read what its user can read, and send the forms of the pages.

A user signs in with a token or with a link that works once. The cookie holds a random session name, not the token.
Sessions are kept in memory and end with the process or after 12 hours.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Mapping

_LIFETIME_S = 12 * 3600
_MAX_SESSIONS = 1000


class Sessions:
    """The sessions of one running Hub.

    The name `cookie` must be unique per Hub, because browsers send cookies to every port of a host.
    """

    def __init__(self, cookie: str) -> None:
        self.cookie = cookie
        self._lock = threading.Lock()
        self._key = secrets.token_bytes(32)
        self._sessions: dict[str, tuple[str, float]] = {}
        self._link_secrets: dict[str, str] = {}

    def open(self, user: str) -> str:
        """Begin a session and return the value of its cookie."""
        name = secrets.token_urlsafe(32)
        now = time.monotonic()
        with self._lock:
            active = [(key, session) for key, session in self._sessions.items() if session[1] > now]
            self._sessions = dict(active[-_MAX_SESSIONS + 1 :])
            self._sessions[_digest(name)] = (user, now + _LIFETIME_S)
        return name

    def user(self, cookies: Mapping[str, str]) -> str | None:
        """Return the user of the session in a request's cookies; None without one."""
        with self._lock:
            user, end = self._sessions.get(_digest(cookies.get(self.cookie, "")), (None, 0.0))
        return user if end > time.monotonic() else None

    def form_token(self, cookies: Mapping[str, str]) -> str | None:
        """Return the secret that the forms of a session hold; None without a session. Other sites cannot read it."""
        if self.user(cookies) is None:
            return None
        return hmac.new(self._key, cookies[self.cookie].encode(errors="replace"), "sha256").hexdigest()

    def close(self, cookies: Mapping[str, str]) -> None:
        """End the session in a request's cookies."""
        with self._lock:
            self._sessions.pop(_digest(cookies.get(self.cookie, "")), None)

    def create_link_secret(self, user: str) -> str:
        """Return a secret for a link that signs in as `user` once."""
        secret = secrets.token_urlsafe(32)
        with self._lock:
            self._link_secrets[_digest(secret)] = user
        return secret

    def use_link_secret(self, secret: str) -> str | None:
        """Return the user of a link's secret and forget it; None if it was used before or never existed."""
        with self._lock:
            return self._link_secrets.pop(_digest(secret), None)


def _digest(secret: str) -> str:
    """Hash a secret for lookup, so that the response time tells nothing about it."""
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()
