"""The web pages: content, permissions, and the isolation of uploaded files."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from urllib.parse import urljoin, urlsplit

import httpx2
import pytest
from huggingface_hub import CommitOperationAdd as Add
from huggingface_hub import HfApi

from tasks.hub_server.access import is_own_host
from tasks.hub_server.server import LocalHub
from tests.support.browser import needs_browser, open_page
from tests.support.hub_browser import HOST, hub_browser, own_page

REPO = "alice/model"
HTML = {"Accept": "text/html,*/*"}
CARD = """---
license: mit
tags: [a, <b>]
model-index: [{name: hidden, results: []}]
x: {"y": 1}
---
# Model

See the [report](report.html), the [settings](config.json), [the notes](notes/) and [evil](javascript:alert(1)).

![image](images/a.png) ![tracker](https://tracker.example/a.png) <script>alert("card")</script>

| metric | value |
| --- | ---: |
| accuracy | 0.9 |
"""
REPORT = """<!doctype html><title>report</title><meta http-equiv="refresh" content="0; url=https://evil.example/r">
<link rel="stylesheet" href="https://evil.example/a.css"><style>h1 { color: green }</style><h1>Report</h1>
<img src="https://evil.example/a.png"><img src="/"><iframe src="/"></iframe><form action="/-/sign-out" method="post">
<button autofocus>x</button></form><p>before</p>
<script>document.querySelector("p").textContent = "ran"; fetch("/api/models"); document.forms[0].submit()</script>"""


def picture() -> bytes:
    """A white pixel as PNG."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    header = chunk(b"IHDR", b"\0\0\0\1\0\0\0\1\x08\0\0\0\0")
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0\xff")) + chunk(b"IEND", b"")


@pytest.fixture
def filled(alice: HfApi) -> HfApi:
    """Two releases of one repository, and a private repository."""
    files = {"README.md": CARD.encode(), "report.html": REPORT.encode(), "images/a.png": picture()}
    files |= {"config.json": b'{"a": "<b>&"}', "notes/a&b.txt": b"1", "weights.safetensors": b"\0" * 3000}
    files |= {"long.txt": b"x" * (600 << 10), "binary.bin2": b"\xff\xfe", "drawing.svg": b"<svg onload='alert(1)'/>"}
    for repo, private in ((REPO, False), ("alice/secret", True)):
        alice.create_repo(repo, private=private)
        operations = [Add(path, content) for path, content in files.items()]
        first = alice.create_commit(repo, operations, commit_message="Release <1>", commit_description="because\nof it")
        alice.create_tag(repo, tag="release/1", revision=first.oid)
        alice.create_commit(repo, [Add("config.json", b"{}")], commit_message="later")
    return alice


@pytest.fixture
def browser(hub: LocalHub) -> Iterator[httpx2.Client]:
    with hub_browser(hub.endpoint) as client:
        yield client


def sign_in(client: httpx2.Client, token: str) -> httpx2.Response:
    return client.post("/-/sign-in", data={"token": token})


def test_pages_show_the_repositories(filled: HfApi, browser: httpx2.Client) -> None:
    front = browser.get("/").text
    assert '<a class="title" href="/alice/model">alice/model</a>' in front
    assert "1 release<" in front
    assert "later · " in front
    card = browser.get(f"/{REPO}").text
    assert '<th scope="row">tags</th><td>a, &lt;b&gt;</td>' in card
    assert '<th scope="row">x</th><td>{&#34;y&#34;: 1}</td>' in card
    assert "hidden" not in card
    assert '<td class="right">0.9</td>' in card
    assert 'src="/alice/model/resolve/main/images/a.png"' in card
    assert 'href="/alice/model/resolve/main/report.html"' in card
    assert browser.get(f"/{REPO}/blob/main/notes").url.path == f"/{REPO}/tree/main/notes", (
        "where a link to a folder leads"
    )
    assert "<script" not in card
    old = browser.get(f"/{REPO}/blob/release%2F1/config.json").text
    assert "<pre>{&#34;a&#34;: &#34;&lt;b&gt;&amp;&#34;}</pre>" in old
    assert (
        'src="/alice/model/resolve/release%2F1/images/a.png"' in browser.get(f"/{REPO}/blob/release%2F1/README.md").text
    )
    files = browser.get(f"/{REPO}/tree/main").text
    assert re.search(r">weights\.safetensors</a>\s*<span class=\"badge\" title=\"SHA-256 [0-9a-f]{64}\">LFS<", files)
    assert "3.0 kB" in files
    assert 'href="/alice/model/blob/main/notes/a%26b.txt"' in browser.get(f"/{REPO}/tree/main/notes").text
    revisions = browser.get(f"/{REPO}/commits/main").text
    assert [title in revisions for title in ("later", "Release &lt;1&gt;", "initial commit")] == [True] * 3
    assert revisions.index("release/1") < revisions.index("because\nof it") < revisions.index("initial commit")
    assert "Too large" in browser.get(f"/{REPO}/blob/main/long.txt").text
    assert "not text" in browser.get(f"/{REPO}/blob/main/binary.bin2").text
    commit = filled.list_repo_commits(REPO)[1].commit_id
    assert "weights.safetensors" in browser.get(f"/{REPO}/commit/{commit}").text


def test_pages_have_no_broken_links(filled: HfApi, browser: httpx2.Client) -> None:
    queue, seen = ["/"], set()
    while queue:
        url = queue.pop()
        answer = browser.get(url)
        assert answer.status_code == 200, f"{answer.status_code} {url}"
        if "/resolve/" not in url:
            found = {
                urljoin(url, href.replace("&amp;", "&")) for href in re.findall(r'(?:href|src)="([^"#]+)', answer.text)
            }
            new = {link for link in found if link.startswith("/")} - seen
            seen |= new
            queue += sorted(new)
    assert len(seen) > 40


MISSING_PAGES = """
    /alice/none /alice/secret /alice/model/tree/v9 /alice/model/blob/main/none.txt /a/b/c/d /gpt2 /%2e%2e/%2e%2e
    /alice/model/blob/main/..%2f..%2fHEAD /alice/model/resolve/main/none.txt
    /alice/model/tree/main/..%2f /alice/model/commits/%00 /alice/model/blob/main/%00 /alice/model/tree/%ff%fe
    /alice/model/tree/..%2f..%2fHEAD /alice/model/tree/main/%5c..%5c /-/other /datasets/alice/model
"""


def test_missing_pages_answer_with_404(filled: HfApi, hub: LocalHub, browser: httpx2.Client) -> None:
    for path in [*MISSING_PAGES.split(), "/alice/model/tree/" + "x" * 300, "/alice/model/tree/" + "x%2F" * 600]:
        answer = browser.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8"), path
        assert "All repositories" in answer.text
        assert httpx2.get(hub.endpoint + path).headers["content-type"] == "application/json"


def test_private_pages_need_permission(filled: HfApi, hub: LocalHub, browser: httpx2.Client) -> None:
    paths = ["/alice/secret", "/alice/secret/tree/main", "/alice/secret/blob/main/config.json"]
    paths += [
        "/alice/secret/resolve/main/config.json",
        "/alice/secret/commits/main",
    ]
    assert "secret" not in browser.get("/").text
    assert sign_in(browser, "no-such-token").status_code == 403
    assert {browser.get(path).status_code for path in paths} == {404}
    assert sign_in(browser, "token-of-bob").status_code == 200
    assert {browser.get(path).status_code for path in paths} == {404}
    assert "secret" not in browser.get("/").text
    assert "bob" in browser.get("/").text
    answer = sign_in(browser, "token-of-alice")
    cookie = answer.headers["set-cookie"]
    assert "token-of-alice" not in cookie + answer.text
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert {browser.get(path).status_code for path in paths} == {200}
    assert "alice/secret" in browser.get("/").text
    stolen = dict(browser.cookies)
    browser.post("/-/sign-out")
    assert "secret" not in browser.get("/").text
    again = httpx2.get(f"{hub.endpoint}/alice/secret", cookies=stolen, headers=own_page(hub.endpoint))
    assert again.status_code == 404, "signing out ends the session"


def test_cookie_does_not_permit_writing(filled: HfApi, hub: LocalHub, browser: httpx2.Client) -> None:
    sign_in(browser, "token-of-alice")
    head = filled.model_info(REPO).sha
    commit = '{"key":"header","value":{"summary":"x"}}\n{"key":"file","value":{"path":"x","content":"x"}}'
    attempts = [
        browser.post(f"/api/models/{REPO}/commit/main", content=commit),
        browser.post(f"/api/models/{REPO}/tag/main", json={"tag": "t"}),
        browser.post("/api/repos/create", json={"name": "x"}),
        browser.request("DELETE", "/api/repos/delete", json={"name": "model"}),
        browser.post(f"/api/models/{REPO}/preupload/main", json={"files": []}),
        browser.get("/api/whoami-v2"),
    ]
    assert {answer.status_code for answer in attempts} == {401}
    assert browser.get("/api/models/alice/secret").status_code == 404, "the API accepts only tokens"
    assert filled.model_info(REPO).sha == head


def test_sign_in_link_works_once(filled: HfApi, hub: LocalHub, browser: httpx2.Client) -> None:
    link = hub.sign_in_link("alice")
    first = httpx2.get(link)
    there = urlsplit(first.headers["location"])
    assert is_own_host(there.hostname or ""), "another user may have seen the link"
    assert "set-cookie" not in first.headers
    browser.headers |= own_page(hub.endpoint, there.hostname or "")
    assert browser.get(f"{there.path}?{there.query}").status_code == 200
    assert browser.get("/alice/secret").status_code == 200
    with httpx2.Client(headers=HTML) as other:
        assert other.get(link).status_code == 403
        assert other.get(f"{hub.endpoint}{there.path}?{there.query}").status_code == 403
        assert other.get(f"{hub.endpoint}/alice/secret").status_code == 404


def test_files_are_sent_with_safe_headers(filled: HfApi, browser: httpx2.Client) -> None:
    types = {
        "report.html": "text/html; charset=utf-8",
        "config.json": "text/plain; charset=utf-8",
        "images/a.png": "image/png",
        "drawing.svg": "image/svg+xml",
        "weights.safetensors": "application/octet-stream",
        "binary.bin2": "application/octet-stream",
    }
    for path, expected in types.items():
        answer = browser.get(f"/{REPO}/resolve/main/{path}")
        assert answer.headers["content-type"] == expected
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    saved = browser.get(f"/{REPO}/resolve/main/notes/a%26b.txt?download=true")
    assert saved.headers["content-disposition"] == "attachment; filename*=UTF-8''a%26b.txt"
    policy = browser.get(f"/{REPO}").headers["content-security-policy"]
    assert "; img-src 'self' data:; " in policy, "pictures of a card from other hosts are not loaded"
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert "unsafe" not in policy


def test_foreign_host_headers_are_refused(filled: HfApi, hub: LocalHub) -> None:
    port = hub.endpoint.rpartition(":")[2]
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "", "[::2]:80", "192.168.0.7"):
        assert httpx2.get(f"{hub.endpoint}/api/models", headers={"Host": host}).status_code == 400, host
    for host in (f"localhost:{port}", "localhost:9", f"{HOST}:{port}", "127.0.0.1", "[::1]:9", "[::1]"):
        assert httpx2.get(f"{hub.endpoint}/api/models", headers={"Host": host}).status_code == 200, host


def check_in_browser(hub: LocalHub, path: str, *, width: int, dark: bool) -> None:
    visit = open_page(path, width=width, dark=dark, by_way_of=hub.sign_in_link("alice"))
    assert (visit.status, visit.console, visit.blocked, visit.hosts) == (200, [], [], set()), path
    assert visit.content_width <= width, f"{path} must be scrolled sideways"
    assert "Sign out" in visit.dom


@needs_browser
def test_card_in_a_browser(filled: HfApi, hub: LocalHub) -> None:
    check_in_browser(hub, "/alice/secret", width=390, dark=True)


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(1100, False), (390, True)])
def test_all_pages_in_a_browser(filled: HfApi, hub: LocalHub, width: int, dark: bool) -> None:
    for path in ("", "/tree/main", "/commits/main", "/blob/main/weights.safetensors", "/blob/main/images/a.png"):
        check_in_browser(hub, f"/{REPO}{path}", width=width, dark=dark)
    check_in_browser(hub, "/", width=width, dark=dark)


@needs_browser
def test_report_of_a_repository_is_sandboxed(filled: HfApi, hub: LocalHub) -> None:
    visit = open_page(f"/{REPO}/resolve/main/report.html", by_way_of=hub.sign_in_link("alice"))
    assert [urlsplit(url).path for url in visit.requests] == [f"/{REPO}/resolve/main/report.html"]
    assert "https://evil.example/a.css" in visit.blocked
    assert "<p>before</p>" in visit.dom
    assert any("Blocked script execution" in line for line in visit.console)
