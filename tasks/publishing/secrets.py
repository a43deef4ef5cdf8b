"""Secrets in what is about to be published: the tokens of this machine, and whatever looks like a key or a password.

Every file is searched to its end, as bytes and as UTF-16. In the rest of a large binary file, which is numbers, only
the tokens of this machine are searched for. No message made here holds what was found.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from huggingface_hub import constants

BLOCK_BYTES: Final = 16 << 20
"""As much is searched at a time; and of a binary file not more for what only looks like a secret."""
_OVERLAP_BYTES = 2048
"""Of the block before, so that nothing is cut in two; twice the longest secret."""
_SHORTEST_TOKEN = 10
"""Shorter ones open nothing: a Hub's own have 37 characters, and `hf_local` is for the Hub of this machine alone."""
_LOOKS_LIKE = {
    "a Hugging Face token": (rb"hf_[A-Za-z0-9]{30,}", rb"api_org_[A-Za-z0-9]{30,}"),
    "an AWS key": (rb"AKIA[0-9A-Z]{16}(?![0-9A-Z])", rb"ASIA[0-9A-Z]{16}(?![0-9A-Z])"),
    "a GitHub token": (*(rb"gh%c_[A-Za-z0-9]{36}" % kind for kind in b"pousr"), rb"github_pat_[A-Za-z0-9_]{60,}"),
    "a GitLab token": (rb"glpat-[A-Za-z0-9_-]{20,}",),
    "an API key": (rb"sk-[A-Za-z0-9_-]{32,}", rb"AIza[0-9A-Za-z_-]{35}"),
    "a Slack token": (rb"xox[baprs]-[0-9A-Za-z-]{10,}",),
    "a private key": (rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----",),
    "a password in an address": (rb"://[\w.~%!$&*+;=-]{1,64}:[\w.~%!$&*+;=-]{3,200}@[A-Za-z0-9]",),
}
# Each begins with its first letters, by which a search is many times quicker than by what may stand before them.
_PATTERNS = {what: [re.compile(pattern) for pattern in patterns] for what, patterns in _LOOKS_LIKE.items()}
_IN_USE = "the token that this machine uses for the Hub"


def find_secrets(name: str, content: Path | bytes) -> list[str]:
    """Where a file holds a secret: one line for each kind, `<name>:<line>: <what>`."""
    tokens = [token.encode() for token in tokens_in_use()]
    is_binary, lines, offset = False, 1, 0
    found: dict[str, str] = {}
    for tail, fresh in _blocks(content):
        block = tail + fresh
        is_binary = is_binary or b"\0" in fresh[:8192]
        is_searched_for_all = not is_binary or offset < BLOCK_BYTES
        views = (block, block[0::2], block[1::2]) if is_searched_for_all else (block,)
        for step, view in zip((1, 2, 2), views, strict=False):
            for what, start in _find(view, tokens, search_all=is_searched_for_all):
                line = lines + block.count(b"\n", 0, start * step) - tail.count(b"\n")
                found.setdefault(what, f"{name}:{line}: {what}")
        lines += fresh.count(b"\n")
        offset += len(fresh)
    return list(found.values())


def tokens_in_use() -> set[str]:
    """The tokens for the Hub that the client finds on this machine: in variables, and where a login leaves them."""
    found = [os.environ.get(name, "") for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")]
    for path, pattern in (
        (constants.HF_TOKEN_PATH, r"(.+)"),
        (constants.HF_STORED_TOKENS_PATH, r"(?m)^\s*hf_token\s*[=:]\s*(\S+)"),
    ):
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, ValueError):
            continue
        found += re.findall(pattern, text)
    return {token.strip() for token in found if len(token.strip()) >= _SHORTEST_TOKEN}


def _find(view: bytes, tokens: Iterable[bytes], *, search_all: bool) -> Iterator[tuple[str, int]]:
    for token in tokens:
        if (start := view.find(token)) >= 0:
            yield f"holds {_IN_USE}", start
    for what, patterns in _PATTERNS.items() if search_all else ():
        for pattern in patterns:
            for match in pattern.finditer(view):
                before = view[match.start() - 1 : match.start()]
                if not (before.isalnum() or before == b"_") or not view[match.start() : match.start() + 1].isalnum():
                    yield f"holds something like {what}", match.start()
                    break


def _blocks(content: Path | bytes) -> Iterator[tuple[bytes, bytes]]:
    """The content in blocks, each with the end of those before it."""
    if isinstance(content, bytes):
        yield b"", content
        return
    tail = b""
    with content.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            yield tail, block
            tail = (tail + block)[-_OVERLAP_BYTES:]
