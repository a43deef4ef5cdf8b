"""Search for secrets in what is about to be published: the tokens of this machine, and what looks like a key or a password.

Every file is searched to its end, as bytes and as UTF-16. After the first block of a binary file, which holds numbers, the
search is for the tokens of this machine only. No message holds the secret that was found.

detect-secrets 1.5.0 does not cover this: it has no rule for tokens of Hugging Face, Google or Anthropic, finds nothing in
UTF-16, and takes 190 s for 20 MB of text with two rules (0.4 s here, with all of them).
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from huggingface_hub import constants

from params.foundation.secrets import KINDS

BLOCK_BYTES: Final = 16 << 20
"""Size of the blocks that are searched. Only the first block of a binary file is searched for what looks like a secret."""
_OVERLAP_BYTES = 2048
"""Repeated from the block before, so that no secret is cut in two; twice the longest secret."""
_SHORTEST_TOKEN = 10
"""Shorter ones are no secrets: the Hub's own tokens have 37 characters."""
_LOOKS_LIKE = {
    **{what: tuple(pattern.encode() for pattern in patterns) for what, patterns in KINDS.items()},
    "a private key": (rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----",),
    "a password in an address": (rb"://[\w.~%!$&*+;=-]{1,64}:[\w.~%!$&*+;=-]{3,200}@[A-Za-z0-9]",),
}
# Each pattern begins with literal characters, and what may stand before them is checked later: many times quicker.
_PATTERNS = {what: [re.compile(pattern) for pattern in patterns] for what, patterns in _LOOKS_LIKE.items()}
_IN_USE = "the token that this machine uses for the Hub"


def find_secrets(name: str, content: Path | bytes) -> list[str]:
    """Return where a file holds secrets: one message per kind, `<name>:<line>: <what>`."""
    tokens = [token.encode() for token in tokens_in_use()]
    is_binary, lines, offset = False, 1, 0
    found: dict[str, str] = {}
    for tail, fresh in _blocks(content):
        block = tail + fresh
        is_binary = is_binary or b"\0" in fresh[:8192]
        is_searched_fully = not is_binary or offset < BLOCK_BYTES
        views = (block, block[0::2], block[1::2]) if is_searched_fully else (block,)
        for step, view in zip((1, 2, 2), views, strict=False):
            for what, start in _find(view, tokens, search_all=is_searched_fully):
                line = lines + block.count(b"\n", 0, start * step) - tail.count(b"\n")
                found.setdefault(what, f"{name}:{line}: {what}")
        lines += fresh.count(b"\n")
        offset += len(fresh)
    return list(found.values())


def tokens_in_use() -> set[str]:
    """Return the Hub tokens of this machine: from environment variables, and from the files that a login writes."""
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
    """Yield the content in blocks, each with the end of the block before."""
    tail = b""
    with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            yield tail, block
            tail = (tail + block)[-_OVERLAP_BYTES:]
