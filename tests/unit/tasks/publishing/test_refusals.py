"""What the Hub refuses, or does not answer: a clear error, without the token."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from params.errors import HubRefusedError, TransientError
from tests.support.faulty_hub import Clock, Fault, FaultyHub
from tests.support.publications import REPO, TOKEN, plan, publish

# huggingface_hub uploads by `data=`, which httpx2 deprecates:
# https://github.com/huggingface/huggingface_hub/blob/main/src/huggingface_hub/lfs.py (_upload_single_part)
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")


@pytest.mark.parametrize("exists", [True, False])
def test_no_write_access(api: HfApi, hub: FaultyHub, folder: Path, clock: Clock, *, exists: bool) -> None:
    if exists:
        api.create_repo(REPO)
    bob = HfApi(endpoint=hub.endpoint, token="token-of-bob")
    with pytest.raises(HubRefusedError, match="403") as raised:
        publish(bob, plan(folder), clock)
    assert "write access to alice" in raised.value.fix
    assert clock.slept == []


@pytest.mark.parametrize("token", ["wrong-token-x", False])
def test_no_valid_token(hub: FaultyHub, folder: Path, token: str | bool) -> None:
    with pytest.raises(HubRefusedError, match="401") as raised:
        publish(HfApi(endpoint=hub.endpoint, token=token), plan(folder))
    assert "HF_TOKEN" in raised.value.fix
    assert "wrong-token-x" not in str(raised.value)


@pytest.mark.parametrize("token", ["token-of-alice\n", "token of alice", "tokén"])
def test_a_malformed_token_is_never_shown(hub: FaultyHub, folder: Path, token: str) -> None:
    with pytest.raises(HubRefusedError, match="the token holds white space") as raised:
        publish(HfApi(endpoint=hub.endpoint, token=token), plan(folder))
    assert token.strip() not in str(raised.value)
    assert hub.done == []


def test_a_malformed_token_of_the_environment_is_never_shown(
    hub: FaultyHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "token-of alice\n")
    with pytest.raises(HubRefusedError, match="the token holds white space") as raised:
        publish(HfApi(endpoint=hub.endpoint), plan(folder))
    assert "alice" not in str(raised.value).replace(REPO, "")
    monkeypatch.setenv("HF_TOKEN", f"{TOKEN}\n")
    assert publish(HfApi(endpoint=hub.endpoint), plan(folder)).how == "committed", "the client leaves out a line end"


def test_the_token_and_signatures_are_in_no_message(api: HfApi, hub: FaultyHub, folder: Path) -> None:
    release, lines = plan(folder), []
    hub.faults.append(Fault("PUT /uploads", "before", 500, times=99))
    with pytest.raises(TransientError, match=r"500 .*PUT /uploads/.*/whole\)") as unclear:
        publish(api, release, attempts=2, log=lines.append)
    hub.faults.clear()
    talkative = {
        "x-error-message": f"no {TOKEN}, not Bearer {TOKEN}x, at {hub.endpoint}/x?signature=abc, hf_abcdefghij"
    }
    hub.faults.append(Fault("POST .*/commit/", "before", 400, talkative))
    with pytest.raises(HubRefusedError, match=r"400 no \*\*\*") as refused:
        publish(api, release, attempts=2, log=lines.append)
    for told in (str(unclear.value), str(refused.value), *lines):
        assert TOKEN not in told
        assert not re.search(r"signature|abcdefghij", told), told


def test_a_broken_model_card_is_refused_at_once(api: HfApi, folder: Path, clock: Clock) -> None:
    (folder / "README.md").write_text("---\nlicense: [unclosed\n---\n")
    with pytest.raises(HubRefusedError, match="not YAML"):
        publish(api, plan(folder), clock)
    assert clock.slept == []


def test_a_hub_that_is_down(hub: FaultyHub, folder: Path, clock: Clock) -> None:
    api = HfApi(endpoint="http://127.0.0.1:9", token=TOKEN)  # the discard port: nobody listens
    with pytest.raises(TransientError, match=r"after 3 attempts") as raised:
        publish(api, plan(folder), clock, attempts=3)
    assert raised.value.where == f"http://127.0.0.1:9/{REPO}"
    assert clock.slept == [0.5, 1.0]
    assert TOKEN not in str(raised.value)


def test_a_hub_that_only_fails(api: HfApi, hub: FaultyHub, folder: Path, clock: Clock) -> None:
    hub.faults.append(Fault("", "before", 500, times=999))
    with pytest.raises(TransientError, match="500"):
        publish(api, plan(folder), clock, attempts=4)
    hub.faults.clear()
    assert not api.repo_exists(REPO)
