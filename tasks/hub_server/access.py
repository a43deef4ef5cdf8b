"""Who may do what on the local Hub: permissions, signatures of upload URLs, and sessions of browsers.

A session lets a browser read what its user can read, and send the forms of the pages. A user signs in with a token or with
a link that works once. The cookie holds a random session name, not the token. Sessions are kept in memory and end with the
process or after 12 hours.
"""

from __future__ import annotations

import hashlib
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
class Access:
    """Tokens and write permissions.

    A user can write in the namespace of the same name and in those that list the user as a writer; an administrator in all.

    Raises:
        ValueError: A token is empty, or a user or namespace has an invalid name.
    """

    tokens: Mapping[str, str] = field(repr=False)
    """Token -> user."""
    writers: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Namespace -> users who can write there besides its owner."""
    administrators: Collection[str] = ()
    """Users who can write in every namespace."""
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def __post_init__(self) -> None:
        for name in [*self.tokens.values(), *self.writers]:
            if not is_valid_namespace(name):
                raise ValueError(f"{name!r} is not a valid name of a user or namespace on the local Hub")
        if not all(token.strip() == token and token for token in self.tokens):
            raise ValueError("a token of the local Hub is empty or begins or ends with white space")

    def user(self, authorization: str) -> str | None:
        """Return the user of an Authorization header; None if the header is empty.

        Raises:
            HubError: 401 for an unknown token.
        """
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

    def teams(self, user: str) -> list[str]:
        """Return the other namespaces in which `user` is listed as a writer."""
        return sorted(namespace for namespace, users in self.writers.items() if user in users and namespace != user)

    def require_write(self, user: str | None, namespace: str) -> str:
        """Return `user` if it can write in `namespace`.

        Raises:
            HubError: 401 without a user, 403 without permission.
        """
        if user is None:
            raise HubError(401, "Invalid username or password.")
        if not self.can_write(user, namespace):
            raise HubError(403, f"You don't have the rights to write under the namespace {namespace!r}")
        return user

    def sign(self, *parts: str) -> str:
        """Return a signature of `parts`, valid while this server runs."""
        return hmac.new(self._key, "\0".join(parts).encode(), "sha256").hexdigest()

    def check_signature(self, signature: str, *parts: str) -> None:
        """Check a signature made by `sign`.

        Raises:
            HubError: 403 if it does not match `parts`.
        """
        if not hmac.compare_digest(signature.encode(), self.sign(*parts).encode()):
            raise HubError(403, "This upload URL is invalid, or the server was restarted after it was issued")


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
