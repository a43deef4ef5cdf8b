"""Tell the Prefect server that a recipe has new data: `evergreen notice NAME`.

The event starts each deployment that waits for it: `triggers` in prefect.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping

from prefect.events import Event

from flows.prefect_api import configured_server

EVENT = "evergreen.data-arrived"


def notice(recipe: str, data: Mapping[str, str]) -> None:
    """Emit the event for a recipe, with `data` as its payload; return when the server has it.

    Raises:
        EvergreenError: no server is configured, or it refuses the event.
        TransientError: the server does not answer.
    """
    labels = {"prefect.resource.id": f"evergreen.recipe.{recipe}", "prefect.resource.name": recipe}
    event = Event(event=EVENT, resource=labels, payload=dict(data))
    with configured_server() as client:  # not emit_event, which does not say whether the server has got it
        client.request("POST", "/events", json=[event.model_dump(mode="json")])
    print(f"told {EVENT} of {recipe}")
