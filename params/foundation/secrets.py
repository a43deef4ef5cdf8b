"""Secrets in texts that others wrote: what git, DVC, the Hub and drivers say may hold an address with a token in it.

Errors, and so states, messages, logs of runs and reports, go through `without_secrets`, and so does each line that a command
of the flow prints.
"""

from __future__ import annotations

import os
import re
from typing import Final
from urllib.parse import quote

KINDS: Final = {
    "a Hugging Face token": (r"hf_[A-Za-z0-9]{30,}", r"api_org_[A-Za-z0-9]{30,}"),
    "an AWS key": (r"AKIA[0-9A-Z]{16}(?![0-9A-Z])", r"ASIA[0-9A-Z]{16}(?![0-9A-Z])"),
    "a GitHub token": (*(rf"gh{kind}_[A-Za-z0-9]{{36,}}" for kind in "pousr"), r"github_pat_[A-Za-z0-9_]{60,}"),
    "a GitLab token": (r"glpat-[A-Za-z0-9_-]{20,}",),
    "an API key": (r"sk-[A-Za-z0-9_-]{32,}", r"AIza[0-9A-Za-z_-]{35}"),
    "a Google access token": (r"ya29\.[A-Za-z0-9_-]{20,}",),
    "an npm token": (r"npm_[A-Za-z0-9]{36}",),
    "a Slack token": (r"xox[baprs]-[0-9A-Za-z-]{10,}",),
}
"""Patterns of what is a secret wherever it stands. Each begins with literal characters."""
_HIDDEN: Final = "***"
_END = r"\s'\"<>`|"  # ends an address, inside brackets of a pattern
_NAME = r"[\w-]{0,40}"
_PASSWORD = (
    rf"{_NAME}(?:secret|passw(?:or)?d|passphrase|(?:db|ftp|mail|smtp|sql|user)[_-]?(?:pass|pwd)"
    r"|(?:api|access|account|secret|subscription)[_-]?key)|SharedAccessSignature|x-[\w-]{0,40}(?:auth|key|token)"
    r"|(?:access|api|auth|deploy|job|private|refresh|security|session)[_-]token"
)
_PARAMETER = rf"{_PASSWORD}|pwd|{_NAME}(?:token|signature|credential|auth){_NAME}|sig|key"
"""In a query, names that elsewhere may be those of an option, such as `eos_token`."""
_PORT = r"\d{1,5}(?:[/?#]|$)"
_LONGEST = 16 << 10  # most characters of a user with a password in an address: a token may have some thousand
_INNOCENT = (
    r"\d{1,5}(?:[\s,;.:/)]|$)|\$?\{|%[rs]|https?:|(?:bytes|denied|empty|expired|failed|false|hidden|incorrect|invalid|missing|none"
    r"|null|optional|passed|redacted|rejected|required|SecretStr|string|true|unknown|unset|wrong)\b"
)
"""Follows a name with a colon in what people read."""
_WORD = rf"(?:(?=\S{{0,99}}[\d!@#$%^&*+~])[^{_END},;]{{4,}}|[a-z_./-]{{4,}}(?=[ \t]*(?:[,;}}'\"\r\n]|$)))"
"""A password, unlike the first word of a sentence, has a digit or a sign, or is the only word."""
_COOKIE = r"cookie(?=\W{1,6}(?:b['\"])?[\w.-]{1,99}=)"
_HEADER = rf"(?:authorization|{_COOKIE})"
_QUOTED = r"(?:\\.|(?!\2)[^\\\r\n])+"
# Users and passwords may hold quotes. Of https, the name of the user may be the token; elsewhere it is a user. A password may
# hold `@`, `/` and `?`: it ends with the last `@` before a space.
_TOKEN_AS_USER = re.compile(r"(https?://)[^\s/?#]*@", re.IGNORECASE)
_ADDRESS = re.compile(r"(?:https?)?://\S+", re.IGNORECASE)
_USER = re.compile(rf"(https?://)[^\s/?#@:\[]++:(?!{_PORT})|(://[^\s/?#@:\[]*+:)(?!{_PORT})", re.IGNORECASE)
_QUERY = re.compile(rf"(https?://[^{_END}?#]*+\?)[^{_END}#]+|https?://[^{_END}?#]*+", re.IGNORECASE)
# Each begins with few characters, and no two tries read the same text, or few of it: long texts take no longer than they must.
_PATTERNS: Final = [
    (rf"(%3a%2f%2f)(?:(?!%2f|%3f|%23)[^\s/?#&]){{0,{_LONGEST}}}%40", r"\1***%40"),
    (rf"([?&;](?:{_PARAMETER})=)[^{_END}&;,]+", r"\1***"),
    (rf"((?:^|[\s,;'\"({{])(?:{_PASSWORD}|pwd)(?:\s?=\s?|['\"]\s?:\s?)(?:b?['\"])?)[^{_END},;]+", r"\1***"),
    (rf"((?:^|[\s,;'\"({{])(?:{_PASSWORD})[ \t]?:[ \t]{{0,9}}+)(?!{_INNOCENT}){_WORD}", r"\1***"),
    (rf"(\(b?['\"](?:{_PASSWORD})['\"],\s?b?(['\"])){_QUOTED}(?=\2\))", r"\1***"),
    # In quotes up to their end, else up to the end of the line: each scheme has its own form.
    (rf"({_HEADER}(?:['\"]\s?,|['\"]?\s?[:=])\s?b?(['\"])){_QUOTED}", r"\1***"),
    (rf"((['\"])(?:proxy-|set-)?{_HEADER}\s?[:=]\s?+)(?!b?['\"]){_QUOTED}", r"\1***"),
    (rf"({_HEADER}['\"]?\s?[:=]\s?+)(?!b?['\"]|\*\*\*)[^\r\n]+", r"\1***"),
    (r"\b(bearer\s)(?:(?=[^\s\d]{0,999}\d)[^\s'\",;]{8,}|[^\s'\",;]{16,})", r"\1***"),
    (r"\b(?-i:hf_[A-Za-z0-9]{10,})", _HIDDEN),  # shorter than real ones, which a message may have cut
    (rf"(?<![A-Za-z0-9_])(?-i:{'|'.join(pattern for patterns in KINDS.values() for pattern in patterns)})", _HIDDEN),
]
_COMPILED = [(re.compile(pattern, re.IGNORECASE), hidden) for pattern, hidden in _PATTERNS]
_VARIABLE = re.compile(
    r"(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|(?<!ASK)(?<!BY)(?<!COM)PASS|(?<!OLD)(?<=.)PWD|AUTH_STRING"
    r"|(?:API|ACCESS|ACCOUNT|SECRET)_?KEY)$"
)
"""Environment variables whose values are secrets, but for those with the path of a folder."""
_SHORTEST = 8


def without_secrets(text: str) -> str:
    """Return `text` with `***` for users and passwords in addresses, their queries, tokens, and secrets of the environment."""
    for name, value in os.environ.items():
        if _VARIABLE.search(name) and len(value.strip()) >= _SHORTEST and not os.path.isdir(value):  # noqa: PTH112
            for spelling in {value, value.strip(), quote(value.strip(), safe="")}:
                text = text.replace(spelling, _HIDDEN)
    text = _ADDRESS.sub(lambda address: _without_user(address[0]), text)
    text = _QUERY.sub(lambda found: f"{found[1]}{_HIDDEN}" if found[1] else found[0], text)
    for pattern, hidden in _COMPILED:
        text = pattern.sub(hidden, text)
    return text


def _without_user(address: str) -> str:
    """Return an address, and what follows up to a space, with `***` for its user and password."""
    address = _TOKEN_AS_USER.sub(rf"\1{_HIDDEN}@", address)
    parts, done = [], 0
    while user := _USER.search(address, done):
        end = address.rfind("@", user.end(), user.end() + _LONGEST)
        if end < 0:
            parts.append(address[done : user.end() - 1])
            done = user.end() - 1  # this colon may begin the next address
        else:
            parts += [address[done : user.start()], user[1] or user[2], _HIDDEN]
            done = end
    return "".join([*parts, address[done:]])
