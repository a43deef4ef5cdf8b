"""Entry points of installed packages are found by group and name, and a broken one is said with its package."""

from __future__ import annotations

from pathlib import Path

import pytest

from params import RecipeError
from params.foundation.plugins import find_plugins
from tests.support.installed import install

GROUP = "evergreen.tests"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    find_plugins.cache_clear()
    yield tmp_path
    find_plugins.cache_clear()


def test_plugin_has_its_package_and_version_and_loads(packages: Path) -> None:
    install(
        packages,
        "brought-values",
        "1.2",
        {GROUP: {"seven": "brought_values:SEVEN"}},
        {"brought_values.py": "SEVEN = 7"},
    )
    found = find_plugins(GROUP)["seven"]
    assert (found.package, found.version, found.place) == ("brought-values", "1.2", "brought_values:SEVEN")
    assert found.load() == 7
    assert "seven" not in find_plugins("evergreen.others")


@pytest.mark.parametrize("place", ["no_such_module:x", "brought_broken:x", "brought_empty:x"])
def test_error_of_a_broken_plugin_names_its_package(packages: Path, place: str) -> None:
    code = {"brought_broken.py": "1 / 0", "brought_empty.py": ""}
    install(packages, "brought-broken", "0.1", {GROUP: {"bad": place}}, code)
    with pytest.raises(RecipeError, match=r"`bad` of the package brought-broken 0\.1") as error:
        find_plugins(GROUP)["bad"].load()
    assert place.partition(":")[0] in error.value.fix


def test_two_packages_with_one_name_are_refused(packages: Path) -> None:
    for package in ("brought-a", "brought-b"):
        install(packages, package, "1", {GROUP: {"same": f"{package.replace('-', '_')}:x"}}, {})
    with pytest.raises(RecipeError, match=r"brought-. 1 and brought-. 1") as error:
        find_plugins(GROUP)
    assert error.value.fix == "uninstall one of them"
