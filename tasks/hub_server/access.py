"""Who may do what on the local Hub: permissions, signatures of upload URLs, and sessions of browsers.

A session lets a browser read what its user can read, and send the forms of the pages. A user signs in with a token or with
a link that works once. The cookie holds a random session name, not the token. Sessions are kept in memory and end with the
process or after 12 hours.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tasks.hub_server.errors import HubError
from tasks.hub_server.names import is_valid_namespace

_LIFETIME_S = 12 * 3600
_MAX_SESSIONS = 1000


@dataclass(frozen=True)
class AccessRules:
    """Tokens and write permissions, as `server.LocalHub` describes them.

    Raises:
        ValueError: A token is empty, or a user or namespace has an invalid name.
    """

    tokens: Mapping[str, str] = field(repr=False)
    writers: Mapping[str, Collection[str]]
    administrators: Collection[str]
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def __post_init__(self) -> None:
        for name in [*self.tokens.values(), *self.writers]:
            if not is_valid_namespace(name):
                raise ValueError(f"{name!r} is not a valid name of a user or namespace on the local Hub")
        if not all(token.strip() == token and token for token in self.tokens):
            raise ValueError("a token of the local Hub is empty or begins or ends with white space")

    def user(self, authorization: str) -> str | None:
        """Return the user of an Authorization header; None if the header is empty. HubError 401 for an unknown token."""
        if not authorization:
            return None
        scheme, _, sent = authorization.partition(" ")
        owner = None
        for token, user in self.tokens.items():  # all of them, so that the response time tells nothing
            if hmac.compare_digest(token.encode(), sent.encode()):
                owner = user
        if scheme.lower() != "bearer" or owner is None:
            raise HubError(401, "Invalid credentials in Authorization header")
        return owner

    def can_write(self, user: str | None, namespace: str) -> bool:
        """Whether `user` can change the repositories of `namespace` and see its private ones."""
        writers = (namespace, *self.writers.get(namespace, ()), *self.administrators)
        return user is not None and user in writers

    def require_write(self, user: str | None, namespace: str) -> None:
        """Raise HubError 403 unless `user` can write in `namespace`."""
        if not self.can_write(user, namespace):
            raise HubError(403, f"You don't have the rights to write under the namespace {namespace!r}")

    def sign(self, *parts: str) -> str:
        """Return a signature of `parts`, valid while this server runs."""
        return hmac.new(self._key, "\0".join(parts).encode(), "sha256").hexdigest()

    def check_signature(self, signature: str, *parts: str) -> None:
        """Raise HubError 403 unless `sign` made this signature of `parts`."""
        if not hmac.compare_digest(signature.encode(), self.sign(*parts).encode()):
            raise HubError(403, "This upload URL is invalid, or the server was restarted after it was issued")


class BrowserSessions:
    """The sessions of one running Hub.

    The name `cookie` must be unique per Hub, because browsers send cookies to every port of a host.
    """

    def __init__(self, cookie: str) -> None:
        self.cookie = cookie
        self._lock = threading.Lock()
        self._sessions: dict[str, tuple[str, str, float]] = {}
        """Value of the cookie -> user, secret of its forms, and when it ends."""
        self._link_secrets: dict[str, str] = {}

    def open(self, user: str) -> str:
        """Begin a session and return the value of its cookie."""
        name = secrets.token_urlsafe(32)
        with self._lock:
            while len(self._sessions) >= _MAX_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
            self._sessions[name] = (user, secrets.token_urlsafe(32), time.monotonic() + _LIFETIME_S)
        return name

    def find(self, cookies: Mapping[str, str]) -> tuple[str | None, str]:
        """Return the user of a request's session, and the secret that its forms hold; None and "" without a session."""
        user, form_token, end = self._sessions.get(cookies.get(self.cookie, ""), ("", "", 0.0))
        return (user, form_token) if end > time.monotonic() else (None, "")

    def close(self, cookies: Mapping[str, str]) -> None:
        with self._lock:
            self._sessions.pop(cookies.get(self.cookie, ""), None)

    def create_link_secret(self, user: str) -> str:
        """Return a secret for a link that signs in as `user` once."""
        secret = secrets.token_urlsafe(32)
        self._link_secrets[secret] = user
        return secret

    def use_link_secret(self, secret: str) -> str | None:
        """Return the user of a link's secret and forget it; None if it was used before or never existed."""
        return self._link_secrets.pop(secret, None)
