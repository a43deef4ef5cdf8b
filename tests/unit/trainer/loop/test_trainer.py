"""TrainingArguments of a recipe, batch arithmetic, and the private parts of transformers.Trainer that we use."""

from __future__ import annotations

import inspect

import pytest
import torch
from transformers import Trainer

from params import RecipeError
from params.schema import Launch, Recipe
from tests.support import tiny
from tests.support.in_process import job, trained, trainer_of
from trainer.loop.arguments import build_training_arguments
from trainer.loop.batch import micro_batch_and_accumulation
from trainer.loop.trainer import EvergreenTrainer

PRIVATE_HOOKS = (
    "_get_num_items_in_batch",
    "_init_training_state",
    "_issue_warnings_after_load",
    "_get_grad_norm",
    "_prepare_input",
    "_prepare_inputs",
    "_evaluate",
    "_determine_best_metric",
    "_save_checkpoint",
    "_get_output_dir",
    "_save_optimizer_and_scheduler",
)
PRIVATE_STATE = ("_tr_loss", "_globalstep_last_logged")


@pytest.mark.parametrize(
    ("processes", "max_micro_batch", "expected"),
    [
        (1, 24, (24, 1)),
        (1, 8, (8, 3)),
        (1, 7, (6, 4)),  # the largest divisor that is at most 7
        (1, 1, (1, 24)),
        (2, 8, (6, 2)),
        (3, 100, (8, 1)),
        (24, 8, (1, 1)),
    ],
)
def test_split_batch_keeps_the_global_batch(processes, max_micro_batch, expected):
    micro_batch, accumulation = micro_batch_and_accumulation(
        24, Launch(num_processes=processes, micro_batch_size=max_micro_batch)
    )
    assert (micro_batch, accumulation) == expected
    assert micro_batch * accumulation * processes == 24


def test_indivisible_batch_error_lists_the_possible_process_counts():
    with pytest.raises(RecipeError) as caught:
        micro_batch_and_accumulation(12, Launch(num_processes=5, micro_batch_size=4))
    assert caught.value.fix == "use one of [1, 2, 3, 4, 6, 12] processes, or another global batch"


def test_training_arguments_follow_the_recipe(tmp_path):
    recipe = Recipe.model_validate(tiny.recipe({"training.arguments": {"adam_beta2": 0.95}}))
    args = arguments(tmp_path, recipe.training, recipe.launch)
    assert (args.seed, args.data_seed, args.max_steps, args.learning_rate) == (3, 3, 12, 1e-2)
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (4, 2)
    assert args.adam_beta2 == 0.95
    assert args.output_dir == str(tmp_path)
    assert args.report_to == []


def test_arguments_owned_by_the_pipeline_are_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"training.arguments.push_to_hub: is set by the pipeline"):
        trainer_of(job(tmp_path, {"training.arguments": {"push_to_hub": True}}))


def arguments(folder, training, launch, rows=240):
    return build_training_arguments(folder=folder, seed=3, training=training, launch=launch, direction="min", rows=rows)


def test_epochs_of_a_stream_become_steps(tmp_path):
    changes = {"training.max_steps": ..., "training.epochs": 1.5, "training.streaming": True}
    recipe = Recipe.model_validate(tiny.recipe(changes))
    assert arguments(tmp_path, recipe.training, recipe.launch, rows=83).max_steps == 15  # 1.5 times 10 global batches


def test_floating_point_operations_are_counted_as_in_trainer(tmp_path):
    trainer, batch = trained(job(tmp_path, {"training.max_steps": 1})), {"input_ids": torch.zeros(3, 7)}
    assert trainer.floating_point_ops(batch) == Trainer.floating_point_ops(trainer, batch) > 0
    assert trainer.floating_point_ops({}) == 0


def test_inputs_of_a_batch_are_prepared_once(tmp_path, monkeypatch):
    prepared, collated = [], []
    trainer = trainer_of(job(tmp_path, {"training.max_steps": 2}, **tiny.TARGETS))
    prepare, collate = trainer.objective.prepare_inputs, trainer.objective.collate
    monkeypatch.setattr(trainer.objective, "prepare_inputs", lambda *args: prepared.append(0) or prepare(*args))
    monkeypatch.setattr(trainer.objective, "collate", lambda *args: collated.append(0) or collate(*args))
    trainer.train()
    assert len(prepared) == len(collated) > 4  # two steps of two micro-batches, and evaluations


@pytest.mark.parametrize("given", [None, True, False])
def test_processes_share_their_buffers_only_where_those_are_saved(tmp_path, given):
    arguments = {} if given is None else {"training.arguments": {"ddp_broadcast_buffers": given}}
    trainer = trainer_of(job(tmp_path, arguments | {"training.gradient_checkpointing": True}))
    handler = trainer.accelerator.ddp_handler
    assert handler.gradient_as_bucket_view
    assert handler.find_unused_parameters  # Trainer turns it off with gradient checkpointing
    assert handler.broadcast_buffers == bool(given)  # those of a Llama follow from its configuration
    assert list(trainer.model.buffers())
    trainer.model.running_mean = torch.nn.BatchNorm1d(1)
    trainer.create_accelerator_and_postprocess()
    assert trainer.accelerator.ddp_handler.broadcast_buffers == (given is not False)


@pytest.mark.parametrize("name", PRIVATE_HOOKS)
def test_overridden_private_methods_exist_in_transformers(name):
    theirs, ours = getattr(Trainer, name), getattr(EvergreenTrainer, name)
    assert ours is not theirs
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)


def test_overridden_private_methods_are_listed():
    overridden = {
        n for n in vars(EvergreenTrainer) if n.startswith("_") and not n.startswith("__") and hasattr(Trainer, n)
    }
    assert overridden == set(PRIVATE_HOOKS)
    calls = inspect.getsource(Trainer)
    assert "self._save_checkpoint(" in calls
    assert "self._get_output_dir(" in calls


@pytest.mark.parametrize("name", PRIVATE_STATE)
def test_private_state_exists_in_transformers(name):
    assert f"self.{name} = " in inspect.getsource(Trainer)


def test_trainer_resets_its_log_before_on_train_begin():
    loop = inspect.getsource(Trainer._inner_training_loop)
    assert loop.index("self._globalstep_last_logged = ") < loop.index("on_train_begin")
