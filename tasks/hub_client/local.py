"""Serve the local Hub until it is interrupted: to this machine or, with a tokens file, to a team.

The tokens file is YAML or JSON, and only its owner may read it:

    tokens:
      hf_2f0c41...: alice        # make one: python -c "import secrets; print('hf_' + secrets.token_hex(20))"
      hf_9be7d0...: bob
    teams:
      vision: [alice, bob]       # they publish as vision/<name>
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from params import EvergreenError
from params.foundation.errors import HubRefusedError, StorageError, TransientError
from tasks.hub_server.server import LocalHub, new_token

if TYPE_CHECKING:
    from tasks.hub_server.trials import AnswerFunction

LOCAL_USER = "local"
_MIN_TOKEN_LENGTH = 20
_FIX_TOKEN = "generate one by: python -c \"import secrets; print('hf_' + secrets.token_hex(20))\""  # noqa: S105
_FIX_FORMAT = "write `tokens:` with lines `<token>: <user>` and, for teams, `teams:` with lines `<team>: [<user>, ...]`"


@dataclass(frozen=True)
class Members:
    """The users of a Hub."""

    tokens: Mapping[str, str] = field(repr=False)
    """Token -> user."""
    teams: Mapping[str, list[str]] = field(default_factory=dict)
    """Team -> its users."""


def serve(folder: Path, *, host: str, port: int, tokens: Path | None, answer: AnswerFunction | None = None) -> None:
    """Serve the Hub in `folder` until SIGINT or SIGTERM; with `answer`, its models answer texts on their pages.

    Raises:
        HubRefusedError: The host or the tokens file is unsafe or invalid.
        TransientError: The port is in use.
        StorageError: The folder cannot be written.
    """
    address = _address(host)
    is_local = ipaddress.ip_address(address).is_loopback
    if tokens is None and not is_local:
        what = "other machines can reach this address, and without a tokens file anyone there could write"
        raise HubRefusedError(f"--host {host}", what, "pass --tokens, or use --host 127.0.0.1")
    members = Members({new_token(): LOCAL_USER}) if tokens is None else read_members(tokens)
    administrators = [LOCAL_USER] if tokens is None else []
    try:
        hub = LocalHub(
            folder,
            tokens=members.tokens,
            writers=members.teams,
            administrators=administrators,
            host=address,
            port=port,
            allow_remote=not is_local,
            answer=answer,
        )
    except ValueError as error:
        raise HubRefusedError(str(tokens), str(error), "use letters, digits, `.`, `_` and `-` in names") from None
    with contextlib.ExitStack() as running:
        try:
            running.enter_context(hub)
        except OSError as error:
            raise _start_error(error, folder, host, port) from None
        token = next(iter(members.tokens)) if tokens is None else None
        print(_greeting(hub, folder, address, token), flush=True)
        hub.serve_forever()
    print("The Hub has stopped.", flush=True)


def read_members(path: Path) -> Members:
    """Read the users and teams in a tokens file. Error messages never quote a token.

    Raises:
        HubRefusedError: The file is missing, readable by others, or malformed.
    """
    try:
        with path.open(encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                what = f"other users of this machine can read or write the file (mode {mode:o})"
                raise HubRefusedError(
                    str(path), what, f"chmod 600 {path}; replace its tokens if others may have read them"
                )
            text = file.read()
    except OSError as error:
        raise HubRefusedError(str(path), f"cannot be read: {error.strerror}", _FIX_FORMAT) from None
    except UnicodeDecodeError:
        raise HubRefusedError(str(path), "not UTF-8 text", _FIX_FORMAT) from None
    content = _parse(path, text)
    tokens, teams = content.get("tokens"), content.get("teams") or {}
    if set(content) - {"tokens", "teams"}:  # the message does not quote the keys: they may be tokens
        raise HubRefusedError(str(path), "it has keys other than `tokens` and `teams`", _FIX_FORMAT)
    if not isinstance(tokens, dict) or not tokens or not all(isinstance(user, str) for user in tokens.values()):
        raise HubRefusedError(f"{path}: tokens", "it does not map tokens to users", _FIX_FORMAT)
    if not isinstance(teams, dict) or not all(_is_list_of_names(users) for users in teams.values()):
        raise HubRefusedError(f"{path}: teams", "it does not map teams to lists of users", _FIX_FORMAT)
    for number, token in enumerate(tokens, start=1):
        where = f"{path}: token {number}"
        if not isinstance(token, str) or len(token) < _MIN_TOKEN_LENGTH:
            what = f"the token is shorter than {_MIN_TOKEN_LENGTH} characters and could be guessed"
            raise HubRefusedError(where, what, _FIX_TOKEN)
    unknown = {user for users in teams.values() for user in users} - set(tokens.values())
    if unknown:
        what = f"no token belongs to {', '.join(sorted(unknown))}"
        raise HubRefusedError(f"{path}: teams", what, "correct the name, or add a token for this user")
    return Members(tokens, {str(team): list(users) for team, users in teams.items()})


def _parse(path: Path, text: str) -> dict[str, object]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        content = YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:  # its own message quotes the line, and with it a token
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise HubRefusedError(f"{path}{line}", "not YAML, or a key is there twice", _FIX_FORMAT) from None
    except YAMLError:
        raise HubRefusedError(str(path), "not YAML", _FIX_FORMAT) from None
    if not isinstance(content, dict):
        raise HubRefusedError(str(path), "the file is empty or not a mapping", _FIX_FORMAT)
    return {str(key): value for key, value in content.items()}


def _is_list_of_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _address(host: str) -> str:
    """Resolve a host name to an IP address."""
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        raise HubRefusedError(f"--host {host}", "unknown host name", "pass an address of this machine") from None
    return str(addresses[0][4][0])


def _start_error(error: OSError, folder: Path, host: str, port: int) -> EvergreenError:
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        what = f"port {port} is in use, perhaps by another Hub"
        return TransientError(where, what, "stop that program, or pass another --port (0 picks a free one)")
    if error.errno == errno.EADDRNOTAVAIL:
        return HubRefusedError(where, "this machine has no such address", "pass an address of this machine as --host")
    if error.errno == errno.EACCES and 0 < port < 1024 and error.filename is None:
        return HubRefusedError(where, "ports below 1024 need root", "pass a --port above 1023")
    return StorageError(str(folder), f"the folder cannot be written: {error.strerror}", "pass another --folder")


def _greeting(hub: LocalHub, folder: Path, address: str, token: str | None) -> str:
    port = hub.endpoint.rpartition(":")[2]
    is_everywhere = ipaddress.ip_address(address).is_unspecified
    endpoint = f"http://{socket.gethostname()}:{port}" if is_everywhere else hub.endpoint
    browse = f"{hub.sign_in_link(LOCAL_USER)}   (signs in once)" if token else f"{endpoint}/-/sign-in"
    token = token or "<your token>"
    return f"""The Hub in {folder} is at {endpoint}

  browse:   {browse}
  publish:  HF_ENDPOINT={endpoint} HF_TOKEN={token} evergreen run <recipe>
  load:     HF_ENDPOINT={endpoint} HF_TOKEN={token} python
            >>> AutoTokenizer.from_pretrained("owner/name", revision="a tag or commit")
  upload:   HF_ENDPOINT={endpoint} HF_TOKEN={token} HF_HUB_DISABLE_XET=1 hf upload owner/name <folder>
            (other programs than evergreen need HF_HUB_DISABLE_XET=1 to upload: this Hub has no Xet storage)

Stop it with Ctrl-C."""
