"""Training beside the field's own trainer: ours first, then the library's from the same weights on the same rows in the same order."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch.utils.data import BatchSampler, SequentialSampler
from transformers import Trainer, TrainingArguments

from params.foundation.artifacts import Artifacts
from tasks.recipes.loading import load
from tasks.shards.split_rows import SplitRows
from tasks.tokenization.stage import tokenize
from tests.support import in_process, tiny
from tests.support.training import plan_job
from tests.support.zoo.tokenizers_of_kinds import KINDS

STEPS, GLOBAL_BATCH, MICRO_BATCH, LIMIT = 20, 8, 2, 48
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": LIMIT}
BERT = {"config": {**tiny.CLASSES["model"]["config"], **NO_DROPOUT}}
LLAMA = {"config": {**tiny.RECIPE["model"]["config"], "attention_dropout": 0.0}}
LONG = {"tokenization.max_length": 120}
"""Nothing is cut."""


@dataclass(frozen=True)
class Case:
    """An objective, and how the library's trainer is given the same task."""

    objective: dict[str, Any]
    tokenizer: str
    model: dict[str, Any]
    refer: Callable[[Ours, Path], Any]
    """From what ours has learned to the library's trainer, before it trains."""
    changes: dict[str, Any] = field(default_factory=dict)
    rows: Callable[[int, str], dict[str, list[Any]]] | None = None
    """From a number of rows and the name of their split to columns; by default the sentences of `tiny`."""


@dataclass
class Ours:
    """What our training did."""

    trainer: Any
    start: dict[str, torch.Tensor]
    """The weights before the first step."""
    train_rows: list[dict[str, Any]]
    """The rows of the train split, by their row_id."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """The rows in the order in which they were read."""
    batches: list[dict[str, torch.Tensor]] = field(default_factory=list)
    """The micro-batches, in their order."""
    rollouts: list[Any] = field(default_factory=list)
    """Of objectives that learn from completions: each prompt with its completions, in the order in which they were learned."""

    @property
    def tokenizer(self) -> Any:
        return self.trainer.processing_class

    def model(self, auto_class: Any) -> Any:
        """The same network, made by transformers from the configuration."""
        config = copy.deepcopy(self.trainer.model.config)
        network = auto_class.from_config(config)
        network.load_state_dict(self.start)
        return network

    def saved(self, folder: Path, auto_class: Any) -> str:
        """A folder with the same network and the tokenizer."""
        self.model(auto_class).save_pretrained(folder / "start")
        self.tokenizer.save_pretrained(folder / "start")
        return str(folder / "start")

    def arguments(self, folder: Path, cls: Any = TrainingArguments, batch: int = MICRO_BATCH, **more: Any) -> Any:
        """Trainer's arguments with the same optimizer and schedule, for rows in the given order, of which `batch` make a micro-batch."""
        own = self.trainer.args
        same = ("learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "max_grad_norm", "optim")
        same += ("adam_beta1", "adam_beta2", "adam_epsilon", "lr_scheduler_kwargs")
        usual = {"gradient_accumulation_steps": GLOBAL_BATCH // batch}
        return cls(
            str(folder),
            **{name: getattr(own, name) for name in same},
            per_device_train_batch_size=batch,
            max_steps=STEPS,
            logging_steps=1,
            train_sampling_strategy="sequential",
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            remove_unused_columns=False,
            **(usual | more),
        )


class InOrder:
    """Beside a trainer of sentence-transformers: it reads the rows as they come."""

    def get_batch_sampler(self, dataset: Any, batch_size: int, drop_last: bool, **_: Any) -> Any:
        return BatchSampler(SequentialSampler(dataset), batch_size, drop_last)


def check(case: Case, root: Path) -> tuple[Ours, Any]:
    """Train ours and the library's trainer; losses and norms of gradients have to agree at each step.

    Returns:
        What ours did, and the library's trainer.
    """
    ours = train_ours(case, root)
    sizes = {int(batch["attention_mask"].sum()) for batch in ours.batches}
    assert len(sizes) > 3, "micro-batches have different numbers of tokens"
    theirs = case.refer(ours, root / "reference")
    theirs.train()
    own, expected = steps_of(ours.trainer), steps_of(theirs)
    assert len(own) == len(expected) == STEPS
    for step, (found, right) in enumerate(zip(own, expected, strict=True), 1):
        what = f"step {step}: loss and norm of gradients are {found}, and {right} of the library's trainer"
        assert found == pytest.approx(right, rel=1e-5, abs=1e-6), what
    return ours, theirs


def train_ours(case: Case, root: Path) -> Ours:
    trainer = in_process.trainer_of(plan_job(*_tokenized(case, root)))
    rows = SplitRows(Artifacts("tiny", root).rows / "train").rows()
    ours = Ours(trainer, copy.deepcopy(trainer.model.state_dict()), sorted(rows, key=lambda row: row["row_id"]))
    _observe(trainer, ours)
    places = list[int]()
    note = in_process.At(
        "on_pre_optimizer_step", lambda **_: places.extend(chain.from_iterable(trainer.training_data.rows))
    )
    trainer.add_callback(note)
    trainer.train()
    ours.rows = [ours.train_rows[place] for place in places]
    assert len(ours.rows) == STEPS * GLOBAL_BATCH
    return ours


def _tokenized(case: Case, root: Path) -> Any:
    KINDS[case.tokenizer]().save_pretrained(root / "tokenizer")
    sections = {
        "objective": case.objective,
        "model": case.model,
        "tokenization": {"tokenizer": {"kind": "pretrained", "path": str(root / "tokenizer")}, "max_length": LIMIT},
    }
    changes = {"launch.micro_batch_size": MICRO_BATCH, "training.max_steps": STEPS, "training.eval_steps": STEPS}
    changes |= {"training.learning_rate": 1e-3, "training.save_steps": STEPS, **case.changes}
    content = tiny.recipe(changes, **sections)
    if case.rows is None:
        return tiny.tokenized(root, content, in_process.FEW)
    artifacts, recipe = Artifacts("tiny", root), load(tiny.write(root / "params/tiny.yaml", content))
    tiny.write_rows(artifacts, **{split: case.rows(count, split) for split, count in in_process.FEW.items()})
    tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    return artifacts, recipe


def _observe(trainer: Any, ours: Ours) -> None:
    """Keep the micro-batches of a training, and the completions that it learns from."""
    next_batches = trainer.get_batch_samples

    def observed(*args: Any) -> Any:
        batches, items = next_batches(*args)
        ours.batches += [{n: v.clone() for n, v in own.items() if isinstance(v, torch.Tensor)} for own in batches]
        return batches, items

    trainer.get_batch_samples = observed
    if hasattr(trainer.objective, "training_samples"):
        learn = trainer.objective.training_samples
        trainer.objective.training_samples = lambda rollout: ours.rollouts.append(rollout) or learn(rollout)


def steps_of(trainer: Any) -> list[tuple[float, float]]:
    """The loss and the norm of gradients of each step."""
    return [(one["loss"], float(one["grad_norm"])) for one in trainer.state.log_history if "grad_norm" in one]


def plain(
    ours: Ours,
    folder: Path,
    model: Any,
    rows: list[dict[str, Any]],
    collator: Any,
    loss: Any = None,
    batch: int = MICRO_BATCH,
) -> Trainer:
    """transformers.Trainer on tokenized rows."""
    trainer = Trainer(
        model=model,
        args=ours.arguments(folder, batch=batch),
        train_dataset=Dataset.from_list(rows),
        data_collator=collator,
        compute_loss_func=loss,
    )
    if not type(model).__name__.endswith("ForCausalLM"):
        trainer.model_accepts_loss_kwargs = False
    return trainer


def mean_over_labels(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """The cross-entropy over the labels of a global batch."""
    logits = outputs.logits.flatten(0, -2)
    summed = torch.nn.functional.cross_entropy(logits, labels.flatten(), ignore_index=-100, reduction="sum")
    return summed / num_items_in_batch


def by_name(cases: dict[str, Case], *quick: str) -> Any:
    """Give a test each of some cases; those that are not quick are slow."""
    given = [
        pytest.param(case, id=name, marks=() if name in quick else pytest.mark.slow) for name, case in cases.items()
    ]
    return pytest.mark.parametrize("case", given)
