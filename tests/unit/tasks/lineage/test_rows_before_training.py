"""Which rows a model has learned from before its training: through its start, its base, and all that those go back to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from params.foundation.artifacts import KNOWN_ROWS, TIMES, Artifacts
from params.schema import Launch, Model, ObjectiveChoice
from tasks.digests import PROVENANCE, ReleasedModel
from tasks.known_rows.hashes import KnownHashes, write_hashes
from tasks.known_rows.rows import ComparedColumns
from tasks.lineage import ancestors
from tasks.lineage.learned_rows import (
    HeldOutRows,
    list_unknown,
    record_learned_rows,
    rows_before_training,
    rows_of_release,
)
from tasks.lineage.training_record import record_train_rows
from tasks.shards.kept_work import ShardWorkers
from tasks.shards.split_rows import SCHEMA, SplitRows
from tests.support import tiny
from trainer import objectives
from trainer.start import RECORD, ReleaseReference

OBJECTIVE = objectives.build_objective(ObjectiveChoice(name="causal_lm"))
HELD_OUT = [f"row {number}" for number in range(8)]
START = ReleaseReference(endpoint="local", repo_id="tests/tiny", commit="c" * 40, tag="release-1", weights="w" * 64)


class Project:
    """A project whose recipes have rows, starts and bases, without any model."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.own = self.run("own", ["something else"])
        self.held_out = HeldOutRows(SplitRows(self.own.rows / "test"), self.columns(self.own.rows / "test"))

    def columns(self, folder: Path) -> ComparedColumns:
        return ComparedColumns.of(SplitRows(folder), OBJECTIVE, ())

    def run(self, name: str, train: Sequence[str], **model: object) -> Artifacts:
        """A recipe that has learned from some texts, after `model`."""
        artifacts = Artifacts(name, self.root)
        artifacts.model.mkdir(parents=True)
        tiny.write_splits(artifacts.rows, {"train": {"text": list(train)}, "test": {"text": HELD_OUT}})
        changes = {"model": model} if model else {}
        if "pretrained" in model:
            changes["tokenization"] = {"tokenizer": {"kind": "train", "vocab_size": 300}, "max_length": 32}
        artifacts.recipe_path.parent.mkdir(exist_ok=True)
        tiny.write(artifacts.recipe_path, tiny.recipe(changes))
        self.train(artifacts, **model)
        return artifacts

    def train(self, artifacts: Artifacts, **model: object) -> None:
        """Record what the training of a recipe has learned from, if it ended now."""
        artifacts.tokens.mkdir(parents=True, exist_ok=True)
        rows = dict.fromkeys(("train", "validation"), SplitRows(artifacts.rows / "train"))
        with ShardWorkers(artifacts, "tokenize", Launch(micro_batch_size=1)) as workers:
            record_train_rows(artifacts.tokens, rows, OBJECTIVE, workers)
        section = Model.model_validate(model or {"config": {"model_type": "llama"}})
        if (artifacts.start / RECORD).exists():
            section = section.model_copy(update={"start": "champion"})
        record_learned_rows(artifacts.model, artifacts, section, OBJECTIVE)

    def release(self, folder: Path, texts: Sequence[str] | None, **record: object) -> Path:
        """The files of a release that has learned from some texts; None: it does not name them."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PROVENANCE).write_text(json.dumps({"objective": {"name": "causal_lm"}, **record}))
        if texts is not None:
            tiny.write_splits(folder / "rows", {"train": {"text": list(texts)}})
            columns = self.columns(folder / "rows/train")
            write_hashes(
                {"own": KnownHashes.of(SplitRows(folder / "rows/train"), columns)}, columns, folder / KNOWN_ROWS
            )
            shutil.rmtree(folder / "rows")
        return folder

    def start_from(self, artifacts: Artifacts, texts: Sequence[str] | None, **record: object) -> None:
        """Let the training of a recipe have started from a release."""
        self.release(artifacts.start_record, texts, **record)
        (artifacts.start / RECORD).write_text(START.model_dump_json())
        artifacts.history.mkdir(exist_ok=True)
        artifacts.report("train").write_text(json.dumps({"started_from": START.model_dump(), "best_step": 1}))
        self.train(artifacts)

    def before(self, **model: object) -> tuple[list[str], tuple[str, ...]]:
        """The texts that the own recipe's model had learned from before its training, if it ended now, and what is not known of it."""
        section = Model.model_validate(model or {"config": {"model_type": "llama"}})
        self.train(self.own, **model)
        found = self.held_out.without_times_of_other_data(
            rows_before_training(self.own, section, self.held_out.columns)
        )
        return [HELD_OUT[row_id - 1] for row_id in self.held_out.learned_by(found)], list_unknown(found)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def from_nothing(project: Project) -> dict[str, object]:
    return {}


def from_start(project: Project) -> dict[str, object]:
    project.start_from(project.own, HELD_OUT[:2])
    return {}


def from_run(project: Project) -> dict[str, object]:
    project.run("other", HELD_OUT[:2])
    return {"pretrained": "runs/other/model"}


def from_run_otherwise_spelled(project: Project) -> dict[str, object]:
    return {"pretrained": f"./{from_run(project)['pretrained']}/"}


def from_checkpoint_of_run(project: Project) -> dict[str, object]:
    from_run(project)
    Artifacts("other", project.root).checkpoint.mkdir()
    return {"pretrained": "runs/other/checkpoint"}


def from_base_of_base(project: Project) -> dict[str, object]:
    project.run("first", HELD_OUT[:1])
    project.run("second", HELD_OUT[1:2], pretrained="runs/first/model")
    return {"pretrained": "runs/second/model"}


def from_start_of_base(project: Project) -> dict[str, object]:
    project.start_from(project.run("other", HELD_OUT[:1]), HELD_OUT[1:2])
    return {"pretrained": "runs/other/model"}


def from_release_folder(project: Project) -> dict[str, object]:
    project.release(project.root / "base", HELD_OUT[:2])
    return {"pretrained": "base"}


def from_start_and_base(project: Project) -> dict[str, object]:
    project.start_from(project.own, HELD_OUT[:1])
    project.run("other", HELD_OUT[1:2])
    return {"pretrained": "runs/other/model"}


def from_run_with_other_rows_since(project: Project) -> dict[str, object]:
    base = from_run(project)
    tiny.write_splits(Artifacts("other", project.root).rows, {"train": {"text": HELD_OUT[2:]}})
    return base


def from_base_of_base_that_was_trained_again(project: Project) -> dict[str, object]:
    base, first = from_base_of_base(project), Artifacts("first", project.root)
    tiny.write_splits(first.rows, {"train": {"text": HELD_OUT[2:]}})
    project.train(first)
    return base


def from_copy_of_run(project: Project) -> dict[str, object]:
    shutil.copytree(project.root / str(from_base_of_base(project)["pretrained"]), project.root / "copy")
    shutil.rmtree(project.root / "runs/second")
    return {"pretrained": "copy"}


def from_run_of_another_project(project: Project) -> dict[str, object]:
    other = Project(project.root / "others")
    from_base_of_base(other)
    return {"pretrained": "others/runs/second/model"}


def from_run_without_rows_and_recipe(project: Project) -> dict[str, object]:
    base, other = from_run(project), Artifacts("other", project.root)
    shutil.rmtree(other.rows)
    other.recipe_path.unlink()
    return base


WAYS = [
    from_start,
    from_run,
    from_run_otherwise_spelled,
    from_checkpoint_of_run,
    from_base_of_base,
    from_start_of_base,
    from_release_folder,
    from_start_and_base,
    from_run_with_other_rows_since,
    from_base_of_base_that_was_trained_again,
    from_copy_of_run,
    from_run_of_another_project,
    from_run_without_rows_and_recipe,
]


@pytest.mark.parametrize("way", WAYS)
def test_rows_are_known_whatever_the_way_to_them(
    project: Project, way: Callable[[Project], dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.root)
    project.own = Artifacts("own")
    assert project.before(**way(project)) == (HELD_OUT[:2], ())


@pytest.mark.parametrize("way", [from_start, from_run])
def test_who_knows_a_row_knows_its_group(project: Project, way: Callable[[Project], dict[str, object]]) -> None:
    """A new row of a customer whose other rows a model has learned from says nothing of rows of other customers."""
    customers = ["A", "B", "A", None, "C", "B", None, " "]
    train = {"text": ["something else"], "customer": ["D"]}
    splits = {"train": train, "test": {"text": HELD_OUT, "customer": customers}}
    tiny.write_splits(project.own.rows, splits, group_by=["customer"])
    folder = project.own.rows / "test"
    project.held_out = HeldOutRows(SplitRows(folder), project.columns(folder))
    learned, _ = project.before(**way(project))
    assert learned == [HELD_OUT[row] for row in (0, 1, 2, 5)]


def test_a_model_of_nobody_else_has_learned_from_nothing(project: Project) -> None:
    (project.root / "foreign").mkdir()
    assert project.before() == ([], ())
    assert project.before(pretrained="foreign") == ([], ())


def run_of_an_earlier_version(project: Project) -> dict[str, object]:
    project.run("other", HELD_OUT[:2]).known_rows.unlink()
    return {"pretrained": "runs/other/model"}


def run_of_an_earlier_version_elsewhere(project: Project) -> dict[str, object]:
    other = Project(project.root / "others").run("other", HELD_OUT[:2])
    other.known_rows.unlink()
    other.history.mkdir()
    other.report("train").write_text("{}")
    return {"pretrained": "others/runs/other/model"}


def damaged_record(project: Project) -> dict[str, object]:
    project.run("other", HELD_OUT[:2]).known_rows.write_bytes(b"PAR1 and so on")
    return {"pretrained": "runs/other/model"}


def base_whose_own_base_is_unknown(project: Project) -> dict[str, object]:
    project.run("second", HELD_OUT[5:], **run_of_an_earlier_version(project))
    return {"pretrained": "runs/second/model"}


def start_without_list(project: Project) -> dict[str, object]:
    project.start_from(project.own, None)
    return {}


def start_whose_own_start_has_no_list(project: Project) -> dict[str, object]:
    project.start_from(project.own, HELD_OUT[5:], data={"unknown": ["tests/tiny@release-0: says nothing"]})
    return {}


def damaged_release_folder(project: Project) -> dict[str, object]:
    (project.release(project.root / "base", None) / PROVENANCE).write_text("{}")
    return {"pretrained": "base"}


@pytest.mark.parametrize(
    ("way", "told"),
    [
        (run_of_an_earlier_version, "runs/other/model: its training did not record which rows it has learned from"),
        (run_of_an_earlier_version_elsewhere, "others/runs/other/model: its training did not record which rows"),
        (base_whose_own_base_is_unknown, "runs/other/model: its training did not record which rows"),
        (damaged_record, "runs/other/model: its list of rows is damaged"),
        (start_without_list, "tests/tiny@release-1: it does not say which rows it has learned from"),
        (start_whose_own_start_has_no_list, "tests/tiny@release-0: says nothing"),
        (damaged_release_folder, f"base: its {PROVENANCE} cannot be used"),
    ],
)
def test_what_is_not_known_is_said(project: Project, way: Callable[[Project], dict[str, object]], told: str) -> None:
    _, (reason,) = project.before(**way(project))
    assert told in reason


def test_a_model_of_an_earlier_version_says_that_its_base_is_unknown(project: Project) -> None:
    section = Model.model_validate(from_run(project))
    project.own.known_rows.unlink()
    (found,) = rows_before_training(project.own, section, project.held_out.columns)
    assert "its training did not record what it goes back to" in found.unknown[0]
    section = Model.model_validate({"config": {"model_type": "llama"}})
    assert rows_before_training(project.own, section, project.held_out.columns) == [], "it goes back to nothing"


def test_a_release_of_the_hub_as_base_says_what_it_has_learned(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = project.release(project.root / "cache", HELD_OUT[:2])

    def fetch(name: str, file: str, _: object) -> Path | None:
        return snapshot / file if name == "tests/base" and (snapshot / file).exists() else None

    monkeypatch.setattr(ancestors, "fetch_if_there", fetch)
    assert project.before(pretrained="tests/base") == (HELD_OUT[:2], ())
    assert project.before(pretrained="google/bert") == ([], ())
    monkeypatch.setattr(ancestors, "fetch_if_there", lambda *_: (_ for _ in ()).throw(OSError))
    assert "did not say whether it is a release" in project.before(pretrained="tests/base")[1][0]
    monkeypatch.setattr(ancestors, "fetch_if_there", fetch)
    section = Model.model_validate({"pretrained": "tests/base"})
    (found,) = rows_before_training(project.own, section, project.held_out.columns)
    assert "did not say" in found.unknown[0], "a later answer is not lost in what its release says"


def test_each_ancestor_is_listed_once_though_one_was_unknown(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot, is_away = project.release(project.root / "cache", HELD_OUT[:2]), True

    def fetch(name: str, file: str, _: object) -> Path | None:
        if is_away:
            raise OSError
        return snapshot / file if (snapshot / file).exists() else None

    monkeypatch.setattr(ancestors, "fetch_if_there", fetch)
    own = project.run("mine", ["mine"], pretrained="tests/base")
    project.start_from(own, HELD_OUT[2:4])
    project.train(own, pretrained="tests/base")

    def listed() -> list[tuple[str, bool]]:
        return [(one.name, bool(one.unknown)) for one in ancestors.list_ancestors_of_model(own)]

    assert listed() == [(START.name, False), ("tests/base", True)]
    is_away = False
    assert listed() == [(START.name, False), ("tests/base", False)], "the Hub answers now"


def test_all_that_a_base_goes_back_to_stays_though_a_start_was_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ancestors of a base are reached through it, and releases of one repository have one name."""
    chain = [ReleasedModel(repo_id="tests/base", weights=digest) for digest in ("11", "22", "33")]
    recorded = [ancestors.Ancestor("tests/base", is_of_base=True, through="a base", published=(one,)) for one in chain]
    unknown = ancestors.Ancestor("a start", is_of_base=False, unknown="the Hub is away")
    monkeypatch.setattr(ancestors, "_read_record", lambda folder: [*recorded, unknown])
    monkeypatch.setattr(ancestors, "list_ancestors", lambda artifacts: [replace(unknown, unknown="")])
    found = ancestors.list_ancestors_of_model(Artifacts("tiny", tmp_path))
    assert [one.published for one in found] == [*((one,) for one in chain), ()]
    assert not any(one.unknown for one in found)


def say_times(folder: Path, split: str) -> None:
    """Let the rows of a split have times in the column `at`."""
    times = json.dumps({"column": "at", "newest": 0, "split": split})
    schema = folder / SCHEMA
    pq.write_metadata(pq.read_schema(schema).with_metadata({TIMES: times}), schema)


@pytest.mark.parametrize("kind", ["run", "release", "start"])
@pytest.mark.parametrize(
    ("train", "days"),
    [(["other data"], 0), (["something else"], 5), ([HELD_OUT[5]], 5)],
    ids=["other data", "rows of train", "a held-out row"],
)
def test_the_time_of_a_base_says_something_of_the_rows_that_it_shares(
    project: Project, kind: str, train: list[str], days: int
) -> None:
    days_of_rows = [f"2026-01-0{number + 1}" for number in range(len(HELD_OUT))]
    splits = {"train": {"text": ["something else"], "at": ["2025-12-01"]}}
    tiny.write_splits(project.own.rows, splits | {"test": {"text": HELD_OUT, "at": days_of_rows}})
    say_times(project.own.rows / "test", split="time")
    project.held_out = HeldOutRows(SplitRows(project.own.rows / "test"), project.held_out.columns)
    until, base = {"learned_until": "2026-01-05T00:00:00+00:00"}, "runs/other/model"
    if kind == "run":
        other = project.run("other", ["a"])
        tiny.write_splits(other.rows, {"train": {"text": train, "at": ["2026-01-05"]}})
        say_times(other.rows / "train", split="hash")
        project.train(other)
    elif kind == "release":
        base = project.release(project.root / "base", train, data=until).name
    else:
        project.start_from(project.own, train, data=until)
        days = 5
    learned, unknown = project.before(**({} if kind == "start" else {"pretrained": base}))
    assert (learned, unknown) == (HELD_OUT[:days] + train * (train[0] in HELD_OUT), ())


def test_a_chain_of_releases_names_all_rows(project: Project) -> None:
    """Each release starts from the one before it; the last one goes on from a base of another recipe, too."""
    columns, earlier = project.held_out.columns, None
    for number in range(3):
        own = project.run(f"night-{number}", [HELD_OUT[number]])
        if earlier:
            project.release(own.start_record, None)
            shutil.copy(earlier.known_rows, own.start_record)
            (own.start / RECORD).write_text(START.model_dump_json())
            base = {"pretrained": "runs/other/model"} if number == 2 else {}
            if base:
                project.run("other", [HELD_OUT[5]])
            project.train(own, **base)
        earlier = own
    assert earlier
    release = project.release(project.root / "release", None)
    shutil.copy(earlier.known_rows, release)
    learned = project.held_out.learned_by([rows_of_release(release, "the last", columns)])
    assert [HELD_OUT[row_id - 1] for row_id in learned] == [*HELD_OUT[:3], HELD_OUT[5]]


PAIR = {"text": ["a cat", "no dog", "it rains"], "other": ["the animal", "a pet", "water"], "score": [1.0, 0.0, 0.5]}
PAIRS_READ_BY = {
    "embedding": {"anchor_column": "text", "positive_column": "other", "label_column": "score"},
    "regression": {"text_column": "text", "text_pair_column": "other", "label_column": "score"},
    "ranking": {"query_column": "text", "document_column": "other", "relevance_column": "score"},
}


@pytest.mark.parametrize("earlier", PAIRS_READ_BY)
@pytest.mark.parametrize("later", PAIRS_READ_BY)
def test_what_another_objective_has_learned_is_known_or_said(tmp_path: Path, earlier: str, later: str) -> None:
    """Vectors of pairs take the two texts in either order, a regression does not: a hash of one says nothing to the other."""
    tiny.write_splits(tmp_path / "rows", {"train": PAIR})
    rows, base = SplitRows(tmp_path / "rows/train"), tmp_path / "base"
    base.mkdir()
    readings = (ObjectiveChoice(name=name, **PAIRS_READ_BY[name]) for name in (earlier, later))
    learned, asked = (ComparedColumns.of_objective(objectives.build_objective(one)) for one in readings)
    write_hashes({"own": KnownHashes.of(rows, learned)}, learned, base / KNOWN_ROWS)
    found = rows_of_release(base, "the base", asked)
    is_found = len(HeldOutRows(rows, asked).learned_by([found])) == len(rows)
    assert is_found is ((earlier == "embedding") == (later == "embedding"))
    assert is_found or "it learned from the same columns as another objective reads them" in found.unknown[0]
    assert not (is_found and found.unknown)
