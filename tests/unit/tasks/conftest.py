"""A Hub with injected faults, for the tests of publishing, releases and the Hub client."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from tests.support.faulty_hub import Clock, FaultyHub, quick_client
from tests.support.hub_settings import without_hub_settings
from tests.support.publications import TOKEN, write_model


@pytest.fixture(scope="module")
def running_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FaultyHub, Path]]:
    root = tmp_path_factory.mktemp("hub")
    with FaultyHub(root, tokens={TOKEN: "alice", "token-of-bob": "bob"}) as running:
        yield running, root


@pytest.fixture
def hub(running_hub: tuple[FaultyHub, Path]) -> Iterator[FaultyHub]:
    """The Hub, empty and without faults."""
    hub, root = running_hub
    with quick_client():
        yield hub
    hub.faults.clear()
    hub.done.clear()
    shutil.rmtree(root / "models", ignore_errors=True)


@pytest.fixture
def api(hub: FaultyHub) -> HfApi:
    return HfApi(endpoint=hub.endpoint, token=TOKEN)


@pytest.fixture
def no_hub_settings(tmp_path: Path) -> Iterator[None]:
    """No endpoint and no token in the environment."""
    with without_hub_settings(tmp_path):
        yield


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")
