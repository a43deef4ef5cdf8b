"""The recipe's own code in a training: a Trainer subclass, a loss, callbacks.

A Trainer subclass comes before the pipeline's Trainer in the method resolution order: its methods run first, and `super()`
leads to the pipeline's. It may change the loss, the optimizer, the schedule and the training data. It may not override what
docs/guarantees.md depends on: the loop, the order of the rows, checkpoints, evaluation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from params import Problem, RecipeError
from params.importing import import_by_name, import_with_arguments
from params.schema import Training
from params.sections.base import Call
from trainer.objectives.bases.lazy_imports import transformers

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from trainer.loop.trainer import EvergreenTrainer

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
"""Methods of transformers.Trainer that a recipe's subclass may override."""
TRAINERS: Final = {
    "rows": "trainer.loop.trainer:EvergreenTrainer",
    "whole_batches": "trainer.loop.global_batch_trainer:GlobalBatchTrainer",
    "mined_negatives": "trainer.loop.mining_trainer:MiningTrainer",
    "preferences": "trainer.loop.preference_trainer:PreferenceTrainer",
    "single_answers": "trainer.loop.kto_trainer:KTOTrainer",
    "rollouts": "trainer.loop.rollout_trainer:RolloutTrainer",
}
"""The Trainers of this folder, by what an objective says that its Trainer works on (`Objective.trainer_class`)."""


def import_trainer_class(name: str) -> type[EvergreenTrainer]:
    """Return the Trainer of an objective, by its `trainer_class`; RecipeError if it cannot be imported."""
    found: Any = import_by_name(TRAINERS.get(name, name), "objective")
    return cast("type[EvergreenTrainer]", found)


def is_trainer_of_ours(name: str) -> bool:
    """Whether the Trainer that an objective names as its `trainer_class` is one of this folder."""
    return name in TRAINERS or name.startswith("trainer.loop.")


def combine_trainer_class(training: Training, base: type[EvergreenTrainer]) -> type[EvergreenTrainer]:
    """Return `base`, or a class of the recipe's own Trainer subclass and `base`.

    RecipeError if it is no subclass of transformers.Trainer, overrides what a guarantee depends on, or there are two losses.
    """
    from trainer.loop.trainer import EvergreenTrainer

    own: Any = training.trainer and import_by_name(training.trainer, "training.trainer")
    if own:
        _refuse_overrides(str(training.trainer), own, base)
    for called, cls in (("the objective's own Trainer", base), (f"training.trainer {training.trainer}", own or base)):
        if training.loss and cls.compute_loss not in (transformers.Trainer.compute_loss, EvergreenTrainer.compute_loss):
            what = f"{called} computes the loss itself (compute_loss), so this function would never be called"
            raise RecipeError.at("training.loss", f"{training.loss.name}: {what}", "remove one of the two")
    if not own:
        return base

    def get_train_dataloader(self: EvergreenTrainer) -> DataLoader[Any]:
        return self.shard_dataloader(super(combined, self).get_train_dataloader())

    combined: type[EvergreenTrainer] = type(
        own.__name__, (own, base), {"__doc__": own.__doc__, "get_train_dataloader": get_train_dataloader}
    )
    return combined


def _refuse_overrides(name: str, own: Any, base: type) -> None:
    if not (isinstance(own, type) and issubclass(own, transformers.Trainer)):
        what = f"{name} is not a subclass of transformers.Trainer"
        raise RecipeError.at("training.trainer", what, "name a class that is")
    defined = {a for cls in own.__mro__ if cls not in base.__mro__ for a in vars(cls)}
    methods = {a for a in defined if not a.startswith("__") or a == "__init__"}
    if taken := sorted(a for a in methods - set(OVERRIDABLE) if hasattr(base, a)):
        what = f"{name} overrides {', '.join(taken)}, on which the pipeline's guarantees depend: a resumed run would differ"
        fix = f"override only {', '.join(OVERRIDABLE)}; for more use training.callbacks, or write an objective"
        raise RecipeError.at("training.trainer", what, fix)


@dataclass(frozen=True)
class RecipeLoss:
    """The recipe's own loss, as Trainer's `compute_loss_func`."""

    function: Callable[..., Any]
    """Of (outputs, labels, num_items_in_batch)."""
    items: Callable[..., Any] | None
    """From the labels of a micro-batch to what the loss is a mean over; None: to the objective's `loss_items`."""

    def __call__(self, outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        return self.function(outputs, labels, num_items_in_batch)


def import_loss_function(call: Call | None, state: Mapping[str, Any] | None = None) -> RecipeLoss | None:
    """Return the recipe's own loss, a function of (outputs, labels, num_items_in_batch).

    One with a parameter `state` also gets what the objective learned of the train split, such as its labels. What it is a mean over is counted
    by a function beside it whose name ends in `_items`, if there is one (trainer/losses.py).

    Raises:
        RecipeError: there is no such function, or it does not take (outputs, labels, num_items_in_batch).
    """
    if call is None:
        return None
    offered = {"state": state or {}}
    function = import_with_arguments(call, "training.loss", 3, offered=offered)
    counts = call.model_copy(update={"name": f"{call.name}_items"})
    module, _, name = counts.name.partition(":")
    has_items = hasattr(sys.modules.get(module), name)
    return RecipeLoss(function, import_with_arguments(counts, "training.loss", 1, offered) if has_items else None)


def build_callbacks(training: Training) -> list[transformers.TrainerCallback]:
    """Return the recipe's own callbacks, and early stopping if the recipe asks for it.

    Raises:
        RecipeError: one of them is not a TrainerCallback, or takes other arguments.
    """
    made: list[transformers.TrainerCallback] = []
    for i, call in enumerate(training.callbacks):
        key = f"training.callbacks.{i}"
        cls: Any = import_by_name(call.name, key)
        if not (isinstance(cls, type) and issubclass(cls, transformers.TrainerCallback)):
            what = f"{call.name} is not a subclass of transformers.TrainerCallback"
            raise RecipeError.at(key, what, "name a class that is")
        made.append(import_with_arguments(call, key, 0)())
    if training.early_stopping_patience:
        made.append(transformers.EarlyStoppingCallback(training.early_stopping_patience))
    return made


def find_extension_problems(training: Training, base: str) -> Iterator[Problem]:
    """Yield what is wrong with the recipe's own code, for an objective whose `trainer_class` is named `base`.

    A recipe without code of its own imports nothing.
    """
    looks: list[tuple[object, Callable[[], Any]]] = [
        (
            training.loss or training.trainer,
            lambda: combine_trainer_class(training, import_trainer_class(base)),
        ),
        (training.loss, lambda: import_loss_function(training.loss)),
        (training.callbacks, lambda: build_callbacks(training)),
    ]
    for is_named, look in looks:
        try:
            look() if is_named else None
        except RecipeError as error:
            yield Problem.of(error, ("training",))
