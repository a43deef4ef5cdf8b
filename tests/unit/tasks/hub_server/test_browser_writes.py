"""No other page makes a browser write on this Hub, or gets its session: not another site, and not another port of this host."""

from __future__ import annotations

import errno
import importlib
import pkgutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from fastapi.routing import APIRoute
from huggingface_hub import CommitOperationAdd as Add
from huggingface_hub import HfApi

from tasks import hub_server
from tasks.hub_server.access import BrowserSessions, is_own_host
from tasks.hub_server.requests import PAGES
from tasks.hub_server.server import LocalHub
from tests.support.browser import needs_browser, open_page
from tests.support.html import Outline
from tests.support.hub_browser import HOST, hub_browser, own_page

REPO = "alice/model"
FORMS = {
    "/-/sign-in",
    "/-/sign-out",
    "/{namespace}/{name}/discussions/{number}/{action}",
    "/datasets/{namespace}/{name}/discussions/{number}/{action}",
    "/{namespace}/{name}/try/{revision}",
    "/datasets/{namespace}/{name}/try/{revision}",
}
CHANGES_NOTHING = {"/api/validate-yaml", "/api/{kind}/{namespace}/{name}/paths-info/{revision}"}
SIGNED = {"/uploads/{kind}/{namespace}/{name}/{sha256}/{size}"}
PARTS = {"kind": "models", "namespace": "alice", "name": "model", "revision": "main", "number": "1", "action": "merge"}
PARTS |= {"size": "1", "sha256": "0" * 64, "tag": "t", "branch": "b"}


def writing_routes() -> list[tuple[str, str]]:
    """Method and path of every route that is not for reading, of all modules with routes."""
    found = []
    for module in pkgutil.iter_modules(hub_server.__path__):
        if not module.name.startswith("routes_"):
            continue
        routers = vars(importlib.import_module(f"{hub_server.__name__}.{module.name}"))
        for name, prefixes in (("router", ("",)), ("repository_router", PAGES)):
            for route in routers[name].routes if name in routers else ():
                assert isinstance(route, APIRoute), route
                methods = sorted(route.methods - {"GET", "HEAD"})
                found += [(method, prefix + route.path) for method in methods for prefix in prefixes]
    return found


def foreign_origins(port: str) -> list[str | None]:
    own = urlsplit(f"http://{HOST}:{port}")
    other_ports = [f"http://{host}:{int(port) + 1}" for host in (own.hostname, "127.0.0.1", "localhost", "[::1]")]
    other_hosts = [
        f"http://{host}:{port}" for host in ("evil.example", "127.0.0.2", f"{HOST}.evil.example", "a.localhost")
    ]
    return [None, "", "null", "http://[", f"ftp://{HOST}:{port}", f"http://{HOST}", *other_ports, *other_hosts]


@pytest.fixture
def proposed(alice: HfApi) -> HfApi:
    alice.create_repo(REPO)
    alice.create_commit(REPO, [Add("a.txt", b"a")], commit_message="proposal", create_pr=True)
    return alice


def test_every_route_that_writes_is_known() -> None:
    paths = {path for _, path in writing_routes()}
    assert paths >= FORMS | CHANGES_NOTHING | SIGNED
    assert {path for path in paths if not path.startswith(("/api/", "/uploads/"))} - FORMS == {
        "/{namespace}/{name}.git/info/lfs/objects/batch",
        "/datasets/{namespace}/{name}.git/info/lfs/objects/batch",
    }


def test_no_other_page_can_make_a_browser_write(proposed: HfApi, hub: LocalHub) -> None:
    """Over all routes that are not for reading: with the cookie and the secret of the page, but from another page."""
    port = hub.endpoint.rpartition(":")[2]
    with hub_browser(hub.endpoint) as browser:
        assert browser.post("/-/sign-in", data={"token": "token-of-alice"}).status_code == 200
        page = Outline(browser.get(f"/{REPO}/discussions/1").text)
        hidden = {str(values["name"]): values["value"] for _, values in page.elements if values.get("type") == "hidden"}
        form = {**hidden, "token": "token-of-bob", "text": "x", "comment": "x"}
        for method, path in writing_routes():
            if path in CHANGES_NOTHING:
                continue
            origins = foreign_origins(port) if path in FORMS else [f"http://{HOST}:{port}", "https://evil.example"]
            for origin in origins:
                request = browser.build_request(method, path.format_map(PARTS), data=form)
                request.headers.pop("Origin", None)
                if origin is not None:
                    request.headers["Origin"] = origin
                answer = browser.send(request)
                if path in FORMS:
                    assert (answer.status_code, "not sent from a page" in answer.text) == (403, True), (path, origin)
                else:
                    assert answer.status_code in (401, 403), (path, origin)
        assert ">alice<" in browser.get("/").text, "still signed in, as the same user"
    assert proposed.get_discussion_details(REPO, 1).status == "open"


@pytest.mark.parametrize("origin", ["http://news.example", "http://team-machine:1", "null", None])
def test_no_other_site_signs_in_or_out_on_a_name(tmp_path: Path, origin: str | None) -> None:
    """Over HTTP on another name than this machine's, browsers send no Sec-Fetch-Site, and always an Origin."""
    with LocalHub(tmp_path, tokens={"t": "eve"}, host="0.0.0.0", allow_remote=True) as hub:
        address = f"127.0.0.1:{hub.endpoint.rpartition(':')[2]}"
        headers = {"Host": "team-machine:80"} | ({"Origin": origin} if origin else {})
        for path in ("/-/sign-in", "/-/sign-out"):
            answer = httpx2.post(f"http://{address}{path}", data={"token": "t"}, headers=headers)
            assert (answer.status_code, "set-cookie" in answer.headers) == (403, False), path
        headers["Origin"] = "http://team-machine:80"
        assert httpx2.post(f"http://{address}/-/sign-in", data={"token": "t"}, headers=headers).status_code == 200


def test_session_counts_only_under_its_own_host(alice: HfApi, hub: LocalHub) -> None:
    alice.create_repo("alice/secret", private=True)
    for name in ("127.0.0.1", "localhost", "[::1]", "a.localhost"):
        answer = httpx2.post(
            f"{hub.endpoint}/-/sign-in", data={"token": "token-of-alice"}, headers=own_page(hub.endpoint, name)
        )
        assert "set-cookie" not in answer.headers, name
    with hub_browser(hub.endpoint) as browser:
        browser.post("/-/sign-in", data={"token": "token-of-alice"})
        assert browser.get("/alice/secret").status_code == 200
        cookies = dict(browser.cookies)
    for name in ("127.0.0.1", "localhost", "[::1]", f"{'1' * 32}.localhost"):
        there = own_page(hub.endpoint, name)
        assert httpx2.get(f"{hub.endpoint}/alice/secret", cookies=cookies, headers=there).status_code == 404, name
        httpx2.post(f"{hub.endpoint}/-/sign-out", cookies=cookies, headers=there)
    mine = own_page(hub.endpoint)
    assert httpx2.get(f"{hub.endpoint}/alice/secret", cookies=cookies, headers=mine).status_code == 200, (
        "not signed out"
    )


def test_no_sibling_of_a_name_sets_the_cookie_over_https(tmp_path: Path) -> None:
    """A team's Hub behind a proxy that speaks https. Browsers take `__Host-` only with Secure, the path / and no domain."""
    with LocalHub(tmp_path, tokens={"t": "alice"}, host="0.0.0.0", allow_remote=True) as hub:
        address = f"http://127.0.0.1:{hub.endpoint.rpartition(':')[2]}"
        HfApi(endpoint=address, token="t").create_repo("alice/secret", private=True)
        there = {"Host": "hub.example.org", "Origin": "https://hub.example.org", "X-Forwarded-Proto": "https"}
        answer = httpx2.post(f"{address}/-/sign-in", data={"token": "t"}, headers=there)
        name, _, value = answer.headers["set-cookie"].partition(";")[0].partition("=")
        assert name.startswith("__Host-")
        assert {"Secure", "Path=/"} <= set(answer.headers["set-cookie"].split("; "))
        assert "domain" not in answer.headers["set-cookie"].lower()
        for sent, status in ((name, 200), (name.removeprefix("__Host-"), 404)):
            found = httpx2.get(f"{address}/alice/secret", headers=there | {"Cookie": f"{sent}={value}"})
            assert found.status_code == status, sent
        httpx2.post(f"{address}/-/sign-out", headers=there | {"Cookie": f"{name}={value}"})
        assert httpx2.get(f"{address}/alice/secret", headers=there | {"Cookie": f"{name}={value}"}).status_code == 404


def test_every_form_to_sign_in_leads_to_another_host() -> None:
    """Who knows the name at which a session begins could get its cookie, so nobody may know it before."""
    sessions = BrowserSessions("c", own_hosts=True)
    hosts = {sessions.new_host() for _ in range(100)}
    assert len(hosts) == 100
    assert all(map(is_own_host, hosts))
    assert not any(map(is_own_host, ("localhost", "a.localhost", "127.0.0.1", f"{HOST}.", f"x{HOST}", f"{HOST}\n")))


def test_form_is_sent_to_a_new_host_whatever_the_name_of_its_page(hub: LocalHub) -> None:
    seen = set()
    for name in ("127.0.0.1", "localhost", HOST, HOST):
        page = httpx2.get(f"{hub.endpoint}/-/sign-in", headers=own_page(hub.endpoint, name))
        (action,) = [str(values["action"]) for tag, values in Outline(page.text).elements if tag == "form"]
        seen.add(urlsplit(action).hostname or "")
        assert f"form-action http://{urlsplit(action).netloc} " in page.headers["content-security-policy"]
    assert len(seen - {HOST}) == 4
    assert all(map(is_own_host, seen))


@pytest.mark.parametrize("port", [0, 1])
def test_nobody_else_answers_at_a_name_of_this_machine(tmp_path: Path, port: int) -> None:
    """Browsers look for `localhost` at 127.0.0.1 and at ::1: the Hub has both, or does not start."""
    try:
        other = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with other:
        if port:
            with (
                pytest.raises(OSError, match="in use") as raised,
                LocalHub(tmp_path, tokens={}, port=other.getsockname()[1]),
            ):
                pass
            assert raised.value.errno == errno.EADDRINUSE
            return
        with LocalHub(tmp_path, tokens={}) as hub:
            own_port = hub.endpoint.rpartition(":")[2]
            for address in ("127.0.0.1", "[::1]"):
                assert httpx2.get(f"http://{address}:{own_port}/api/models").json() == [], address


@contextmanager
def other_port(page: str) -> Iterator[tuple[str, list[str]]]:
    """A server of another user of this machine, and the cookies that it gets."""
    cookies: list[str] = []

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            cookies.extend(self.headers.get_all("Cookie") or [])
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", cookies
        server.shutdown()
        thread.join()


@needs_browser
def test_browser_sends_the_session_to_no_other_port(alice: HfApi, hub: LocalHub) -> None:
    alice.create_repo("alice/secret", private=True)
    with other_port("<img src='/again.png'>") as (address, cookies):
        for host in ("127.0.0.1", "localhost"):
            there = address.replace("127.0.0.1", host)
            assert open_page(there, by_way_of=hub.sign_in_link("alice")).status == 200
    assert cookies == []
    assert "alice/secret" in open_page("/", by_way_of=hub.sign_in_link("alice")).dom


@needs_browser
def test_browser_signs_in_with_a_token(alice: HfApi, hub: LocalHub) -> None:
    alice.create_repo("alice/secret", private=True)
    filled = {"#token": "token-of-alice"}
    visit = open_page(f"{hub.endpoint}/-/sign-in", fill=filled, click="main button")
    assert (visit.status, visit.blocked, visit.console) == (200, [], [])
    assert "alice" in Outline(visit.dom).text
    assert is_own_host(urlsplit(visit.url).hostname or "")


@needs_browser
def test_browser_does_not_sign_in_by_a_form_of_another_port(hub: LocalHub) -> None:
    target = f"http://{HOST}:{hub.endpoint.rpartition(':')[2]}/-/sign-in"
    form = f"<form method=post action='{target}'><input name=token value=token-of-bob><button>x</button></form>"
    with other_port(form) as (address, _):
        visit = open_page(address, click="button")
    assert (visit.status, "not sent from a page of this Hub" in visit.dom) == (403, True)
