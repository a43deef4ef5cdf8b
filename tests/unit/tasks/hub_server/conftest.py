"""A local Hub in a temporary folder, and the real client for each kind of user."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
from huggingface_hub import HfApi
from huggingface_hub.utils import disable_progress_bars

from tasks.hub_server.server import LocalHub
from tests.unit.tasks.hub_server.contract import CONTRACT, CONTRACT_HUB, IS_LOCAL, PREFIX, TOKEN, local_only

TOKENS = {"token-of-alice": "alice", "token-of-bob": "bob"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """When another Hub is tested, run only the contract."""
    for item in items:
        if not IS_LOCAL and item.path.parent == Path(__file__).parent and item.path.name not in CONTRACT:
            item.add_marker(local_only)


@pytest.fixture(autouse=True)
def client_without_xet(monkeypatch: pytest.MonkeyPatch) -> None:
    # The client reads the variable at import, and another test may have imported it before.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    disable_progress_bars()


@pytest.fixture(scope="module")
def running_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalHub, Path]]:
    root = tmp_path_factory.mktemp("hub")
    with LocalHub(root, tokens=TOKENS, writers={"team": ["alice"]}) as running:
        yield running, root


@pytest.fixture
def root(running_hub: tuple[LocalHub, Path]) -> Iterator[Path]:
    """The folder of the Hub, empty. It holds the Hub's whole state, so emptying it resets the Hub."""
    yield running_hub[1]
    for path in running_hub[1].iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.fixture
def hub(running_hub: tuple[LocalHub, Path], root: Path) -> LocalHub:
    return running_hub[0]


@pytest.fixture
def endpoint(request: pytest.FixtureRequest) -> str:
    """URL of the Hub under test."""
    return request.getfixturevalue("hub").endpoint if IS_LOCAL else CONTRACT_HUB.rstrip("/")


@pytest.fixture
def local_root(request: pytest.FixtureRequest) -> Path | None:
    """The folder of the Hub; None if it is not a local one."""
    return request.getfixturevalue("root") if IS_LOCAL else None


@pytest.fixture
def alice(endpoint: str) -> HfApi:
    return HfApi(endpoint=endpoint, token=TOKEN)


@pytest.fixture
def me(alice: HfApi) -> str:
    """The user of the token; alice on the local Hub."""
    return "alice" if IS_LOCAL else alice.whoami(cache=True)["name"]


@pytest.fixture
def repo(alice: HfApi, me: str) -> Iterator[str]:
    """Name of a repository that does not exist yet. On another Hub it is deleted after the test."""
    name = f"{me}/{PREFIX}model"
    yield name
    if not IS_LOCAL:
        for kind in ("model", "dataset"):
            alice.delete_repo(name, repo_type=kind, missing_ok=True)


@pytest.fixture
def bob(hub: LocalHub) -> HfApi:
    return HfApi(endpoint=hub.endpoint, token="token-of-bob")


@pytest.fixture
def anyone(endpoint: str) -> HfApi:
    return HfApi(endpoint=endpoint, token=False)
