"""What a run is: recipes (one YAML file is one complete run), their typed schema, and `load(path)`.

What reads recipes is imported on first use: it takes a third of a second, and a process that runs DVC needs only the errors.
"""

from typing import TYPE_CHECKING

from params.foundation.errors import (
    BudgetSpentError,
    CheckpointError,
    DataError,
    DivergedError,
    EvergreenError,
    GateRefusedError,
    HubRefusedError,
    InputsChangedError,
    InterruptedTrainingError,
    KilledError,
    MemoryExhaustedError,
    ModelError,
    PreemptedError,
    RecipeError,
    RemoteRefusedError,
    StaleBlessingError,
    StalledError,
    StorageError,
    TransientError,
    ValidationEngineError,
)

if TYPE_CHECKING:
    from params.loading import Document, Problem, load, read
    from params.schema import Recipe

__all__ = [
    "BudgetSpentError",
    "CheckpointError",
    "DataError",
    "DivergedError",
    "Document",
    "EvergreenError",
    "GateRefusedError",
    "HubRefusedError",
    "InputsChangedError",
    "InterruptedTrainingError",
    "KilledError",
    "MemoryExhaustedError",
    "ModelError",
    "PreemptedError",
    "Problem",
    "Recipe",
    "RecipeError",
    "RemoteRefusedError",
    "StaleBlessingError",
    "StalledError",
    "StorageError",
    "TransientError",
    "ValidationEngineError",
    "load",
    "read",
]


def __getattr__(name: str) -> object:
    """Import a name of `__all__`."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from params import loading, schema

    return schema.Recipe if name == "Recipe" else getattr(loading, name)
