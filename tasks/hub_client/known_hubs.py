"""On which Hub a repository is, by the recipes of this project."""

from __future__ import annotations

from pathlib import Path

from params import load
from tasks.hub_client.connection import LOCAL


def endpoint_of(repo_id: str) -> str:
    """Return the Hub of a repository: that of the recipes which publish there, if they agree, else `local`.

    Raises:
        RecipeError: a recipe is invalid.
    """
    publishes = [load(path).publish for path in sorted(Path("params").glob("*.yaml"))]
    endpoints = {publish.endpoint for publish in publishes if publish.repo_id == repo_id}
    return endpoints.pop() if len(endpoints) == 1 else LOCAL
