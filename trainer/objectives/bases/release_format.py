"""Formats of a release beyond that of transformers: another library loads it, and needs files of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class ReleaseFormat(NamedTuple):
    """How another library loads a release."""

    library: str
    """Its name on the Hub, as `library_name` of a model card."""
    write_files: Callable[[Path], None]
    """Adds to a complete folder of a model and its tokenizer what the library needs."""
    code: Callable[[str, Path], str]
    """Returns the code of the model card, for a repository, and the folder of its model."""
