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
import socket
import stat
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from params import EvergreenError
from params.foundation.errors import HubRefusedError, StorageError, TransientError
from tasks.hub_server.server import LocalHub, new_token
from tasks.hub_server.store import KINDS
from tasks.hub_server.trials import AnswerFunction
from tasks.loopback import is_loopback
from trainer.reporting.signs_of_life import no_signs_of_life

LOCAL_USER = "local"
_MIN_TOKEN_LENGTH = 20
_FIX_TOKEN = "generate one by: python -c \"import secrets; print('hf_' + secrets.token_hex(20))\""  # noqa: S105
_FIX_FORMAT = "write `tokens:` with lines `<token>: <user>` and, for teams, `teams:` with lines `<team>: [<user>, ...]`"


class HubUsers(BaseModel, frozen=True, extra="forbid"):
    tokens: dict[Annotated[str, Field(min_length=_MIN_TOKEN_LENGTH)], str] = Field(min_length=1, repr=False)
    """Token -> user."""
    teams: dict[str, list[str]] = {}
    """Team -> its users."""


def serve_hub_until_signal(
    folder: Path,
    *,
    host: str,
    port: int,
    tokens: Path | None,
    new: bool = False,
    answer: AnswerFunction | None = None,
) -> None:
    """Serve the Hub in `folder` until SIGINT or SIGTERM; with `answer`, its models answer texts on their pages.

    A Hub is made only if it is to be `new`: one that is served by mistake would be taken for one without any release.

    Raises:
        HubRefusedError: There is no Hub in the folder, or one that is not new. The host or the tokens file is unsafe or invalid.
        TransientError: The port is in use.
        StorageError: The folder cannot be written.
    """
    try:
        address = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except (socket.gaierror, UnicodeError):
        raise HubRefusedError(f"--host {host}", "unknown host name", "pass an address of this machine") from None
    is_local = is_loopback(address)
    if tokens is None and not is_local:
        what = "other machines can reach this address, and without a tokens file anyone there could write"
        raise HubRefusedError(f"--host {host}", what, "pass --tokens, or use --host 127.0.0.1")
    members = HubUsers(tokens={new_token(): LOCAL_USER}) if tokens is None else read_tokens_file(tokens)
    _check_folder(folder, new=new)
    try:
        hub = LocalHub(
            folder,
            tokens=members.tokens,
            writers=members.teams,
            administrators=[LOCAL_USER] if tokens is None else [],
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
            raise _start_error(error, folder, f"{host}:{port}") from None
        for kind in KINDS if new else ():
            (folder / kind).mkdir(exist_ok=True)
        token = next(iter(members.tokens)) if tokens is None else None
        with no_signs_of_life():
            hub.serve_forever(_greeting(hub, folder, address, token))
    print("The Hub has stopped.", flush=True)


def _check_folder(folder: Path, *, new: bool) -> None:
    where = f"--folder {folder}"
    try:
        is_hub = any((folder / kind).is_dir() for kind in KINDS)
    except PermissionError as error:
        fix = "ask its owner: docs/hub.md says how a group shares a folder; or pass another --folder"
        raise StorageError(str(folder), f"the folder cannot be read: {error.strerror}", fix) from None
    if new and is_hub:
        raise HubRefusedError(where, "there is a Hub in it already", "leave out --new, or name another folder")
    if not new and not is_hub:
        what = (
            f"there is no Hub in {folder.absolute()}: a share may not be mounted, or this is another working directory"
        )
        fix = "name the folder of the Hub; `--new` makes one there, and so does the first run of a recipe with `endpoint: local`"
        raise HubRefusedError(where, what, fix)


def read_tokens_file(path: Path) -> HubUsers:
    """Read the users and teams in a tokens file. Error messages never quote a token."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    what, fix = "", _FIX_FORMAT
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            what = f"other users of this machine can read or write the file (mode {mode:o})"
            fix = f"chmod 600 {path}; replace its tokens if others may have read them"
            raise HubRefusedError(str(path), what, fix)
        members = HubUsers.model_validate(YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8")))
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
    except ValidationError as error:  # its own message, and what is no known key, may be a token
        first = error.errors(include_input=False)[0]
        what = f"{first['loc'][0] if first['loc'][:1] in (('tokens',), ('teams',)) else 'its keys'} are not as they should be"
        if first["type"] == "string_too_short":
            what, fix = f"a token is shorter than {_MIN_TOKEN_LENGTH} characters and could be guessed", _FIX_TOKEN
    except (YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        what = f"not YAML, or a key is there twice{f': line {mark.line + 1}' if mark else ''}"
    if what:
        raise HubRefusedError(str(path), what, fix)
    unknown = {user for users in members.teams.values() for user in users} - set(members.tokens.values())
    if unknown:
        what = f"no token belongs to {', '.join(sorted(unknown))}"
        raise HubRefusedError(f"{path}: teams", what, "correct the name, or add a token for this user")
    return members


def _start_error(error: OSError, folder: Path, where: str) -> EvergreenError:
    if error.errno == errno.EADDRINUSE:
        what = f"port {where.rpartition(':')[2]} is in use, perhaps by another Hub"
        return TransientError(where, what, "stop that program, or pass another --port (0 picks a free one)")
    if error.errno == errno.EADDRNOTAVAIL or (error.errno == errno.EACCES and error.filename is None):
        fix = "pass an address of this machine as --host, and a --port above 1023"
        return HubRefusedError(where, f"cannot be served: {error.strerror}", fix)
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
