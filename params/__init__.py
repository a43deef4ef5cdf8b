"""What a run is: recipes (one YAML file is one complete run), their typed schema, and `load(path)`."""

from params.errors import (
    CheckpointError,
    DataError,
    DivergedError,
    EvergreenError,
    HubRefusedError,
    InputsChangedError,
    KilledError,
    MemoryExhaustedError,
    ModelError,
    PreemptedError,
    RecipeError,
    StaleBlessingError,
    StalledError,
    StorageError,
    TransientError,
    ValidationEngineError,
)
from params.loading import Document, Problem, load, read
from params.schema import Recipe

__all__ = [
    "CheckpointError",
    "DataError",
    "DivergedError",
    "Document",
    "EvergreenError",
    "HubRefusedError",
    "InputsChangedError",
    "KilledError",
    "MemoryExhaustedError",
    "ModelError",
    "PreemptedError",
    "Problem",
    "Recipe",
    "RecipeError",
    "StaleBlessingError",
    "StalledError",
    "StorageError",
    "TransientError",
    "ValidationEngineError",
    "load",
    "read",
]
