# ruff: noqa: I001  # sorted, each of these names would be an import of its own
"""What a run is: recipes (one YAML file is one complete run), and their typed schema.

The schema is imported on first use: it takes a third of a second, and a process that runs DVC needs only the errors.
"""

from typing import TYPE_CHECKING

from params.foundation.errors import (
    BudgetSpentError as BudgetSpentError,
    CheckpointError as CheckpointError,
    DataError as DataError,
    DivergedError as DivergedError,
    EvergreenError as EvergreenError,
    GateRefusedError as GateRefusedError,
    HubRefusedError as HubRefusedError,
    InputsChangedError as InputsChangedError,
    InterruptedTrainingError as InterruptedTrainingError,
    KilledError as KilledError,
    MemoryExhaustedError as MemoryExhaustedError,
    ModelError as ModelError,
    PreemptedError as PreemptedError,
    RecipeError as RecipeError,
    RemoteRefusedError as RemoteRefusedError,
    StaleBlessingError as StaleBlessingError,
    StalledError as StalledError,
    StorageError as StorageError,
    TransientError as TransientError,
    ValidationEngineError as ValidationEngineError,
)

if TYPE_CHECKING:
    from params.problems import Problem as Problem
    from params.schema import Recipe as Recipe


def __getattr__(name: str) -> object:
    """Import the schema of recipes."""
    if name not in {"Problem", "Recipe"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from params import problems

    return getattr(problems, name)
