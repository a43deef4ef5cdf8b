"""Import the Python objects that a recipe names as `package.module:name`.

They must be defined in the project, or brought for recipes by an installed package (`params.foundation.plugins`), so that nobody's recipe can
call `os:system` or another function that is not meant for it.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import re
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from params.foundation.errors import RecipeError
from params.foundation.installation import install_module
from params.foundation.plugins import FUNCTIONS, Plugin, find_plugins
from params.problems import suggestion
from params.sections.base import IMPORTABLE, Call

_NAME = re.compile(IMPORTABLE)


def import_by_name(name: str, key: str) -> Callable[..., Any]:
    """Return the function or class that a recipe names under `key`.

    Raises:
        RecipeError: there is no such object, it is neither defined in the project nor brought by a package, its module cannot be
            imported, or it cannot be called.
    """
    module_name, _, attribute = name.partition(":")
    found, outside = _import_attribute(name, key)
    plugin = _find_installed_function(name) if outside else None
    if plugin:
        found, outside = _load_function(plugin, key), ""
    elif inspect.isclass(found) or inspect.isroutine(found):
        outside = _foreign_module(found)
    if outside:
        what = f"{name}: `{outside}` is not in the project, and a recipe calls only the project's code"
        fix = "write a function or class in the project that uses it, and name that one"
        raise RecipeError.at(key, what, fix)
    module = sys.modules[module_name]
    if not hasattr(module, attribute):
        known = [key for key, value in vars(module).items() if inspect.isfunction(value) or inspect.isclass(value)]
        what = f"{name}: `{module_name}` has no `{attribute}`"
        raise RecipeError.at(key, what, suggestion(attribute, known, "names"))
    if not callable(found):
        what = f"{name}: `{attribute}` is a value of type {type(found).__name__}, which cannot be called"
        raise RecipeError.at(key, what, "name a function or a class")
    resolved: Callable[..., Any] = found
    return resolved


def _find_installed_function(name: str) -> Plugin | None:
    return next((plugin for plugin in find_plugins(FUNCTIONS).values() if plugin.place == name), None)


def _load_function(plugin: Plugin, key: str) -> Any:
    try:
        return plugin.load()
    except RecipeError as error:
        raise RecipeError.at(key, error.what, error.fix) from error


def _foreign_module(found: Any) -> str:
    """Return the module that defines a function or class, if that is not in the project; else nothing."""
    defined_in = getattr(sys.modules.get(found.__module__ or ""), "__spec__", None)
    return "" if defined_in is None or _is_in_project(defined_in) else found.__module__


def _import_attribute(name: str, key: str) -> tuple[Any, str]:
    """Return what a module has under a name, None if it has nothing; and the module if it is not in the project, which is not imported."""
    module_name, _, attribute = name.partition(":")
    try:
        spec = _find(module_name)
        if spec is not None and not _is_in_project(spec):
            return None, spec.name
        return getattr(importlib.import_module(module_name), attribute, None), ""
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            package = sys.modules.get(error.name.rpartition(".")[0])
            place = f" in {', '.join(package.__path__)}" if package else ""
            fix = "write package.module:name, as Python imports it in the project's root"
            raise RecipeError.at(key, f"{name}: there is no module `{error.name}`{place}", fix) from error
        what = f"{name}: `{module_name}` imports {error.name}, which is not installed"
        raise RecipeError.at(key, what, install_module(error.name or module_name)) from error
    except Exception as error:
        what = f"{name}: `{module_name}` cannot be imported: {type(error).__name__}: {error}"
        raise RecipeError.at(key, what, f"try `python -c 'import {module_name}'`") from error


def _find(module_name: str) -> ModuleSpec | None:
    """Return where a module is, or the first of its packages that is not in the project; imports those before it."""
    parts = module_name.split(".")
    for end in range(1, len(parts) + 1):
        spec = importlib.util.find_spec(".".join(parts[:end]))
        if spec is None or not _is_in_project(spec):
            break
    return spec


def _is_in_project(spec: ModuleSpec) -> bool:
    places = [spec.origin] if spec.has_location and spec.origin else spec.submodule_search_locations or []
    return any(is_project_file(Path(place)) for place in places)


def is_project_file(path: Path) -> bool:
    """Return whether a file is in the current folder or in that of the pipeline, and not in a Python environment there."""
    pipeline = Path(__file__).resolve().parents[1]
    if any(path.is_relative_to(pipeline / ours) for ours in ("params", "trainer")):
        return True  # even if the pipeline is installed in an environment
    if {"site-packages", "dist-packages"} & set(path.parts) or path.is_relative_to(sysconfig.get_path("stdlib")):
        return False
    return any(place.is_relative_to(root) for place in (path, path.resolve()) for root in (Path.cwd(), pipeline))


def import_with_arguments(
    call: Call, key: str, arity: int, offered: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Return the function that a recipe names under `key`, with the recipe's arguments bound.

    The pipeline passes `arity` more positional arguments; and of those `offered`, the ones whose names it has as parameters.
    """
    function = import_by_name(call.name, key)
    signature, arguments = "unknown", dict(call.arguments)
    try:
        found = inspect.signature(function)
        signature = str(found)
        arguments = {name: value for name, value in (offered or {}).items() if name in found.parameters} | arguments
        found.bind(*range(arity), **arguments)
    except (TypeError, ValueError) as error:
        what = f"{call.name}: cannot be called with {arity} values"
        what += f" and {sorted(call.arguments)}" if call.arguments else ""
        raise RecipeError.at(key, f"{what}: {error}", f"its signature is {signature}") from error
    return lambda *values: function(*values, **arguments)


def find_named_source_files(value: Any) -> Iterator[tuple[str, Path]]:
    """Yield every `package.module:name` in a part of a recipe with the file that defines it, without importing it."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for inner in value:
            yield from find_named_source_files(inner)
    elif isinstance(value, str) and _NAME.fullmatch(value):
        try:
            spec = _find(value.partition(":")[0])
        except Exception:  # noqa: BLE001 - whatever its packages raise
            return
        if spec and spec.origin and spec.origin.endswith(".py"):
            yield value, Path(spec.origin)


def find_named_plugins(value: Any) -> list[Plugin]:
    """Return what installed packages bring of the functions that a part of a recipe names."""
    outside = dict.fromkeys(name for name, path in find_named_source_files(value) if not is_project_file(path))
    return [plugin for name in outside if (plugin := _find_installed_function(name))]


def find_plugin_source_files(plugin: Plugin) -> dict[str, Path]:
    """Return the file that defines what a package brings, and what that imports of the same top-level module, by their paths in it."""
    module = plugin.entry_point.module
    top = module.partition(".")[0]
    spec = importlib.util.find_spec(top)
    places = [*(spec.submodule_search_locations or ()), spec.origin] if spec else []
    if not places or not places[0]:
        return {}
    root = Path(places[0]).parent
    place = root.joinpath(*module.split("."))
    files = [path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file()]
    found = transitively_imported_files(files, root, lambda name: name.partition("/")[0] not in (top, f"{top}.py"))
    return {path.relative_to(root).as_posix(): path for path in found}


def import_root(file: Path) -> Path:
    """Return the folder from which Python imports a file: the current one, that of the pipeline, or else the file's own."""
    roots = (Path.cwd(), Path(__file__).parents[1])
    return next((root for root in roots if file.is_relative_to(root)), file.parent)


def transitively_imported_files(
    files: Iterable[Path], root: Path, leave_out: Callable[[str], bool] | None = None
) -> Iterator[Path]:
    """Yield `files` below `root` and what they import below it, directly or through others, without importing them.

    A file is read when the next one is asked for. `leave_out` says of a path in `root` whether it and its imports do not count.
    """
    queue = list(dict.fromkeys(files))
    found = set(queue)
    yield from list(queue)
    while queue:
        for path in directly_imported_files(queue.pop(), root):
            if path not in found and not (leave_out and leave_out(path.relative_to(root).as_posix())):
                found.add(path)
                queue.append(path)
                yield path


class ImportedNames:
    """The names in `root` of files and what they import; files are read until a name that is asked for is found."""

    def __init__(self, files: Iterable[Path], root: Path) -> None:
        self._names = (path.relative_to(root).as_posix() for path in transitively_imported_files(files, root))
        self._found = set[str]()
        self._lock = threading.Lock()

    def __contains__(self, name: str) -> bool:
        with self._lock:
            while name not in self._found:
                if (found := next(self._names, None)) is None:
                    return False
                self._found.add(found)
            return True


def directly_imported_files(file: Path, root: Path) -> Iterator[Path]:
    """Yield the files below `root` that Python runs to import a file below it, as far as its text says so.

    These are its packages, what its import statements name, wherever they stand, what it hands to `import_module`, and texts of the form
    `package.module:name`, which something else imports.
    """
    try:
        modules, starred = _named_modules(file.read_bytes(), file.relative_to(root).parent.parts)
    except (OSError, SyntaxError, ValueError):  # whoever imports it says so
        return
    inside = ((*package, path.stem) for package in starred for path in root.joinpath(*package).glob("*.py"))
    packages = (module[:end] for module in dict.fromkeys([*modules, *inside]) for end in range(1, len(module) + 1))
    for place in (root.joinpath(*package) for package in dict.fromkeys(packages)):
        yield from (path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file())


@functools.lru_cache(maxsize=1024)
def _named_modules(code: bytes, folders: tuple[str, ...]) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return the modules that code in these folders names, and the packages from which it imports everything.

    A stage asks several times for the imports of the same files, and to parse them takes most of that.
    """
    modules: list[tuple[str, ...]] = [folders]
    starred: list[tuple[str, ...]] = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            package = folders[: len(folders) - node.level + 1] if node.level else ()
            package += tuple(node.module.split(".")) if node.module else ()
            modules += [(*package, alias.name) for alias in node.names]  # a module, or a name in the package
            starred += [package for alias in node.names if alias.name == "*"]
        else:
            modules += [tuple(name.split(".")) for name in _absolute_names(node)]
    return modules, starred


def _absolute_names(node: ast.AST) -> list[str]:
    """Return the modules that are named from the root on: by `import`, by a call that imports, by a text `package.module:name`."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.Call) and _called(node) in {"import_module", "__import__"}:
        given = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        return [name for name in given if isinstance(name, str) and not name.startswith(".")]
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAME.fullmatch(node.value):
        return [node.value.partition(":")[0]]
    return []


def _called(node: ast.Call) -> str | None:
    """Return the name of the function that is called, without what stands before it."""
    return getattr(node.func, "attr", None) or getattr(node.func, "id", None)
