"""`evergreen remove`: undo `evergreen new`. Runs and releases stay."""

from __future__ import annotations

import sys

import typer

from params import RecipeError
from params.dvc_files import RECIPES
from params.foundation.artifacts import Artifacts, write_text_atomically
from params.loading import name_problem
from tasks.scaffold import project


def remove(name: str, *, yes: bool) -> None:
    """Remove a recipe's file, its item and its deployments, after asking.

    Raises:
        RecipeError: no recipe can have this name, or there is nothing of this name.
    """
    if problem := name_problem(name):
        fix = "write the recipe's name, without params/ and .yaml"
        raise RecipeError("NAME", f"{name!a:.200} is no name: {problem}", fix)
    root = project.project_root()
    recipe = root / "params" / f"{name}.yaml"
    recipes, prefect = ((root / path).read_text(encoding="utf-8") for path in (RECIPES, project.PREFECT))
    new_recipes = project.without_item(recipes, name)
    new_prefect, deployments = project.without_deployments(prefect, name)
    what = [f"the recipe {recipe}"] if recipe.is_file() else []
    what += ["its item in recipes.yaml"] if new_recipes != recipes else []
    what += [f"the deployment {deployment} in prefect.yaml" for deployment in deployments]
    if not what:
        recipe_names = sorted(path.stem for path in (root / "params").glob("*.yaml"))
        raise RecipeError(name, "no recipe, item or deployment has this name", f"recipes: {', '.join(recipe_names)}")
    print(f"This belongs to {name}:")
    for one in what:
        print(f"  {one}")
    if not yes and not sys.stdin.isatty():
        print("Nothing was removed. To remove it, add --yes.")
        return
    if not yes and not typer.confirm("Remove it?"):
        return
    if new_prefect != prefect:
        write_text_atomically(root / project.PREFECT, new_prefect)
    if new_recipes != recipes:
        write_text_atomically(root / RECIPES, new_recipes)
    recipe.unlink(missing_ok=True)
    print("Removed.")
    kept = [str(path) for path in (Artifacts(name, root).run, Artifacts(name, root).scratch) if path.exists()]
    if kept:
        print(f"Kept: {', '.join(kept)}, and what is published.")
    if deployments:
        commands = ", ".join(f"prefect deployment delete retrain/{deployment}" for deployment in deployments)
        print(f"On a Prefect server, delete what is deployed: {commands}")
