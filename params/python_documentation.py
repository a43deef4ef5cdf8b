"""Real text that every Python has: the docstrings of its standard library, and the topics of its `help()`.

    {"module": "json", "name": "dumps", "kind": "function", "text": "Serialize ``obj`` to a JSON formatted ``str``..."}

Every module gives a row, so modules without a docstring give an empty text; classes and functions give one only where
they have a docstring. Copied and inherited docstrings make real duplicates. No module is imported: all is read by `ast`.
"""

from __future__ import annotations

import ast
import os
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

_SKIPPED = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "__pycache__"}
)


def documentation() -> Iterator[dict[str, str]]:
    """Rows with `module`, `name` (as it is called inside the module), `kind` and `text`.

    `kind` is module, class, function (methods too) or topic.
    """
    library = Path(sysconfig.get_path("stdlib"))
    files = {path.relative_to(library).with_suffix("").parts: path for path in _find_modules(library)}
    for names, path in sorted(files.items()):
        if (tree := _parse(path)) is not None:
            module = ".".join(names).removesuffix(".__init__")
            yield {"module": module, "name": module, "kind": "module", "text": ast.get_docstring(tree) or ""}
            yield from _documented(tree, module, "")
    topics = _parse(library / "pydoc_data" / "topics.py")
    for node in topics.body if topics else []:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            texts: dict[str, str] = ast.literal_eval(node.value)
            for name, text in sorted(texts.items()):
                yield {"module": "pydoc_data.topics", "name": name, "kind": "topic", "text": text}


def _find_modules(library: Path) -> Iterator[Path]:
    """Find the files of modules. Not by `rglob`: that also goes through all packages that are installed."""
    for folder, folders, files in os.walk(library):
        folders[:] = [name for name in folders if name.isidentifier() and name not in _SKIPPED]
        yield from (Path(folder, name) for name in files if name.endswith(".py") and name[:-3].isidentifier())


def _parse(path: Path) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in old modules
            return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return None


def _documented(parent: ast.AST, module: str, prefix: str) -> Iterator[dict[str, str]]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}{node.name}"
            kind = "class" if isinstance(node, ast.ClassDef) else "function"
            text = ast.get_docstring(node)
            if text:
                yield {"module": module, "name": name, "kind": kind, "text": text}
            yield from _documented(node, module, f"{name}.")
        elif not isinstance(node, ast.expr):  # definitions under `if` and `try`
            yield from _documented(node, module, prefix)
