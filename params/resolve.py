"""A recipe with all of its values, defaults included, as YAML: what DVC watches, and what `evergreen show` prints."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from params.foundation.artifacts import Artifacts, write_text_atomically
from params.loading import load, read_yaml_document
from params.schema import Recipe

_NULL: Final = "tag:yaml.org,2002:null"


def write_resolved_recipe(artifacts: Artifacts) -> None:
    """Write the resolved recipe. Equal values give equal bytes, whatever the recipe's file looks like."""
    write_complete_recipe(load(artifacts.recipe_path), artifacts.resolved_recipe)


def write_complete_recipe(recipe: Recipe, path: Path) -> None:
    """Write a recipe with all of its values."""
    write_text_atomically(path, _text(recipe.model_dump(mode="json")))


def recipe_text_marking_defaults(artifacts: Artifacts) -> str:
    """Return the resolved recipe with a comment at each value that its file does not give."""
    content = load(artifacts.recipe_path).model_dump(mode="json")
    text = _text(_annotated(content, read_yaml_document(artifacts.recipe_path).content))
    return re.sub(r" +# default$", "  # default", text, flags=re.MULTILINE)


def _annotated(values: Mapping[str, Any], given: Any) -> CommentedMap:
    found = CommentedMap()
    for key, value in values.items():
        own = given.get(key) if isinstance(given, Mapping) else None
        if isinstance(value, Mapping) and value:
            found[key] = _annotated(value, own)
        else:
            found[key] = value
            if not (isinstance(given, Mapping) and key in given):
                found.yaml_add_eol_comment("default", key)
    return found


def _text(content: Mapping[str, Any]) -> str:
    yaml = YAML()
    yaml.width = 10_000
    yaml.default_flow_style = False
    yaml.representer.add_representer(type(None), lambda dumper, _: dumper.represent_scalar(_NULL, "null"))
    text = io.StringIO()
    yaml.dump(content, text)
    return text.getvalue()
