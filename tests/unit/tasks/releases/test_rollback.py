"""Rolling back a release, and the log of releases."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete, HfApi

from params.foundation.artifacts import Artifacts
from params.foundation.errors import HubRefusedError, TransientError
from tasks.hub_client.main_history import (
    MainCommit,
    MainHistory,
    read_main_commits,
    release_table_lines,
)
from tasks.hub_client.release_file import RELEASE_FILE
from tasks.hub_client.repository import HubRepository, tree_weights_digest
from tasks.hub_server import git_objects
from tasks.hub_server.store import RepositoryStore
from tasks.publishing.release_plan import ReleaseOutcome
from tasks.release_log.events import ReleaseEvent, append_release_event, read_release_events
from tasks.releases import recipe_releases
from tasks.releases.rollback import RollbackResult, commit_rollback
from tests.support import tiny
from tests.support.faulty_hub import STRANGER, Fault, FaultyHub
from tests.support.project import ROOT
from tests.support.publications import REPO, TOKEN, contents, patient, plan, publish, write_model


def release(api: HfApi, folder: Path, number: int) -> ReleaseOutcome:
    """Publish model `number`; each has a file that the others lack."""
    folder = folder / f"model-{number}"
    (folder / "sub").mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(f'{{"number": {number}}}')
    (folder / "README.md").write_text(f"---\nlicense: mit\n---\n# Model {number}\n")
    (folder / "model.safetensors").write_bytes(random.Random(number).randbytes(5000))
    (folder / f"sub/only-in-{number}.txt").write_text("x")
    return publish(api, plan(folder, tag=f"v{number}", made_from={}))


def roll_back_to(api: HfApi, tag: str = "v1", *, by: str = "ann", why: str = "wrong answers") -> RollbackResult:
    return commit_rollback(patient(api, attempts=9), tag, by=by, why=why)


def blobs(api: HfApi, revision: str) -> dict[str, str]:
    return {path: file.blob_id for path, file in HubRepository(api, REPO).tree(revision).items()}


def test_rollback_commits_the_files_of_the_tag(api: HfApi, hub: FaultyHub, tmp_path: Path) -> None:
    first, second = release(api, tmp_path, 1), release(api, tmp_path, 2)
    (tmp_path / "attributes").write_text("*.other filter=lfs\n")
    api.upload_file(
        path_or_fileobj=tmp_path / "attributes", path_in_repo=".gitattributes", repo_id=REPO, commit_message="by hand"
    )
    by_hand = api.list_repo_commits(REPO)[0].commit_id
    hub.done.clear()
    done = roll_back_to(api)
    assert blobs(api, "main") == blobs(api, done.commit) == blobs(api, "v1"), "every file"
    assert not [line for line in hub.done if "/uploads/" in line or "/batch" in line], "the weights were sent again"
    history = api.list_repo_commits(REPO)
    assert [commit.commit_id for commit in history][:4] == [done.commit, by_hand, second.commit, first.commit]
    assert history[0].title == "Roll back to v1"
    assert history[0].message.splitlines()[:5] == [
        "Rolled-Back-To: v1",
        f"Rolled-Back-From: {by_hand}",
        "Gate: overridden",
        "By: ann",
        "Reason: wrong answers",
    ]
    champion = HubRepository(api, REPO).head()
    assert champion is not None
    assert champion.commit == done.commit
    assert champion.weights == plan(tmp_path / "model-1").weights
    assert {tag.name: tag.target_commit for tag in api.list_repo_refs(REPO).tags} == {
        "v1": first.commit,
        "v2": second.commit,
    }


def test_repeated_rollback_changes_nothing(api: HfApi, tmp_path: Path) -> None:
    release(api, tmp_path, 1)
    release(api, tmp_path, 2)
    done = roll_back_to(api)
    again = commit_rollback(patient(api), "v1", by="ann", why="to be sure")
    assert again == RollbackResult(done.commit, changed=False)
    assert roll_back_to(api, "v2").changed, "a rollback can be undone"
    assert blobs(api, "main") == blobs(api, "v2")
    assert roll_back_to(api).changed, "and repeated"


def test_rolled_back_release_is_not_published_again(api: HfApi, tmp_path: Path) -> None:
    first, second = release(api, tmp_path, 1), release(api, tmp_path, 2)
    done = roll_back_to(api)
    again = release(api, tmp_path, 2)
    assert (again.commit, again.how, bool(again.note)) == (second.commit, "found by its tag", True)
    again = release(api, tmp_path, 1)
    assert (again.commit, again.note) == (first.commit, "")
    assert api.list_repo_commits(REPO)[0].commit_id == done.commit
    assert release(api, tmp_path, 3).how == "committed"


@pytest.mark.parametrize(
    ("request_line", "kind"),
    [
        pytest.param(line, kind, marks=pytest.mark.slow if kind == "after" and "POST" not in line else ())
        for line in ("POST .*/commit/", "GET .*/refs", "GET .*/tree/", "/paths-info/", "/resolve/")
        for kind in ("before", "after", "lost")
    ],
)
def test_rollback_lands_once_despite_a_fault(
    api: HfApi, hub: FaultyHub, tmp_path: Path, kind: str, request_line: str
) -> None:
    release(api, tmp_path, 1)
    release(api, tmp_path, 2)
    fault = Fault(request_line, kind, 503)
    hub.faults.append(fault)
    done = roll_back_to(api)
    assert fault.times == 0, "the fault was never met"
    assert (done.commit, done.changed) == (api.list_repo_commits(REPO)[0].commit_id, True)
    assert blobs(api, done.commit) == blobs(api, "v1")
    assert len(api.list_repo_commits(REPO)) == 4


def test_landed_rollback_is_not_repeated_over_a_later_release(
    api: HfApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(api, tmp_path, 1)
    release(api, tmp_path, 2)
    commit = HubRepository.commit

    def commit_and_lose(*args: object, **more: object) -> str:
        monkeypatch.undo()
        commit(*args, **more)
        release(api, tmp_path, 3)
        raise TimeoutError("no answer")

    monkeypatch.setattr(HubRepository, "commit", commit_and_lose)
    done = roll_back_to(api)
    entries = read_main_commits(HubRepository(api, REPO))
    assert [entry.kind for entry in entries] == ["release", "rollback", "release", "release", "other"]
    assert (entries[1].commit, entries[0].tags) == (done.commit, ("v3",))


@pytest.mark.parametrize("request_line", ["GET .*/tree/", "POST .*/commit/"])
def test_rollback_includes_a_concurrent_foreign_commit(
    api: HfApi, hub: FaultyHub, tmp_path: Path, request_line: str
) -> None:
    release(api, tmp_path, 1)
    release(api, tmp_path, 2)
    stranger = HfApi(endpoint=hub.endpoint, token=TOKEN, headers=STRANGER)

    def commit_another() -> None:
        stranger.create_commit(REPO, [CommitOperationAdd("OTHER", b"x")], commit_message="by hand")

    hub.faults.append(Fault(request_line, "none", action=commit_another))
    done = roll_back_to(api)
    assert blobs(api, done.commit) == blobs(api, "main") == blobs(api, "v1")
    entries = read_main_commits(HubRepository(api, REPO))
    assert [entry.title for entry in entries[:2]] == ["Roll back to v1", "by hand"]


def test_invalid_rollbacks_are_refused(api: HfApi, hub: FaultyHub, tmp_path: Path) -> None:
    with pytest.raises(HubRefusedError, match="404"):
        roll_back_to(api)
    api.create_repo(REPO)
    with pytest.raises(HubRefusedError, match="nothing has been published"):
        roll_back_to(api)
    release(api, tmp_path, 1)
    release(api, tmp_path, 2)
    with pytest.raises(HubRefusedError, match="there is no tag 'v9'") as raised:
        roll_back_to(api, "v9")
    assert raised.value.fix == "choose one of v1, v2"
    with pytest.raises(HubRefusedError, match="needs a reason"):
        roll_back_to(api, why=" \n")
    with pytest.raises(HubRefusedError, match="needs the name"):
        roll_back_to(api, by="")
    with pytest.raises(HubRefusedError, match="403"):
        roll_back_to(HfApi(endpoint=hub.endpoint, token="token-of-bob"))
    hub.faults.append(Fault("", "before", 500, times=999))
    with pytest.raises(TransientError, match="no clear answer after 9 attempts"):
        roll_back_to(api)
    hub.faults.clear()
    assert len(api.list_repo_commits(REPO)) == 3


def test_log_lists_releases_rollbacks_and_other_commits(api: HfApi, tmp_path: Path) -> None:
    first = release(api, tmp_path, 1)
    api.create_tag(REPO, tag="a-nickname", revision=first.commit)
    operations = [CommitOperationAdd("NOTES", b"x")]
    by_hand = api.create_commit(REPO, operations, commit_message="by hand\x1b[2J", commit_description="Thanks: to all")
    release(api, tmp_path, 2)
    done = roll_back_to(api, by="ann\nPublish-Id: 1", why="it said:\nRolled-Back-To: v2\x1b[31m")
    entries = read_main_commits(HubRepository(api, REPO))
    assert [entry.kind for entry in entries] == ["rollback", "release", "other", "release", "other"]
    back_entry, _, other, oldest, initial = entries
    made = api.list_repo_commits(REPO)[0].created_at.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert back_entry == MainCommit(
        commit=done.commit,
        tags=(),
        title="Roll back to v1",
        date=made,
        kind="rollback",
        to="v1",
        by="ann Publish-Id: 1",
        why="it said: Rolled-Back-To: v2 [31m",
    )
    assert (oldest.commit, oldest.tags) == (first.commit, ("a-nickname", "v1"))
    assert (other.commit, other.by) == (by_hand.oid, None)
    rows = release_table_lines(entries)
    assert len(rows) == 6
    assert re.fullmatch(
        rf"\*  {done.commit[:12]}  \d{{4}}-\d\d-\d\d \d\d:\d\d  rollback  +to v1, by ann Publish-Id: 1: it said: .*",
        rows[1],
    )
    assert "a-nickname, v1  Publish v1" in rows[4]
    assert rows[3].endswith("by hand [2J"), "no control character reaches a terminal"
    assert rows[0].index("kind") == rows[1].index("rollback") == rows[5].index("other")
    assert rows[5].endswith(initial.title)


FORGED_ROLLBACK = "Rolled-Back-To: v1\nRolled-Back-From: {}\nGate: overridden\nBy: carol\nReason: it swears"


def propose_as_bob(hub: FaultyHub, files: dict[str, bytes], *, title: str, description: str = "") -> int:
    """A pull request of somebody who may not write main."""
    bob = HfApi(endpoint=hub.endpoint, token="token-of-bob")
    added = [CommitOperationAdd(path, content) for path, content in files.items()]
    made = bob.create_commit(REPO, added, commit_message=title, commit_description=description, create_pr=True)
    assert made.pr_num is not None
    return made.pr_num


@pytest.mark.parametrize("keeps", [False, True], ids=["here", "on a Hub that keeps descriptions"])
def test_merged_words_make_neither_release_nor_rollback(
    api: HfApi, hub: FaultyHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    second = (release(api, tmp_path, 1), release(api, tmp_path, 2))[1]
    rollback = FORGED_ROLLBACK.format(second.commit)
    forged = f"{rollback}\nPublish-Id: {'0' * 64}"
    number = propose_as_bob(hub, {"NOTES": b"better words"}, title=f"Better words\n\n{rollback}")
    if keeps:
        monkeypatch.setattr(git_objects, "commit_message", lambda title, _: f"{title}\n\n{forged}")
    api.merge_pull_request(REPO, number)
    message = api.list_repo_commits(REPO)[0].message
    assert ("Rolled-Back-To: v1" in message.splitlines()) is keeps
    entries = read_main_commits(HubRepository(api, REPO))
    assert [(entry.kind, entry.by) for entry in entries[:3]] == [
        ("other", None),
        ("release", None),
        ("release", None),
    ]


def test_rollback_counts_only_from_who_may_write_main(
    api: HfApi, hub: FaultyHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merged pull request may even bring back the files of an older release: its words are still its author's."""
    release(api, tmp_path, 1)
    second = release(api, tmp_path, 2)
    weights = tree_weights_digest(HubRepository(api, REPO).tree(second.commit))
    assert weights is not None
    bob = HfApi(endpoint=hub.endpoint, token="token-of-bob")
    old, new = (HubRepository(api, REPO).tree(tag) for tag in ("v1", "v2"))
    changes = [CommitOperationCopy(path, path, src_revision="v1") for path in old if path != ".gitattributes"]
    removed = [CommitOperationDelete(path) for path in new if path not in old]
    number = bob.create_commit(REPO, [*changes, *removed], commit_message="Old words", create_pr=True).pr_num
    assert number is not None
    forged = FORGED_ROLLBACK.format(second.commit)
    monkeypatch.setattr(git_objects, "commit_message", lambda title, _: f"{title}\n\n{forged}")
    api.merge_pull_request(REPO, number)
    assert blobs(api, "main") == blobs(api, "v1")
    assert read_main_commits(HubRepository(api, REPO))[0].kind == "other"
    assert MainHistory.read(HubRepository(api, REPO)).find_rollback_reason([weights]) is None
    monkeypatch.undo()
    roll_back_to(api, "v2")
    roll_back_to(api, "v1", by="ann")
    assert MainHistory.read(HubRepository(api, REPO)).find_rollback_reason([weights]) == "by ann: wrong answers"


def test_merged_release_is_one(api: HfApi, hub: FaultyHub, tmp_path: Path) -> None:
    """A merge has no trailer: its files say what it is, whatever its title, and before it is tagged."""
    release(api, tmp_path, 1)
    second = write_model(tmp_path / "second")
    planned = plan(second)
    number = propose_as_bob(hub, contents(planned), title="our new model")
    api.create_commit(
        REPO, [CommitOperationDelete("sub/only-in-1.txt")], commit_message="-", revision=f"refs/pr/{number}"
    )
    api.merge_pull_request(REPO, number)
    api.create_commit(REPO, [CommitOperationAdd("NOTES", b"x")], commit_message="by hand")
    entries = read_main_commits(HubRepository(api, REPO))
    assert [entry.kind for entry in entries[:3]] == ["other", "release", "release"]
    api.create_tag(REPO, tag=planned.tag, revision=entries[1].commit)
    assert [entry.kind for entry in read_main_commits(HubRepository(api, REPO))[:3]] == ["other", "release", "release"]


@pytest.mark.parametrize(
    "content", [b"[" * 90_000, b"{}", b'{"publish_id": 1, "files": null}', b"\xff", b" " * (5 << 20)]
)
def test_damaged_release_files_are_no_releases(api: HfApi, tmp_path: Path, content: bytes) -> None:
    release(api, tmp_path, 1)
    api.create_commit(REPO, [CommitOperationAdd(RELEASE_FILE, content)], commit_message="by hand")
    assert [entry.kind for entry in read_main_commits(HubRepository(api, REPO))] == ["other", "release", "other"]


def test_log_of_an_empty_repository(api: HfApi, hub: FaultyHub) -> None:
    assert read_main_commits(HubRepository(api, REPO)) == []
    api.create_repo(REPO)
    (entry,) = read_main_commits(HubRepository(api, REPO))
    assert entry.kind == "other"
    hub.faults.append(Fault("commits", "before", 503, times=99))
    with pytest.raises(TransientError, match="503"):
        read_main_commits(patient(api, attempts=2))


def test_before_a_first_release_there_is_none_and_no_error(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    recipe = tiny.write(tmp_path / "params" / "tiny.yaml", tiny.recipe())
    for must_exist in (True, False):
        recipe_releases.print_releases([recipe], last=30, must_exist=must_exist)
        assert capsys.readouterr().out == "tiny: tests/tiny on the Hub in .hub\n  no release yet\n"
    event = ReleaseEvent(
        event="published", reasons=(), repo_id="tests/tiny", endpoint="local", commit="c" * 40, tag="v1"
    )
    append_release_event(Artifacts("tiny"), event)
    with pytest.raises(HubRefusedError, match="does not have the release v1"):
        recipe_releases.print_releases([recipe], last=30, must_exist=True)


def test_rollback_is_logged_once_and_listed(
    api: HfApi, hub: FaultyHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    release(api, tmp_path, 1), release(api, tmp_path, 2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    place = {"publish.repo_id": REPO, "publish.endpoint": hub.endpoint}
    recipe = tiny.write(tmp_path / "params" / "tiny.yaml", tiny.recipe(place))
    for _ in range(2):
        recipe_releases.roll_back_and_log("v1", recipe=recipe, by="ann", why="wrong answers")
    assert capsys.readouterr().out.count("commit runs/tiny/release/log.jsonl: ") == 1
    (entry,) = read_release_events(Artifacts("tiny"))
    assert (entry.event, entry.tag, entry.by, entry.reasons) == ("rollback", "v1", "ann", ("wrong answers",))
    assert (entry.endpoint, entry.repo_id, entry.commit) == (
        hub.endpoint,
        REPO,
        api.list_repo_commits(REPO)[0].commit_id,
    )
    tiny.write(recipe, tiny.recipe({"publish.repo_id": REPO}))  # on the Hub that HF_ENDPOINT names
    recipe_releases.print_releases([recipe], last=30, must_exist=True)
    printed = capsys.readouterr().out
    assert f"tiny: {REPO} on {hub.endpoint}\n" in printed
    assert re.search(r"\n  log: \d{4}-\d\d-\d\d \d\d:\d\d rollback v1, by ann: wrong answers\n", printed)


def advice(first_words: str) -> list[str]:
    """The Python code that docs/operation.md gives under these words, in the steps between what is done in a shell."""
    page = (ROOT / "docs" / "operation.md").read_text()
    section = page.partition(f"**{first_words}**")[2].partition("\n**")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return [step for block in blocks for step in re.split(r"^# in a shell: .*\n", block, flags=re.MULTILINE)]


def test_advice_for_leaked_rows_works_as_written(api: HfApi, hub: FaultyHub, tmp_path: Path) -> None:
    good, leaked = release(api, tmp_path, 1), release(api, tmp_path, 2)
    weights = [hub_files(hub, commit) for commit in (good.commit, leaked.commit)]
    hide, delete, move, delete_repository = advice("Rows have leaked into a release.")
    hide = hide.replace('HfApi(endpoint="...")', "client").replace("owner/name", REPO).replace("<leaked tag>", "v2")
    names = {"client": api}
    exec(hide, names)
    assert api.model_info(REPO).private
    done = roll_back_to(api, why="leaked rows")
    exec(delete, names)
    assert [path.exists() for path in weights] == [True, False]
    assert [tag.name for tag in api.list_repo_refs(REPO).tags] == ["v1"]
    assert blobs(api, "main") == blobs(api, "v1")
    history = [entry.commit_id for entry in api.list_repo_commits(REPO)]
    assert {good.commit, leaked.commit, done.commit} <= set(history), "commits keep their ids"
    assert [entry.commit for entry in read_main_commits(patient(api))][:1] == [done.commit]

    exec(move, names)
    release(api, tmp_path, 3)
    exec(delete_repository, names)
    assert [model.id for model in api.list_models()] == [REPO]
    assert {"model.safetensors", "sub/only-in-3.txt"} <= set(api.list_repo_files(REPO))


def hub_files(hub: FaultyHub, commit: str) -> Path:
    """The file in which the Hub keeps the weights of a commit."""
    repository = RepositoryStore(hub.root).open("models", *REPO.split("/"))
    sha256 = repository.entry(commit, "model.safetensors").sha256
    assert sha256
    return repository.large_files.path(sha256)


@pytest.mark.parametrize(
    ("history", "left"),
    [
        ("1 2 3", ""),
        ("1 2 3 r2", "3"),
        ("1 2 3 r1", "2 3"),  # a model between the two is as distrusted as the last one
        ("1 2 3 r1 r3", ""),  # main goes back forward: it stands by all three again
        ("1 2 3 r1 r2", "3"),
        ("1 2 r1 3 r1", "2 3"),
        ("1 2 r1 3", "2"),  # the child of a rolled-back model may be 3: it is asked about all of its starts
        ("1 2 r1 2", ""),  # published again
    ],
)
def test_what_rollbacks_have_left_behind(api: HfApi, tmp_path: Path, history: str, left: str) -> None:
    main, weights = make_history(api, tmp_path, history)
    found = {weights[digest]: one for digest, one in main.find_rolled_back(weights).items()}
    assert sorted(found) == left.split()
    for step, one in found.items():
        assert one.commit == main.tags[f"v{step}"]
        assert one.sentence == f"v{step}, which was rolled back by ann: wrong answers"


@pytest.mark.parametrize(
    ("history", "distrusted"),
    [
        ("1 2 3", ""),
        ("1 2 3 r1", "2 3"),  # trained again, a model between the two is as distrusted as the last one
        ("1 2 3 r1 r3", "1"),
        ("1 2 3 r1 2", "3"),
        ("1 2 r1 2 3 r1", "2 3"),
        ("1 2 3 r2 r1", "2 3"),
    ],
)
def test_a_model_that_a_rollback_left_behind_is_not_published_again(
    api: HfApi, tmp_path: Path, history: str, distrusted: str
) -> None:
    main, weights = make_history(api, tmp_path, history)
    reasons = {step: main.find_rollback_reason([digest]) for digest, step in weights.items()}
    assert [step for step, reason in sorted(reasons.items()) if reason] == distrusted.split()
    assert {reason for reason in reasons.values() if reason} <= {"by ann: wrong answers"}


def test_a_form_is_distrusted_by_a_rollback_from_itself(api: HfApi, tmp_path: Path) -> None:
    """Of a model that stays published, a form between the two models of a rollback may be published again."""
    main, weights = make_history(api, tmp_path, "1 2 3 r1")
    reasons = {step: main.find_rollback_reason([digest], of_form=True) for digest, step in weights.items()}
    assert reasons == {"1": None, "2": None, "3": "by ann: wrong answers"}


def test_a_rollback_to_another_form_of_a_model_distrusts_the_form_only(api: HfApi, tmp_path: Path) -> None:
    main, weights = make_history(api, tmp_path, "1 2 3 r2")
    second, third = (digest for digest, step in weights.items() if step in {"2", "3"})
    assert [*main.find_rolled_back([second, third])] == [third]
    assert main.find_rolled_back([second, third], [{second, third}]) == {}
    first = next(iter(weights))
    assert [*main.find_rolled_back([first, third], [{first}, {third}])] == [third]


def make_history(api: HfApi, root: Path, history: str) -> tuple[MainHistory, dict[str | None, str]]:
    """Publish models and roll back: `1 2 r1` are two releases and a rollback to the first; return main, and the models by their weights."""
    commits: dict[str, str] = {}
    for number, step in enumerate(history.split()):
        if step.startswith("r"):
            roll_back_to(api, f"v{step[1:]}")
            continue
        again = step in commits
        found = release(api, root / str(number), int(step)) if not again else roll_back_by_hand(api, step)
        commits.setdefault(step, found.commit or "")
    main = MainHistory.read(HubRepository(api, REPO))
    return main, {main.weights(commit): step for step, commit in commits.items()}


def roll_back_by_hand(api: HfApi, number: str) -> ReleaseOutcome:
    """Main gets the weights of a model again, by a commit that is no rollback."""
    copy = [CommitOperationCopy("model.safetensors", "model.safetensors", src_revision=f"v{number}")]
    return ReleaseOutcome("published", api.create_commit(REPO, copy, commit_message="again").oid)


def test_weights_that_main_never_had_are_not_rolled_back(api: HfApi, tmp_path: Path) -> None:
    release(api, tmp_path / "1", 1)
    release(api, tmp_path / "2", 2)
    roll_back_to(api, "v1")
    main = MainHistory.read(HubRepository(api, REPO))
    assert main.find_rolled_back(["f" * 64]) == main.find_rolled_back([]) == {}
