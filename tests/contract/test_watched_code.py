"""Code and models that decide the weights: an edit of each file gives another run key and makes the train stage stale."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from dvc.dependency import ParamsDependency
from dvc.repo import Repo

from params.foundation.artifacts import Artifacts
from tasks.recipes.loading import load
from tests.support import tiny
from tests.support.project import copy_project
from trainer import identity
from trainer.identity import deciding_files, find_unwatched_code, run_identity, run_key

OWN = {
    "trainer/objectives/mine.py": "from trainer.objectives.dpo import DPO\n\nclass Mine(DPO): ...\n",
    "trainer/objectives/far.py": "def value():\n    return 1\n",
    "watched/losses.py": "from watched import sums\n\ndef loss(outputs, labels, items): ...\n",
    "watched/sums.py": "from .deep import parts\n",
    "watched/deep/parts.py": "",
    "watched/rewards.py": "def reward(row): ...\n",
    "watched/unused.py": "",
    "runs/other/model/model.safetensors": "weights",
}
ITEM = "data: data/sentences.csv, objective: trainer/objectives, base: runs/other/model, code: watched"
DECIDING = {
    "own objective": "trainer/objectives/mine.py",
    "its sibling": "trainer/objectives/dpo.py",
    "a sibling of that": "trainer/objectives/far.py",
    "base of objectives": "trainer/objectives/bases/objective.py",
    "rewards": "trainer/rewards.py",
    "base model": "runs/other/model/model.safetensors",
    "named loss": "watched/losses.py",
    "what it imports": "watched/sums.py",
    "what that imports": "watched/deep/parts.py",
    "named reward": "watched/rewards.py",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project whose recipe has an objective of its own beside one of ours, a base model, a loss and a reward."""
    copy_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(identity, "_PROJECT", tmp_path)
    for name, content in OWN.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    edit(
        "trainer/objectives/dpo.py",
        "\n\ndef far():\n    from trainer.objectives import far as found\n\n    return found\n",
    )
    own = {"name": "mine", "rewards": [{"function": "watched.rewards:reward"}]}
    changes = {"objective": own, "model": {"pretrained": "runs/other/model"}, "training.loss": "watched.losses:loss"}
    tiny.write(tmp_path / "params" / "mine.yaml", tiny.recipe(changes))
    (tmp_path / "recipes.yaml").write_text(f"recipes:\n  mine: {{{ITEM}}}\n")
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "watched"]:
        del sys.modules[name]


def edit(name: str, text: str = "# edited\n") -> None:
    with Path(name).open("a", encoding="utf-8") as file:
        file.write(text)


def key() -> str:
    recipe = load(Path("params/mine.yaml"))
    sections = {name: getattr(recipe, name) for name in ("seed", "objective", "model", "training")}
    return run_key(run_identity(Path("runs/mine/tokens"), sections))


def test_edit_of_each_file_is_noticed(project: Path) -> None:
    tokens = project / "runs/mine/tokens"
    tokens.mkdir(parents=True)
    (tokens / "train.arrow").write_text("tokens")
    (project / "runs/mine/validated/start").mkdir(parents=True)
    with Repo.init(no_scm=True, force=True) as repo:
        (stage,) = repo.stage.collect("train@mine")
        files = [dep for dep in stage.deps if not isinstance(dep, ParamsDependency)]
        for dep in files:
            dep.save()
        before = key()
        for what, name in DECIDING.items() | {("nothing", "watched/unused.py")}:
            assert not any(dep.changed_checksum() for dep in files), what
            content = Path(name).read_bytes()
            edit(name)
            assert any(dep.changed_checksum() for dep in files), what
            assert (key() != before) == (what != "nothing"), what
            Path(name).write_bytes(content)
    assert key() == before


def unwatched(named: str | None = None, **changes: str) -> list[str]:
    """What recipes.yaml does not watch for the recipe, or for one with an objective of another name."""
    item = dict(part.split(": ") for part in ITEM.split(", ")) | changes
    lines = "".join(f"    {name}: {path}\n" for name, path in item.items())
    Path("recipes.yaml").write_text(f"recipes:\n  mine:\n{lines}")
    recipe = load(Path("params/mine.yaml")).model_dump(mode="json")
    recipe |= {"objective": {"name": named}} if named else {}
    return [f"{section}: {what}; {fix}" for section, what, fix in find_unwatched_code(Artifacts("mine"), recipe)]


def test_an_objective_that_there_is_not_is_not_missed_in_recipes_yaml(project: Path) -> None:
    assert unwatched(named="mime", objective="trainer/objectives/mine.py") == []


def test_item_that_leaves_code_out_is_named(project: Path) -> None:
    assert unwatched() == []
    own = unwatched(objective="trainer/objectives/mine.py")
    assert [line.split("contain ")[1].split(";")[0] for line in own] == [
        "trainer/objectives/dpo.py",
        "trainer/objectives/far.py",
    ]
    assert all(line.endswith("write `objective: trainer/objectives` there") for line in own)
    assert unwatched(objective="trainer/objectives/dpo.py")[0].endswith(
        "write `objective: trainer/objectives/mine.py` there"
    )
    (loss,) = unwatched(code="watched/rewards.py")
    assert loss.startswith(
        "training: watches watched/rewards.py for this recipe, which does not contain watched.losses:loss, "
        "watched/sums.py, watched/deep/parts.py; set `code:`"
    )
    edit("watched/deep/parts.py", "import watched.unused\n")
    (loss,) = unwatched(code="watched/rewards.py")
    assert "watched/deep/parts.py and 1 more file; set" in loss
    edit("trainer/objectives/mine.py", "import watched.unused\n")
    (outside,) = unwatched()
    assert outside.endswith(
        "cannot name watched/unused.py for the objective, which imports it; move it into trainer/objectives"
    )


def test_objectives_of_ours_import_no_other() -> None:
    """Then the key of a run hashes `DECIDING_CODE` and nothing else, as it always did."""
    folder = Path(identity.__file__).parent / "objectives"
    for file in sorted(folder.glob("[!_]*.py")):
        others = [path.name for path in deciding_files(file.stem) if path.parent == folder and path.stem != "__init__"]
        assert others == [file.name]
        assert len(deciding_files(file.stem)) == len(deciding_files("causal_lm"))
        assert not [path for path in deciding_files(file.stem) if path.parent.name == "advice"], "it is for `new` alone"
