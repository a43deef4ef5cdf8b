"""The structure of a page, for tests of what it shows and loads."""

from __future__ import annotations

from html.parser import HTMLParser

_ADDRESSES = {"src", "href", "srcset", "action", "data", "poster", "xlink:href"}
_VOID = {"meta", "br", "hr", "img", "input", "link"}


class Outline(HTMLParser):
    """The elements, addresses, ids and text of a page whose tags all close and that has no event handlers."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.addresses: list[str | None] = []
        self.ids: list[str | None] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    @property
    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.addresses += [value for name, value in attrs if name in _ADDRESSES]
        self.ids += [value for name, value in attrs if name == "id"]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.text += data
