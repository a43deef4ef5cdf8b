"""Where the messages of `evergreen watch` go: a block on the Prefect server that sends them.

For a plain address, `watch` makes a block of its own. The address may have a password or a token in it, so the block keeps
it as a secret, and only its host is ever shown.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound

from flows.server.configured import url_without_credentials
from params import EvergreenError

_OWN = "evergreen-watch-"
"""How the names of our own blocks begin; a number follows."""
_OWN_TYPE = CustomWebhookNotificationBlock.get_block_type_slug()


class Destination(NamedTuple):
    """A block that sends messages."""

    label: str
    """What may be shown of it."""
    block: UUID


def destinations(client: SyncPrefectClient, notify: Sequence[str]) -> list[Destination]:
    """Return the destinations that the user names: addresses, ids of blocks, or types and names such as `slack-webhook/team`.

    Makes a block for each address.
    """
    numbers = itertools.count(1)
    return [_of_address(one, f"{_OWN}{next(numbers)}") if "://" in one else _of_block(client, one) for one in notify]


def delete_unused(client: SyncPrefectClient, used: Sequence[Destination]) -> None:
    """Delete the blocks that an earlier `watch` made and that no message uses any more."""
    with contextlib.suppress(ObjectNotFound):
        for document in client.read_block_documents_by_type(_OWN_TYPE, include_secrets=False):
            if (document.name or "").startswith(_OWN) and document.id not in {one.block for one in used}:
                client.delete_block_document(document.id)


def _of_address(address: str, name: str) -> Destination:
    with contextlib.suppress(ValueError):  # of the port, for example
        parts = urlsplit(address)
        if parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
            block = CustomWebhookNotificationBlock(
                name="Evergreen",
                url="{{ address }}",
                json_data={"subject": "{{ subject }}", "text": "{{ subject }}\n\n{{ body }}"},
                secrets={"address": address},
            )
            saved = block.save(name, overwrite=True)
            assert isinstance(saved, UUID), "it is not awaited here"
            return Destination(url_without_credentials(address), saved)
    what = "an address does not have the form https://host/path"  # it is not shown: it may have a password in it
    raise EvergreenError("--notify", what, "write the whole address, or name a block: slack-webhook/team")


def _of_block(client: SyncPrefectClient, name: str) -> Destination:
    slug, _, document_name = name.partition("/")
    try:
        if document_name:
            document = client.read_block_document_by_name(document_name, slug, include_secrets=False)
        else:
            document = client.read_block_document(UUID(name), include_secrets=False)
    except (ObjectNotFound, ValueError):
        fix = "`prefect block ls` shows the blocks there are; name one as type/name, such as slack-webhook/team, or by its id"
        raise EvergreenError(f"--notify {name}", "the Prefect server has no such block", fix) from None
    if not document.block_schema or "notify" not in document.block_schema.capabilities:
        fix = "name a notification block, such as slack-webhook/team, or write the address of a webhook"
        raise EvergreenError(f"--notify {name}", "the block cannot notify", fix)
    return Destination(name, document.id)
