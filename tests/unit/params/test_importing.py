"""A recipe names code by module and name; only the project's own is imported and called."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from params import RecipeError
from params.importing import find_named_source_files, import_by_name
from tests.support.own_code import mean_loss

OWN = """
from functools import lru_cache, partial
from os import system
from shutil import rmtree
from subprocess import Popen

@lru_cache
def cached(): ...

class Runner(Popen): ...

bound = partial(cached)
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.startswith("importing_")]:
        monkeypatch.delitem(sys.modules, name)
    for folder in (tmp_path, tmp_path / "env/lib/python3/site-packages"):
        folder.mkdir(parents=True, exist_ok=True)
        monkeypatch.syspath_prepend(folder)
    Path("importing_own.py").write_text(OWN)
    Path("importing_space").mkdir()
    Path("importing_space/own.py").write_text("def f(): ...")
    Path("env/lib/python3/site-packages/importing_installed.py").write_text("def f(): ...")
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "importing_own:cached",
        "importing_own:Runner",
        "importing_own:bound",
        "importing_space.own:f",
        "trainer.losses:cross_entropy",
    ],
)
def test_project_code_is_found(name: str) -> None:
    assert callable(import_by_name(name, "key"))


def test_code_beside_the_pipeline_is_found() -> None:
    assert import_by_name("tests.support.own_code:mean_loss", "key") is mean_loss


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("os:system", "os"),
        ("posix:system", "posix"),
        ("builtins:exec", "builtins"),
        ("subprocess:run", "subprocess"),
        ("os.path:exists", "os"),
        ("antigravity:geohash", "antigravity"),  # its import opens a browser
        ("xml.dom.minidom:parse", "xml"),
        ("importing_installed:f", "importing_installed"),
        ("importing_own:system", "posix"),
        ("importing_own:rmtree", "shutil"),
        ("importing_own:Popen", "subprocess"),
    ],
)
def test_other_code_is_refused(name: str, module: str) -> None:
    with pytest.raises(RecipeError, match=f"key: {name}: `{module}` is not in the project, and a recipe calls only"):
        import_by_name(name, "key")
    assert not {"antigravity", "importing_installed"} & sys.modules.keys()


def test_module_that_cannot_be_found_is_an_error() -> None:
    for name in ("__main__:main", "importing_space.none:f", "a..b:f"):
        with pytest.raises(RecipeError, match=name):
            import_by_name(name, "key")
    assert list(find_named_source_files(["importing_space.none:f", "a..b:f"])) == []
