"""A fork with recipes of its own merges a later state of this project, as docs/upgrade.md says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tasks.scaffold.project import prefect_yaml_with_deployment, recipes_yaml_with_item
from tests.support.project import ROOT, TINY

FILES = ("dvc.yaml", "recipes.yaml", "prefect.yaml", "params/default.yaml")


def git(folder: Path, *command: str) -> str:
    who = {f"GIT_{role}_{what}": "test@example.org" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **who, "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(["git", *command], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"git {' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "changes")


def change(path: Path, edit: Callable[[str], str]) -> None:
    text = path.read_text(encoding="utf-8")
    path.write_text(edit(text), encoding="utf-8")
    assert path.read_text(encoding="utf-8") != text


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "params").mkdir(parents=True)
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    git(folder, "init", "-q", "-b", "main")
    commit(folder)
    return folder


def add_recipe(fork: Path, name: str) -> None:
    """What `evergreen new` writes, and a commit."""
    (fork / "params" / f"{name}.yaml").write_text(TINY, encoding="utf-8")
    change(
        fork / "recipes.yaml", lambda text: recipes_yaml_with_item(text, name, data="data/rows.csv", objective="sft")
    )
    change(fork / "prefect.yaml", lambda text: prefect_yaml_with_deployment(text, name, "0 5 * * *"))
    commit(fork)


DEPLOYMENT = """\
  - <<: *retrain
    name: default-weekly
    parameters: {recipe: default}

"""


def test_later_state_of_the_project_merges_without_a_conflict(project: Path, tmp_path: Path) -> None:
    fork = tmp_path / "fork"
    git(tmp_path, "clone", "-q", str(project), str(fork))
    git(fork, "remote", "rename", "origin", "upstream")
    add_recipe(fork, "first")
    add_recipe(fork, "second")

    # All places at which this project may change: but for the end of prefect.yaml and the items of recipes.yaml.
    change(project / "dvc.yaml", lambda text: text.replace("vars:\n", "# another comment\nvars:\n"))
    change(
        project / "dvc.yaml", lambda text: text.replace("        - trainer/losses.py\n", "        - trainer/later.py\n")
    )
    last = "# For workers with nothing but Python"
    change(project / "prefect.yaml", lambda text: text.replace(f"\n{last}", f"\n{DEPLOYMENT}{last}"))
    change(project / "prefect.yaml", lambda text: text.replace("/var/lib/evergreen/cache\n", "/var/cache/other\n"))
    change(
        project / "prefect.yaml", lambda text: text.replace("name: evergreen\n", "# another comment\nname: evergreen\n")
    )
    change(project / "recipes.yaml", lambda text: text.replace("recipes:\n", "# another comment\nrecipes:\n"))
    commit(project)

    git(fork, "fetch", "-q", "upstream")
    git(fork, "merge", "-q", "--no-edit", "upstream/main")

    dvc, recipes, prefect, _ = (YAML(typ="safe").load(fork / name) for name in FILES)
    assert dvc == YAML(typ="safe").load(project / "dvc.yaml")
    assert list(recipes["recipes"]) == ["default", "first", "second"]
    ours = ["default", "default-on-notice", "default-often", "default-weekly"]
    assert [one["name"] for one in prefect["deployments"]] == [*ours, "first", "second"]
    assert "/var/cache/other" in (fork / "prefect.yaml").read_text(encoding="utf-8")


def test_project_itself_adds_nothing_where_forks_do() -> None:
    recipes = (ROOT / "recipes.yaml").read_text(encoding="utf-8")
    assert list(YAML(typ="safe").load(recipes)["recipes"]) == ["default"]
    assert "the deployments of your recipes below" in (ROOT / "prefect.yaml").read_text("utf-8").rpartition("\n\n")[2]


def test_every_version_says_what_to_do_when_upgrading_to_it() -> None:
    """What is not released yet, too: a fork may merge it."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL))
    first, *others = sections
    assert first == "Unreleased"
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert others[0] == version, "the version of pyproject.toml is the newest one that was released"
    assert sorted(others, key=lambda name: [*map(int, name.split("."))], reverse=True) == others
    for name in [first, *others[:-1]]:
        to_do = sections[name].partition("### To do when you upgrade\n")[2].partition("\n#")[0]
        assert re.search(r"^- \S", to_do, re.MULTILINE), f"{name} does not say what to do"
