"""Install the project into a virtual environment: `python .ci/install.py <environment> [extra ...]`.

uv installs if an index has it, because pip takes four times as long; otherwise pip does. Both install the versions of
constraints.txt from the indexes that pip is configured for. uv does not read pip's configuration, so this script passes it
on; without it, uv would choose another build of torch.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HANDED_OVER = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_EXTRA_INDEX_URL",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
}
"""pip's settings, and the environment variables from which uv reads them."""


def main(environment: Path, extras: list[str]) -> None:
    """Make the environment if it is not there, and install the project and these extras of it."""
    if sys.version_info < (3, 11):  # noqa: UP036 - the Makefile may have been given an older one
        sys.exit("Python 3.11 or newer is needed; try `make PYTHON=python3.11 ...`")
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=True)
    target = f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)
    packages = ["-c", str(ROOT / "constraints.txt"), "torch==2.13.0", "-e", target]
    uv = find_uv(python)
    if uv:
        # For tests, compile now, as pip does: a library that warns while it is compiled would fail the test that imports it.
        compiled = ["--compile-bytecode"] if extras else []
        command = [uv, "pip", "install", *compiled, "--python", python, *packages]
        if subprocess.run(command, check=False, env=uv_settings(python)).returncode == 0:
            return
    print("uv cannot install here, so pip does, which takes some minutes", flush=True)
    # --use-pep517: an older pip (Debian 12 has 23.0) would run seqeval's setup.py, which no longer works
    done = subprocess.run([python, "-m", "pip", "install", "--use-pep517", *packages], check=False)
    sys.exit(done.returncode)


def find_uv(python: Path) -> str | None:
    """Path of uv in the environment, installed there if it was not; None where no index has it."""
    uv = python.with_name("uv")
    if not uv.exists():
        pip = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", "uv"]
        if subprocess.run(pip, check=False).returncode:
            return None
    return str(uv)


def uv_settings(python: Path) -> dict[str, str]:
    """The environment for uv: pip's indexes and links, all of them searched for the best version, as pip does."""
    listed = subprocess.run([python, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True).stdout
    found = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):  # environment variables win
        name, _, value = line.partition("=")
        setting = name.rpartition(".")[2]
        if setting in HANDED_OVER:
            values = str(ast.literal_eval(value)).split()
            found[HANDED_OVER[setting]] = ("," if setting == "find-links" else " ").join(values)
    return found | os.environ


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
