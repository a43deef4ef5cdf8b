"""Who can use the local Hub that a stage serves for itself, and which Hub gets the user's token."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

from params import EvergreenError, HubRefusedError
from params.foundation.artifacts import Artifacts
from params.sections.data import RowsFromHubDataset
from tasks.hub_client.connection import LOCAL, open_repository
from tasks.hub_client.repository import disable_xet_where_missing
from tasks.hub_client.time_limits import limit_hub_requests
from tasks.hub_client.token import find_token_for_hub, require_token_for_hub
from tasks.ingestion.source import open_source
from tasks.loopback import is_loopback
from tasks.publishing.exactly_once import publish_release
from tasks.publishing.release_plan import ANY_WEIGHTS
from tests.support.faulty_hub import quick_client
from tests.support.publications import plan, write_model

REPO = "tests/model"


def test_no_bar_is_drawn_for_what_stays_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    for is_drawn in (True, False):
        (enable_progress_bars if is_drawn else disable_progress_bars)()
        with open_repository(Artifacts("tiny", root=tmp_path), repo_id=REPO, endpoint=LOCAL):
            assert are_progress_bars_disabled()
        assert are_progress_bars_disabled() is not is_drawn, "another Hub may be far away"
    enable_progress_bars()


def test_who_only_reads_makes_no_hub_and_is_told_that_nothing_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `releases`, `try`, `check` and `reproduce` in a fresh clone."""
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    artifacts, told = Artifacts("tiny", root=tmp_path), []
    for to_write in (False, True):
        with open_repository(artifacts, repo_id=REPO, endpoint=LOCAL, to_write=to_write) as repository:
            for revision in ("main", "release-0"):
                with pytest.raises(HubRefusedError) as raised:
                    repository.retry_until_clear(partial(repository.api.model_info, REPO, revision=revision))
                told.append(raised.value.fix)
                if to_write:
                    repository.api.create_repo(REPO, exist_ok=True)
            assert repository.where == f".hub/{REPO}"
        assert (tmp_path / ".hub").exists() is to_write
    assert all(f"there is no {REPO} in .hub yet: `evergreen run`" in fix for fix in told[:3]), told
    assert "`evergreen releases` lists the releases" in told[3]


def test_only_the_stage_itself_can_use_its_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    artifacts = Artifacts("tiny", root=tmp_path)
    tokens = []
    for _ in range(2):
        with open_repository(artifacts, repo_id=REPO, endpoint=LOCAL) as repository:
            repository.api.create_repo(REPO, private=True, exist_ok=True)
            tokens.append(str(repository.api.token))
            for token in ("hf_local", tokens[0] if len(tokens) == 2 else "hf_other"):
                other_user = HfApi(endpoint=repository.api.endpoint, token=token)
                for call in (other_user.list_repo_refs, other_user.delete_repo):
                    with pytest.raises(HfHubHTTPError) as raised:
                        call(REPO)
                    assert raised.value.response.status_code == 401
            assert repository.api.repo_exists(REPO)
    assert tokens[0] != tokens[1]
    assert min(map(len, tokens)) > 40


def test_local_hub_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HF_HUB_OFFLINE stopped evaluate after hours of training: it asks the local Hub for the champion."""
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    artifacts = Artifacts("tiny", root=tmp_path)
    model = plan(write_model(tmp_path / "model"), repo_id=REPO)
    with open_repository(artifacts, repo_id=REPO, endpoint=LOCAL, to_write=True) as repository:
        released = publish_release(repository, replace(model, replaces=ANY_WEIGHTS))
        head = repository.head()
        assert head
        assert head.commit == released.commit
        folder = repository.retry_until_clear(
            lambda: repository.api.snapshot_download(REPO, revision=head.commit, local_dir=tmp_path / "got")
        )
    assert (Path(folder) / "config.json").is_file()
    with pytest.raises(OfflineModeIsEnabled), limit_hub_requests():
        HfApi(endpoint="https://hub.example.org", token="x").repo_exists(REPO)


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        *(
            (host, True)
            for host in (
                "localhost",
                "127.0.0.1",
                "127.0.0.2",
                "127.255.255.254",
                "::1",
                "::ffff:127.0.0.1",
                "LOCALHOST",
            )
        ),
        *(
            (host, False)
            for host in (
                "128.0.0.1",
                "0.0.0.0",
                "::",
                "localhost.example.org",
                "127.0.0.1.nip.io",
                "::ffff:8.8.8.8",
                "",
            )
        ),
        (None, False),
    ],
)
def test_hubs_at_any_address_of_this_machine_need_no_network(
    host: str | None, is_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_loopback(host) == is_here
    endpoint = f"http://[{host}]:80" if host and ":" in host else f"http://{host}:80"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.setenv("HF_TOKEN", "x")
    if is_here:
        assert require_token_for_hub(endpoint) == "x"
    else:
        with pytest.raises(HubRefusedError, match="HF_HUB_OFFLINE forbids"):
            require_token_for_hub(endpoint)


@contextlib.contextmanager
def foreign_hub() -> Iterator[tuple[str, list[str | None]]]:
    """Serve 404 to every request, and record the Authorization headers."""
    seen: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_error(404)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
        server.shutdown()


@pytest.mark.parametrize("place", ["HF_TOKEN", "login"])
@pytest.mark.parametrize("is_own", [False, True])
def test_token_reaches_only_the_hub_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, is_own: bool
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    if place == "HF_TOKEN":
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
    else:
        (tmp_path / "login").write_text("hf_secret")
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "login"))
    with foreign_hub() as (endpoint, seen), quick_client():
        if is_own:
            monkeypatch.setenv("HF_ENDPOINT", f"{endpoint}/")
        opened = open_repository(Artifacts("tiny", root=tmp_path), repo_id=REPO, endpoint=endpoint)
        with opened as repository, pytest.raises(HfHubHTTPError):
            repository.api.model_info(REPO)
        dataset = RowsFromHubDataset(kind="hub", repo_id=REPO, revision="0" * 40, train="*.csv", endpoint=endpoint)
        with pytest.raises(EvergreenError):
            next(iter(open_source(dataset).batches("train")))
    assert len(seen) >= 2
    assert set(seen) == {"Bearer hf_secret" if is_own else None}


def test_publishing_to_a_hub_without_its_token_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with (
        pytest.raises(HubRefusedError) as raised,
        open_repository(Artifacts("tiny", tmp_path), repo_id=REPO, endpoint="https://hub.example.org", to_write=True),
    ):
        pass
    assert (
        "no token for https://hub.example.org: the user's token belongs to https://huggingface.co" in raised.value.what
    )
    assert "and HF_ENDPOINT=https://hub.example.org" in raised.value.fix
    assert "hf_secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("endpoint", "own", "is_sent"),
    [
        ("https://huggingface.co", None, True),
        ("https://HuggingFace.co/", None, True),
        ("http://huggingface.co", None, False),  # it would travel unencrypted
        ("https://huggingface.co.example.org", None, False),
        ("https://huggingface.co", "https://hub.example.org", False),
        ("https://hub.example.org/", "https://hub.example.org", True),
    ],
)
def test_token_belongs_to_one_hub(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, own: str | None, is_sent: bool
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    if own:
        monkeypatch.setenv("HF_ENDPOINT", own)
    assert find_token_for_hub(endpoint) == ("hf_secret" if is_sent else None)


@contextlib.contextmanager
def asked_hub(status: int, headers: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Answer every GET so, and record what was asked."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
        server.shutdown()


XET = {"X-Xet-Cas-Url": "https://cas", "X-Xet-Access-Token": "t", "X-Xet-Token-Expiration": "4102444800"}


@pytest.mark.parametrize(
    ("status", "headers", "is_off"),
    [
        (200, XET, False),
        (200, {}, True),
        (404, {}, True),
        (404, {"X-Error-Code": "RepoNotFound"}, True),
        (400, {}, True),
        (405, {}, True),
        (501, {}, True),
    ],
)
def test_hub_is_asked_whether_it_has_xet_storage(
    monkeypatch: pytest.MonkeyPatch, status: int, headers: dict[str, str], is_off: bool
) -> None:
    """A Hub without it gets large files by git-lfs; any other decides as the client does."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    with asked_hub(status, headers) as (endpoint, seen):
        with disable_xet_where_missing(HfApi(endpoint, token="hf_own"), REPO, "a/b", create_pr=True):
            assert constants.HF_HUB_DISABLE_XET is is_off
        assert constants.HF_HUB_DISABLE_XET is False
        assert seen == [f"/api/models/{REPO}/xet-write-token/a%2Fb?create_pr=1"]
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        with disable_xet_where_missing(HfApi(endpoint), REPO, "main"):
            assert constants.HF_HUB_DISABLE_XET is True
        assert len(seen) == 1, "the user has chosen"


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_refused_question_is_not_taken_for_a_hub_without_xet(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    with (
        asked_hub(status, {}) as (endpoint, _),
        pytest.raises(HfHubHTTPError),
        disable_xet_where_missing(HfApi(endpoint, token="hf_own"), REPO, "main"),
    ):
        pytest.fail("it was taken for an answer")
