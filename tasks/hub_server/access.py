"""Who may do what on the local Hub, and the signed URLs by which large files are uploaded."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tasks.hub_server.names import is_valid_namespace
from tasks.hub_server.refusals import RefusedError


@dataclass(frozen=True)
class Access:
    """Tokens and the right to write.

    A user may write in the namespace of its own name, and in those whose writers list it; an administrator in all.

    Raises:
        ValueError: for an empty token, or a user or namespace whose name cannot be part of a repository's.
    """

    tokens: Mapping[str, str] = field(repr=False)
    """Token -> user."""
    writers: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Namespace -> the users who may write there besides its owner."""
    administrators: Collection[str] = ()
    """Users who may write in every namespace."""
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def __post_init__(self) -> None:
        for name in [*self.tokens.values(), *self.writers]:
            if not is_valid_namespace(name):
                raise ValueError(f"{name!r} cannot be the name of a user or namespace of the local Hub")
        if not all(token.strip() == token and token for token in self.tokens):
            raise ValueError("a token of the local Hub is empty or has white space around it")

    def user(self, authorization: str) -> str | None:
        """The user whom an Authorization header stands for; None without one.

        Raises:
            RefusedError: 401 for a token that is not known.
        """
        if not authorization:
            return None
        scheme, _, given = authorization.partition(" ")
        found = None
        for token, user in self.tokens.items():  # all of them, so that the time taken says nothing
            if hmac.compare_digest(token.encode(), given.encode()):
                found = user
        if scheme.lower() != "bearer" or found is None:
            raise RefusedError(401, "Invalid credentials in Authorization header")
        return found

    def may_write(self, user: str | None, namespace: str) -> bool:
        """Whether `user` may change the repositories of `namespace`, and see its private ones."""
        mine = (namespace, *self.writers.get(namespace, ()), *self.administrators)
        return user is not None and user in mine

    def teams(self, user: str) -> list[str]:
        """The namespaces besides its own whose writers list `user`."""
        return sorted(namespace for namespace, users in self.writers.items() if user in users and namespace != user)

    def require_write(self, user: str | None, namespace: str) -> str:
        """The user, who may write in `namespace`.

        Raises:
            RefusedError: 401 without a user, 403 for one without the right.
        """
        if user is None:
            raise RefusedError(401, "Invalid username or password.")
        if not self.may_write(user, namespace):
            raise RefusedError(403, f"You don't have the rights to write under the namespace {namespace!r}")
        return user

    def sign(self, *parts: str) -> str:
        """A signature of `parts` that holds as long as this server runs."""
        return hmac.new(self._key, "\0".join(parts).encode(), "sha256").hexdigest()

    def check_signature(self, signature: str, *parts: str) -> None:
        """Let pass only what `sign` made of the same parts.

        Raises:
            RefusedError: 403.
        """
        if not hmac.compare_digest(signature.encode(), self.sign(*parts).encode()):
            raise RefusedError(403, "This upload URL was not made by this server, or it was restarted since")
