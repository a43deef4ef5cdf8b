"""Requests to the Prefect server that the user has configured, for commands that make no sense without one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar
from urllib.parse import urlsplit

import httpx
from prefect import settings
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.events import Event

from params import EvergreenError, TransientError

T = TypeVar("T")
DATA_ARRIVED = "evergreen.data-arrived"
"""The event of `evergreen notice`, which starts each deployment that waits for it: `triggers` in prefect.yaml."""
_ANSWER_S = 5.0


@contextlib.contextmanager
def open_configured_server_client() -> Iterator[SyncPrefectClient]:
    """Open a client of the server that PREFECT_API_URL or a profile of Prefect's names.

    Raises:
        EvergreenError: none is named, or it refuses a request.
        TransientError: it does not answer.
    """
    url = settings.get_current_settings().api.url
    if not url:
        fix = "start a server, `export PREFECT_API_URL=http://127.0.0.1:4200/api`, and try again (docs/deployment.md)"
        raise EvergreenError("PREFECT_API_URL", "names no Prefect server", fix)
    refuse_non_api_url(url)
    try:
        with get_client(sync_client=True) as client:
            yield client
    except httpx.HTTPError as error:
        raise to_evergreen_error(error, url) from error


def to_evergreen_error(error: httpx.HTTPError, url: str) -> EvergreenError:
    """Return the error that says why the server at `url` refuses a request or does not answer, and what to do."""
    where = f"Prefect's server at {url_origin(url)}"
    if not isinstance(error, httpx.HTTPStatusError):
        what = f"does not answer: {error or type(error).__name__}"
        return TransientError(where, what, "start it, or set PREFECT_API_URL to another one")
    answer = f"refuses with status {error.response.status_code}: {error.response.text[:500]}"
    ask = "set PREFECT_API_AUTH_STRING to its password, which `evergreen password` has put into the server's .env"
    other = "see the server's log; is it of the same version of Prefect?"
    return EvergreenError(where, answer, ask if error.response.status_code == httpx.codes.UNAUTHORIZED else other)


@contextlib.contextmanager
def open_impatient_client() -> Iterator[SyncPrefectClient]:
    """Open a client of the server that asks once, for what is no reason to wait."""
    quickly = {settings.PREFECT_CLIENT_MAX_RETRIES: 0, settings.PREFECT_API_REQUEST_TIMEOUT: _ANSWER_S}
    with settings.temporary_settings(quickly), get_client(sync_client=True) as client:
        yield client


def read_pages(read: Callable[..., list[T]]) -> Iterator[T]:
    """Read page after page: the server answers with at most 200 at a time."""
    offset = 0
    while page := read(offset=offset, limit=200):
        yield from page
        offset += len(page)


def announce_new_data(recipe: str, data: Mapping[str, str]) -> None:
    """Tell the server that a recipe has new data, with `data` as the event's payload; return when the server has it."""
    labels = {"prefect.resource.id": f"evergreen.recipe.{recipe}", "prefect.resource.name": recipe}
    event = Event(event=DATA_ARRIVED, resource=labels, payload=dict(data))
    with open_configured_server_client() as client:  # not emit_event, which does not say whether the server has got it
        client.request("POST", "/events", json=[event.model_dump(mode="json")])
    print(f"told {DATA_ARRIVED} of {recipe}")


def refuse_non_api_url(url: str) -> None:
    """Check that an address is that of a server's API, not of its pages, which answer every request in their own way."""
    try:
        parts = urlsplit(url)
        if "api" in parts.path.split("/"):
            return
        answer = httpx.get(f"{url.rstrip('/')}/health", timeout=_ANSWER_S, follow_redirects=True)
    except (ValueError, httpx.HTTPError, httpx.InvalidURL):  # whoever asks next says what is wrong
        return
    is_page = answer.status_code == httpx.codes.OK and answer.content.strip() != b"true"
    if is_page or answer.status_code == httpx.codes.NOT_FOUND:
        place = url_origin(url) + parts.path
        fix = f"export PREFECT_API_URL={place.rstrip('/')}/api"
        raise EvergreenError("PREFECT_API_URL", f"{place} is not the API: /api is missing", fix)


def answers_without_password() -> bool:
    """Whether the configured server answers to everybody, without a password."""
    url = settings.get_current_settings().api.url or ""
    try:
        return httpx.get(f"{url}/version", timeout=10).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def url_origin(url: str) -> str:
    """Return scheme, host and port of an address: a password or a token in the rest of it is not shown."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}"
