"""What a recipe brings of its own to a training: a Trainer subclass, a loss, callbacks.

A Trainer subclass is put in front of the pipeline's: its methods run first, and `super()` leads on to the pipeline's. So it
may decide on the loss, the optimizer, the schedule and the training data. What the guarantees of docs/guarantees.md rest on
it may not override: the loop, its order of rows, checkpoints, evaluation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from params import RecipeError
from params.importing import bind, resolve
from params.schema import Call, Training

if TYPE_CHECKING:
    from torch.utils.data import DataLoader
    from transformers import TrainerCallback

    from trainer.trainer import EvergreenTrainer

OVERRIDABLE = (
    "compute_loss",
    "compute_loss_context_manager",
    "create_optimizer",
    "create_scheduler",
    "create_optimizer_and_scheduler",
    "get_decay_parameter_names",
    "get_optimizer_cls_and_kwargs",
    "get_train_dataloader",
    "log",
)
"""Methods of transformers.Trainer that a subclass of one's own may override."""


def trainer_class(name: str | None, base: type[EvergreenTrainer]) -> type[EvergreenTrainer]:
    """`base` with the recipe's own Trainer subclass in front of it.

    Raises:
        RecipeError: it is not a subclass of transformers.Trainer, or overrides what a guarantee rests on.
    """
    if name is None:
        return base
    own: Any = resolve(name, "training.trainer")
    refuse_overrides(name, own, base)

    def get_train_dataloader(self: EvergreenTrainer) -> DataLoader[Any]:
        return self.dealt_out(own.get_train_dataloader(self))

    combined: type[EvergreenTrainer] = type(
        own.__name__, (own, base), {"__doc__": own.__doc__, "get_train_dataloader": get_train_dataloader}
    )
    return combined


def refuse_overrides(name: str, own: Any, base: type) -> None:
    """See that a Trainer subclass overrides only what it may.

    Raises:
        RecipeError: it does not, with all the names.
    """
    from transformers import Trainer

    where = f"training.trainer: {name}"
    if not (isinstance(own, type) and issubclass(own, Trainer)):
        raise RecipeError(where, "is not a subclass of transformers.Trainer", "name a class that is")
    mine = [cls for cls in own.__mro__ if cls not in Trainer.__mro__ and cls not in base.__mro__]
    defined = {attribute for cls in mine for attribute in vars(cls)} - {"__module__", "__doc__", "__qualname__"}
    taken = sorted(
        a
        for a in defined - set(OVERRIDABLE)
        if a in vars(Trainer) or any(a in vars(c) for c in base.__mro__ if c is not object)
    )
    if taken:
        what = f"overrides {', '.join(taken)}, on which the pipeline's guarantees rest: a resumed run would not be the same"
        fix = f"keep to {', '.join(OVERRIDABLE)}, or use training.callbacks; what the class needs to know at its start, it can"
        raise RecipeError(where, what, f"{fix} read from self.args and self.model")


def loss_function(call: Call | None) -> Callable[..., Any] | None:
    """The recipe's own loss, as Trainer's `compute_loss_func`.

    Raises:
        RecipeError: there is no such function, or it does not take (outputs, labels, num_items_in_batch).
    """
    if call is None:
        return None
    function = bind(call, "training.loss", 3)
    return lambda outputs, labels, num_items_in_batch=None: function(outputs, labels, num_items_in_batch)


def callbacks(training: Training) -> list[TrainerCallback]:
    """The recipe's own callbacks, and early stopping where the recipe asks for it.

    Raises:
        RecipeError: one of them is not a TrainerCallback, or cannot be made so.
    """
    from transformers import EarlyStoppingCallback, TrainerCallback

    made: list[TrainerCallback] = []
    for i, call in enumerate(training.callbacks):
        key = f"training.callbacks.{i}"
        callback = bind(call, key, 0)()
        if not isinstance(callback, TrainerCallback):
            fix = "name a subclass of transformers.TrainerCallback"
            raise RecipeError(f"{key}: {call.name}", f"makes a {type(callback).__name__}, not a callback", fix)
        made.append(callback)
    if training.early_stopping_patience:
        made.append(EarlyStoppingCallback(training.early_stopping_patience))
    return made
