"""What `.gitignore` and `.gitattributes` at the root of a repository say about the files of an upload."""

from __future__ import annotations

import io
import re

from dulwich.attrs import GitAttributes, compile_gitattributes_patterns, parse_git_attributes
from dulwich.ignore import IgnoreFilter, read_ignore_patterns

from tasks.hub_server.errors import HubError

_MAX_BYTES = 64 << 10
_MAX_WILDCARDS = 4
"""Patterns become regular expressions, whose time grows with this power of a path's length."""


def read_ignore(content: bytes) -> IgnoreFilter:
    """Parse a `.gitignore`.

    Raises:
        HubError: 400 if it is too long, or a pattern has too many wildcards.
    """
    patterns = list(read_ignore_patterns(io.BytesIO(_check_size(".gitignore", content))))
    _check_patterns(".gitignore", patterns)
    return IgnoreFilter(patterns)


def read_attributes(content: bytes) -> GitAttributes:
    """Parse a `.gitattributes`.

    Raises:
        HubError: as `read_ignore`.
    """
    rules = list(parse_git_attributes(io.BytesIO(_check_size(".gitattributes", content))))
    _check_patterns(".gitattributes", [pattern for pattern, _ in rules])
    return GitAttributes(compile_gitattributes_patterns(rules))


def _check_size(name: str, content: bytes) -> bytes:
    if len(content) > _MAX_BYTES:
        raise HubError(400, f"{name} has {len(content)} bytes, more than {_MAX_BYTES}")
    return content


def _check_patterns(name: str, patterns: list[bytes]) -> None:
    for pattern in patterns:
        if len(re.findall(rb"\*+", pattern)) > _MAX_WILDCARDS:
            shown = pattern.decode(errors="replace")
            raise HubError(400, f"A pattern in {name} has more than {_MAX_WILDCARDS} wildcards `*`: {shown!r:.100}")
