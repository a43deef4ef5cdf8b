"""The web pages of pull requests, and their forms: content, permissions, and protection from other sites."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx2
import pytest
from huggingface_hub import CommitOperationAdd as Add
from huggingface_hub import CommitOperationDelete as Delete
from huggingface_hub import HfApi

from tasks.hub_server import limits
from tasks.hub_server.server import LocalHub
from tests.support.browser import needs_browser, open_page
from tests.support.html import Outline
from tests.support.hub_browser import HOST, hub_browser, own_page

REPO = "alice/model"
PAGE = f"/{REPO}/discussions"
HTML = {"Accept": "text/html,*/*"}
DESCRIPTION = """# Why

It is *better*: see [the report](report.html), [the notes](notes/) and [evil](javascript:alert(1)).
<script>alert("description")</script>
"""


@pytest.fixture
def proposed(alice: HfApi, bob: HfApi) -> HfApi:
    """An open pull request of bob's in a public and in a private repository."""
    for repo, author in ((REPO, bob), ("alice/secret", alice)):
        alice.create_repo(repo, private=author is alice)
        before = [
            Add("README.md", b"---\nlicense: mit\n---\n# Model\n"),
            Add("config.json", b'{"a": 1}\n'),
            Add("old.txt", b"old\n"),
        ]
        alice.create_commit(repo, before, commit_message="before")
        operations = [
            Add("config.json", b'{"a": "<b>"}\n'),
            Add("report.html", b"<h1>Report</h1>"),
            Add("notes/a.txt", b"a"),
            Add("model.safetensors", b"\0" * 3000),
            Delete("old.txt"),
        ]
        author.create_commit(
            repo, operations, commit_message="Better <weights>", commit_description=DESCRIPTION, create_pr=True
        )
    return alice


@pytest.fixture
def browser(hub: LocalHub) -> Iterator[httpx2.Client]:
    """A browser: it says from where it sends a form."""
    with hub_browser(hub.endpoint) as client:
        yield client


def sign_in(client: httpx2.Client, user: str) -> None:
    assert client.post("/-/sign-in", data={"token": f"token-of-{user}"}).status_code == 200


def hidden_fields(client: httpx2.Client, page: str = f"{PAGE}/1") -> dict[str, str]:
    """What the form of a page holds that nobody types."""
    found = [values for tag, values in Outline(client.get(page).text).elements if values.get("type") == "hidden"]
    return {str(values["name"]): str(values["value"]) for values in found}


def form_token(client: httpx2.Client, page: str = f"{PAGE}/1") -> str:
    (found,) = [values for tag, values in Outline(client.get(page).text).elements if values.get("name") == "form_token"]
    return str(found["value"])


def buttons(client: httpx2.Client, number: int = 1) -> list[str]:
    """The actions that the page offers."""
    found = Outline(client.get(f"{PAGE}/{number}").text).elements
    return [str(values["formaction"]).rpartition("/")[2] for _, values in found if "formaction" in values]


def send(client: httpx2.Client, action: str, comment: str = "", number: int = 1) -> httpx2.Response:
    data = {**hidden_fields(client, f"{PAGE}/{number}"), "comment": comment}
    return client.post(f"{PAGE}/{number}/{action}", data=data)


def test_page_of_a_pull_request(proposed: HfApi, browser: httpx2.Client) -> None:
    assert 'Pull requests <span class="badge">1</span>' in browser.get(f"/{REPO}").text
    listed = browser.get(PAGE).text
    assert f'<a class="title" href="{PAGE}/1">Better &lt;weights&gt;</a>' in listed
    assert "There are no closed pull requests." in browser.get(f"{PAGE}?status=closed").text
    page = browser.get(f"{PAGE}/1").text
    outline = Outline(page)
    assert "<em>better</em>" in page
    assert {"script", "form", "textarea"} & set(outline.tags[outline.tags.index("main") :]) == set()
    assert "<script>" in outline.text
    links = set(outline.addresses)
    at = f"/{REPO}/{{}}/refs%2Fpr%2F1"
    assert {
        at.format("resolve") + "/report.html",
        at.format("blob") + "/notes",
        at.format("blob") + "/README.md",
    } <= links
    assert not any("javascript" in str(link) for link in links)
    assert [word in outline.text for word in ("5 changed files", "3.0 kB")] == [True] * 2
    shown = [
        str(values["class"]).split()[1]
        for _, values in outline.elements
        if str(values.get("class")).startswith("badge ")
    ]
    assert [shown.count(kind) for kind in ("added", "changed", "removed")] == [3, 1, 1]
    for link in links:
        if str(link).startswith("/") and "sign-out" not in str(link):
            assert browser.get(str(link)).status_code == 200, link
    assert browser.get(f"{PAGE}/2").status_code == 404


def test_review_in_a_browser(proposed: HfApi, browser: httpx2.Client) -> None:
    assert "Sign in</a> to comment or merge" in browser.get(f"{PAGE}/1").text
    sign_in(browser, "alice")
    assert buttons(browser) == ["comment", "merge", "close"]
    commented = send(browser, "comment", "**Why** now?\r\n\r\nSee <b>this</b>")
    assert commented.url.path == f"{PAGE}/1"
    assert "<strong>Why</strong> now?" in commented.text
    assert "&lt;b&gt;this&lt;/b&gt;" in commented.text
    assert 'class="badge closed"' in send(browser, "close", "Not now").text
    assert "Better &lt;weights&gt;" in browser.get(f"{PAGE}?status=closed").text
    assert buttons(browser) == ["comment", "open"]
    assert 'class="badge open"' in send(browser, "open").text
    merged = send(browser, "merge", "Thank you")
    assert 'class="badge merged"' in merged.text
    assert "5 changed files" in merged.text
    assert buttons(browser) == ["comment"]
    assert send(browser, "merge").status_code == 409
    details = proposed.get_discussion_details(REPO, 1)
    assert (details.status, details.events[0].author, details.events[-1].author) == ("merged", "bob", "alice")
    written = [event.content for event in details.events if event.type == "comment"]
    assert written[1:] == ["**Why** now?\n\nSee <b>this</b>", "Not now", "Thank you"]
    assert proposed.file_exists(REPO, "report.html")


def test_conflict_is_shown(proposed: HfApi, browser: httpx2.Client) -> None:
    proposed.create_commit(REPO, [Add("config.json", b"{}")], commit_message="meanwhile")
    sign_in(browser, "alice")
    page = browser.get(f"{PAGE}/1").text
    assert "main has changed since, in the same files: config.json" in page
    assert buttons(browser) == ["comment", "close"]
    refused = send(browser, "merge")
    assert (refused.status_code, "in the same files: config.json" in refused.text) == (409, True)


@pytest.mark.parametrize("change", ["a push", "a push and its removal", "nothing"])
@pytest.mark.parametrize("action", ["merge", "close", "open"])
def test_form_acts_only_on_what_its_page_showed(
    proposed: HfApi, bob: HfApi, browser: httpx2.Client, action: str, change: str
) -> None:
    if action == "open":
        bob.change_discussion_status(REPO, 1, "closed")
    sign_in(browser, "alice")
    form, before = hidden_fields(browser), proposed.list_repo_commits(REPO)[0].commit_id
    if action == "open" and change.startswith("a push"):
        bob.change_discussion_status(REPO, 1, "open")
    if change != "nothing":
        revision = "refs/pr/1"
        bob.create_commit(REPO, [Add("run.py", b"import os")], commit_message="more", revision=revision)
        if "removal" in change:
            bob.create_commit(REPO, [Delete("run.py")], commit_message="less", revision=revision)
    if action == "open" and change.startswith("a push"):
        bob.change_discussion_status(REPO, 1, "closed")
    status = proposed.get_discussion_details(REPO, 1).status
    answer = browser.post(f"{PAGE}/1/{action}", data={**form, "comment": "fine"})
    details = proposed.get_discussion_details(REPO, 1)
    if change == "nothing":
        assert (answer.status_code, details.status) == (200, {"merge": "merged", "close": "closed"}.get(action, action))
        return
    assert (answer.status_code, "has changed since" in answer.text) == (409, True)
    assert details.status == status
    assert "fine" not in [getattr(event, "content", "") for event in details.events]
    assert proposed.list_repo_commits(REPO)[0].commit_id == before
    assert send(browser, action).status_code == 200, "the page shows it now"


def test_form_that_does_not_say_what_it_showed_is_refused(proposed: HfApi, browser: httpx2.Client) -> None:
    sign_in(browser, "alice")
    for action in ("merge", "close"):
        assert browser.post(f"{PAGE}/1/{action}", data={"form_token": form_token(browser)}).status_code == 409
    assert proposed.get_discussion_details(REPO, 1).status == "open"


def test_author_and_readers_may_do_less(proposed: HfApi, hub: LocalHub, browser: httpx2.Client) -> None:
    proposed.create_commit(REPO, [Add("alice.txt", b"a")], commit_message="of alice", create_pr=True)
    sign_in(browser, "bob")
    assert buttons(browser, 1) == ["comment", "close"]
    assert buttons(browser, 2) == ["comment"]
    assert send(browser, "merge").status_code == 403
    assert send(browser, "close", number=2).status_code == 403
    assert send(browser, "open", number=2).status_code == 403
    assert send(browser, "comment", "hi", number=2).status_code == 200
    assert send(browser, "close").status_code == 200
    token = form_token(browser)
    for action in ("comment", "merge", "close"):
        answer = browser.post(f"/alice/secret/discussions/1/{action}", data={"form_token": token, "comment": "hi"})
        assert answer.status_code == 404
    assert browser.get("/alice/secret/discussions").status_code == 404
    assert browser.get("/alice/secret/discussions/1").status_code == 404
    assert len(proposed.get_discussion_details("alice/secret", 1).events) == 2
    assert proposed.model_info(REPO).sha == proposed.list_repo_commits(REPO)[0].commit_id
    assert len(proposed.list_repo_commits(REPO)) == 2


def test_other_sites_cannot_send_forms(proposed: HfApi, hub: LocalHub, browser: httpx2.Client) -> None:
    """A form needs a session, the secret of this session, and a page of this Hub from which it is sent."""
    sign_in(browser, "alice")
    token = form_token(browser)
    with hub_browser(hub.endpoint) as other:
        sign_in(other, "alice")
        token_of_other = form_token(other)
    assert token != token_of_other
    port = int(hub.endpoint.rpartition(":")[2])
    origins = [
        "https://evil.example",
        "null",
        "",
        f"http://127.0.0.1:{port + 1}",
        "http://[",
        f"http://localhost:{port}",
        f"http://{HOST}:{port + 1}",
    ]
    origins += [f"http://{HOST}:{port}.evil.example", f"ftp://127.0.0.1:{port}"]
    for action in ("comment", "merge", "close"):
        path = f"{PAGE}/1/{action}"
        for data in ({}, {"form_token": ""}, {"form_token": "x"}, {"form_token": "ä"}, {"form_token": token_of_other}):
            refused = browser.post(path, data={"comment": "c", **data})
            assert (refused.status_code, "out of date" in refused.text) == (403, True), data
        for origin in origins:
            refused = browser.post(path, data={"comment": "c", "form_token": token}, headers={"Origin": origin})
            assert (refused.status_code, "not sent from a page of this Hub" in refused.text) == (403, True), origin
        without = httpx2.post(
            hub.endpoint + path,
            data={"form_token": token},
            cookies=dict(browser.cookies),
            headers={"Host": f"{HOST}:{port}"},
        )
        assert without.status_code == 403, "no Origin"
        without_session = own_page(hub.endpoint)
        for headers in (without_session, {**without_session, "Authorization": "Bearer token-of-alice"}):
            assert httpx2.post(hub.endpoint + path, data={"form_token": token}, headers=headers).status_code == 401
        assert browser.get(path).status_code in (404, 405), "a link changes nothing"
    for path in (f"/api/models/{REPO}/discussions/1/merge", f"/api/models/{REPO}/discussions/1/comment"):
        assert browser.post(path, json={"comment": "c"}).status_code == 401, "the API accepts only tokens"
    stale = dict(browser.cookies)
    browser.post("/-/sign-out")
    ended = httpx2.post(
        f"{hub.endpoint}{PAGE}/1/merge", data={"form_token": token}, headers=own_page(hub.endpoint), cookies=stale
    )
    assert ended.status_code == 401
    details = proposed.get_discussion_details(REPO, 1)
    assert (details.status, len(details.events)) == ("open", 2)


def test_forms_are_limited(
    proposed: HfApi, hub: LocalHub, browser: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_in(browser, "alice")
    assert send(browser, "comment", "€" * (64 << 10)).status_code == 200
    assert send(browser, "comment", "x" * ((64 << 10) + 1)).status_code == 400
    assert send(browser, "comment", " \r\n").status_code == 400
    assert send(browser, "delete").status_code == 404
    monkeypatch.setattr(limits, "BODY_BYTES", 20_000)
    assert send(browser, "comment", "x" * 20_000).status_code == 413
    without_session = {"Origin": hub.endpoint}
    answer = httpx2.post(f"{hub.endpoint}{PAGE}/1/comment", content=b"x" * 20_001, headers=without_session)
    assert answer.status_code == 401, "the body is read after the session is checked"


DIRECTION = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def test_no_text_changes_the_direction_of_writing(
    alice: HfApi, bob: HfApi, hub: LocalHub, browser: httpx2.Client
) -> None:
    """A name or a line could pass for another one: file names, titles, comments, cards, metadata, messages, errors."""
    odd, name = f"a{DIRECTION}b", f"notes{DIRECTION}/a{DIRECTION}.txt"
    card = f"---\nlicense: mit\ntags: ['{odd}']\n---\n# {odd}\n\n{odd} `{odd}` [{odd}](https://hub.example/{DIRECTION}) ![{odd}](a.png)\n"
    files = {"README.md": card, name: odd, "code.py": f"if user == '{odd}':\n    pass\n"}
    for repo, author, is_proposed in ((REPO, alice, False), (REPO, bob, True)):
        alice.create_repo(repo, exist_ok=True)
        added = [Add(path, (text + "#" * is_proposed).encode()) for path, text in files.items()]
        author.create_commit(repo, added, commit_message=f"Better {odd}", commit_description=odd, create_pr=is_proposed)
    bob.comment_discussion(REPO, 1, odd)
    sign_in(browser, "alice")
    folder, _, file = map(quote, name.partition("/"))
    addresses = [
        "/",
        f"/{REPO}",
        f"/{REPO}/tree/main",
        f"/{REPO}/tree/main/{folder}",
        f"/{REPO}/blob/main/{folder}/{file}",
    ]
    addresses += [f"/{REPO}/blob/main/code.py", f"/{REPO}/commits/main", PAGE, f"{PAGE}/1", f"/?q={quote(odd)}"]
    addresses += [f"/{REPO}/blob/main/{quote(odd)}", f"/{REPO}/tree/{quote(odd)}"]
    shown = "".join(f"\\u{ord(char):04x}" for char in DIRECTION)
    for address in addresses:
        page = browser.get(address).text
        assert not set(DIRECTION) & set(page), address
        assert address == f"/{REPO}/tree/{quote(odd)}" or shown in page, address
    assert send(browser, "merge").status_code == 200, "the form still says what the page showed"
    assert alice.list_repo_commits(REPO)[0].title == f"Better {odd} (#1)"


@needs_browser
def test_merge_with_a_real_browser(proposed: HfApi, hub: LocalHub) -> None:
    """The browser sends the cookie and the Origin that a form needs."""
    visit = open_page(
        "/alice/secret/discussions/1",
        by_way_of=hub.sign_in_link("alice"),
        click='button[formaction$="/merge"]',
    )
    assert (visit.status, urlsplit(visit.url).path) == (200, "/alice/secret/discussions/1")
    assert 'class="badge merged"' in visit.dom
    assert proposed.get_discussion_details("alice/secret", 1).status == "merged"


@needs_browser
@pytest.mark.parametrize(("width", "dark"), [(390, True), pytest.param(1100, False, marks=pytest.mark.slow)])
def test_pages_in_a_browser(proposed: HfApi, hub: LocalHub, tmp_path: Path, width: int, dark: bool) -> None:
    for path in (PAGE, f"{PAGE}/1"):
        visit = open_page(path, width=width, dark=dark, by_way_of=hub.sign_in_link("alice"))
        assert (visit.status, visit.console, visit.blocked, visit.hosts) == (200, [], [], set()), path
        assert visit.content_width <= width, f"{path} must be scrolled sideways"
