"""Pages in a real browser: headless Chromium, driven over the DevTools protocol.

Each visit has a profile of its own, which is empty, so nothing of one visit is known to the next; one browser serves all
visits of a process, and ends with it. No host but this machine can be reached: whatever a page asks of another one fails, and is in `requests` all the same.

    visit = open_page(folder / "report.html", width=400, dark=True, screenshot=folder / "phone.png")
    assert visit.console == []
    assert visit.hosts == set()

Tests that use it carry the mark `needs_browser`.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from websockets.sync.client import ClientConnection, connect

from trainer.runtime.lifetime import die_with_parent

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PROGRAM = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
needs_browser = pytest.mark.skipif(PROGRAM is None, reason=f"none of {', '.join(PROGRAMS)} is installed")

_START_TIMEOUT_S = 60
_PAGE_TIMEOUT_S = 30
_HEIGHT = 900
_PHONE_WIDTH = 600
_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # root may not use one, and only pages of our own are opened
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost, EXCLUDE *.localhost",
    "--remote-debugging-port=0",
)


@dataclass
class PageVisit:
    """What a page did while it was open."""

    console: list[str] = field(default_factory=list)
    """What it wrote on the console, and what the browser found wrong with it, as `level: text`."""
    requests: list[str] = field(default_factory=list)
    """The URLs that were asked for, the page's own first; those inside the page (`data:`) are left out."""
    blocked: list[str] = field(default_factory=list)
    """The URLs that the page wanted and its own policy (CSP) forbade; they are not in `requests`."""
    dom: str = ""
    """The page as HTML, once it was loaded."""
    content_width: int = 0
    """Pixels; more than the window's width when the page must be scrolled sideways."""
    url: str = ""
    """Where the visit ended, after redirections."""
    status: int = 0
    """The HTTP status of the page; 0 for a file."""

    @property
    def hosts(self) -> set[str]:
        """The hosts that were asked, this machine's aside."""
        hosts = {urlsplit(url).hostname or "" for url in self.requests}
        return {host for host in hosts if not host.endswith(".localhost")} - {"", "127.0.0.1", "localhost", "::1"}


def open_page(
    url_or_path: str | Path,
    *,
    width: int = 1280,
    dark: bool = False,
    screenshot: Path | None = None,
    by_way_of: str | None = None,
    fill: Mapping[str, str] | None = None,
    click: str | None = None,
) -> PageVisit:
    """Open a page and wait until it is loaded and asks for nothing more.

    Args:
        url_or_path: a URL, a file on this machine or, with `by_way_of`, an address at the host to which that has led.
        width: of the window, in pixels; below 600 the browser says that it is a phone.
        dark: what `prefers-color-scheme` says.
        screenshot: where to put a picture (PNG) of the whole page.
        by_way_of: a URL to open before in the same browser, for its cookies; its page leads on to another one.
        fill: what to write into the boxes of the page, by their CSS selectors.
        click: a CSS selector of what to click on the page; the visit goes on to where that leads.
    """
    url = url_or_path.absolute().as_uri() if isinstance(url_or_path, Path) else url_or_path
    with connect(_browser(), max_size=None) as socket:
        page = _Page(socket)
        page.show(width=width, dark=dark)
        if by_way_of:
            page.load(by_way_of, leads_on=True)
            url = urljoin(page.url(), url)
            page.visit = PageVisit()
        page.load(url)
        for selector, text in (fill or {}).items():
            page.fill(selector, text)
        if click:
            page.click(click)
        page.finish(screenshot)
        return page.visit


@functools.cache
def _browser() -> str:
    """Start a browser for this process; the address of its DevTools."""
    assert PROGRAM is not None
    profile = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
    process = subprocess.Popen(
        [PROGRAM, *_ARGUMENTS, f"--user-data-dir={profile.name}", "about:blank"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": profile.name, "TMPDIR": profile.name},
        start_new_session=True,  # its children end with it
        preexec_fn=die_with_parent,  # noqa: PLW1509 (a worker of pytest-xdist that takes long to end is killed)
    )

    owner = os.getpid()

    def end() -> None:
        if os.getpid() != owner:
            return  # a fork ends
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        profile.cleanup()

    atexit.register(end)
    return _devtools(process, Path(profile.name) / "DevToolsActivePort")


def _devtools(process: subprocess.Popen[bytes], announced: Path) -> str:
    give_up = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < give_up:
        with contextlib.suppress(FileNotFoundError, ValueError):
            port, path = announced.read_text().split("\n")
            return f"ws://127.0.0.1:{port}{path}"
        assert process.poll() is None, f"the browser ended with {process.returncode}"
        time.sleep(0.05)
    raise TimeoutError(f"the browser did not start within {_START_TIMEOUT_S} s")


class _Page:
    """One tab, by its DevTools session; frames of other origins have sessions of their own."""

    def __init__(self, socket: ClientConnection) -> None:
        self.visit = PageVisit()
        self._socket = socket
        self._calls = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._seen: set[str] = set()
        self._idle: set[str] = set()
        """Documents of the tab, by their loaders, and those that ask for nothing more."""
        self._frame = self._session = ""
        self._urls: dict[str, str] = {}
        profile = self._call("Target.createBrowserContext", disposeOnDetach=True)["browserContextId"]
        tab = self._call("Target.createTarget", url="about:blank", browserContextId=profile)["targetId"]
        self._frame = tab  # they have one id
        self._session = self._call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        self._watch(self._session)

    def show(self, *, width: int, dark: bool) -> None:
        phone = width < _PHONE_WIDTH
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=_HEIGHT, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def load(self, url: str, *, leads_on: bool = False) -> None:
        """Go to a page, or to the one that it leads on to by itself, and wait until that asks for nothing more."""
        before = set(self._seen)
        begun = self._call("Page.navigate", url=url)
        failed = begun.get("errorText")
        assert failed in (None, "net::ERR_HTTP_RESPONSE_CODE_FAILURE"), f"{url}: {failed}"
        self._wait_for_other_document({*before, begun["loaderId"]} if leads_on else before)

    def fill(self, selector: str, text: str) -> None:
        expression = f"document.querySelector({json.dumps(selector)}).value = {json.dumps(text)}"
        assert "exceptionDetails" not in self._call("Runtime.evaluate", expression=expression), selector

    def click(self, selector: str) -> None:
        before = set(self._seen)
        expression = f"document.querySelector({json.dumps(selector)}).click()"
        assert "exceptionDetails" not in self._call("Runtime.evaluate", expression=expression), selector
        self._wait_for_other_document(before)

    def _wait_for_other_document(self, known: set[str]) -> None:
        """Wait until a document that is not among the known ones asks for nothing more; this may be told late of those."""
        give_up = time.monotonic() + _PAGE_TIMEOUT_S
        while not self._idle - known:
            self._handle(self._receive(give_up))

    def url(self) -> str:
        return str(self._call("DOM.getDocument", depth=0)["root"]["documentURL"])

    def finish(self, screenshot: Path | None) -> None:
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        self.visit.content_width = round(size["width"])
        root = self._call("DOM.getDocument", depth=0)["root"]
        self.visit.url = root["documentURL"]
        self.visit.dom = self._call("DOM.getOuterHTML", nodeId=root["nodeId"])["outerHTML"]
        if screenshot:
            clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
            taken = self._call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
            screenshot.write_bytes(base64.b64decode(taken["data"]))

    def _watch(self, session: str) -> None:
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._call(f"{domain}.enable", session=session)
        self._call("Page.setLifecycleEventsEnabled", enabled=True, session=session)
        self._call("Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=True, flatten=True, session=session)

    def _call(self, method: str, *, session: str | None = None, **parameters: object) -> dict[str, Any]:
        self._calls += 1
        number = self._calls
        message: dict[str, object] = {"id": number, "method": method, "params": parameters}
        if found := self._session if session is None else session:
            message["sessionId"] = found
        self._socket.send(json.dumps(message))
        give_up = time.monotonic() + _PAGE_TIMEOUT_S
        while number not in self._answers:  # handling an event makes calls too, and may meet the answer to this one
            self._handle(self._receive(give_up))
        answer = self._answers.pop(number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return dict(answer["result"])

    def _receive(self, give_up: float) -> dict[str, Any]:
        return dict(json.loads(self._socket.recv(timeout=max(0.0, give_up - time.monotonic()))))

    def _handle(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
            return
        found = message["params"]
        match message["method"]:
            case "Page.lifecycleEvent" if found["frameId"] == self._frame:
                self._seen.add(found["loaderId"])
                if found["name"] == "networkIdle":
                    self._idle.add(found["loaderId"])
            case "Target.attachedToTarget":
                with contextlib.suppress(AssertionError):  # a worker has no pages to watch
                    self._watch(found["sessionId"])
                self._call("Runtime.runIfWaitingForDebugger", session=found["sessionId"])
            case "Network.requestWillBeSent" if not found["request"]["url"].startswith("data:"):
                self._urls[found["requestId"]] = found["request"]["url"]
                self.visit.requests.append(found["request"]["url"])
            case "Network.loadingFailed" if found.get("blockedReason") == "csp":
                self.visit.requests.remove(url := self._urls[found["requestId"]])
                self.visit.blocked.append(url)
            case "Network.responseReceived" if found["type"] == "Document" and message["sessionId"] == self._session:
                self.visit.status = found["response"]["status"]
            case "Runtime.consoleAPICalled":
                text = " ".join(str(item.get("value", item.get("description", ""))) for item in found["args"])
                self.visit.console.append(f"{found['type']}: {text}")
            case "Runtime.exceptionThrown":
                details = found["exceptionDetails"]
                text = details.get("exception", {}).get("description", details["text"])
                self.visit.console.append(f"error: {text}")
            case "Log.entryAdded":
                entry = found["entry"]
                self.visit.console.append(f"{entry['level']}: {entry['text']} {entry.get('url', '')}".rstrip())
