"""What a run is: recipes (one YAML file is one complete run), their typed schema, and `load(path)`."""

from params.errors import (
    DataError,
    EvergreenError,
    HubRefusedError,
    KilledError,
    ModelError,
    RecipeError,
    StorageError,
    TransientError,
    ValidationEngineError,
)
from params.loading import Document, Problem, load, read
from params.schema import Recipe

__all__ = [
    "DataError",
    "Document",
    "EvergreenError",
    "HubRefusedError",
    "KilledError",
    "ModelError",
    "Problem",
    "Recipe",
    "RecipeError",
    "StorageError",
    "TransientError",
    "ValidationEngineError",
    "load",
    "read",
]
