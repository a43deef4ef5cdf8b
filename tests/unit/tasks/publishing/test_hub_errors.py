"""Publishing to a Hub that refuses or does not answer: the errors, without the token."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from params.foundation.errors import HubRefusedError, TransientError
from tests.support.faulty_hub import Clock, Fault, FaultyHub
from tests.support.publications import REPO, TOKEN, plan, publish


@pytest.mark.parametrize("exists", [True, False])
def test_missing_write_access_is_refused(
    api: HfApi, hub: FaultyHub, folder: Path, clock: Clock, *, exists: bool
) -> None:
    if exists:
        api.create_repo(REPO)
    bob = HfApi(endpoint=hub.endpoint, token="token-of-bob")
    with pytest.raises(HubRefusedError, match="403") as raised:
        publish(bob, plan(folder), clock)
    assert "write access to alice" in raised.value.fix
    assert not [line for line in hub.done if "/uploads/" in line]
    assert clock.slept == []


@pytest.mark.parametrize("token", ["wrong-token-x", False])
def test_invalid_token_is_refused(hub: FaultyHub, folder: Path, token: str | bool) -> None:
    with pytest.raises(HubRefusedError, match="401") as raised:
        publish(HfApi(endpoint=hub.endpoint, token=token), plan(folder))
    assert "HF_TOKEN" in raised.value.fix
    assert "wrong-token-x" not in str(raised.value)


@pytest.mark.parametrize("token", ["token-of-alice\n", "token of alice", "tokén"])
def test_malformed_token_is_never_shown(hub: FaultyHub, folder: Path, token: str) -> None:
    with pytest.raises(HubRefusedError, match="the token holds white space") as raised:
        publish(HfApi(endpoint=hub.endpoint, token=token), plan(folder))
    assert token.strip() not in str(raised.value)
    assert hub.done == []


def test_malformed_token_in_the_environment_is_never_shown(
    hub: FaultyHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "token-of alice\n")
    with pytest.raises(HubRefusedError, match="the token holds white space") as raised:
        publish(HfApi(endpoint=hub.endpoint), plan(folder))
    assert "alice" not in str(raised.value).replace(REPO, "")
    monkeypatch.setenv("HF_TOKEN", f"{TOKEN}\n")
    assert publish(HfApi(endpoint=hub.endpoint), plan(folder)).how == "committed", "the client strips a line end"


def test_messages_hide_tokens_and_signatures(api: HfApi, hub: FaultyHub, folder: Path) -> None:
    release, lines = plan(folder), []
    hub.faults.append(Fault("PUT /uploads", "before", 500, times=99))
    with pytest.raises(TransientError, match=r"500 .*PUT /uploads/.*\)") as unclear:
        publish(api, release, attempts=2, log=lines.append)
    hub.faults.clear()
    leaking = {"x-error-message": f"no {TOKEN}, not Bearer {TOKEN}x, at {hub.endpoint}/x?signature=abc, hf_abcdefghij"}
    hub.faults.append(Fault("POST .*/commit/", "before", 400, leaking))
    with pytest.raises(HubRefusedError, match=r"400 no \*\*\*") as refused:
        publish(api, release, attempts=2, log=lines.append)
    for text in (str(unclear.value), str(refused.value), *lines):
        assert TOKEN not in text
        assert not re.search(r"signature|abcdefghij", text), text


def test_malformed_model_card_is_refused_without_retries(api: HfApi, folder: Path, clock: Clock) -> None:
    (folder / "README.md").write_text("---\nlicense: [unclosed\n---\n")
    with pytest.raises(HubRefusedError, match="not YAML"):
        publish(api, plan(folder), clock)
    assert clock.slept == []


def test_unreachable_hub_is_retried_then_a_transient_error(hub: FaultyHub, folder: Path, clock: Clock) -> None:
    api = HfApi(endpoint="http://127.0.0.1:9", token=TOKEN)  # nothing listens on the discard port
    with pytest.raises(TransientError, match=r"after 3 attempts") as raised:
        publish(api, plan(folder), clock, attempts=3)
    assert raised.value.where == f"http://127.0.0.1:9/{REPO}"
    assert clock.slept == [0.5, 1.0]
    assert TOKEN not in str(raised.value)


def test_failing_hub_is_a_transient_error(api: HfApi, hub: FaultyHub, folder: Path, clock: Clock) -> None:
    hub.faults.append(Fault("", "before", 500, times=999))
    with pytest.raises(TransientError, match="500"):
        publish(api, plan(folder), clock, attempts=4)
    hub.faults.clear()
    assert not api.repo_exists(REPO)
