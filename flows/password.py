"""The password of the Prefect server, in the file `.env` of the project: `evergreen password`.

Whoever reaches a server without one can let its workers run any command, also another user of the same machine. Prefect's
commands read `.env` in their working directory.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from params import EvergreenError, StorageError

FILE: Final = Path(".env")
CLIENT: Final = "PREFECT_API_AUTH_STRING"
SERVER: Final = "PREFECT_SERVER_API_AUTH_STRING"


def new() -> str:
    """Return a random user and password, separated by a colon."""
    return f"evergreen:{secrets.token_urlsafe(32)}"


def make() -> bool:
    """Add a new password for server and clients to `.env`, which then only its owner can read.

    Returns:
        False if there is one already.

    Raises:
        EvergreenError: `.env` cannot be read or written.
    """
    if {CLIENT, SERVER} & _read().keys():
        return False
    password, partial = new(), FILE.with_name(".env.part")
    try:
        before = FILE.read_text(encoding="utf-8") if FILE.exists() else ""
        partial.unlink(missing_ok=True)
        with open(partial, "x", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(before + ("\n" if before and not before.endswith("\n") else ""))
            file.write(f"{SERVER}={password}\n{CLIENT}={password}\n")
        partial.rename(FILE)
    except OSError as error:
        what = f"cannot be written: {error.strerror}"
        raise StorageError(str(FILE), what, "call it in the project's folder, as its owner") from None
    return True


def of_client() -> str | None:
    """Return what to tell the server, as Prefect's client would; None if neither the environment nor `.env` has it.

    Prefect's profiles are not read.

    Raises:
        EvergreenError: `.env` cannot be read.
    """
    return os.environ.get(CLIENT) or _read().get(CLIENT)


def _read() -> dict[str, str | None]:
    if not FILE.exists():
        return {}
    from dotenv import dotenv_values

    try:
        return dotenv_values(FILE)
    except (OSError, UnicodeDecodeError) as error:
        what = f"cannot be read: {getattr(error, 'strerror', 'not UTF-8 text')}"
        raise EvergreenError(str(FILE), what, "let its owner make it readable for you") from None
