"""Who may do what on the local Hub: permissions, signatures of upload URLs, and sessions of browsers.

A session lets a browser read what its user can read, and send the forms of the pages. A user signs in with a token or with
a link that works once. The cookie holds a random session name, not the token. Sessions are kept in memory and end with the
process or after 12 hours.

Browsers send a cookie to every port of its host, so on this machine also to servers of other users. There each session has a
host name of its own, `<random>.localhost`, which browsers resolve to this machine and only this session's browser knows.
"""

from __future__ import annotations

import hmac
import re
import secrets
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tasks.hub_server.errors import HubError
from tasks.hub_server.names import is_valid_namespace

_LIFETIME_S = 12 * 3600
_MAX_SESSIONS = 1000
_OWN_HOST = re.compile(r"[0-9a-f]{32}\.localhost")


def is_own_host(host: str) -> bool:
    """Whether this is a name as `BrowserSessions.new_host` makes them."""
    return _OWN_HOST.fullmatch(host) is not None


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


@dataclass(frozen=True)
class _Session:
    user: str
    form_token: str
    """Secret that its forms hold."""
    host: str
    """The host name under which it began; its cookie counts under no other one."""
    end: float


class BrowserSessions:
    """The sessions of one running Hub.

    The name `cookie` must be unique per Hub, because browsers send cookies to every port of a host.
    """

    def __init__(self, cookie: str, *, own_hosts: bool) -> None:
        self.cookie = cookie
        self.own_hosts = own_hosts
        """Whether each session needs a host name of its own."""
        self._lock = threading.Lock()
        self._sessions: dict[str, _Session] = {}
        """By the value of the cookie."""
        self._link_secrets: dict[str, str] = {}

    def new_host(self) -> str:
        """Return a host name for a session. Who asks for it must be its browser: whoever knows it can receive the cookie."""
        return f"{secrets.token_hex(16)}.localhost"

    def may_begin(self, host: str) -> bool:
        """Whether a session may begin under this host name."""
        return not self.own_hosts or is_own_host(host)

    def open(self, user: str, host: str) -> str:
        """Begin a session and return the value of its cookie."""
        assert self.may_begin(host), host
        name = secrets.token_urlsafe(32)
        with self._lock:
            while len(self._sessions) >= _MAX_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
            end = time.monotonic() + _LIFETIME_S
            self._sessions[name] = _Session(user, secrets.token_urlsafe(32), host, end)
        return name

    def cookie_name(self, scheme: str) -> str:
        """Return the name of the cookie. Over https, browsers take one with `__Host-` from this host alone, and from no sibling of its domain."""
        return f"__Host-{self.cookie}" if scheme == "https" else self.cookie

    def find(self, cookies: Mapping[str, str], scheme: str, host: str) -> tuple[str | None, str]:
        """Return the user of a request's session, and the secret that its forms hold; None and "" without a session."""
        found = self._sessions.get(cookies.get(self.cookie_name(scheme), ""))
        if found is None or found.host != host or found.end <= time.monotonic():
            return None, ""
        return found.user, found.form_token

    def close(self, cookies: Mapping[str, str], scheme: str, host: str) -> None:
        """End the session of a request, if it has one."""
        user, _ = self.find(cookies, scheme, host)
        if user is not None:
            with self._lock:
                self._sessions.pop(cookies[self.cookie_name(scheme)], None)

    def create_link_secret(self, user: str) -> str:
        """Return a secret for a link that signs in as `user` once."""
        secret = secrets.token_urlsafe(32)
        self._link_secrets[secret] = user
        return secret

    def use_link_secret(self, secret: str) -> str | None:
        """Return the user of a link's secret and forget it; None if it was used before or never existed."""
        return self._link_secrets.pop(secret, None)
