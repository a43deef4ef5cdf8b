"""What others say is shown without the secrets in it, and otherwise as it is."""

from __future__ import annotations

import logging
import string
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.run.logs import TracebackAndSecretFilter
from params import RecipeError, RemoteRefusedError, TransientError
from params.foundation.errors import error_from_json
from params.foundation.secrets import without_secrets

HF = "hf_" + "aB3" * 12
GIT = "ghp_" + "aB3" * 12
LONG = "eyJ" + "aB3." * 2000
SECRETS = {
    f"fatal: unable to access 'https://{GIT}@github.com/team/models.git/': 403": (
        "fatal: unable to access 'https://***@github.com/team/models.git/': 403"
    ),
    "could not read Password for 'https://s3cret@host'": "could not read Password for 'https://***@host'",
    "https://user:pass@host:8443/x?y": "https://***@host:8443/x?***",
    "https://x-access-token:s3cret@github.com/a": "https://***@github.com/a",
    "https://s3cret:x-oauth-basic@github.com/a": "https://***@github.com/a",
    "https://me:p%40ss%2Fw@host/a": "https://***@host/a",
    "https://me:p@ss@host/a": "https://***@host/a",
    "https://me:p/ss?w#d@host/a": "https://***@host/a",
    "git+https://s3cret@host/a": "git+https://***@host/a",
    "HTTPS://S3CRET@HOST/A": "HTTPS://***@HOST/A",
    "ssh://git:s3cret@host:22/a": "ssh://git:***@host:22/a",
    "postgresql+psycopg://me:s3cret@host/db": "postgresql+psycopg://me:***@host/db",
    "s3://KEY:s3/cret@bucket/x": "s3://KEY:***@bucket/x",
    "redis://:s3cret@host/0": "redis://:***@host/0",
    "from https://a:s3cret@one/x to https://s3cret@two/y, not http://three/z": (
        "from https://***@one/x to https://***@two/y, not http://three/z"
    ),
    "next=https%3A%2F%2Fme%3As3cret%40host%2Fa": "next=https%3A%2F%2F***%40host%2Fa",
    "https://host/f?token=s3cret": "https://host/f?***",
    "https://a.blob.core.windows.net/c/f?sv=2024&sig=s3cret%3D: 403": "https://a.blob.core.windows.net/c/f?*** 403",
    "GET /f?part=1&X-Amz-Signature=s3cret failed": "GET /f?part=1&X-Amz-Signature=*** failed",
    "abfs://c@a/f?sv=2024&sig=s3cret": "abfs://c@a/f?sv=2024&sig=***",
    "AccountName=a;AccountKey=s3cret==;EndpointSuffix=b": "AccountName=a;AccountKey=***;EndpointSuffix=b",
    "connection to host=db user=me password=s3cret failed": "connection to host=db user=me password=*** failed",
    "{'user': 'me', 'password': 's3cret', 'secret_key': \"s3cret\"}": (
        "{'user': 'me', 'password': '***', 'secret_key': \"***\"}"
    ),
    "Authorization: Basic czNjcmV0": "Authorization: ***",
    "{'authorization': 'Bearer s3cret'}": "{'authorization': '***'}",
    "sent Bearer s3cret-of-me": "sent Bearer ***",
    f"Invalid user token: {HF}.": "Invalid user token: ***.",
    f"{GIT}, {HF}": "***, ***",
    f"ghs_{'aB3' * 30}!": "***!",
    f"unable to access 'https://oauth2:{LONG}@host/x.git/': 403": "unable to access 'https://***@host/x.git/': 403",
    f"https://{LONG}@host/a": "https://***@host/a",
    f"ssh://git:{LONG}@host/a": "ssh://git:***@host/a",
    f"https%3A%2F%2F{LONG}%40host%2Fa": "https%3A%2F%2F***%40host%2Fa",
    f"https://host/{LONG}?token=s3cret": f"https://host/{LONG}?***",
    **{f"'https://me:s3{mark}cret@host/a/': 403": "'https://***@host/a/': 403" for mark in "'\"`|<>"},
    **{f"'ssh://me:s3{mark}cret@host/a/': 403": "'ssh://me:***@host/a/': 403" for mark in "'\"`|<>"},
    "[(b'authorization', b'Bearer s3cret'), (b'host', b'a')]": "[(b'authorization', b'***'), (b'host', b'a')]",
    "{b'authorization': b'Bearer s3cret', b'a': b'c'}": "{b'authorization': b'***', b'a': b'c'}",
    "> Proxy-Authorization: Negotiate s3cret=\n> Accept: a": "> Proxy-Authorization: ***\n> Accept: a",
    "Authorization: AWS4-HMAC-SHA256 Credential=A/b, SignedHeaders=a;b, Signature=s3cret\r\nb": "Authorization: ***\r\nb",
    'Authorization: Digest username="me", response="s3cret"': "Authorization: ***",
    "curl -H 'Authorization: Negotiate s3cret' https://host/a": "curl -H 'Authorization: ***' https://host/a",
    **{
        f"sent {name}: {value}\r\nAccept: a": f"sent {name}: ***\r\nAccept: a"
        for name in ("X-Api-Key", "PRIVATE-TOKEN", "X-Auth-Token", "api-key", "Ocp-Apim-Subscription-Key", "JOB-TOKEN")
        for value in ("s3cret", "secretword")
    },
    "> Cookie: session=s3cret; b=c\n> Accept: a": "> Cookie: ***\n> Accept: a",
    "{'Set-Cookie': 'session=s3cret; Path=/'}": "{'Set-Cookie': '***'}",
    "curl -H 'Cookie: a=s3cret' -H \"x-api-key: s3cret\" https://host/a": (
        "curl -H 'Cookie: ***' -H \"x-api-key: ***\" https://host/a"
    ),
    "[(b'x-api-key', b's3cret'), (b'host', b'a')]": "[(b'x-api-key', b'***'), (b'host', b'a')]",
    "{b'Private-Token': b's3cret', b'a': b'c'}": "{b'Private-Token': b'***', b'a': b'c'}",
    "user: me\n  password: s3cret\nhost: db": "user: me\n  password: ***\nhost: db",
    "user: me\npassword: secretword\nhost: db": "user: me\npassword: ***\nhost: db",
    "{user: me, passwd: secretword, host: db}": "{user: me, passwd: ***, host: db}",
    "password: P@ssword for me": "password: *** for me",
    "passwd=s3cret DB_PASS=s3cret MYSQL_PWD=s3cret ": "passwd=*** DB_PASS=*** MYSQL_PWD=*** ",
    "client_secret: s3cret, access_token=s3cret": "client_secret: ***, access_token=***",
    f"npm error //registry/:_auth npm_{'aB3' * 12} ya29.{'a0_-' * 20}": "npm error //registry/:_auth *** ***",
    "https://host/x#access_token=s3cret&state=1": "https://host/x#access_token=***&state=1",
    "host=db password='a s3cret' dbname=x": "host=db password='***' dbname=x",
    "PWD={s3cret};": "PWD=***;",
    f"GITLAB_TOKEN={'aB3' * 8}, token: {'aB3' * 8}, token={'aB3' * 8}": "GITLAB_TOKEN=***, token: ***, token=***",
    f"gitea token {'0a' * 20} is invalid, api key {'0a' * 20}": "gitea token *** is invalid, api key ***",
    f"machine h login me password {'aB3' * 6}, passphrase is {'aB3' * 6}": "machine h login me password ***, passphrase is ***",
    "sshpass -p s3cret ssh h; tool --password s3cret -h; curl -s -u me:s3cret https://h": (
        "sshpass -p *** ssh h; tool --password *** -h; curl -s -u me:*** https://h"
    ),
    "password\uff1as3cret": "password\uff1a***",
}
PLAIN = [
    "https://docs/hooks/pre-commit, https://hooks.slack.com/services, https://discord.com/api/webhooks",
    "hf_oauth_scopes: [read-repos], hf_oauth_redirect_path: /x, hf_oauth_expiration_minutes: 480",
    "-----BEGIN PUBLIC KEY-----\nMIIBIjANBg1\n-----END PUBLIC KEY-----",
    "the token is missing, the password is at least 8 characters long",
    "use --password to name one, or --token; curl -u asks",
    "pad_token: <pad>, token: a1b2, mask_token=[MASK], one token 12, 3 tokens: 4",
    "pass: 3 of 4, first_pass: 2/3, PASS: tests/test_x1.py, pass=3",
    "password: required",
    "the password: wrong, passwd: unknown user, secret: missing",
    "password: 8 characters or more; password: 401 Unauthorized",
    "api_key: Field required; password: Input should be a valid string",
    "def connect(user: str, password: str | None = None, secret: bytes, api_key: str) -> None",
    "password: ${PASSWORD}, api_key: {key}, secret: %s, secret: https://host/docs1",
    "labels: compass=north, compass: north1, bypass=all, passage: a1, secretary: b2, keys: c3",
    "pad-token: <pad>, eos_token: </s>1, sort-key: id2, key: a1, token: b2, tokens: 3",
    "pwd: /home/me1",
    "X-Api-Key: missing; X-Request-Id: a1-b2",
    "['x-api-key', 'password', 'user'], ['cookie', 'cake'], cookie: none, cookies: a=b",
    "npm_config_cache, ya29, npm_package",
    "git@github.com:team/models.git: Permission denied (publickey)",
    "ssh://git@host/team/models.git: Could not read from remote repository",
    "https://huggingface.co/team/model/tree/main: 404 Not Found",
    "team/model@release-0123456789ab",
    "https://huggingface.co/team/model@release-0123456789ab",
    "http://127.0.0.1:4200/team/model@release-0123456789ab: does not answer",
    "http://[::1]:4200/api/a@b",
    "is it at http://127.0.0.1:4200/api?",
    "postgresql+asyncpg://prefect@/prefect?host=/run/postgresql",
    "postgresql:///prefect?host=/run/postgresql",
    "pad_token='<pad>', max_new_tokens=20, key=3, eos_token=</s>: two tokens, no token",
    "set HF_TOKEN to a valid token with write access, or run `hf auth login`",
    "Bearer authentication is needed, basic credentials are not taken",
    "hf_transfer is not installed; hf_hub_download(repo_id, filename)",
    "write postgresql://user:${PASSWORD}@host/database"[:25],
    "write --data KEY=VALUE; export PREFECT_API_URL=http://127.0.0.1:4200/api",
    "the password: write it into a file; secrets are hidden",
    "mail me@example.org about a/b@c",
]


@pytest.mark.parametrize(("text", "shown"), SECRETS.items(), ids=range(len(SECRETS)))
def test_secrets_are_hidden(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
    assert without_secrets(without_secrets(text)) == without_secrets(text)


@pytest.mark.parametrize("text", PLAIN)
def test_all_else_is_shown(text: str) -> None:
    assert without_secrets(text) == text


WORD = st.text(string.ascii_letters + string.digits + "-._~%+=!$*", min_size=6, max_size=40).map(lambda s: f"Q{s}Q")
FORMS = (
    "https://{}@h/x", "https://u:{}@h/x", "http://{}:x@h", "ssh://git:{}@h", "https://h/x?token={}", "https://h/x?a=b&sig={}",
    "https%3A%2F%2Fu%3A{}%40h", "Authorization: Basic {}", "authorization: bearer {}", "password={}",
)  # fmt: skip


@settings(deadline=None)
@given(
    parts=st.lists(st.tuples(st.sampled_from(FORMS), WORD, st.sampled_from([" ", "\n", "; ", "' '", ": "])), min_size=1)
)
def test_several_secrets_in_one_text_are_hidden(parts: list[tuple[str, str, str]]) -> None:
    text = "".join(form.format(secret) + end for form, secret, end in parts)
    for form, secret, _ in parts:
        assert secret not in without_secrets(text), form


@pytest.mark.parametrize(
    "part",
    [
        "x",
        "http://",
        "://a:",
        "https://a?",
        ";token",
        "password=",
        "bearer ",
        "%3a%2f%2f",
        "@",
        "://a:@",
        "%3a%2f%2fa",
        "https://a:",
        "é://a:",
        "https://a",
        "authorization: '",
        "'authorization:",
        "authorization', '\\\\",
        "bearer a",
        "password: ",
        "x-",
        "(x-",
        "cookie: a",
        "(b'x-key', '",
        "user-pass: \t",
        "token ",
        "token=",
        "curl -u",
        "curl ",
        "--password ",
        "eyJ",
        "-----BEGIN PRIVATE KEY-----",
        "hf_oauth_",
        "access_token=",
        "hooks.slack.com/services/",
        "/hooks/",
    ],
)
def test_long_texts_take_no_long_time(part: str) -> None:
    start = time.process_time()
    without_secrets(part * (200_000 // len(part)))
    assert time.process_time() - start < 5


def test_secrets_of_the_environment_are_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MY_GIT_TOKEN", "plain words/+")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "abcdefgh")
    monkeypatch.setenv("PGPASSWORD", "hunter22")
    plain = {
        "TOKENIZERS_PARALLELISM": "parallel-yes",
        "PWD": "/projects/gone",
        "OLDPWD": "/projects/old",
        "START_PWD": str(tmp_path),
    }
    plain |= {"SSH_ASKPASS": "/bin/askpass", "COMPASS": "northwards"}
    hidden = {
        "MYSQL_PWD": "mysqlpwd",
        "DB_PASS": "databasepass",
        "SMTPPASS": "smtp-pass",
        "LOGIN_PASSWD": "loginpasswd",
    }
    for name, value in (plain | hidden).items():
        monkeypatch.setenv(name, value)
    text = without_secrets("plain words/+ plain%20words%2F%2B abcdefgh hunter22")
    assert text == "*** *** *** ***"
    assert without_secrets(" ".join(plain.values())) == " ".join(plain.values())
    assert without_secrets(" ".join(hidden.values())) == "*** *** *** ***"


@pytest.mark.parametrize("kind", [RecipeError, RemoteRefusedError, TransientError])
def test_no_error_shows_a_secret(kind: type[TransientError]) -> None:
    address = "https://s3cret@host/x"
    error = kind(address, f"no access to {address}", f"see {address}")
    assert "s3cret" not in f"{error} {error!r} {error.args} {error.to_json(9999)} {error.replace(where=address)}"
    assert str(error_from_json(error.to_json(9999))) == str(error)


def test_no_log_of_a_run_shows_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("test_secrets")
    logger.addFilter(TracebackAndSecretFilter())
    try:
        int("https://s3cret@host")
    except ValueError:
        logger.exception("at %s of %d%%", "https://s3cret@host", 5)
    assert "s3cret" not in caplog.text
    assert "at https://***@host of 5%" in caplog.text
    assert "ValueError: invalid literal for int() with base 10: 'https://***@host'" in caplog.text
