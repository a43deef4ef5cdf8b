"""The commands that install what is missing, for messages.

They are right in any shell and any folder: they name the Python that runs now, which may belong to an environment that nobody has
activated, and the folder of this project. Its name is not enough: an index may have another project by this name.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[2]
_PACKAGES: Final = {
    "MySQLdb": "mysqlclient",
    "cv2": "opencv-python-headless",
    "cx_Oracle": "cx_Oracle",
    "liger_kernel": "liger-kernel",
    "oracledb": "oracledb",
    "psycopg": "psycopg[binary]",
    "psycopg2": "psycopg2-binary",
    "pymssql": "pymssql",
    "pymysql": "PyMySQL",
    "pyodbc": "pyodbc",
    "sklearn": "scikit-learn",
    "yaml": "PyYAML",
}
"""What an index calls the packages of these modules. Of other modules it is unknown: an index may have a stranger's package by the module's name."""


def install_extra(extra: str) -> str:
    """Return the command that installs an extra of this project, in the versions of constraints.txt."""
    constraints = shlex.quote(_shown(_ROOT / "constraints.txt"))
    project = "." if Path.cwd() == _ROOT else str(_ROOT)
    return f"{_installer()} -c {constraints} -e {shlex.quote(f'{project}[{extra}]')}"


def install_module(module: str) -> str:
    """Return the command that installs the package of a module, or words that ask for it where its package is unknown."""
    name = module.partition(".")[0]
    if name not in _PACKAGES:
        return f"install the package that has the module `{name}`, whose documentation says what it is called, with `{_installer()} ...`"
    package = _PACKAGES[name]
    return f"{_installer()} {shlex.quote(package)}"


def _installer() -> str:
    python = shlex.quote(_shown(Path(sys.executable)))
    if importlib.util.find_spec("pip") is None:
        return f"uv pip install --python {python}"
    return f"{python} -m pip install"


def _shown(path: Path) -> str:
    """Return a path relative to the current folder if it is inside, without following links: a link is what makes an environment."""
    here = Path.cwd()
    absolute = Path(os.path.abspath(path))  # noqa: PTH100
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(absolute)
