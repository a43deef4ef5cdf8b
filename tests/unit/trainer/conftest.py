"""What `check` reports for changes of the tiny recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.diagnostics.check import find_recipe_problems
from tasks.recipes.loading import read_yaml_document
from tests.support import tiny
from tests.support.settings_check import check_settings_in_this_process


@pytest.fixture
def problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    """A function of changes and sections that returns the cause and fix of each problem, by key."""
    monkeypatch.chdir(tmp_path)
    check_settings_in_this_process(monkeypatch)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.csv").write_text("text,label\na text,a\n")

    def found(changes: dict[str, Any], **sections: Any) -> dict[str, str]:
        document = read_yaml_document(tiny.write(tmp_path / "trial.yaml", tiny.recipe(changes, **sections)))
        return {".".join(map(str, p.key)): f"{p.what}; {p.fix}" for p in find_recipe_problems(document)}

    return found
