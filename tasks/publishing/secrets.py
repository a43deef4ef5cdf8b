"""Search for secrets in what is about to be published: the tokens of this machine, and what looks like a key or a password.

Every file is searched to its end, as bytes and as UTF-16. After the first 16 MiB of a binary file, which holds numbers, the
search is for the tokens of this machine only. No message holds the secret that was found.

detect-secrets 1.5.0 does not cover this: it has no rule for tokens of Hugging Face, Google or Anthropic, finds nothing in
UTF-16, and takes 190 s for 20 MB of text with two rules (5 s here with all of ours, on a busy machine).
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from huggingface_hub import constants

from params.foundation.secrets import KINDS, is_within_word, login_tokens, secrets_of_machine

BLOCK_BYTES: Final = 16 << 20
"""How much of a binary file is searched for what looks like a secret."""
_SHORTEST_TOKEN = 10
"""Shorter ones are no secrets: the Hub's own tokens have 37 characters."""
_LOOKS_LIKE = {
    **{what: tuple(pattern.encode() for pattern in patterns) for what, patterns in KINDS.items()},
    "a password in an address": (rb"://[\w.~%!$&*+;=-]{1,64}:[\w.~%!$&*+;=-]{3,200}@[A-Za-z0-9]",),
}
# Each pattern begins with literal characters, and what may stand before them is checked later: many times quicker.
_PATTERNS = {what: [re.compile(pattern) for pattern in patterns] for what, patterns in _LOOKS_LIKE.items()}
_SHORTEST_OTHER = 20
"""Shorter values of environment variables may be words, which data has by chance."""
_IN_USE = "the token that this machine uses for the Hub"
_OF_ENVIRONMENT = "a secret of this machine's environment"


def find_secrets(name: str, content: Path | bytes) -> list[str]:
    """Return where a file holds secrets: one message per kind, `<name>:<line>: <what>`."""
    if isinstance(content, bytes) or not content.stat().st_size:  # an empty file cannot be mapped
        return _search(name, content if isinstance(content, bytes) else b"")
    with content.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return _search(name, mapped)


def _search(name: str, data: bytes | mmap.mmap) -> list[str]:
    found: dict[str, int] = {}
    tokens = read_hub_tokens()
    others = {value for value in secrets_of_machine() if len(value) >= _SHORTEST_OTHER}
    for what, secrets in ((_IN_USE, tokens), (_OF_ENVIRONMENT, others - tokens)):
        for secret in secrets:
            content = secret.encode(errors="surrogateescape")
            for shown in (content, b"\0".join(bytes([byte]) for byte in content)):  # the second one in UTF-16
                start = data.find(shown)
                if start >= 0:
                    found.setdefault(f"holds {what}", start)
    searched = data[:BLOCK_BYTES] if b"\0" in data[:8192] else data[:]
    for step, view in ((1, searched), (2, searched[0::2]), (2, searched[1::2])):
        for what, start in _find(view):
            found.setdefault(f"holds something like {what}", start * step)
    lines = {what: 1 + data[:start].count(b"\n") for what, start in found.items()}
    return [f"{name}:{line}: {what}" for what, line in lines.items()]


def read_hub_tokens() -> set[str]:
    """Return the Hub tokens of this machine: from environment variables, and from the files that a login writes, with those that renew them."""
    found = {os.environ.get(name, "").strip() for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")}
    found |= login_tokens(constants.HF_TOKEN_PATH, constants.HF_STORED_TOKENS_PATH)
    return {token for token in found if len(token) >= _SHORTEST_TOKEN}


def _find(view: bytes) -> Iterator[tuple[str, int]]:
    for what, patterns in _PATTERNS.items():
        for pattern in patterns:
            for match in pattern.finditer(view):
                before, first = view[match.start() - 1 : match.start()], view[match.start() : match.start() + 1]
                if not is_within_word(before.decode("latin-1") if before.isascii() else "", first.decode("latin-1")):
                    yield what, match.start()
                    break
