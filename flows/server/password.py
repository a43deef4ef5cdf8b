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


def generate_credentials() -> str:
    """Return a random user and password, separated by a colon."""
    return f"evergreen:{secrets.token_urlsafe(32)}"


def add_password_to_dotenv() -> bool:
    """Add a new password for server and clients to `.env`, which then only its owner can read.

    Returns:
        False if both have one already.

    Raises:
        EvergreenError: `.env` cannot be read or written, or has a password for one of them only.
    """
    found = _read()
    with_one = [name for name in (SERVER, CLIENT) if found.get(name)]
    if len(with_one) == 2:
        return False
    if with_one:
        (has,), (lacks,) = with_one, {SERVER, CLIENT} - {*with_one}
        open_server, refused = "a server that starts here lets everybody in", "workers and commands here are refused"
        without = open_server if lacks == SERVER else refused
        fix = f"add `{lacks}=` with the value of {has} to it, or delete the line of {has} and call this again for a new password"
        raise EvergreenError(str(FILE), f"has a value of {has}, but none of {lacks}: {without}", fix)
    password, file = generate_credentials(), Path(os.path.realpath(FILE))
    # a new file: whoever has opened the old one does not see the password
    partial = file.with_name(f"{file.name}.part")
    try:
        before = file.read_bytes() if file.exists() else b""
        partial.unlink(missing_ok=True)
        with open(partial, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
            out.write(before + (b"\n" if before and not before.endswith(b"\n") else b""))
            out.write(f"{SERVER}={password}\n{CLIENT}={password}\n".encode())
        partial.rename(file)
    except OSError as error:
        raise _not_writable(error) from None
    return True


def restrict_dotenv_permissions() -> bool:
    """Let only its owner read `.env` if all users can; whom the owner lets read it by a group still can. False if nothing changed."""
    try:
        if not FILE.exists() or not FILE.stat().st_mode & 0o007:
            return False
        FILE.chmod(0o600)
    except OSError as error:
        raise _not_writable(error) from None
    return True


def read_client_credentials() -> str | None:
    """Return what to tell the server, as Prefect's client would; None if neither the environment nor `.env` has it.

    Prefect's profiles are not read.
    """
    return os.environ.get(CLIENT) or _read().get(CLIENT)


def _not_writable(error: OSError) -> StorageError:
    what = f"cannot be written: {error.strerror}"
    return StorageError(str(FILE), what, "call it in the project's folder, as its owner")


def _read() -> dict[str, str | None]:
    if not FILE.exists():
        return {}
    from dotenv import dotenv_values

    try:
        return dotenv_values(FILE)
    except (OSError, UnicodeDecodeError) as error:
        what = f"cannot be read: {getattr(error, 'strerror', 'not UTF-8 text')}"
        raise EvergreenError(str(FILE), what, "let its owner make it readable for you") from None
