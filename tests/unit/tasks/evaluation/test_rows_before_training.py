"""Which rows a model has learned from before its training: through its start, its base, and all that those go back to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from params.foundation.artifacts import KNOWN_ROWS, TIMES, Artifacts
from params.schema import Model, ObjectiveChoice
from tasks.digests import PROVENANCE, validated_rows_digest, weight_file_hashes, weights_digest
from tasks.drift.known import KnownHashes, write_hashes
from tasks.drift.rows import ComparedColumns
from tasks.evaluation.learned_rows import (
    HeldOutRows,
    list_unknown,
    rows_before_training,
    rows_of_release,
    write_rows_for_release,
)
from tasks.evaluation.report import Blessing
from tasks.shards.split_rows import SCHEMA, SplitRows
from tasks.stages import save_report
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
        return artifacts

    def release(self, folder: Path, texts: Sequence[str] | None, **record: object) -> Path:
        """The files of a release that has learned from some texts; None: it does not name them."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PROVENANCE).write_text(json.dumps({"objective": {"name": "causal_lm"}, **record}))
        if texts is not None:
            tiny.write_splits(folder / "rows", {"train": {"text": list(texts)}})
            columns = self.columns(folder / "rows/train")
            write_hashes(KnownHashes.of(SplitRows(folder / "rows/train"), columns), columns, folder / KNOWN_ROWS)
            shutil.rmtree(folder / "rows")
        return folder

    def start_from(self, artifacts: Artifacts, texts: Sequence[str] | None, **record: object) -> None:
        """Let the training of a recipe have started from a release."""
        self.release(artifacts.start_record, texts, **record)
        (artifacts.start / RECORD).write_text(START.model_dump_json())
        artifacts.history.mkdir(exist_ok=True)
        artifacts.report("train").write_text(json.dumps({"started_from": START.model_dump(), "best_step": 1}))

    def before(self, **model: object) -> tuple[list[str], tuple[str, ...]]:
        """The texts that the own recipe's model has learned from before its training, and what is not known of it."""
        section = Model.model_validate(model or {"config": {"model_type": "llama"}})
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


def from_bases_in_a_circle(project: Project) -> dict[str, object]:
    project.run("first", HELD_OUT[:1], pretrained="runs/second/model")
    project.run("second", HELD_OUT[1:2], pretrained="runs/first/model")
    return {"pretrained": "runs/second/model"}


WAYS = [
    from_start,
    from_run,
    from_run_otherwise_spelled,
    from_checkpoint_of_run,
    from_base_of_base,
    from_start_of_base,
    from_release_folder,
    from_start_and_base,
    from_bases_in_a_circle,
]


@pytest.mark.parametrize("way", WAYS)
def test_rows_are_known_whatever_the_way_to_them(
    project: Project, way: Callable[[Project], dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.root)
    project.own = Artifacts("own")
    assert project.before(**way(project)) == (HELD_OUT[:2], ())


def test_a_model_of_nobody_else_has_learned_from_nothing(project: Project) -> None:
    (project.root / "foreign").mkdir()
    assert project.before() == ([], ())
    assert project.before(pretrained="foreign") == ([], ())


def forgotten_rows_of_run(project: Project) -> dict[str, object]:
    shutil.rmtree(project.run("other", HELD_OUT[:2]).rows)
    return {"pretrained": "runs/other/model"}


def start_without_list(project: Project) -> dict[str, object]:
    project.start_from(project.own, None)
    return {}


def start_whose_own_start_has_no_list(project: Project) -> dict[str, object]:
    project.start_from(project.own, HELD_OUT[5:], data={"unknown": ["tests/tiny@release-0: says nothing"]})
    return {}


def start_that_is_no_longer_pinned(project: Project) -> dict[str, object]:
    project.start_from(project.own, HELD_OUT[:2])
    (project.own.start / RECORD).write_text("null")
    return {}


def damaged_release_folder(project: Project) -> dict[str, object]:
    (project.release(project.root / "base", None) / PROVENANCE).write_text("{}")
    return {"pretrained": "base"}


def run_with_other_rows_since(project: Project) -> dict[str, object]:
    other = project.run("other", HELD_OUT[:1])
    (other.model / "model.safetensors").write_bytes(b"weights")
    tiny.write_splits(other.rows, {"validation": {"text": ["a"]}})
    save_blessing(other)
    tiny.write_splits(other.rows, {"train": {"text": HELD_OUT[1:2]}})
    return {"pretrained": "runs/other/model"}


def save_blessing(run: Artifacts) -> None:
    """Let the model of a run be judged with the rows that it has now."""
    parts = {"model": weights_digest(weight_file_hashes(run.model)), "data": validated_rows_digest(run)}
    told = {"verdict": "keep", "reasons": ["tie"], "metric": "loss", "first_release": False, "recipe": "r"}
    save_report(Blessing.model_validate(parts | told | {"champion": None}), run.blessing)


def run_without_recipe(project: Project) -> dict[str, object]:
    project.run("other", []).recipe_path.unlink()
    return {"pretrained": "runs/other/model"}


@pytest.mark.parametrize(
    ("way", "told"),
    [
        (forgotten_rows_of_run, "the rows of its training are not here; fetch them: `dvc pull validate@other`"),
        (start_without_list, "tests/tiny@release-1: it does not say which rows it has learned from"),
        (start_whose_own_start_has_no_list, "tests/tiny@release-0: says nothing"),
        (start_that_is_no_longer_pinned, "tests/tiny@release-1: what it says of its rows is no longer in"),
        (damaged_release_folder, f"base: its {PROVENANCE} cannot be used"),
        (
            run_with_other_rows_since,
            "runs/other/model: its rows have changed since it was judged; run other, and train",
        ),
        (run_without_recipe, "its recipe, which names its base, cannot be read"),
    ],
)
def test_what_is_not_known_is_said(project: Project, way: Callable[[Project], dict[str, object]], told: str) -> None:
    _, (reason,) = project.before(**way(project))
    assert told in reason


def test_a_run_whose_rows_or_model_alone_are_new_says_nothing(project: Project) -> None:
    other = project.root / "runs/other"
    base = run_with_other_rows_since(project)
    (other / "model/model.safetensors").write_bytes(b"other weights")  # learned from the rows of now
    assert project.before(**base) == (HELD_OUT[1:2], ())
    save_blessing(Artifacts("other", project.root))
    assert project.before(**base) == (HELD_OUT[1:2], ())


def test_a_release_of_the_hub_as_base_says_what_it_has_learned(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = project.release(project.root / "cache", HELD_OUT[:2])

    def cached_file(name: str, file: str, **_: object) -> str | None:
        path = snapshot / file
        return str(path) if name == "tests/base" and path.exists() else None

    monkeypatch.setattr("transformers.utils.hub.cached_file", cached_file)
    assert project.before(pretrained="tests/base") == (HELD_OUT[:2], ())
    assert project.before(pretrained="google/bert") == ([], ())
    monkeypatch.setattr("transformers.utils.hub.cached_file", lambda *_, **__: (_ for _ in ()).throw(OSError))
    assert "did not say whether it is a release" in project.before(pretrained="tests/base")[1][0]


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
    schema = project.own.rows / "test" / SCHEMA
    times = json.dumps({"column": "at", "newest": 0, "split": "time"})
    pq.write_metadata(pq.read_schema(schema).with_metadata({TIMES: times}), schema)
    project.held_out = HeldOutRows(SplitRows(project.own.rows / "test"), project.held_out.columns)
    until, base = {"learned_until": "2026-01-05T00:00:00+00:00"}, "runs/other/model"
    if kind == "run":
        report = project.run("other", train).report("ingest")
        report.parent.mkdir()
        report.write_text(json.dumps(until))
    elif kind == "release":
        base = project.release(project.root / "base", train, data=until).name
    else:
        project.start_from(project.own, train, data=until)
        days = 5
    learned, unknown = project.before(**({} if kind == "start" else {"pretrained": base}))
    assert (learned, unknown) == (HELD_OUT[:days] + train * (train[0] in HELD_OUT), ())


def test_a_chain_of_releases_names_all_rows(project: Project, tmp_path: Path) -> None:
    """Each release starts from the one before it; the last one goes on from a base of another recipe, too."""
    columns, folder = project.held_out.columns, tmp_path / "releases"
    folder.mkdir()
    for number in range(3):
        own = project.run(f"night-{number}", [HELD_OUT[number]])
        if number:
            release = own.start_record
            release.mkdir(parents=True)
            shutil.copy(folder / KNOWN_ROWS, release)
            (release / PROVENANCE).write_text(json.dumps({"objective": {"name": "causal_lm"}}))
            (own.start / RECORD).write_text(START.model_dump_json())
            own.history.mkdir()
            own.report("train").write_text(json.dumps({"started_from": START.model_dump(), "best_step": 1}))
        write_hashes(KnownHashes.of(SplitRows(own.rows / "train"), columns), columns, own.known_rows)
        section = Model.model_validate({"config": {"model_type": "llama"}})
        if number == 2:
            project.run("other", [HELD_OUT[5]])
            section = Model.model_validate({"pretrained": "runs/other/model"})
        write_rows_for_release(own, section, columns, folder / KNOWN_ROWS)
    learned = project.held_out.learned_by([rows_of_release(folder, "the last", columns)])
    assert [HELD_OUT[row_id - 1] for row_id in learned] == [*HELD_OUT[:3], HELD_OUT[5]]


def test_a_release_that_goes_back_to_nothing_has_no_list_of_its_own(project: Project, tmp_path: Path) -> None:
    section = Model.model_validate({"config": {"model_type": "llama"}})
    write_rows_for_release(project.own, section, project.held_out.columns, tmp_path / KNOWN_ROWS)
    assert not (tmp_path / KNOWN_ROWS).exists()
    assert rows_before_training(project.own, section, project.held_out.columns) == []
