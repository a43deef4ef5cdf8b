"""The Hub that the contract suite (CONTRACT) tests: a local one, unless EVERGREEN_CONTRACT_HUB names another.

    EVERGREEN_CONTRACT_HUB=https://huggingface.co HF_TOKEN=hf_... pytest tests/unit/tasks/hub_server

The token needs write access. Repositories are created in its user's namespace, with a random prefix, and deleted.
"""

from __future__ import annotations

import os
import secrets
from typing import Any

import httpx2
import pytest

CONTRACT = {"test_api.py", "test_pull_requests.py"}
CONTRACT_HUB = os.environ.get("EVERGREEN_CONTRACT_HUB", "")
TOKEN = os.environ.get("HF_TOKEN", "") if CONTRACT_HUB else "token-of-alice"
IS_LOCAL = not CONTRACT_HUB
PREFIX = "" if IS_LOCAL else f"evergreen-contract-{secrets.token_hex(4)}-"
local_only = pytest.mark.skipif(not IS_LOCAL, reason="tests the local Hub itself, not the contract of every Hub")


def lfs_batch(endpoint: str, repo: str, *objects: tuple[str, int]) -> list[dict[str, Any]]:
    """Ask to upload large files, given by SHA-256 and size, and return the Hub's answer for each."""
    answer = httpx2.post(
        f"{endpoint}/{repo}.git/info/lfs/objects/batch",
        json={"operation": "upload", "objects": [{"oid": sha256, "size": size} for sha256, size in objects]},
        headers={"Authorization": f"Bearer {TOKEN}"},
    )
    found: list[dict[str, Any]] = answer.json()["objects"]
    return found
