"""Serve the Hub in a folder until it is interrupted: to this machine, or with a file of tokens to a team.

The file of tokens is YAML or JSON, readable by its owner alone:

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

from params import EvergreenError
from params.errors import HubRefusedError, StorageError, TransientError
from tasks.hub_server.server import LOCAL_TOKEN, LocalHub

LOCAL_USER = "local"
_SHORTEST_TOKEN = 20
_MAKE_TOKEN = "make each by: python -c \"import secrets; print('hf_' + secrets.token_hex(20))\""  # noqa: S105
_SHAPE = "write `tokens:` with a line `<token>: <user>` each, and if you like `teams:` with `<team>: [<user>, ...]`"


@dataclass(frozen=True)
class Members:
    """Who may use a Hub."""

    tokens: Mapping[str, str] = field(repr=False)
    """Token -> user."""
    teams: Mapping[str, list[str]] = field(default_factory=dict)
    """Team -> its users."""


def serve(folder: Path, *, host: str, port: int, tokens: Path | None) -> None:
    """Serve the Hub in `folder` until SIGINT or SIGTERM.

    Args:
        folder: of the repositories; made when it is missing.
        host: where to listen. Beyond this machine only with `tokens`.
        port: 0 takes a free one.
        tokens: the file of tokens; without it, whoever uses this machine may read and write everything.

    Raises:
        HubRefusedError: the host or the tokens would let in whom they should not, or cannot be used.
        TransientError: the port is taken.
        StorageError: the folder cannot be written.
    """
    address = _address(host)
    is_local = ipaddress.ip_address(address).is_loopback
    if tokens is None and not is_local:
        what = "other machines can reach it, and without a file of tokens anybody there could write"
        raise HubRefusedError(f"--host {host}", what, "give --tokens, or leave --host at 127.0.0.1")
    members = Members({LOCAL_TOKEN: LOCAL_USER}) if tokens is None else read_members(tokens)
    administrators = [LOCAL_USER] if tokens is None else []
    try:
        hub = LocalHub(
            folder,
            tokens=members.tokens,
            writers=members.teams,
            administrators=administrators,
            host=address,
            port=port,
            beyond_this_machine=not is_local,
        )
    except ValueError as error:
        raise HubRefusedError(str(tokens), str(error), "use letters, digits, `.`, `_` and `-` for names") from None
    with contextlib.ExitStack() as running:
        try:
            running.enter_context(hub)
        except OSError as error:
            raise _start_error(error, folder, host, port) from None
        print(_greeting(hub, folder, address, tokens), flush=True)
        hub.serve_forever()
    print("The Hub has stopped.", flush=True)


def read_members(path: Path) -> Members:
    """The users and teams of a file of tokens. No message quotes a token.

    Raises:
        HubRefusedError: the file is missing, readable by others, or not in the form above.
    """
    try:
        with path.open(encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                what = f"others than its owner may read or write it (mode {mode:o}), and so use every token in it"
                raise HubRefusedError(
                    str(path), what, f"chmod 600 {path}; if others could read it for long, make new tokens"
                )
            text = file.read()
    except OSError as error:
        raise HubRefusedError(str(path), f"it cannot be read: {error.strerror}", _SHAPE) from None
    except UnicodeDecodeError:
        raise HubRefusedError(str(path), "it is not text in UTF-8", _SHAPE) from None
    found = _parse(path, text)
    tokens, teams = found.get("tokens"), found.get("teams") or {}
    if set(found) - {"tokens", "teams"}:  # not named: in a file of another form they are the tokens
        raise HubRefusedError(str(path), "it has keys other than `tokens` and `teams`", _SHAPE)
    if not isinstance(tokens, dict) or not tokens or not all(isinstance(user, str) for user in tokens.values()):
        raise HubRefusedError(f"{path}: tokens", "it does not map tokens to users", _SHAPE)
    if not isinstance(teams, dict) or not all(_is_list_of_names(users) for users in teams.values()):
        raise HubRefusedError(f"{path}: teams", "it does not map teams to lists of users", _SHAPE)
    for number, token in enumerate(tokens, start=1):
        where = f"{path}: token {number}"
        if token == LOCAL_TOKEN:
            raise HubRefusedError(where, "it is the token that every local Hub has", _MAKE_TOKEN)
        if not isinstance(token, str) or len(token) < _SHORTEST_TOKEN:
            what = f"it is shorter than {_SHORTEST_TOKEN} characters, and could be guessed"
            raise HubRefusedError(where, what, _MAKE_TOKEN)
    strangers = {user for users in teams.values() for user in users} - set(tokens.values())
    if strangers:
        what = f"no token belongs to {', '.join(sorted(strangers))}"
        raise HubRefusedError(f"{path}: teams", what, "correct the name, or add a token for it")
    return Members(tokens, {str(team): list(users) for team, users in teams.items()})


def _parse(path: Path, text: str) -> dict[str, object]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        found = YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:  # its own text shows the line, and with it a token
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise HubRefusedError(f"{path}{line}", "it is not YAML, or names something twice", _SHAPE) from None
    except YAMLError:
        raise HubRefusedError(str(path), "it is not YAML", _SHAPE) from None
    if not isinstance(found, dict):
        raise HubRefusedError(str(path), "it is empty, or no mapping", _SHAPE)
    return {str(key): value for key, value in found.items()}


def _is_list_of_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _address(host: str) -> str:
    """The address of a name of this machine."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        raise HubRefusedError(f"--host {host}", "no machine is called so", "give an address of this machine") from None
    return str(found[0][4][0])


def _start_error(error: OSError, folder: Path, host: str, port: int) -> EvergreenError:
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        what = f"port {port} is taken, perhaps by another Hub"
        return TransientError(where, what, "stop that program, or give another --port (0 takes a free one)")
    if error.errno == errno.EADDRNOTAVAIL:
        return HubRefusedError(where, "this machine has no such address", "give an address of this machine as --host")
    if error.errno == errno.EACCES and 0 < port < 1024 and error.filename is None:
        return HubRefusedError(where, "ports below 1024 are the system's", "give a --port above 1023")
    return StorageError(
        str(folder), f"the Hub cannot keep its repositories there: {error.strerror}", "give another --folder"
    )


def _greeting(hub: LocalHub, folder: Path, address: str, tokens: Path | None) -> str:
    port = hub.endpoint.rpartition(":")[2]
    is_everywhere = ipaddress.ip_address(address).is_unspecified
    endpoint = f"http://{socket.gethostname()}:{port}" if is_everywhere else hub.endpoint
    if tokens is None:
        token, browse = LOCAL_TOKEN, f"{hub.sign_in_link(LOCAL_USER)}   (signs in once)"
    else:
        token, browse = "<your token>", f"{endpoint}/-/sign-in"
    return f"""The Hub in {folder} is at {endpoint}

  browse:   {browse}
  publish:  HF_ENDPOINT={endpoint} HF_TOKEN={token} HF_HUB_DISABLE_XET=1 python -m flows.retrain <recipe>
  load:     HF_ENDPOINT={endpoint} HF_TOKEN={token} HF_HUB_DISABLE_XET=1 python
            >>> AutoTokenizer.from_pretrained("owner/name", revision="a tag or commit")

Ctrl-C ends it."""
