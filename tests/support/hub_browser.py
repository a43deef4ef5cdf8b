"""What a browser sends to a local Hub, without a browser: cookies, its own host name, and the origin of forms.

The name stands in the `Host` header only, because not every machine resolves names under `.localhost` for other programs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx2

HOST = f"{'0' * 32}.localhost"


@contextmanager
def hub_browser(endpoint: str, *, timeout: float = 5) -> Iterator[httpx2.Client]:
    """A browser at a page of the Hub, under a name at which a session may begin."""
    with httpx2.Client(base_url=endpoint, headers=own_page(endpoint), follow_redirects=True, timeout=timeout) as client:
        yield client


def own_page(endpoint: str, host: str = HOST) -> dict[str, str]:
    """The headers of a form that was sent from a page of the Hub."""
    netloc = f"{host}:{endpoint.rpartition(':')[2]}"
    return {"Accept": "text/html,*/*", "Host": netloc, "Origin": f"http://{netloc}"}
