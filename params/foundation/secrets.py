"""Secrets in texts that others wrote: what git, DVC, the Hub and drivers say may hold an address with a token in it.

Errors, and so states, messages, logs of runs and reports, go through `without_secrets`, and so does each line that a command
of the flow prints.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final
from urllib.parse import quote

_KEY_BLOCK: Final = (
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?!-----END)[\s\S]){0,16384}(?:-----END[A-Z0-9 ]{0,60}-{0,5})?"
)
KINDS: Final = {
    "a Hugging Face token": (
        r"hf_[A-Za-z0-9]{30,}",
        r"hf_(?:oauth|jwt)_(?=[\w.~+/-]{0,99}\d)[\w.~+/-]{20,}",
        r"api_org_[A-Za-z0-9]{30,}",
    ),
    "an AWS key": (r"AKIA[0-9A-Z]{16}(?![0-9A-Z])", r"ASIA[0-9A-Z]{16}(?![0-9A-Z])"),
    "a GitHub token": (*(rf"gh{kind}_[A-Za-z0-9]{{36,}}" for kind in "pousr"), r"github_pat_[A-Za-z0-9_]{60,}"),
    "a GitLab token": (r"gl(?:pat|dt|oat|rt|cbt|ptt|ft|soat|agent|imt)-[A-Za-z0-9_-]{20,}",),
    "a Bitbucket password": (r"ATBB[A-Za-z0-9]{28,}", r"ATATT3[A-Za-z0-9_=-]{50,}"),
    "an API key": (
        r"sk-[A-Za-z0-9_-]{32,}",
        r"AIza[0-9A-Za-z_-]{35}",
        r"sk_live_[A-Za-z0-9]{20,}",
        r"rk_live_[A-Za-z0-9]{20,}",
        r"gsk_[A-Za-z0-9]{40,}",
        r"r8_[A-Za-z0-9]{36,}",
        r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
        r"wandb_v1_[A-Za-z0-9_]{30,}",
        r"pn[ub]_[A-Za-z0-9]{36}",
    ),
    "a Databricks token": (r"dapi[0-9a-f]{32}",),
    "a DigitalOcean token": (r"do[opr]_v1_[0-9a-f]{64}",),
    "a Docker token": (r"dckr_[po]at_[A-Za-z0-9_-]{20,}",),
    "a Vault token": (r"hv[sbr]\.[A-Za-z0-9_-]{24,}",),
    "a Grafana token": (r"glsa_[A-Za-z0-9]{32}_[0-9a-f]{8}", r"glc_[A-Za-z0-9+/=]{40,}"),
    "a Google token": (r"ya29\.[A-Za-z0-9_-]{20,}", r"1//0[A-Za-z0-9_-]{30,}", r"GOCSPX-[A-Za-z0-9_-]{20,}"),
    "an npm token": (r"npm_[A-Za-z0-9]{36}",),
    "a PyPI token": (r"pypi-AgE[A-Za-z0-9_-]{20,}",),
    "a Slack token": (r"xox[a-z]-[0-9A-Za-z-]{10,}", r"xapp-\d-[0-9A-Za-z-]{10,}", r"xoxe\.xox[bp]-[0-9A-Za-z-]{10,}"),
    "a JSON web token": (r"eyJ(?<![A-Za-z0-9_-]eyJ)[A-Za-z0-9_-]{12,}+\.[A-Za-z0-9_-]{12,}\.[A-Za-z0-9_-]{12,}",),
    "a private key": (
        _KEY_BLOCK,
        r"AGE-SECRET-KEY-1[0-9A-Z]{50,}",
        r"PuTTY-User-Key-File-\d[\s\S]{0,16384}(?:Private-MAC: [0-9a-f]{0,64})?",
    ),
    "the address of a webhook": (
        r"(?P<shown>hooks\.slack(?:-gov)?\.com/[a-z]{4,20}/)[A-Za-z0-9/_-]{20,}",
        r"(?P<shown>discord(?:app)?\.com/api/(?:v\d{1,2}/)?webhooks/)\d{5,25}/[A-Za-z0-9_-]{20,}",
        r"(?P<shown>(?:webhook\.office|office365|outlook\.office)\.com/webhook[a-z0-9]{0,3}/)[A-Za-z0-9@/_-]{20,}",
        r"(?P<shown>api\.telegram\.org/(?:file/)?bot)\d{5,15}:[A-Za-z0-9_-]{20,}",
        r"(?P<shown>hooks\.zapier\.com/hooks/catch/)[A-Za-z0-9/_-]{8,}",
        r"(?P<shown>maker\.ifttt\.com/trigger/[\w-]{1,64}/(?:json/)?with/key/)[A-Za-z0-9_-]{16,}",
        r"(?P<shown>open\.(?:feishu\.cn|larksuite\.com)/open-apis/bot/(?:v2/)?hook/)[A-Za-z0-9_-]{16,}",
        r"(?P<shown>/hooks/)(?=[a-z]{0,25}\d)[a-z0-9]{26}(?![\w-])",
    ),
    "an access token in an address": tuple(
        rf"(?P<shown>{name}_token=)(?=[\w.~%+/=-]{{0,999}}\d)[\w.~%+/=-]{{16,}}" for name in ("access", "id", "refresh")
    ),
}
"""Patterns of what is a secret wherever it stands: hidden in texts, and looked for in releases. What a group `shown` has is no secret.

Almost each begins with literal characters, so that long texts take no longer than they must.
"""
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
_SPOKEN = r"(?=[^\s\d]{0,99}\d)[A-Za-z0-9_./+=~$!%-]{16,}"
"""A secret behind a word that names it: longer than a word, and with a digit."""
_OPTION = r"(?=\S{0,99}[\d!@#$%^&*+~])[^\s'\"]{4,}"
"""The value of an option, unlike the next word of a sentence."""
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
    (rf"([?&;#](?:{_PARAMETER})=)[^{_END}&;,]+", r"\1***"),
    (rf"((?:^|[\s,;'\"({{])(?:{_PASSWORD}|pwd)(?:['\"]\s?:|\s?[:=])\s?b?(['\"])){_QUOTED}", r"\1***"),
    (rf"((?:^|[\s,;'\"({{])(?:{_PASSWORD}|pwd)(?:\s?=\s?|['\"]\s?:\s?)(?:b?['\"])?)[^{_END},;]+", r"\1***"),
    (rf"((?:^|[\s,;'\"({{])(?:{_PASSWORD})[ \t]?[:\uff1a][ \t]{{0,9}}+)(?!{_INNOCENT}){_WORD}", r"\1***"),
    (rf"((?:^|[\s,;'\"({{])(?:{_NAME}[_-])?token['\"]?\s?[:=]\s?b?['\"]?){_SPOKEN}", r"\1***"),
    (rf"(\b(?:token|api[ _-]?key|password|passphrase|secret)\s(?:is\s)?['\"]?){_SPOKEN}", r"\1***"),
    (rf"(--(?:{_PASSWORD}|token|pass)\s['\"]?){_OPTION}", r"\1***"),
    (r"(\bsshpass\s+-p\s?['\"]?)[^\s'\"]+", r"\1***"),
    (r"(\bcurl\s[^\r\n]{0,300}?(?:-u|--user)[ =]?['\"]?[^\s:'\"]{1,99}:)[^\s'\"]+", r"\1***"),
    (rf"(\(b?['\"](?:{_PASSWORD})['\"],\s?b?(['\"])){_QUOTED}(?=\2\))", r"\1***"),
    # In quotes up to their end, else up to the end of the line: each scheme has its own form.
    (rf"({_HEADER}(?:['\"]\s?,|['\"]?\s?[:=])\s?b?(['\"])){_QUOTED}", r"\1***"),
    (rf"((['\"])(?:proxy-|set-)?{_HEADER}\s?[:=]\s?+)(?!b?['\"]){_QUOTED}", r"\1***"),
    (rf"({_HEADER}['\"]?\s?[:=]\s?+)(?!b?['\"]|\*\*\*)[^\r\n]+", r"\1***"),
    (r"\b(bearer\s)(?:(?=[^\s\d]{0,999}\d)[^\s'\",;]{8,}|[^\s'\",;]{16,})", r"\1***"),
    # shorter than real ones, which a message may have cut
    (r"\b(?-i:hf_(?:[A-Za-z0-9]{10,}|(?:oauth|jwt)_(?=[\w.-]{0,99}\d)[\w.-]{8,}))", _HIDDEN),
]
_COMPILED = [(re.compile(pattern, re.IGNORECASE), hidden) for pattern, hidden in _PATTERNS]
_FORMS: Final = [re.compile(pattern) for patterns in KINDS.values() for pattern in patterns]
_VARIABLE = re.compile(
    r"(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|(?<!ASK)(?<!BY)(?<!COM)PASS|(?<!OLD)(?<=.)PWD|AUTH_STRING"
    r"|(?:API|ACCESS|ACCOUNT|SECRET)_?KEY)$"
)
"""Environment variables whose values are secrets, but for those with the path of a folder."""
_SHORTEST = 8
_STORED = re.compile(r"(?m)^\s*(?:hf_token|refresh_token)\s*[=:]\s*(\S+)")
_LOGIN_BYTES = 1 << 20
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY")
_KEY_LINES = 200
"""The longest private key, in lines: without its end, what follows is shown again."""


def without_secrets(text: str) -> str:
    """Return `text` with `***` for users and passwords in addresses, their queries, tokens, and secrets of this machine."""
    for value in secrets_of_machine():
        for spelling in {value, quote(value, safe="")}:
            text = text.replace(spelling, _HIDDEN)
    text = _ADDRESS.sub(lambda address: _without_user(address[0]), text)
    for form in _FORMS:
        text = form.sub(_hidden, text)
    text = _QUERY.sub(lambda found: f"{found[1]}{_HIDDEN}" if found[1] else found[0], text)
    for pattern, hidden in _COMPILED:
        text = pattern.sub(hidden, text)
    return text


def lines_without_secrets(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines as `without_secrets` shows them, and nothing of a private key that goes over several of them."""
    rest = 0
    for line in lines:
        if rest:
            rest = 0 if "-----END" in line else rest - 1
            continue
        yield without_secrets(line)
        begin = line.rfind("-----BEGIN ")
        if begin >= 0 and _KEY_BEGINS.match(line, begin) and "-----END" not in line[begin:]:
            rest = _KEY_LINES


def secrets_of_machine() -> set[str]:
    """Return the values of environment variables that hold secrets, and the tokens that a login to the Hub has stored."""
    found = {
        value.strip()
        for name, value in os.environ.items()
        if _VARIABLE.search(name) and not os.path.isdir(value)  # noqa: PTH112
    }
    found |= login_tokens(*_login_files())
    return {value for value in found if len(value) >= _SHORTEST}


def login_tokens(*files: str) -> set[str]:
    """Return the tokens in the files that `hf auth login` writes: the one in use, and all that are stored, with those that renew them."""
    found = set[str]()
    for file in files:
        try:
            changed = os.stat(file).st_mtime_ns  # noqa: PTH116
        except OSError:
            continue
        found |= _read_login_tokens(file, changed)
    return found


@lru_cache(maxsize=8)
def _read_login_tokens(file: str, _changed: int) -> frozenset[str]:
    try:
        with open(file, encoding="utf-8") as opened:  # noqa: PTH123
            text = opened.read(_LOGIN_BYTES)
    except (OSError, ValueError):
        return frozenset()
    stored = _STORED.findall(text)
    return frozenset(stored or text.split())


def _login_files() -> tuple[str, str]:
    """Return where huggingface_hub keeps tokens, as its constants say."""
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", f"{cache}/huggingface")
    token = os.environ.get("HF_TOKEN_PATH", f"{home}/token")
    token = os.path.expandvars(os.path.expanduser(token))  # noqa: PTH111
    return token, f"{os.path.dirname(token)}/stored_tokens"  # noqa: PTH120


def _hidden(found: re.Match[str]) -> str:
    before = found.string[found.start() - 1 : found.start()]
    if is_within_word(before, found[0][0]):
        return found[0]
    return (found.groupdict().get("shown") or "") + _HIDDEN


def is_within_word(before: str, first: str) -> bool:
    """Whether what looks like a secret goes on where a word has begun, by the characters before it and at its beginning."""
    return before.isascii() and (before.isalnum() or before == "_") and first.isalnum()


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
