"""Signs of pictures, sound and films beside a text or in it: only text is learned, and what is said of them makes no sense without them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

KEYS: Final = frozenset(f"{kind}{end}" for kind in ("image", "picture", "photo", "video", "audio") for end in ("", "s"))
"""Keys and columns that hold them."""
_KINDS: Final = "image|img|video|audio|picture"
_AT_BEGINNING: Final = re.compile(rf"\s*<({_KINDS})( ?\d+)?>", re.IGNORECASE)
_ON_LAST_LINE: Final = re.compile(rf"\n\s*<({_KINDS})( ?\d+)?>\s*\Z", re.IGNORECASE)
_ANYWHERE: Final = re.compile(
    r"<\|(image|video|audio|vision_start)(_\d+|_pad)?\|>|\[IMG\]|<(image|img|audio|video)_placeholder>|<image_soft_token>"
)
_FILE: Final = re.compile(
    r"data:(image|audio|video)/\S+|\S[^\n]*\.(png|jpe?g|gif|webp|bmp|tiff?|svg|wav|mp[34]|flac|ogg|m4a|webm|avi|mov)(\?\S*)?",
    re.IGNORECASE,
)
_ONLY_TEXT: Final = "and no objective reads pictures or sound: write what they show or say as text"


def describe_picture_marks(text: str) -> str | None:
    """Return what of a text stands for a picture or the like, or None.

    Words in angle brackets do at the beginning of a text or on its last line, where data sets of pictures have them, unless they begin an element of XML.
    """
    if "<" not in text and "[IMG]" not in text:
        return None
    mark = _ANYWHERE.search(text) or _AT_BEGINNING.match(text) or _ON_LAST_LINE.search(text)
    if mark is None or f"</{mark[0].strip()[1:]}" in text:
        return None
    return f"a mark of a picture or the like, `{mark[0].strip()}`, {_ONLY_TEXT}"


def describe_picture_keys(message: Mapping[str, Any]) -> str | None:
    """Return which key of a message holds pictures or the like, or None."""
    found = next((key for key, value in message.items() if key in KEYS and value), None)
    return f"a key `{found}`, {_ONLY_TEXT}" if found else None


def is_picture(value: Any) -> bool:
    """Whether a value is a picture or the like as bytes, as a record of them or of its file, as the name or address of a file, or as a data URI."""
    if isinstance(value, Mapping):
        return value.keys() >= {"bytes", "path"} or any(
            is_picture(own) for own in value.values() if isinstance(own, str | bytes)
        )
    return isinstance(value, bytes) or (isinstance(value, str) and bool(_FILE.fullmatch(value.strip())))
