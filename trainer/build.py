"""Build the Trainer of a job, on one process: data, model, arguments, callbacks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from transformers import PrinterCallback

from params import DataError, ModelError
from params.problems import problems_error
from trainer import objectives
from trainer.checkpoints.sealed import read_checkpoint_step
from trainer.conflicts import find_training_conflicts, find_weight_conflicts
from trainer.data import tokens
from trainer.data.order import RowTraits
from trainer.data.streaming import ShuffledWindows
from trainer.job import Job
from trainer.loop import arguments, extensions
from trainer.loop.metrics import EvaluationMetrics
from trainer.loop.replay import read_known_rows, sequences_of_epoch
from trainer.loop.stay_close import StartWeights
from trainer.loop.trainer import EvergreenTrainer
from trainer.model import network
from trainer.model.causality import CLASS_FOR_NEXT_TOKENS, check_reads_backwards
from trainer.model.start_model import check_start_fits, resolve_start
from trainer.objectives.bases.network.position_limits import find_position_table
from trainer.objectives.bases.objective import Objective
from trainer.objectives.bases.texts.padding import token_column_names
from trainer.objectives.bases.texts.tokenizing import OTHER_TOKENIZER, READ_AT_END_OF_TEXT, why_end_is_not_found
from trainer.reporting import trackers
from trainer.reporting.callbacks import StepRecorder, TrainingReporter, apply_log_level
from trainer.runtime.heartbeat import Heartbeat

logger = logging.getLogger(__name__)


def build_trainer(job: Job, heartbeat: Heartbeat, stop_requested: Callable[[], bool]) -> EvergreenTrainer:
    """Return the Trainer of a job, or raise the first error of its recipe, model or data.

    Raises:
        RecipeError: code that the recipe names cannot be used, or parts of the recipe conflict.
        ModelError: the model cannot be built, or accelerate started another number of processes.
        DataError: there are fewer sequences than one global batch.
    """
    training = job.training
    objective = objectives.build_objective(job.objective)
    if found := find_training_conflicts(objective=objective, model=job.model, training=training, launch=job.launch):
        raise problems_error(found)
    state = tokens.read_objective_state(job.tokens)
    tokenizer = tokens.read_tokenizer(job.tokens)
    rows = tokens.read_split(job.tokens, "train")
    heartbeat.beat("starting")
    traits = _read_traits(job, objective, rows)
    count = sequences_of_epoch(traits.replay, rows.per_epoch, training.global_batch_size)
    args = arguments.build_training_arguments(
        folder=job.folder, seed=job.seed, training=training, launch=job.launch, direction=job.direction, rows=count
    )
    apply_log_level(args)
    if args.world_size != job.launch.num_processes:  # it would silently change the global batch
        what = f"accelerate started {args.world_size} of {job.launch.num_processes} processes"
        raise ModelError("launch.num_processes", what, "check launch.accelerate_config")
    if count < training.global_batch_size:  # epochs are cut to whole global batches: there would be nothing to train on
        what = f"the train split has {count} sequences, fewer than one global batch of {training.global_batch_size}"
        raise DataError("training.global_batch_size", what, "lower it, or give more rows")
    initial, adapter = resolve_start(job.start, job.model)
    if job.start:
        check_start_fits(job.start, job.model)
        if job.model.lora and not adapter:
            logger.info("train: the published model holds its adapters merged, so new adapters begin on it")
    model, new = network.build_model_and_name_new_weights(
        initial, objective=objective, state=state, tokenizer=tokenizer, seed=job.seed, adapter=adapter
    )
    if objective.auto_class == CLASS_FOR_NEXT_TOKENS:
        check_reads_backwards(model)
    objective.check_model(model)
    check_ends_of_texts(model, rows, tokenizer.pad_token_id)
    check_positions(find_position_table(model), rows)
    heartbeat.beat("starting")
    every = args.eval_accumulation_steps
    metrics = EvaluationMetrics(
        objective,
        state=state,
        tokenizer=tokenizer,
        metrics=job.metrics,
        to_cpu_every=every,
        documents=tokens.read_documents(job.tokens),
    )
    base = extensions.import_trainer_class(objective.trainer_class)
    trainer = extensions.combine_trainer_class(training, base)(
        objective=objective,
        metrics=metrics,
        keep_checkpoints=training.keep_checkpoints,
        save_minutes=training.save_minutes,
        traits=traits,
        identity=job.identity,
        heartbeat=heartbeat,
        stop_requested=stop_requested,
        model=model,
        args=args,
        train_dataset=ShuffledWindows(rows, seed=job.seed) if training.streaming else rows,
        eval_dataset=tokens.read_split(job.tokens, "validation"),
        processing_class=tokenizer,
        loss=extensions.import_loss_function(training.loss, state),
        callbacks=extensions.build_callbacks(training),
    )
    trainer.start_weights = StartWeights.of_training(model, training, initial, new)
    trainer.guard.stop_at_step = job.stop_at_step
    trainer.remove_callback(PrinterCallback)
    trackers.continue_tracker_runs(trainer, job.folder, read_checkpoint_step(job.checkpoint) if job.checkpoint else 0)
    trainer.add_callback(TrainingReporter(job.folder))
    if job.record:
        trainer.add_callback(
            StepRecorder(job.folder, args.process_index, lambda: (trainer.training_data.rows, trainer.guard.losses))
        )
    return trainer


def _read_traits(job: Job, objective: Objective[Any], rows: tokens.Sequences) -> RowTraits:
    """Return what the order of training needs to know of the rows; RecipeError if their sources cannot have weights."""
    traits = RowTraits(
        lengths=rows.lengths() if job.training.group_by_length else None,
        groups=rows.numbers(objective.batch_group)[1] if objective.batch_group else None,
        weights=rows.weights(),
        replay=read_known_rows(job, rows),
    )
    conflicts = find_weight_conflicts(objective, job.training) if traits.weights else []
    if conflicts:
        raise problems_error(conflicts)
    return traits


def check_ends_of_texts(model: Any, rows: tokens.Sequences, padding: int | None) -> None:
    """Raise a ModelError if the model's head reads a text at an end-of-text token that the sequences do not have."""
    own = model.config
    if own.model_type not in READ_AT_END_OF_TEXT or not type(model).__name__.endswith("ForSequenceClassification"):
        return
    for name in token_column_names(rows[0]):
        if why := why_end_is_not_found(own.eos_token_id, rows[0][name], padding):
            raise ModelError("tokenization.tokenizer", why, OTHER_TOKENIZER)


def check_positions(table: int | None, rows: tokens.Sequences) -> None:
    """Raise a ModelError if a sequence has more tokens than the model's table of positions has rows."""
    if table is None or not len(rows) or "lengths" in rows[0]:  # packed examples have positions of their own
        return
    long = (rows[i] for i, length in enumerate(rows.lengths().tolist()) if length > table)
    longest = max((len(one[name]) for one in long for name in token_column_names(one)), default=0)
    if longest > table:
        what = f"the longest sequence has {longest} tokens, and the model has {table} positions"
        raise ModelError("tokenization.max_length", what, f"use at most {table}")
