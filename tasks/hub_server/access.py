"""Permissions on the local Hub, and signatures of upload URLs."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tasks.hub_server.errors import HubError
from tasks.hub_server.names import is_valid_namespace


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
