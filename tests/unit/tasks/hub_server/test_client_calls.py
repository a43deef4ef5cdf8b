"""Every public method of the real client gets a right answer, or status 501 with a sentence. A new method is in neither list."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import GeneratorType

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, Volume
from huggingface_hub.errors import HfHubHTTPError

from tasks.hub_server.server import LocalHub

REPO, DATA, LARGE = "alice/model", "alice/data", "model.safetensors"
CARD = (
    b"---\nlicense: mit\nlibrary_name: transformers\npipeline_tag: text-classification\ntags: [fresh]\n---\n# A card\n"
)
HEADER = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
WEIGHTS = len(HEADER).to_bytes(8, "little") + HEADER + b"\0\0\0\0"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a Hub with a model, a dataset and, in the model, a tag, a branch and the pull request 1."""
    folder = tmp_path_factory.mktemp("prepared")
    with LocalHub(folder, tokens={"token-of-alice": "alice"}) as running, pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        api = HfApi(endpoint=running.endpoint, token="token-of-alice")
        for repo, kind in ((REPO, "model"), (DATA, "dataset")):
            api.create_repo(repo, repo_type=kind)
            files = {"README.md": CARD, "a/b.txt": b"b", "c.txt": b"c", LARGE: WEIGHTS}
            operations = [CommitOperationAdd(path, content) for path, content in files.items()]
            api.create_commit(repo, operations, commit_message="first", repo_type=kind)
        api.create_tag(REPO, tag="v1")
        api.create_branch(REPO, branch="side")
        api.upload_file(repo_id=REPO, path_in_repo="d.txt", path_or_fileobj=b"d", create_pr=True)
    return folder


@pytest.fixture
def api(prepared: Path, root: Path, hub: LocalHub) -> HfApi:
    """The client of alice; its Hub is a copy of the prepared one."""
    shutil.copytree(prepared, root, dirs_exist_ok=True)
    return HfApi(endpoint=hub.endpoint, token="token-of-alice")


def files(api: HfApi, **more: str) -> set[str]:
    return set(api.list_repo_files(REPO, **more))


def put(api: HfApi, tmp_path: Path) -> bool:
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "new.txt").write_text("new")
    api.upload_folder(repo_id=REPO, folder_path=tmp_path / "up")
    return "new.txt" in files(api)


def deletes_large_files(api: HfApi, _: Path) -> bool:
    api.permanently_delete_lfs_files(REPO, api.list_lfs_files(REPO), rewrite_history=False)
    return not list(api.list_lfs_files(REPO))


def ids(found: Iterable[object]) -> list[object]:
    return [each.id for each in found]  # type: ignore[attr-defined]


RIGHT: dict[str, Callable[[HfApi, Path], object]] = {
    "auth_check": lambda api, _: api.auth_check(REPO, write=True) is None,
    "change_discussion_status": lambda api, _: api.change_discussion_status(REPO, 1, "closed").new_status == "closed",
    "comment_discussion": lambda api, _: api.comment_discussion(REPO, 1, "hello").content == "hello",
    "create_branch": lambda api, _: api.create_branch(REPO, branch="b") or api.revision_exists(REPO, "b"),
    "create_commit": lambda api, _: api.create_commit(REPO, [CommitOperationDelete("c.txt")], commit_message="m").oid,
    "create_repo": lambda api, _: api.create_repo("alice/new", private=True).repo_id == "alice/new",
    "create_tag": lambda api, _: api.create_tag(REPO, tag="v2") or api.revision_exists(REPO, "v2"),
    "dataset_info": lambda api, _: "license:mit" in api.dataset_info(DATA).tags,
    "delete_branch": lambda api, _: api.delete_branch(REPO, branch="side") or not api.revision_exists(REPO, "side"),
    "delete_file": lambda api, _: api.delete_file("c.txt", REPO) and "c.txt" not in files(api),
    "delete_files": lambda api, _: api.delete_files(REPO, ["*.txt"]) and not [f for f in files(api) if ".txt" in f],
    "delete_folder": lambda api, _: api.delete_folder("a", REPO) and "a/b.txt" not in files(api),
    "delete_repo": lambda api, _: api.delete_repo(REPO) or not api.repo_exists(REPO),
    "delete_tag": lambda api, _: api.delete_tag(REPO, tag="v1") or not api.revision_exists(REPO, "v1"),
    "file_exists": lambda api, _: api.file_exists(REPO, "c.txt") and not api.file_exists(REPO, "e.txt"),
    "get_discussion_details": lambda api, _: api.get_discussion_details(REPO, 1).author == "alice",
    "get_full_repo_name": lambda api, _: api.get_full_repo_name("x") == "alice/x",
    "get_hf_file_metadata": lambda api, _: (
        api.get_hf_file_metadata(url=f"{api.endpoint}/{REPO}/resolve/main/c.txt").size == 1
    ),
    "get_paths_info": lambda api, _: api.get_paths_info(REPO, ["a"], expand=True)[0].last_commit.title == "first",
    "get_repo_discussions": lambda api, _: [each.num for each in api.get_repo_discussions(REPO)] == [1],
    "get_safetensors_metadata": lambda api, _: "w" in api.get_safetensors_metadata(REPO).weight_map,
    "hf_hub_download": lambda api, to: Path(api.hf_hub_download(REPO, "c.txt", local_dir=to)).read_bytes() == b"c",
    "list_datasets": lambda api, _: ids(api.list_datasets(filter="license:mit")) == [DATA],
    "list_lfs_files": lambda api, _: (
        [(f.filename, f.size) for f in api.list_lfs_files(REPO)] == [(LARGE, len(WEIGHTS))]
    ),
    "list_models": lambda api, _: ids(api.list_models(filter="fresh")) == [REPO],
    "list_repo_commits": lambda api, _: api.list_repo_commits(REPO, formatted=True)[0].formatted_title == "first",
    "list_repo_files": lambda api, _: files(api) == {".gitattributes", "README.md", "a/b.txt", "c.txt", LARGE},
    "list_repo_refs": lambda api, _: [branch.name for branch in api.list_repo_refs(REPO).branches] == ["main", "side"],
    "list_repo_tree": lambda api, _: all(f.last_commit for f in api.list_repo_tree(REPO, recursive=True, expand=True)),
    "merge_pull_request": lambda api, _: api.merge_pull_request(REPO, 1) or "d.txt" in files(api),
    "model_info": lambda api, _: api.model_info(REPO, expand=["sha", "createdAt"]).created_at <= datetime.now(UTC),
    "move_repo": lambda api, _: (
        api.move_repo(REPO, "team/x") or (api.repo_exists("team/x") and not api.repo_exists(REPO))
    ),
    "parse_safetensors_file_metadata": lambda api, _: "w" in api.parse_safetensors_file_metadata(REPO, LARGE).tensors,
    "permanently_delete_lfs_files": deletes_large_files,
    "preupload_lfs_files": lambda api, _: api.preupload_lfs_files(REPO, [CommitOperationAdd("x.bin", b"x")]) is None,
    "repo_exists": lambda api, _: api.repo_exists(REPO) and not api.repo_exists("alice/none"),
    "repo_info": lambda api, _: api.repo_info(REPO).pipeline_tag == "text-classification",
    "resolve_revision": lambda api, _: api.resolve_revision(REPO, revision="v1"),
    "revision_exists": lambda api, _: api.revision_exists(REPO, "v1") and not api.revision_exists(REPO, "v0"),
    "run_as_future": lambda api, _: api.run_as_future(api.whoami).result()["name"] == "alice",
    "snapshot_download": lambda api, to: (Path(api.snapshot_download(REPO, local_dir=to)) / "a" / "b.txt").exists(),
    "super_squash_history": lambda api, _: (
        api.super_squash_history(REPO, branch="side") or len(api.list_repo_commits(REPO, revision="side")) == 1
    ),
    "update_repo_settings": lambda api, _: api.update_repo_settings(REPO, private=True) or api.model_info(REPO).private,
    "upload_file": lambda api, _: (
        api.upload_file(repo_id=REPO, path_in_repo="e", path_or_fileobj=b"e") and "e" in files(api)
    ),
    "upload_folder": put,
    "verify_repo_checksums": lambda api, to: (
        api.snapshot_download(REPO, local_dir=to) and api.verify_repo_checksums(REPO, local_dir=to).checked_count == 5
    ),
    "whoami": lambda api, _: api.whoami()["orgs"][0]["name"] == "team",
}

_ABSENT = """
accept_access_request add_collection_item add_space_secret add_space_variable batch_bucket_files bucket_info
cancel_access_request cancel_job create_bucket create_collection create_discussion create_pull_request create_scheduled_job create_scheduled_uv_job
create_webhook delete_bucket delete_collection delete_collection_item delete_scheduled_job delete_space_secret
delete_space_variable delete_space_volumes delete_webhook disable_space_dev_mode disable_webhook duplicate_repo
edit_discussion_comment enable_space_dev_mode enable_webhook fetch_job_logs fetch_job_metrics fetch_space_logs
get_bucket_file_metadata get_bucket_paths_info get_collection get_dataset_leaderboard get_dataset_tags
get_model_tags get_organization_overview get_sharded_safetensors_metadata get_space_runtime get_space_secrets
get_space_variables get_user_overview get_webhook get_zero_gpu_quota grant_access hide_discussion_comment
inspect_job inspect_scheduled_job kernel_info list_accepted_access_requests list_bucket_tree list_buckets
list_collections list_daily_papers list_jobs list_jobs_hardware list_liked_repos list_organization_followers
list_organization_members list_papers list_pending_access_requests list_rejected_access_requests list_repo_likers
list_scheduled_jobs list_space_templates list_spaces list_spaces_hardware list_user_followers list_user_following
list_user_repos list_webhooks move_bucket paper_info pause_space reject_access_request rename_discussion
request_space_hardware rerun_job restart_space resume_scheduled_job run_job run_uv_job search_spaces
set_space_sleep_time set_space_volumes space_info suspend_scheduled_job sync_job_volume
trigger_scheduled_job unlike update_bucket_settings update_collection_item update_collection_metadata
update_collection_resource_group update_job_expose update_job_labels update_scheduled_job_labels
update_scheduled_job_schedule update_webhook upload_attachment wait_for_job wait_for_space
"""
ABSENT = set(_ABSENT.split())
"""Methods that get status 501."""
MORE: dict[str, dict[str, object]] = {
    **{f"{how}_access_request": {"user": "bob"} for how in ("accept", "cancel", "reject")},
    "batch_bucket_files": {"delete": ["a.txt"]},
    "create_webhook": {"url": "http://localhost"},
    "get_dataset_leaderboard": {"repo_id": DATA},
    "list_jobs": {"namespace": "alice"},
}
"""Arguments that these methods need, too."""
ELSEWHERE = {
    "read_paper": "its address is that of a repository `papers/<id>.md`, which is missing",
    "copy_files": "the client copies large files by their Xet hash, and says that they have none",
    "list_dataset_parquet_files": "the client refuses: only the dataset viewer of huggingface.co has them",
    "download_bucket_files sync_bucket": "the client asks for the bucket's files first: list_bucket_tree",
    "create_inference_endpoint create_inference_endpoint_from_catalog delete_inference_endpoint get_inference_endpoint"
    " list_inference_catalog list_inference_endpoints list_inference_endpoints_hardware pause_inference_endpoint"
    " resume_inference_endpoint scale_to_zero_inference_endpoint update_inference_endpoint": "requests to another service",
}
"""Methods that send no request of their own to the Hub, and why."""
NOT_ASKED = {name for names in ELSEWHERE for name in names.split()}
METHODS = {name for name, _ in inspect.getmembers(HfApi, callable) if not name.startswith("_")}


def arguments(method: Callable[..., object], tmp_path: Path) -> dict[str, object]:
    """Values for the arguments that a method needs."""
    (tmp_path / "file.png").write_text("x")
    samples: dict[str, object] = {
        "from_id": REPO,
        "to_id": "alice/other",
        "operations": [],
        "path": tmp_path / "file.png",
        "labels": {"a": "b"},
        "command": ["true"],
        "watched": [{"type": "user", "name": "alice"}],
        "item_type": "model",
        "sleep_time": 60,
        "volumes": [Volume(type="model", source=REPO, mount_path="/m")],
        "private": True,
        "discussion_num": 1,
        "script": "true",
        "bucket_id": "alice/bucket",
        "repo_id": REPO,
        "paths": ["a"],
        "mount_path": "/m",
        "source": str(tmp_path),
    }
    needed = [each.name for each in inspect.signature(method).parameters.values() if each.default is each.empty]
    return {name: samples.get(name, "something") for name in needed if name not in ("self", "kwargs")}


def test_every_method_of_the_client_is_listed() -> None:
    """A method that is in neither list is new: find out what it gets, and list it."""
    listed = [*RIGHT, *ABSENT, *NOT_ASKED]
    assert sorted(listed) == sorted(METHODS)


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_call_gets_a_right_answer(api: HfApi, tmp_path: Path, name: str) -> None:
    assert RIGHT[name](api, tmp_path)


@pytest.mark.filterwarnings("ignore:.*is experimental", "ignore:Hidden comments")
@pytest.mark.parametrize("name", sorted(ABSENT))
def test_call_for_what_the_hub_does_not_have_gets_501(api: HfApi, tmp_path: Path, name: str) -> None:
    method = getattr(api, name)

    def call() -> None:
        if isinstance(answer := method(**arguments(method, tmp_path) | MORE.get(name, {})), GeneratorType):
            next(answer)

    with pytest.raises(HfHubHTTPError, match="The local Hub has no ") as raised:
        call()
    assert raised.value.response.status_code == 501


@pytest.mark.parametrize("call", ["upload_folder(repo_id=repo, folder_path=to)", "upload_file(repo_id=repo, **file)"])
def test_client_with_hf_xet_is_told_what_to_set(hub: LocalHub, tmp_path: Path, call: str) -> None:
    """And if it is set, the upload works."""
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / LARGE).write_bytes(WEIGHTS)
    code = f"""
import sys
from pathlib import Path
from huggingface_hub import HfApi
to, repo = sys.argv[1], HfApi().create_repo("alice/xet", exist_ok=True).repo_id
file = {{"path_in_repo": "{LARGE}", "path_or_fileobj": Path(to) / "{LARGE}"}}
HfApi().{call}
"""
    unset = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    unset |= {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": "token-of-alice", "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", code, str(tmp_path / "up")]
    told = subprocess.run(command, env=unset, capture_output=True, text=True)
    assert told.returncode == 1
    assert "this-hub-has-no-xet-storage:set-HF_HUB_DISABLE_XET=1" in told.stderr.splitlines()[-1]
    done = subprocess.run(command, env=unset | {"HF_HUB_DISABLE_XET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert LARGE in HfApi(endpoint=hub.endpoint, token="token-of-alice").list_repo_files("alice/xet")
