"""What is a secret by its form is one table: hidden in texts, and found in what is about to be published."""

from __future__ import annotations

import re
from pathlib import Path

import huggingface_hub.constants
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from params import ModelError
from params.foundation import secrets
from params.foundation.secrets import KINDS, lines_without_secrets, without_secrets
from tasks.publishing.secrets import find_secrets
from tests.support.publications import plan

BODY = "Zq7Zq8Zq9Zq1Zq2Zq3Zq4Zq5Zq6Zq7Zq8Zq9Zq0Zq7Zq8Zq9Zq1Zq2Zq3Zq4Zq5Zq6"
UPPER, HEX = BODY.upper(), "0123456789abcdef" * 4
PEM = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{BODY}\n{BODY}\n-----END OPENSSH PRIVATE KEY-----"
EXAMPLES = {
    "a Hugging Face token": [
        f"hf_{BODY[:34]}",
        f"hf_oauth_{BODY}",
        f"hf_jwt_eyJ{BODY}.{BODY}.{BODY}",
        f"api_org_{BODY[:34]}",
    ],
    "an AWS key": [f"AKIA{UPPER[:16]}", f"ASIA{UPPER[:16]}"],
    "a GitHub token": [*(f"gh{kind}_{BODY[:36]}" for kind in "pousr"), f"github_pat_{BODY[:60]}"],
    "a GitLab token": [f"glpat-{BODY[:20]}", f"gldt-{BODY[:20]}"],
    "a Bitbucket password": [f"ATBB{BODY[:32]}", f"ATATT3{BODY[:60]}"],
    "an API key": [
        *(
            f"sk-ant-{BODY[:40]}",
            f"AIza{BODY[:35]}",
            f"sk_live_{BODY[:24]}",
            f"rk_live_{BODY[:24]}",
            f"gsk_{BODY[:52]}",
        ),
        *(f"r8_{BODY[:37]}", f"SG.{BODY[:22]}.{BODY[:43]}", f"wandb_v1_{BODY[:40]}", f"pnu_{BODY[:36]}"),
    ],
    "a Databricks token": [f"dapi{HEX[:32]}"],
    "a DigitalOcean token": [f"dop_v1_{HEX}"],
    "a Docker token": [f"dckr_pat_{BODY[:27]}"],
    "a Vault token": [f"hvs.{BODY[:24]}"],
    "a Grafana token": [f"glsa_{BODY[:32]}_{HEX[:8]}", f"glc_{BODY}"],
    "a Google token": [f"ya29.{BODY}", f"1//0{BODY}", f"GOCSPX-{BODY[:28]}"],
    "an npm token": [f"npm_{BODY[:36]}"],
    "a PyPI token": [f"pypi-AgEIcHlwaS5vcmc{BODY}"],
    "a Slack token": [f"xoxb-{BODY}", f"xapp-1-{BODY}", f"xoxe.xoxp-1-{BODY}"],
    "a JSON web token": [f"eyJhbGciOiJIUzI1NiJ9.{BODY}.{BODY}"],
    "a private key": [
        *(PEM, PEM.replace("\n", "\\n"), PEM[:120], PEM.replace("OPENSSH ", ""), f"AGE-SECRET-KEY-1{UPPER[:58]}"),
        f"PuTTY-User-Key-File-2: ssh-rsa\nPrivate-Lines: 1\n{BODY}\nPrivate-MAC: {HEX[:40]}",
    ],
    "the address of a webhook": [
        *(f"https://hooks.slack.com/{kind}/T000/B000/{BODY[:24]}" for kind in ("services", "workflows", "triggers")),
        *(f"https://{host}.com/api/webhooks/123456789012345678/{BODY}" for host in ("discord", "discordapp")),
        f"https://me.webhook.office.com/webhookb2/{HEX[:32]}@{HEX[:32]}/IncomingWebhook/{HEX[:32]}/{BODY}",
        *(
            f"https://api.telegram.org/bot123456789:{BODY[:35]}/send",
            f"https://hooks.zapier.com/hooks/catch/123/{BODY[:9]}",
        ),
        *(
            f"https://maker.ifttt.com/trigger/a/with/key/{BODY[:22]}",
            f"https://open.feishu.cn/open-apis/bot/v2/hook/{BODY}",
        ),
        f"https://chat.example.org/hooks/{BODY[:26].lower()}",
    ],
    "an access token in an address": [f"https://h/x#{name}_token={BODY}" for name in ("access", "id", "refresh")],
}
FLAT = [(kind, one) for kind, examples in EXAMPLES.items() for one in examples]
PARTS = re.compile(r"Zq\d|ZQ\d|zq\d|0123456789abcdef0123")


def test_each_form_has_an_example() -> None:
    for kind, patterns in KINDS.items():
        for pattern in patterns:
            assert any(re.search(pattern, one) for one in EXAMPLES[kind]), pattern


@pytest.mark.parametrize(("kind", "example"), FLAT, ids=range(len(FLAT)))
@settings(max_examples=10)
@given(
    before=st.sampled_from(["", "a ", "key=", '"', "{'a': '", "\n", "(", "x: ", "é"]),
    after=st.sampled_from(["", " is invalid", '"', "'}", "\n", ")", ", x"]),
    is_utf_16=st.booleans(),
)
def test_a_secret_is_hidden_and_found_wherever_it_stands(
    kind: str, example: str, before: str, after: str, is_utf_16: bool
) -> None:
    text = f"{before}{example}{after}"
    assert not PARTS.search(without_secrets(text))
    assert without_secrets(without_secrets(text)) == without_secrets(text)
    found = find_secrets("README.md", text.encode("utf-16-le" if is_utf_16 else "utf-8"))
    assert any(kind in one for one in found), found
    assert not PARTS.search(" ".join(found))


@pytest.mark.parametrize("lines", [PEM.splitlines(), ["key:", *PEM.splitlines(), "behind"]])
def test_a_private_key_is_hidden_line_by_line(lines: list[str]) -> None:
    shown = [*lines_without_secrets(lines)]
    assert not PARTS.search(" ".join(shown))
    assert ("behind" in shown) == ("behind" in lines)


def test_a_key_without_an_end_does_not_hide_all_that_follows() -> None:
    assert "x" in [*lines_without_secrets([PEM.splitlines()[0], *["y"] * 500, "x"])]


@pytest.mark.parametrize("key", ["hf_token", "refresh_token"])
def test_what_a_login_stores_is_hidden_and_not_published(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    token = "opaque.of-the-login_77"
    (tmp_path / "token").write_text("another-token\n")
    (tmp_path / "stored_tokens").write_text(
        f"[mine]\nhf_token = other-token\n{key} = {token}\nexpires_at = 1800000000\n"
    )
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_STORED_TOKENS_PATH", str(tmp_path / "stored_tokens"))
    assert without_secrets(f"grant {token} has ended") == "grant *** has ended"
    (folder / "notes.txt").write_text(f"see {token}")
    with pytest.raises(ModelError, match=r"notes\.txt:1: holds the token that this machine uses") as raised:
        plan(folder)
    assert token not in str(raised.value)


def test_both_know_the_same_files_of_a_login() -> None:
    constants = huggingface_hub.constants
    assert secrets._login_files() == (constants.HF_TOKEN_PATH, constants.HF_STORED_TOKENS_PATH)


def test_a_secret_of_the_environment_is_not_published(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_DATABASE_PASSWORD", "correct horse battery staple")
    (folder / "notes.txt").write_text("use correct horse battery staple")
    with pytest.raises(ModelError, match=r"notes\.txt:1: holds a secret of this machine's environment"):
        plan(folder)
