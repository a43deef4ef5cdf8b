"""recipes.yaml and prefect.yaml: one item more or less, and every other byte as it was."""

from __future__ import annotations

import re

import pytest
from ruamel.yaml import YAML

from params import RecipeError
from tasks.scaffold.project import (
    NO_BASE,
    prefect_yaml_with_deployment,
    recipes_yaml_with_item,
    recipes_yaml_without_item,
    without_recipe_deployments,
)
from tests.support.project import ROOT

RECIPES = (ROOT / "recipes.yaml").read_text(encoding="utf-8")
PREFECT = (ROOT / "prefect.yaml").read_text(encoding="utf-8")
ITEM = {"data": "data/my rows", "objective": "sft"}


def read(text: str):
    return YAML(typ="safe").load(text)


def added(before: str, after: str) -> list[str]:
    """The new lines, if all others are as they were."""
    old, new = before.splitlines(), after.splitlines()
    start = next(i for i, line in enumerate(new) if i >= len(old) or line != old[i])
    count = len(new) - len(old)
    assert new[:start] + new[start + count :] == old
    return new[start : start + count]


@pytest.mark.parametrize("name", ["rows", "123", "yes", "a.b-c", "data"])
def test_an_item_is_added_at_the_end_and_removed(name: str) -> None:
    after = recipes_yaml_with_item(RECIPES, name, **ITEM)
    assert after.startswith(RECIPES)
    assert len(added(RECIPES, after)) == 5
    own = {"data": "data/my rows", "objective": "trainer/objectives/sft.py"}
    assert read(after)["recipes"][name] == own | {"base": NO_BASE, "code": "trainer/losses.py"}
    assert recipes_yaml_with_item(after, name, **ITEM) == after
    assert recipes_yaml_without_item(after, name) == RECIPES
    assert recipes_yaml_without_item(RECIPES, name) == RECIPES


def test_an_item_that_differs_is_refused() -> None:
    with pytest.raises(RecipeError, match="lists default with other data"):
        recipes_yaml_with_item(RECIPES, "default", **ITEM)
    with pytest.raises(RecipeError, match="no list of recipes"):
        recipes_yaml_with_item("stages: {}\n", "rows", **ITEM)


def test_an_item_that_a_person_wrote_is_removed_with_all_its_lines() -> None:
    own = """\
recipes:
  # the first
  first: {data: a, objective: b, base: c, code: d}
  second:   # ours
    data: a
  # in its middle
    objective: b

    code: d
  # the third
  third: {data: a, objective: b, base: c, code: d}
"""
    after = recipes_yaml_without_item(own, "second")
    assert after == own.replace(own[own.index("  second") : own.index("  # the third")], "")
    assert list(read(recipes_yaml_with_item(after, "fourth", **ITEM))["recipes"]) == ["first", "third", "fourth"]


def test_the_last_recipe_can_be_removed_and_another_added() -> None:
    empty = recipes_yaml_without_item(RECIPES, "default")
    assert empty.endswith("recipes: {}\n")
    assert read(empty) == {"recipes": {}}, "DVC refuses a list without a value"
    assert list(read(recipes_yaml_with_item(empty, "rows", **ITEM))["recipes"]) == ["rows"]


def test_a_deployment_is_added_and_removed() -> None:
    after = prefect_yaml_with_deployment(PREFECT, "rows", "30 4 * * 1")
    assert after.startswith(PREFECT)
    deployment = read(after)["deployments"][-1]
    assert deployment["parameters"] == {"recipe": "rows"}
    assert deployment["schedules"] == [{"slug": "schedule", "cron": "30 4 * * 1", "timezone": "UTC"}]
    assert deployment["entrypoint"] == "flows/retrain.py:retrain"
    assert deployment["work_pool"] == read(PREFECT)["definitions"]["retrain"]["work_pool"]
    assert prefect_yaml_with_deployment(after, "rows", "30 4 * * 1") == after
    slugless = re.sub(r"- slug: schedule\n +(cron: .30 4.*\n( +)timezone: UTC\n)", r"- \1\2active: true\n", after)
    assert read(slugless)["deployments"] != read(after)["deployments"]
    assert prefect_yaml_with_deployment(slugless, "rows", "30 4 * * 1") == slugless, "as earlier versions wrote it"
    assert without_recipe_deployments(after, "rows") == (PREFECT, ["rows"])
    with pytest.raises(RecipeError, match="has another deployment rows"):
        prefect_yaml_with_deployment(after, "rows", "0 0 * * *")


def test_all_deployments_of_a_recipe_are_removed_and_no_other() -> None:
    text = prefect_yaml_with_deployment(PREFECT, "rows", "0 3 * * *")
    after, names = without_recipe_deployments(text, "default")
    assert names == ["default", "default-on-notice", "default-often"]
    assert [one["name"] for one in read(after)["deployments"]] == ["rows"]
    assert "For workers with nothing but Python" in after
    assert without_recipe_deployments(after, "none") == (after, [])


def test_a_file_of_another_form_is_left_alone() -> None:
    not_last = "recipes:\n  first: {}\nmeta:\n  old: {}\n"
    for form in (not_last, "recipes: {first: {}}\n"):
        with pytest.raises(RecipeError, match="cannot be edited automatically"):
            recipes_yaml_with_item(form, "rows", **ITEM)
    flow = "deployments: [{name: a, parameters: {recipe: rows}, entrypoint: 'flows/retrain.py:retrain'}]\n"
    with pytest.raises(RecipeError, match="cannot be edited automatically"):
        without_recipe_deployments(flow, "rows")
    with pytest.raises(RecipeError, match="has no `&retrain`"):
        prefect_yaml_with_deployment(flow, "rows", "0 3 * * *")
