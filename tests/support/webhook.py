"""An HTTP endpoint that keeps the messages it gets."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Webhook:
    """The messages that came, and how the next ones are answered."""

    def __init__(self, port: int) -> None:
        self.url = f"http://anyone:secret-password@127.0.0.1:{port}/hooks/secret-token"
        self.messages: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.users: list[str] = []
        self.refusals = 0
        """So many of the next requests are answered with an error."""
        self.delay_s = 0.0

    def about(self, *words: str) -> list[dict[str, str]]:
        """The messages whose subject or text has all of `words`."""
        return [one for one in self.messages if all(word in f"{one['subject']}\n{one['text']}" for word in words)]

    def subjects(self) -> list[str]:
        return sorted(message["subject"] for message in self.messages)


@contextmanager
def webhook() -> Iterator[Webhook]:
    """Listen on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(received.delay_s)
            refused = received.refusals > 0
            received.refusals -= refused
            if not refused:
                received.messages.append(json.loads(body))
                received.paths.append(self.path)
                received.users.append(self.headers.get("Authorization", ""))
            self.send_response(500 if refused else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received = Webhook(server.server_port)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
