"""What decides the weights of a training: keys of the recipe, data, and code.

`run_identity` hashes all of it. The key of a run, which names the folder of its checkpoints, is a hash of the identity, so
only a run that gives the same weights resumes from them. The train stage in dvc.yaml depends on the same code, and a contract
test checks that `DECIDING_CODE` and `HARMLESS_CODE` cover everything that `trainer.worker` imports.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from params import importing
from params.dvc_files import read_recipes_yaml_item, read_stage_dependencies
from params.foundation.artifacts import Artifacts
from params.foundation.hashing import file_sha256
from params.foundation.plugins import OBJECTIVES, Plugin, find_plugins

_PROJECT = Path(__file__).parents[1]

DECIDING_CODE = (
    "trainer/build.py",
    "trainer/checkpoints",
    "trainer/column_template.py",
    "trainer/data",
    "trainer/job.py",
    "trainer/loop",
    "trainer/model",
    "trainer/objectives/__init__.py",
    "trainer/objectives/bases",
    "trainer/objectives/{objective}.py",
    "trainer/rewards.py",
    "trainer/start.py",
    "trainer/worker.py",
)
"""Files and folders whose code decides the weights, in addition to the code that the recipe names."""

HARMLESS_CODE = {
    "params": "reads the recipe, whose values are part of the identity",
    "trainer/__init__.py": "only offers names to scripts, and says how long threads wait",
    "trainer/conflicts.py": "only refuses recipes",
    "trainer/identity.py": "computes the identity; a change that matters gives another one",
    "trainer/environment.py": "sets variables for processes that are started",
    "trainer/iterative": "is a Trainer for scripts; the worker does not use it",
    "trainer/objectives/advice": "only says what `evergreen new` writes",
    "trainer/reporting": "only logs and records",
    "trainer/runtime": "starts, watches and stops processes",
}
"""Everything else that the worker imports, and why a change there leaves the weights as they are."""
_OBJECTIVES = Path("trainer/objectives")
_PACKAGE = "code of the package "

_HARMLESS_KEYS = {"logging_steps", "keep_checkpoints", "save_steps", "save_minutes", "resume"}
"""Keys of `training` that change what is logged and kept, not what is learned."""
_HARMLESS_ARGUMENTS = {"run_name", "project", "skip_memory_metrics", "debug"}
"""The same for `training.arguments`."""
_HARMLESS_PREFIXES = (
    "logging_",
    "log_",
    "dataloader_",
    "report_to",
    "trackio_",
    "ddp_timeout",
    "eval_accumulation_steps",
)
_OF_MODEL = {".safetensors", ".json", ".jinja", ".model", ".txt"}
"""Files of a model's folder that decide what it computes; those of a tokenizer without tokenizer.json are text, too."""


def run_identity(
    tokens: Path, sections: Mapping[str, Any], models: Iterable[str] = (), start: Path | None = None
) -> dict[str, str]:
    """Return everything that decides the weights, by name; two trainings with equal identities give equal weights.

    It holds the keys of the recipe's `sections`, those of `trainer.job.SECTIONS`, and SHA-256 hashes of the tokens, the tokenizer, a
    local base model, `DECIDING_CODE` and the code that the recipe names; of `Objective.models`, as far as they are folders; and of the
    published model in the folder `start`, and of the rows that it knows, beside that folder. The
    number of processes, the micro-batch, and what is logged or kept are not part of it.
    """
    keys = deciding_keys(sections)
    data = (p for p in tokens.rglob("*") if p.is_file() and p.suffix in {".arrow", ".json"})
    files = {f"tokens {p.relative_to(tokens)}": p for p in data}
    named = {"base model": keys["model"]["pretrained"] or "", **{f"model {path}": path for path in models}}
    if start:
        named["start"] = str(start)
        files |= {f"start {path.name}": path for path in start.parent.glob("*.npy")}
    for name, path in named.items():
        files |= {f"{name} {p.relative_to(path)}": p for p in _files_of_model(path)}
    hashes = {name: file_sha256(path) for name, path in files.items()}
    return dict(sorted((recipe_identity(keys) | hashes | code_hashes(keys)).items()))


def _files_of_model(path: str) -> list[Path]:
    """Return the files of a local model that decide what it computes; there are none of a repository on the Hub, or of no model."""
    folder = Path(path)
    if not path or not folder.is_dir():
        return []
    own = [p for p in folder.iterdir() if p.suffix in _OF_MODEL and p.is_file()]
    # such as the pooling of sentence-transformers, and adapters beside the model that they are merged into
    return own + [p for p in folder.glob("*/*") if p.suffix in {".json", ".safetensors"}]


def recipe_identity(keys: Mapping[str, Any]) -> dict[str, str]:
    """Return the part of `run_identity` that the recipe says; `keys` are those of `deciding_keys`."""
    return dict(_flat(keys))


def deciding_keys(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a recipe that decide the weights, as JSON values; `sections` are those of `run_identity`."""
    keys = {name: to_jsonable_python(section) for name, section in sections.items()}
    keys["model"].pop("start", None)  # what is started from counts by its content
    keys["training"] = {name: value for name, value in keys["training"].items() if name not in _HARMLESS_KEYS}
    keys["training"]["arguments"] = {
        name: value
        for name, value in keys["training"]["arguments"].items()
        if name not in _HARMLESS_ARGUMENTS and not name.startswith(_HARMLESS_PREFIXES)
    }
    return keys


def code_hashes(keys: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 hashes of `deciding_files` and of `code_named_by_recipe`; `keys` are those of `deciding_keys`.

    What an installed package brings counts by the package's version, and by the hashes of the package's files that it imports.
    """
    objective = keys["objective"]["name"]
    files = {path.relative_to(_PROJECT).as_posix(): path for path in deciding_files(objective)}
    files |= code_named_by_recipe(keys)
    plugins = [*find_objective_plugin(objective), *importing.find_named_plugins(keys)]
    for plugin in plugins:
        files |= importing.find_plugin_source_files(plugin)
    hashes = {f"code {name}": file_sha256(path) for name, path in files.items()}
    return hashes | {f"{_PACKAGE}{plugin.package}": plugin.version for plugin in plugins}


def package_versions(identity: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of the packages that bring something that a recipe names, of `run_identity`."""
    return {name.removeprefix(_PACKAGE): value for name, value in identity.items() if name.startswith(_PACKAGE)}


def find_objective_plugin(objective: str) -> list[Plugin]:
    """Return what an installed package brings as an objective; empty if it has a file here, or if there is none."""
    if (_PROJECT / _OBJECTIVES / f"{objective}.py").exists():
        return []
    plugin = find_plugins(OBJECTIVES).get(objective)
    return [plugin] if plugin else []


def run_key(identity: Mapping[str, str]) -> str:
    """Return the 16 hexadecimal digits that name a run's folder."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def deciding_files(objective: str) -> list[Path]:
    """Return the Python files of `DECIDING_CODE` for a recipe with this objective, and what the objective's file imports."""
    places = [_PROJECT / place.format(objective=objective) for place in DECIDING_CODE]
    own = _PROJECT / _OBJECTIVES / f"{objective}.py"
    if find_objective_plugin(objective):
        return [file for file in _python_files(places) if file != own]
    return _python_files(places) + _imported(own, _PROJECT)


def _python_files(places: Iterable[Path]) -> list[Path]:
    return [file for place in places for file in (sorted(place.rglob("*.py")) if place.is_dir() else [place])]


def code_named_by_recipe(keys: Any) -> dict[str, Path]:
    """Return the code that a part of a recipe names, by the name, and what its files import, by the path in the project."""
    files = dict(importing.find_named_source_files(keys))
    for path in filter(importing.is_project_file, list(files.values())):
        root = importing.import_root(path)
        files |= {found.relative_to(root).as_posix(): found for found in _imported(path, root)}
    return files


def find_unwatched_code(artifacts: Artifacts, sections: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield a section of the recipe whose code no stage watches, what is wrong in recipes.yaml, and the fix.

    `sections` hold JSON values. It is silent if DVC does not know the recipe.
    """
    root, item = artifacts.root.resolve(), read_recipes_yaml_item(artifacts)
    watched = list(_places_watched_by_stages(artifacts))
    if not item or not watched:
        return
    objective = sections.get("objective", {}).get("name")
    for what, fix in _unwatched_code_of_objective(_OBJECTIVES / f"{objective}.py", item, root):
        yield "objective", what, fix
    for plugin in find_objective_plugin(str(objective)):
        if not _is_pinned("objective", plugin, item, root):
            yield "objective", *_pin_problem("objective", item, plugin)
    fix = "set `code:` there to the file or folder that does; keep all code that the recipe names in one"
    for section, content in sections.items():
        missing = _unwatched_files(content, root, watched)
        if missing:
            what = f"watches {item.get('code')} for this recipe, which does not contain {_first_three(missing)}"
            yield section, what, fix
        for plugin in importing.find_named_plugins(content):
            if not _is_pinned("code", plugin, item, root):
                yield section, *_pin_problem("code", item, plugin)


def _unwatched_files(content: Any, root: Path, watched: Sequence[Iterable[Path]]) -> list[str]:
    """Return the project's files that a section of the recipe names, and that are in none of the places of some stage."""
    found = []
    for name, path in code_named_by_recipe(content).items():
        is_ours = path.is_relative_to(root) and importing.is_project_file(path)
        if is_ours and not all(_is_in(path, places) for places in watched):
            found.append(name)
    return found


def _first_three(files: Sequence[str]) -> str:
    left = len(files) - 3
    more = f" and {left} more file{'s' * (left > 1)}" if left > 0 else ""
    return f"{', '.join(files[:3])}{more}"


def _is_pinned(key: str, plugin: Plugin, item: Mapping[str, str], root: Path) -> bool:
    """Whether the file or folder that an item of recipes.yaml names has the version of a plugin's package."""
    return key in item and _pins(root / item[key], plugin)


def _pin_problem(key: str, item: Mapping[str, str], plugin: Plugin) -> tuple[str, str]:
    """Return what is wrong in recipes.yaml where it watches no file that names the version of a package, and the fix."""
    line = f"{plugin.package}=={plugin.version}"
    what = f"watches {item.get(key)} for this recipe, which does not have the line {line} for `{plugin.place}`"
    fix = f"write it into a file, such as requirements.txt, and set `{key}:` there to that file, or to a folder with it"
    return what, fix


def _pins(place: Path, plugin: Plugin) -> bool:
    """Whether a file, or a text file in a folder, has a line with the version of a plugin's package, as pip reads it."""
    files = place.rglob("*.txt") if place.is_dir() else [place]
    lines = (line.split() for file in files if file.is_file() for line in file.read_text(errors="replace").splitlines())
    return any(words[0] == f"{plugin.package}=={plugin.version}" for words in lines if words)


def _places_watched_by_stages(artifacts: Artifacts) -> Iterator[list[Path]]:
    """Yield the files and folders that a stage watches whose result depends on the code that a recipe names."""
    root = artifacts.root.resolve()
    for stage in ("train", "evaluate"):
        places = read_stage_dependencies(stage, artifacts)
        if places:
            yield [(root / place).resolve() for place in places]


def _unwatched_code_of_objective(own: Path, item: Mapping[str, Any], root: Path) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with `objective:` in an item of recipes.yaml, and the fix; `own` is the objective's file."""
    if not (_PROJECT / own).exists():
        return  # there is no such objective, which is said elsewhere
    for path in (_PROJECT / own, *_imported(_PROJECT / own, _PROJECT)):
        place = path.relative_to(_PROJECT)
        if not place.is_relative_to(_OBJECTIVES):  # earlier stages do not watch the code that the recipe names
            yield f"cannot name {place} for the objective, which imports it", f"move it into {_OBJECTIVES}"
        elif "objective" not in item or not _is_in(root / place, [(root / item["objective"]).resolve()]):
            what = f"watches {item.get('objective')} for this recipe, which does not contain {place}"
            yield what, f"write `objective: {own if place == own else _OBJECTIVES}` there"


def _is_in(path: Path, places: Iterable[Path]) -> bool:
    return any(path.resolve().is_relative_to(place) for place in places)


def _imported(file: Path, root: Path) -> list[Path]:
    """Return what a file imports, directly or through others, except for `DECIDING_CODE` and what is known to be harmless.

    `HARMLESS_CODE` says why it is for the worker. Somebody's file in these folders, which the worker does not import, decides.
    """

    def is_listed(name: str) -> bool:
        def is_in(places: Iterable[str]) -> bool:
            return any(name == place or name.startswith(f"{place}/") for place in places)

        return is_in(DECIDING_CODE) or (is_in(HARMLESS_CODE) and name in _worker_imports(root))

    return [path for path in importing.transitively_imported_files([file], root, is_listed) if path != file]


@lru_cache(maxsize=2)
def _worker_imports(root: Path) -> importing.ImportedNames:
    """Return the names of all files that the worker imports without an objective and code that a recipe names."""
    files = [root / "trainer/worker.py", *sorted((root / _OBJECTIVES).glob("*/**/*.py"))]
    return importing.ImportedNames(files, root)


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else key)
    else:
        yield name, json.dumps(value, sort_keys=True)
