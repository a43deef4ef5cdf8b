"""`serve_hub_until_signal`: its output, who may sign in, and invalid settings."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from params import EvergreenError
from params.foundation.errors import HubRefusedError, StorageError, TransientError
from tasks.hub_client.local import read_tokens_file, serve_hub_until_signal
from tests.support import forked
from tests.support.hub_browser import own_page

ALICE, BOB = "hf_" + "a" * 40, "hf_" + "b" * 40
SERVE = """
import sys
from pathlib import Path
from tasks.hub_client.local import serve_hub_until_signal
from tests.support import forked
folder, host, tokens = sys.argv[1:]
is_new = not Path(folder).exists()
serve_hub_until_signal(Path(folder), host=host, port=0, tokens=Path(tokens) if tokens else None, new=is_new)
"""


@pytest.fixture
def members(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.yaml"
    path.write_text(f"tokens:\n  {ALICE}: alice\n  {BOB}: bob\nteams:\n  vision: [bob]\n")
    path.chmod(0o600)
    return path


@contextmanager
def serving(folder: Path, host: str = "127.0.0.1", tokens: Path | str = "") -> Iterator[tuple[str, str]]:
    """Run a Hub in a child process and stop it with Ctrl-C; yields its first lines and its address."""
    process = subprocess.Popen(
        [forked.python(), "-c", SERVE, str(folder), host, str(tokens)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        output = ""
        while "Ctrl-C" not in output and (line := process.stdout.readline()):
            output += line
        port = re.search(r"is at http://\S+:(\d+)", output)
        assert port, output
        yield output, f"http://127.0.0.1:{port[1]}"
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=10)
        assert (process.returncode, said) == (0, "The Hub has stopped.\n")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_loopback_hub_needs_no_tokens_file(tmp_path: Path) -> None:
    with serving(tmp_path / "hub") as (output, endpoint):
        printed = re.search(rf"HF_ENDPOINT={endpoint} HF_TOKEN=(hf_[0-9a-f]{{40}}) evergreen", output)
        assert printed
        HfApi(endpoint=endpoint, token=printed[1]).create_repo("anybody/model", private=True)
        for token, status in (("hf_local", 401), (None, 404)):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            assert httpx2.get(f"{endpoint}/api/models/anybody/model", headers=headers).status_code == status
        link = re.search(r"browse: +(\S+)", output)
        assert link
        there = httpx2.URL(
            httpx2.get(link[1]).headers["location"]
        )  # a host name of its own, which not every resolver knows
        assert re.fullmatch(r"[0-9a-f]{32}\.localhost", there.host)
        with httpx2.Client(base_url=endpoint, headers=own_page(endpoint, there.host)) as browser:
            assert "Signed in as local" in browser.get(there.raw_path.decode()).text
            assert browser.get("/anybody/model").status_code == 200


def test_team_hub_admits_only_its_tokens(tmp_path: Path, members: Path) -> None:
    with serving(tmp_path / "hub", "0.0.0.0", members) as (output, endpoint):
        assert ALICE not in output
        assert "once" not in output
        alice, bob = HfApi(endpoint=endpoint, token=ALICE), HfApi(endpoint=endpoint, token=BOB)
        bob.create_repo("vision/model", private=True)
        assert [team["name"] for team in bob.whoami()["orgs"]] == ["vision"]
        for token, status in ((ALICE, 403), ("hf_local", 401), ("x", 401)):
            with pytest.raises(HfHubHTTPError) as raised:
                HfApi(endpoint=endpoint, token=token).create_repo("vision/other")
            assert raised.value.response.status_code == status
        assert not alice.repo_exists("vision/model")
        answer = httpx2.get(f"{endpoint}/api/models", headers={"Host": "hub.team.example"})
        assert answer.status_code == 200


@pytest.mark.parametrize("place", ["nothing", "an empty folder", "a folder of something else"])
def test_a_hub_is_made_only_when_it_is_asked_for(tmp_path: Path, place: str) -> None:
    """A Hub in the wrong folder, or in the place of a share that is not mounted, would be one without any release."""
    folder = tmp_path / "hub"
    if place != "nothing":
        (folder / "else" if "else" in place else folder).mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(HubRefusedError, match=r"there is no Hub in .*hub: .*\n  fix: .*--new"):
        serve_hub_until_signal(folder, host="127.0.0.1", port=0, tokens=None)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_hub_that_is_there_is_not_made_anew(tmp_path: Path) -> None:
    for _ in range(2):  # it is there although nobody has uploaded anything
        with serving(tmp_path / "hub"):
            pass
    with pytest.raises(HubRefusedError, match="there is a Hub in it already"):
        serve_hub_until_signal(tmp_path / "hub", host="127.0.0.1", port=0, tokens=None, new=True)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1"])
def test_other_hosts_need_a_tokens_file(tmp_path: Path, host: str) -> None:
    with pytest.raises(HubRefusedError, match="without a tokens file"):
        serve_hub_until_signal(tmp_path / "hub", host=host, port=0, tokens=None, new=True)
    assert not (tmp_path / "hub").exists()


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        (f"tokens: {{{ALICE}: alice}}", 0o640, "chmod 600"),
        (f"tokens: {{{ALICE}: alice}}", 0o604, "chmod 600"),
        ("tokens: {short: alice}", 0o600, "could be guessed"),
        (f"tokens: {{alice: {ALICE}}}", 0o600, "could be guessed"),
        ("tokens: {12345678901234567890123: alice}", 0o600, "tokens are not as"),
        (f"tokens: {{{ALICE}: [alice]}}", 0o600, "tokens are not as"),
        (f"{ALICE}: alice\ntokens: {{{BOB}: bob}}", 0o600, "its keys are not as"),
        ("", 0o600, "its keys are not as"),
        ("tokens: {}", 0o600, "tokens are not as"),
        (f"tokens:\n  {ALICE}: alice\n  {ALICE}: bob\n", 0o600, "twice"),
        (f"tokens:\n  {ALICE}: alice\n [\n", 0o600, "not YAML"),
        (f"tokens: {{{ALICE}: alice}}\nteams: {{t: [carol]}}", 0o600, "no token belongs to carol"),
        (f"tokens: {{{ALICE}: alice}}\nteams: [t]", 0o600, "teams are not as"),
        (f"tokens: {{{ALICE}: ../alice}}", 0o600, "not a valid name of a user"),
        (f"tokens: {{{ALICE}: api}}", 0o600, "not a valid name of a user"),
    ],
)  # fmt: skip
def test_invalid_tokens_file_is_refused(tmp_path: Path, text: str, mode: int, message: str) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(HubRefusedError) as raised:
        serve_hub_until_signal(tmp_path / "hub", host="127.0.0.1", port=0, tokens=path, new=True)
    assert message in str(raised.value)
    assert "fix: " in str(raised.value)
    assert "aaaa" not in str(raised.value), "the message contains a token"


def test_tokens_file_may_be_json(members: Path) -> None:
    members.write_text(json.dumps({"tokens": {ALICE: "alice"}, "teams": {"t": ["alice"]}}))
    assert read_tokens_file(members).teams == {"t": ["alice"]}
    assert ALICE not in repr(read_tokens_file(members))


def test_port_in_use_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(TransientError, match=rf"port {port} is in use") as raised:
            serve_hub_until_signal(tmp_path, host="localhost", port=port, tokens=None, new=True)
    assert "--port" in raised.value.fix


@pytest.mark.parametrize(
    ("folder", "host", "error"),
    [
        ("file/hub", "127.0.0.1", StorageError),
        ("hub", "no-such-name.invalid", HubRefusedError),
        ("hub", "203.0.113.7", HubRefusedError),
    ],
)
def test_start_errors(tmp_path: Path, members: Path, folder: str, host: str, error: type[EvergreenError]) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(error, match="fix: "):
        serve_hub_until_signal(tmp_path / folder, host=host, port=0, tokens=members, new=True)


def test_a_folder_that_nobody_may_look_into_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another user's folder is; the user of this test may look into all."""

    def forbid(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_dir", forbid)
    with pytest.raises(StorageError, match="the folder cannot be read: Permission denied\n  fix: ask its owner"):
        serve_hub_until_signal(tmp_path, host="127.0.0.1", port=0, tokens=None)
