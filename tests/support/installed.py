"""Installed packages for tests, made as an installer leaves them: their modules, and a folder with their metadata."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install(
    folder: Path, package: str, version: str, entry_points: Mapping[str, Mapping[str, str]], modules: Mapping[str, str]
) -> None:
    """Write modules, by path, and the metadata of a package, with its entry points by group, into a folder of `sys.path`."""
    for path, code in modules.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(code)
    metadata = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    sections = (
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in points.items())
        for group, points in entry_points.items()
    )
    (metadata / "entry_points.txt").write_text("\n".join(sections))
