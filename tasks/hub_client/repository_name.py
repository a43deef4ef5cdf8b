"""Whether two entries of logs are about one repository, however its address is written."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from tasks.hub_client.connection import LOCAL

_PUBLIC_HUB: Final = "huggingface.co"
_ITS_OTHER_NAMES: Final = frozenset({"hf.co", "www.hf.co", "www.huggingface.co"})
_LOOPBACK: Final = "localhost"
_DEFAULT_PORTS: Final = frozenset({80, 443})


class RepositoryName(NamedTuple):
    """A repository of a Hub; two names that are equal name the same one."""

    hub: str
    """`local`, or host, port and path of its address, such as `hub.example.org`, `localhost:8000`."""
    repo_id: str

    def may_be(self, other: RepositoryName) -> bool:
        """Whether both may be one repository, as far as names tell.

        The folder of the local Hub can be served at any address, and a Hub on this machine at another port, or at the machine's name.
        """
        if self.repo_id != other.repo_id:
            return False
        hubs = {self.hub, other.hub}
        return len(hubs) == 1 or (_PUBLIC_HUB not in hubs and any(map(_is_on_a_machine, hubs)))


def name_repository(endpoint: str, repo_id: str) -> RepositoryName:
    """Return the name of a repository: without case, scheme and usual ports, and with one name for each host that has several.

    `endpoint` is the address of the Hub, or `local`, as reports and logs have it.
    """
    return RepositoryName(_name_hub(endpoint), repo_id.casefold())


def _name_hub(endpoint: str) -> str:
    if endpoint == LOCAL:
        return LOCAL
    try:
        parts = urlsplit(endpoint.strip())
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:  # a line of a log may have anything
        return endpoint.casefold()
    if host in _ITS_OTHER_NAMES:
        host = _PUBLIC_HUB
    if _is_loopback(host):
        host = _LOOPBACK
    place = f"{host}:{port}" if port and port not in _DEFAULT_PORTS else host
    return "/".join([place, *filter(None, parts.path.casefold().split("/"))])


def _is_loopback(host: str) -> bool:
    if host == _LOOPBACK or host.endswith(f".{_LOOPBACK}"):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _is_on_a_machine(hub: str) -> bool:
    return hub == LOCAL or hub.partition("/")[0].partition(":")[0] == _LOOPBACK
