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
from params.schema import Recipe
from tasks.recipes.loading import load, read_yaml_document

_NULL: Final = "tag:yaml.org,2002:null"
_NOT_GIVEN: Final = object()


def write_resolved_recipe(artifacts: Artifacts) -> None:
    """Write the resolved recipe. Equal values give equal bytes, whatever the recipe's file looks like."""
    write_complete_recipe(load(artifacts.recipe_path), artifacts.resolved_recipe)


def write_complete_recipe(recipe: Recipe, path: Path) -> None:
    write_text_atomically(path, _text(recipe.model_dump(mode="json")))


def recipe_text_marking_defaults(artifacts: Artifacts) -> str:
    """Return the resolved recipe with a comment at each value that its file does not give."""
    content = load(artifacts.recipe_path).model_dump(mode="json")
    text = _text(_annotated(content, read_yaml_document(artifacts.recipe_path).content))
    return re.sub(r" +# default$", "  # default", text, flags=re.MULTILINE)


def _annotated(values: Mapping[str, Any], given: Any) -> CommentedMap:
    found, file_values = CommentedMap(), _by_key(values, given)
    for key, value in values.items():
        own = file_values.get(key, _NOT_GIVEN)
        if isinstance(value, Mapping) and value:
            found[key] = _annotated(value, own)
        else:
            found[key] = value
            if own is _NOT_GIVEN:
                found.yaml_add_eol_comment("default", key)
    return found


def _by_key(values: Mapping[str, Any], given: Any) -> Mapping[str, Any]:
    """Return what the file gives for each key; a short form, such as `function: "module:name"`, gives the keys that have its value."""
    if isinstance(given, Mapping):
        return given
    if given is _NOT_GIVEN:
        return {}
    return {key: given for key, value in values.items() if value == given} or dict.fromkeys(values, given)


def _text(content: Mapping[str, Any]) -> str:
    yaml = YAML()
    yaml.width = 10_000
    yaml.default_flow_style = False
    yaml.representer.add_representer(type(None), lambda dumper, _: dumper.represent_scalar(_NULL, "null"))
    text = io.StringIO()
    yaml.dump(content, text)
    return text.getvalue()
