"""Whether a Hub has Xet storage. With hf-xet installed, the client uploads there and does not ask whether the Hub has it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from urllib.parse import quote

from huggingface_hub import HfApi, constants, get_session, hf_raise_for_status
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils._headers import build_hf_headers

_REFUSED_OR_UNCLEAR = frozenset({401, 403, 408, 425, 429})
"""With these, and all from 500 on but 501 (not implemented), the Hub has not said whether it has Xet storage."""


@contextlib.contextmanager
def upload_without_xet(api: HfApi, repo_id: str, branch: str, *, create_pr: bool = False) -> Iterator[None]:
    """Inside the block, large files go to a Hub without Xet storage by git-lfs. The client would fail.

    The setting belongs to the process: another thread that uploads meanwhile uses git-lfs, too, which every Hub has. With
    `create_pr` the upload makes a pull request, for which the user need not be allowed to write to the branch.

    Raises:
        HfHubHTTPError: the Hub does not let the user write to the branch, or fails.
    """
    before = constants.HF_HUB_DISABLE_XET
    if not before and not _has_xet(api, repo_id, branch, create_pr=create_pr):
        constants.HF_HUB_DISABLE_XET = True
    try:
        yield
    finally:
        constants.HF_HUB_DISABLE_XET = before


def _has_xet(api: HfApi, repo_id: str, branch: str, *, create_pr: bool) -> bool:
    """Ask for what an upload by Xet begins with: the address of the storage and a token for it."""
    answer = get_session().get(
        f"{api.endpoint}/api/models/{repo_id}/xet-write-token/{quote(branch, safe='')}",
        params={"create_pr": "1"} if create_pr else None,
        headers=build_hf_headers(token=api.token),
    )
    try:
        hf_raise_for_status(answer)
    except HfHubHTTPError:
        if answer.status_code in _REFUSED_OR_UNCLEAR or (answer.status_code >= 500 and answer.status_code != 501):
            raise
        return False
    return constants.HUGGINGFACE_HEADER_X_XET_ENDPOINT in answer.headers
