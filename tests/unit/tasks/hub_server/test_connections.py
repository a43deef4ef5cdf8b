"""What clients can take from the Hub without a token: memory and limits."""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute
from huggingface_hub import CommitOperationAdd as Add
from huggingface_hub import HfApi

from tasks.hub_server import (
    limits,
    routes_descriptions,
    routes_pages,
    routes_repositories,
    routes_uploads,
)
from tasks.hub_server.server import LocalHub
from tests.support import forked
from tests.support.hub_browser import HOST, own_page

REPO = "alice/model"
ROUTERS: list[APIRouter] = [
    module.router
    for module in (
        routes_descriptions,
        routes_pages,
        routes_repositories,
        routes_uploads,
    )
]
READ_WITHOUT_TOKEN = {"/api/validate-yaml", "/-/sign-in"}
PARTS = {"{kind}": "models", "{namespace}": "alice", "{name}": "model", "{revision}": "main", "{size}": "100"}


def connect(hub: LocalHub) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(hub.endpoint.rpartition(":")[2])), timeout=10)


def routes_with_bodies() -> Iterator[tuple[str, str]]:
    for router in ROUTERS:
        for route in router.routes:
            assert isinstance(route, APIRoute)
            for method in route.methods - {"GET", "HEAD"}:
                if route.path != "/-/sign-out":  # it has no body
                    yield method, route.path


def status_without_a_body(hub: LocalHub, method: str, path: str, announced_bytes: int, *headers: str) -> int:
    """Send the head of a request and none of its body, and return the status of the answer."""
    head = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {announced_bytes}", *headers]
    with connect(hub) as client:
        client.sendall("\r\n".join([*head, "Content-Type: application/json", "", ""]).encode())
        return int(client.recv(1000).split()[1])


@pytest.mark.parametrize(("method", "path"), list(routes_with_bodies()))
def test_bodies_are_read_after_authorization(alice: HfApi, hub: LocalHub, method: str, path: str) -> None:
    alice.create_repo(REPO, private=True)
    for part, value in PARTS.items():
        path = path.replace(part, value)
    for name in ("{tag}", "{branch}", "{sha256}", "{part}"):
        path = path.replace(name, "1")
    too_large = limits.ANONYMOUS_BYTES + 1
    assert 400 <= status_without_a_body(hub, method, path, too_large) < 500
    assert status_without_a_body(hub, method, path, 10, "Authorization: Bearer unknown") in (401, 403), path
    if path not in READ_WITHOUT_TOKEN:
        assert status_without_a_body(hub, method, path, 10) in (401, 403, 404), path


@pytest.mark.parametrize(
    "path", ["/uploads/x.git/info/lfs/objects/batch", "/api/models/commit/model/preupload/main", "/api/validate-yaml"]
)
def test_the_matched_route_bounds_the_body(hub: LocalHub, path: str) -> None:
    """A namespace called `uploads` or `commit` does not get the bounds of an upload or a commit."""
    too_large = 1 + (limits.BODY_BYTES if path != "/api/validate-yaml" else limits.ANONYMOUS_BYTES)
    headers = ["Authorization: Bearer token-of-alice"] if path != "/api/validate-yaml" else []
    assert status_without_a_body(hub, "POST", path, too_large, *headers) in (404, 413)


def test_bodies_without_a_token_are_small(alice: HfApi, hub: LocalHub) -> None:
    alice.create_repo(REPO)
    for path in ("/api/validate-yaml", "/-/sign-in", f"/api/models/{REPO}/paths-info/main"):
        for content in (b" " * (limits.ANONYMOUS_BYTES + 1), iter([b" " * limits.ANONYMOUS_BYTES] * 2)):
            headers = own_page(hub.endpoint)
            assert httpx2.post(hub.endpoint + path, content=content, headers=headers).status_code == 413, path
        largest = b" " * limits.ANONYMOUS_BYTES
        assert httpx2.post(hub.endpoint + path, content=largest, headers=headers).status_code != 413, path


def test_a_body_has_a_time_limit(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_WINDOW_S", 0.2)
    monkeypatch.setattr(limits, "_MIN_BYTES_PER_S", 1 << 30)
    assert status_without_a_body(hub, "POST", "/api/validate-yaml", 10) == 408


@pytest.mark.parametrize("announced", [10, 1 << 40])
def test_a_body_that_drips_has_the_same_limit_whatever_it_announces(
    alice: HfApi, hub: LocalHub, monkeypatch: pytest.MonkeyPatch, announced: int
) -> None:
    monkeypatch.setattr(limits, "_WINDOW_S", 0.6)
    alice.create_repo(REPO)
    objects = [{"oid": "0" * 64, "size": announced}]
    batch = {"operation": "upload", "objects": objects}
    headers = {"Authorization": "Bearer token-of-alice"}
    answer = httpx2.post(f"{hub.endpoint}/{REPO}.git/info/lfs/objects/batch", json=batch, headers=headers)
    url = answer.json()["objects"][0]["actions"]["upload"]["href"]
    head = f"PUT {url.removeprefix(hub.endpoint)} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {announced}\r\n\r\n"
    with connect(hub) as slow:
        slow.settimeout(0.2)
        slow.sendall(head.encode())
        start, seen = time.monotonic(), b""
        while not seen and time.monotonic() < start + 10:
            with contextlib.suppress(TimeoutError):
                slow.sendall(b"x" * (time.monotonic() < start + 1))
                seen = slow.recv(100)
    assert seen.startswith(b"HTTP/1.1 408"), seen


def test_a_body_at_the_least_rate_is_read(alice: HfApi, hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that brings enough begins another one."""
    monkeypatch.setattr(limits, "_WINDOW_S", 1.5)
    monkeypatch.setattr(limits, "_MIN_BYTES_PER_S", 1000)

    def blocks() -> Iterator[bytes]:
        for _ in range(4):
            time.sleep(0.7)
            yield b" " * 2000

    answer = httpx2.post(f"{hub.endpoint}/api/validate-yaml", content=blocks(), timeout=20)
    assert answer.status_code == 400, answer.text


def half_sent(hub: LocalHub, count: int, head: str, opened: contextlib.ExitStack) -> None:
    for _ in range(count):
        client = opened.enter_context(connect(hub))
        with contextlib.suppress(ConnectionError):
            client.sendall(head.replace("\n", "\r\n").encode())


@pytest.mark.parametrize("who", ["nobody", "a reader", "a writer", "who does not read"])
def test_half_sent_bodies_lock_nobody_out(
    alice: HfApi, hub: LocalHub, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """Of the client that has most connections the oldest one is closed, whether it has a token, an upload address or nothing.

    So it is with large answers that nobody reads.
    """
    monkeypatch.setattr(limits, "MAX_CONNECTIONS", 12)
    alice.create_repo(REPO)
    token = {"a reader": "token-of-bob", "a writer": "token-of-alice"}.get(who, "")
    head = f"POST /-/sign-in HTTP/1.1\nHost: {HOST}\nOrigin: http://{HOST}\nContent-Length: 200000\n\nt"
    if who == "who does not read":
        alice.create_commit(REPO, [Add("a.txt", b"x" * (8 << 20))], commit_message="a")
        head = f"GET /{REPO}/resolve/main/a.txt HTTP/1.1\nHost: localhost\n\n"
    if token:
        batch = {"operation": "upload", "objects": [{"oid": "0" * 64, "size": 1 << 20}]}
        address = f"{hub.endpoint}/{REPO}.git/info/lfs/objects/batch"
        answer = httpx2.post(address, json=batch, headers={"Authorization": f"Bearer {token}"})
        path = answer.json()["objects"][0]["actions"]["upload"]["href"].removeprefix(hub.endpoint)
        head = f"PUT {path} HTTP/1.1\nHost: localhost\nContent-Length: {1 << 20}\n\nx"
    with contextlib.ExitStack() as opened:
        upload = opened.enter_context(connect(hub))  # of another user, under way all the time
        upload.sendall(
            f"POST /api/models/{REPO}/tag/main HTTP/1.1\r\nHost: localhost\r\nContent-Length: 11\r\n"
            f"Authorization: Bearer token-of-{'bob' if who == 'a writer' else 'alice'}\r\n\r\n".encode()
        )
        assert httpx2.get(f"{hub.endpoint}/api/models").status_code == 200, (
            "by now the Hub has read the head of the upload"
        )
        half_sent(hub, 40, head, opened)
        for _ in range(3):
            assert httpx2.get(f"{hub.endpoint}/api/models").status_code == 200
        upload.sendall(b'{"tag":"t"}')
        assert upload.recv(100).split()[1] in (b"200", b"403")


def test_many_addresses_are_no_many_clients(alice: HfApi, hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user of this machine has all addresses of 127.0.0.0/8: one with two bodies from each cuts nobody off who has three."""
    monkeypatch.setattr(limits, "MAX_CONNECTIONS", 12)
    alice.create_repo(REPO)
    begun = "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 11\r\n{token}\r\n"
    token = "Authorization: Bearer token-of-alice\r\n"
    port = int(hub.endpoint.rpartition(":")[2])
    with contextlib.ExitStack() as opened:
        uploads = [opened.enter_context(connect(hub)) for _ in range(3)]
        for upload in uploads:
            upload.sendall(begun.format(path=f"/api/models/{REPO}/tag/main", token=token).encode())
        time.sleep(0.2)
        for number in range(2, 40):
            source = (f"127.0.{number}.1", 0)
            other = opened.enter_context(socket.create_connection(("127.0.0.1", port), 10, source_address=source))
            with contextlib.suppress(ConnectionError):
                other.sendall(begun.format(path="/api/validate-yaml", token="").encode())
            time.sleep(0.005)
        for number, upload in enumerate(uploads):
            upload.sendall(b'{"tag":"%d"}' % number)
            assert upload.recv(100).split()[1:2] == [b"200"], number


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.7", "10.0.0.0/24"),
        ("::ffff:10.0.0.7", "10.0.0.0/24"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("127.3.2.1", "this machine"),
        ("::ffff:127.0.0.1", "this machine"),
        ("::1", "this machine"),
    ],
)
def test_clients_are_told_apart_by_network(address: str, network: str) -> None:
    connection = limits.LimitedConnection.__new__(limits.LimitedConnection)
    connection.client, connection.scope = (address, 1), None  # type: ignore[assignment]
    assert connection.client_names == (network, address)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_all_addresses_of_ipv6_are_those_of_ipv4_too(tmp_path: Path) -> None:
    with LocalHub(tmp_path, tokens={}, host="::", allow_remote=True) as hub:
        port = hub.endpoint.rpartition(":")[2]
        for address in ("127.0.0.1", "[::1]"):
            assert httpx2.get(f"http://{address}:{port}/api/models").status_code == 200, address


SERVE = """
import resource, sys
from pathlib import Path
from tasks.hub_server.server import LocalHub
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
with LocalHub(Path(sys.argv[1]), tokens={}) as hub:
    print(hub.endpoint, flush=True)
    sys.stdin.read()
"""


def test_half_open_connections_lock_nobody_out(tmp_path: Path) -> None:
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    command = [forked.python(), "-c", SERVE, str(tmp_path)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as hub,
        contextlib.ExitStack() as half_open,
    ):
        assert hub.stdout
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        half_open.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (before, most))
        endpoint = hub.stdout.readline().strip()
        address = ("127.0.0.1", int(endpoint.rpartition(":")[2]))
        with httpx2.Client() as early:
            assert early.get(f"{endpoint}/api/models").status_code == 200
            for number in range(1100):
                client = half_open.enter_context(socket.create_connection(address, timeout=20))
                with contextlib.suppress(ConnectionError):
                    client.sendall(b"GET /api/models HTTP/1.1\r\nHost: local"[: number % 2 * 100])
            assert httpx2.get(f"{endpoint}/api/models", timeout=5).status_code == 200
            assert len(list(Path(f"/proc/{hub.pid}/fd").iterdir())) < limits.MAX_CONNECTIONS + 50
        hub.communicate()


def seconds_until_closed(client: socket.socket) -> float:
    start = time.monotonic()
    with contextlib.suppress(ConnectionError):
        while client.recv(1 << 20):
            pass
    return time.monotonic() - start


def test_a_connection_without_a_request_is_closed(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEAD_TIMEOUT_S", 0.5)
    with connect(hub) as silent:
        assert 0.3 < seconds_until_closed(silent) < 3
    with connect(hub) as slow:
        start = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < start + 5:
                slow.sendall(b"G")
                time.sleep(0.1)
        assert time.monotonic() - start < 3


def test_a_head_has_a_size_limit(hub: LocalHub) -> None:
    with connect(hub) as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (1 << 20))
        with contextlib.suppress(ConnectionError):
            assert client.recv(100).startswith(b"HTTP/1.1 400")


def large_files_are_open() -> bool:
    return any("lfs/objects" in str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())


def test_a_client_that_does_not_read_is_disconnected(
    alice: HfApi, hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SEND_TIMEOUT_S", 0.3)
    alice.create_repo(REPO)
    size = 32 << 20
    alice.create_commit(REPO, [Add("a.bin", b"x" * size)], commit_message="a")
    with connect(hub) as client:
        client.sendall(f"GET /{REPO}/resolve/main/a.bin HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        time.sleep(1.5)
        received = 0
        with contextlib.suppress(ConnectionError):
            while block := client.recv(1 << 20):
                received += len(block)
        assert received < size
    deadline = time.monotonic() + 5
    while large_files_are_open() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not large_files_are_open()


@pytest.mark.parametrize(("bytes_at_once", "is_read"), [(1 << 17, True), (1 << 12, False)])
def test_an_answer_is_read_at_a_least_rate(
    alice: HfApi, hub: LocalHub, monkeypatch: pytest.MonkeyPatch, bytes_at_once: int, is_read: bool
) -> None:
    """10 times a second, with a limit of 100 KiB/s: whatever the kernel has taken counts as read only once."""
    monkeypatch.setattr(limits, "SEND_TIMEOUT_S", 1)
    monkeypatch.setattr(limits, "_MIN_BYTES_PER_S", 100 << 10)
    alice.create_repo(REPO)
    alice.create_commit(REPO, [Add("a.bin", b"x" * (64 << 20))], commit_message="a")
    with connect(hub) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.sendall(f"GET /{REPO}/resolve/main/a.bin HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        end = time.monotonic() + 3.5
        while time.monotonic() < end and client.recv(bytes_at_once):
            time.sleep(0.1)
        assert large_files_are_open() is is_read


def test_a_hub_that_ends_says_a_line_for_each_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Half-sent bodies, for example; no traceback."""
    with LocalHub(tmp_path, tokens={}) as hub, contextlib.ExitStack() as opened:
        half_sent(hub, 2, "POST /api/validate-yaml HTTP/1.1\nHost: localhost\nContent-Length: 100\n\nx", opened)
        assert httpx2.get(f"{hub.endpoint}/api/models").status_code == 200
        opened.callback(caplog.set_level, "WARNING")
        hub.__exit__()
        found = [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
        assert len(found) == 2, caplog.text
        assert all("was cut off, because the Hub ends" in record.getMessage() for record in found)
        assert "Traceback" not in caplog.text
