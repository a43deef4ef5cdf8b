"""transformers.Trainer without its loop: the rows of every step come from the caller.

    trainer = IterativeSFTTrainer("path/or/name", args=IterativeSFTConfig(output_dir="out", learning_rate=1e-5))
    for texts in rounds():
        print(trainer.step(texts=texts))

**A step.** The rows of a call are cut, in their order, into micro-batches of `per_device_train_batch_size`; every
`gradient_accumulation_steps` micro-batches make one update of the weights, and a call may make none or several. What is left
over stays gathered and counts towards the update of the next call, or of `finish`. An update follows the mean loss of all
tokens that its micro-batches predict, on all processes: it is the same however they are shared out.

**Several processes.** Each calls `step` with rows of its own, as many times as the others. One that has fewer
micro-batches than another takes part with weight zero; what is wrong on one is raised on all.

**The learning rate.** With `max_steps` the schedule is Trainer's. Without, nobody knows where the end is: the default
schedule (linear) keeps the learning rate after its warm-up, and schedules that need an end are refused.

Private names of Trainer that it relies on: `_init_training_state`, `_prepare_for_training`, `_clip_grad_norm`,
`_get_grad_norm`, `_get_learning_rate`, `_track_num_input_tokens`, `_maybe_log_save_evaluate` and the state that this one
reads. A test goes through every one.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate.utils.memory import clear_device_cache
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)
from transformers.optimization import GreedyLR
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK
from transformers.utils import logging

from trainer.iterative.card import card
from trainer.iterative.configuration import IterativeSFTConfig, check_arguments
from trainer.iterative.loading import load_model, load_tokenizer, name_of
from trainer.iterative.rows import Row, Rows
from trainer.loop.collectives import Agreement

logger = logging.get_logger(__name__)


class IterativeSFTTrainer(Trainer):
    """Supervised fine-tuning, one call of `step` at a time.

    Args:
        model: a model, or the name or folder of one, which is loaded with `args.model_init_kwargs`.
        args: an IterativeSFTConfig; plain TrainingArguments cut nothing. A tokenizer in this place is taken for
            `processing_class`.
        data_collator: makes a batch of rows; without one, rows are padded at their end and what is padding is not learned.
            One that makes labels of its own is given rows without, unless `step` was.
        eval_dataset: rows of tokens, for `evaluate`.
        processing_class: the tokenizer; without one, that of the model's name.
        optimizers: an optimizer and a schedule; for None, those that `args` say are made.
        preprocess_logits_for_metrics, compute_metrics: as in Trainer.

    Raises:
        ValueError: the arguments contradict one another, or one asks for what is not possible without Trainer's loop.
        TypeError: `model` or `args` is something else.
    """

    loss_is_scaled_for_ga = True
    control: Any
    lr_scheduler: Any

    def __init__(  # noqa: PLR0917  the order is that of scripts that were written for TRL
        self,
        model: PreTrainedModel | str,
        args: TrainingArguments | PreTrainedTokenizerBase | None = None,
        data_collator: Callable[[list[Any]], Mapping[str, torch.Tensor]] | None = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        optimizers: tuple[Any, Any] = (None, None),
        preprocess_logits_for_metrics: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
        compute_metrics: Callable[[Any], dict[str, float]] | None = None,
    ) -> None:
        if isinstance(args, PreTrainedTokenizerBase):
            if processing_class is not None:
                raise ValueError("IterativeSFTTrainer: args and processing_class are both tokenizers; give one of them")
            args, processing_class = None, args
        name = name_of(model)
        if args is None:
            args = IterativeSFTConfig(output_dir=f"{Path(name).name or 'model'}-IterativeSFT")
        if not isinstance(args, TrainingArguments):
            raise TypeError(
                f"IterativeSFTTrainer: args is of type {type(args).__name__}; give an IterativeSFTConfig, "
                "TrainingArguments, or None"
            )
        own = args if isinstance(args, IterativeSFTConfig) else None
        check_arguments(args, optimizers[1])
        if isinstance(model, str):
            model = load_model(model, own.model_init_kwargs if own else None)
        elif own and own.model_init_kwargs:
            raise ValueError(
                "IterativeSFTTrainer: args.model_init_kwargs says how to load a model, and model is one already; "
                "leave model_init_kwargs out, or give the model's name"
            )
        if processing_class is None:
            processing_class = load_tokenizer(name)
        self.rows = Rows(
            encoder_decoder=bool(model.config.is_encoder_decoder),
            max_length=own.max_length if own else None,
            keep_end=own is None or own.truncation_mode == "keep_end",
            tokenizer=getattr(processing_class, "tokenizer", processing_class),
        )
        """Makes rows and batches of what `step` is given."""
        self._collates_labels = data_collator is not None
        self._clears_cache = bool(own and own.optimize_device_cache)
        super().__init__(
            model=model,
            args=args,
            data_collator=self.rows if data_collator is None else data_collator,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            compute_metrics=compute_metrics,
            optimizers=optimizers,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
        )
        if self.is_deepspeed_enabled:
            raise ValueError("IterativeSFTTrainer: DeepSpeed counts micro-batches by itself; use plain processes")
        if args.max_steps <= 0 and not args.disable_tqdm:  # a bar needs an end
            self.remove_callback(DEFAULT_PROGRESS_CALLBACK)
            self.add_callback(PrinterCallback)
        if args.activation_checkpointing:
            options = dict(args.activation_checkpointing_kwargs or {})
            model.activation_checkpointing_enable(activation_checkpointing_kwargs=options or None)
        self._agreement = Agreement()
        self._prepare_for_training(self._planned_steps, None, None)
        self.is_in_train = True  # else an evaluation in half precision would cast the weights that are being trained
        self._running = False
        self._gathered = _Gathered()

    def step(
        self,
        input_ids: Sequence[torch.Tensor] | None = None,
        attention_mask: Sequence[torch.Tensor] | None = None,
        labels: Sequence[torch.Tensor] | None = None,
        texts: Sequence[str] | None = None,
        texts_labels: Sequence[str] | None = None,
    ) -> dict[str, float]:
        """Learn from some rows, given as tokens or as texts.

        Args:
            input_ids: a tensor (T,) of tokens for each row.
            attention_mask: for each row 1 where there is a token and 0 where there is padding; without, all are tokens.
            labels: for each row what is to be learned, -100 where nothing is. A causal model takes (T,) and, without, learns
                its input; an encoder-decoder model needs them, of any length.
            texts: a text for each row, instead of `input_ids`.
            texts_labels: for each row the text to be learned, for an encoder-decoder model.

        Returns:
            Of this call, over all processes: `loss` (nats per predicted token, before the weights it was measured with
            were updated), `tokens` (predicted ones), `rows`, `updates` (optimizer steps taken), `pending` (micro-batches
            gathered towards the next one), `step` (optimizer steps so far) and, if there was an update, its
            `learning_rate` and the `grad_norm` before clipping.

        Raises:
            ValueError: what was given is of the wrong type, empty, contradictory, or leaves nothing to learn.
        """
        batches, shares = self._agreed(input_ids, attention_mask, labels, texts, texts_labels)
        learned = [sum(counts) for counts in zip(*(share.learned for share in shares), strict=True)]
        accumulation = self.args.gradient_accumulation_steps
        updates, figures = 0, dict[str, float]()
        loss = torch.zeros((), device=self.args.device)
        with self._training():
            for i, batch in enumerate(batches):
                if self._gathered.batches == 0:
                    self.control = self.callback_handler.on_step_begin(self.args, self.state, self.control)
                    self._gathered.reference = sum(learned[i : i + accumulation])
                completes = self._gathered.batches + 1 == accumulation
                loss += self._gather(
                    batch,
                    learned[i],
                    counts=i < shares[self.args.process_index].own,
                    synced=completes or i + 1 == len(batches),  # what a call leaves is the same on all processes
                )
                if completes:
                    updates, figures = updates + 1, self._update()
                else:
                    self.control = self.callback_handler.on_substep_end(self.args, self.state, self.control)
        if self._clears_cache:
            clear_device_cache(garbage_collection=True)
        return {
            "loss": loss.item() / sum(learned),
            "tokens": sum(learned),
            "rows": sum(share.rows for share in shares),
            "updates": updates,
            "pending": self._gathered.batches,
            "step": self.state.global_step,
        } | figures

    def finish(self) -> dict[str, float]:
        """Take the update that is still pending, if any, and tell callbacks that the training ends.

        Call it once after the last `step`, if `gradient_accumulation_steps` is above 1 or something is reported to.

        Returns:
            `learning_rate` and `grad_norm` of the update, if there was one.
        """
        figures: dict[str, float] = {}
        if self._gathered.batches:
            with self._training():
                figures = self._update()
        if self._running:
            self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)
            self._running = False
        return figures

    def create_model_card(
        self, model_name: str | None = None, dataset_name: str | None = None, tags: str | Sequence[str] | None = None
    ) -> None:
        """Write README.md with what is known of the training to `args.output_dir`.

        Args:
            model_name: what the model is called; without, the name of the folder.
            dataset_name: the Hub's name of the data.
            tags: one or several, beside those that say how it was trained.
        """
        if self.is_world_process_zero():
            folder = Path(self.args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            wanted = [tags] if isinstance(tags, str) else list(tags or ())
            text = card(self, name=model_name or folder.absolute().name, dataset=dataset_name, tags=wanted)
            (folder / "README.md").write_text(text, encoding="utf-8")

    # What of Trainer is otherwise here

    def train(self, resume_from_checkpoint: Any = None, trial: Any = None, ignore_keys_for_eval: Any = None) -> Any:
        """There is no loop here.

        Raises:
            TypeError: always.
        """
        raise TypeError("IterativeSFTTrainer.train: the loop is yours; call step() with the rows of every step")

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,  # noqa: FBT001, FBT002
        num_items_in_batch: float | None = None,
    ) -> Any:
        """The mean over a batch's predicted tokens; while training, its share of the update's `num_items_in_batch`."""
        labels = inputs["labels"]  # smoothing takes them out
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
        if model.training and num_items_in_batch is not None:
            # DDP takes the mean of the processes' gradients, and it is their sum that is wanted
            loss = loss * (self.rows.learned(labels) * self.accelerator.num_processes / num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    # Taking in

    def _agreed(
        self, input_ids: object, attention_mask: object, labels: object, texts: object, texts_labels: object
    ) -> tuple[list[Mapping[str, torch.Tensor]], list[_Share]]:
        """This process's micro-batches, as many as the others have, and what each process brings."""
        batches: list[Mapping[str, torch.Tensor]] = []
        share, error = _Share(), None
        try:
            rows = self.rows.of(input_ids, attention_mask, labels, texts, texts_labels)
            if self._collates_labels and labels is None and texts_labels is None:
                rows = [{name: value for name, value in row.items() if name != "labels"} for row in rows]
            batches = self._batches(rows)
            share = _Share([self.rows.learned(batch["labels"]) for batch in batches], len(rows))
        except Exception as problem:  # noqa: BLE001  whatever it is, the others wait for an answer
            error = problem
        answers = self._agreement.gather((share, error and str(error)))
        if error:
            raise error
        for process, (_, said) in enumerate(answers):
            if said:
                raise ValueError(f"on process {process}, {said}")
        shares = [found for found, _ in answers]
        most = max(share.own for share in shares)
        for each in shares:
            each.learned += [0] * (most - each.own)
        batches += batches[:1] * (most - len(batches))
        return batches, shares

    def _batches(self, rows: list[Row]) -> list[Mapping[str, torch.Tensor]]:
        size = self.args.train_batch_size
        batches: list[Mapping[str, torch.Tensor]] = []
        for start in range(0, len(rows), size):
            batch = dict(self.data_collator(rows[start : start + size]))
            if "labels" not in batch:
                batch["labels"] = self.rows.causal_labels(batch["input_ids"], batch["attention_mask"])
            if self.rows.learned(batch["labels"]) == 0:
                raise ValueError(
                    f"step: data_collator left no token to learn of rows {start} to {start + size - 1}; leave them out, "
                    "or use a collator that keeps some of their labels"
                )
            batches.append(batch)
        return batches

    # Learning

    @property
    def _planned_steps(self) -> int:
        """Without an end it is so far off that a linear schedule does not fall."""
        return self.args.max_steps if self.args.max_steps > 0 else sys.maxsize

    @contextmanager
    def _training(self) -> Iterator[None]:
        """Begins the training if need be; afterwards the model is in the mode in which it was, for the caller to generate."""
        mode = self.model.training
        if not self._running:
            self._begin()
        self.optimizer.train()  # schedule-free optimizers keep two sets of weights
        try:
            yield
        finally:
            self.model_wrapped.train(mode)
            self.optimizer.eval()

    def _begin(self) -> None:
        if self.state.global_step == 0:
            self._init_training_state(self._planned_steps, 1, 1, None, None)
            self.state.epoch = None  # which is then left out of the log
            self._initial_num_input_tokens_seen = 0
            self._tr_loss = torch.zeros((), device=self.args.device)
            self._total_loss_scalar = 0.0
            self._globalstep_last_logged = 0
        self._running = True
        self._start_time = time.time()
        self.control = self.callback_handler.on_train_begin(self.args, self.state, self.control)
        if self.args.eval_on_start and self.state.global_step == 0:
            self.evaluate()

    def _gather(self, batch: Mapping[str, torch.Tensor], learned: int, *, counts: bool, synced: bool) -> torch.Tensor:
        """Forward and backward of a micro-batch; its loss, summed over the tokens of all processes.

        Args:
            batch: this process's micro-batch.
            learned: the tokens that it and those of the other processes predict.
            counts: whether it has a weight, or this process merely takes part.
            synced: whether gradients are brought together over the processes.
        """
        gathered = self._gathered
        context: AbstractContextManager[Any] = nullcontext()
        if not synced:
            context = self.accelerator.no_sync(self.model_wrapped)
        with context:
            items = float(gathered.reference) if counts else math.inf
            scaled = self.training_step(self.model_wrapped, dict(batch), num_items_in_batch=items)
        self._track_num_input_tokens(batch if counts else {name: value[:0] for name, value in batch.items()})
        share = gathered.reference / self.accelerator.num_processes
        loss: torch.Tensor = self.accelerator.reduce(scaled.float(), "sum") * share
        gathered.batches += 1
        gathered.tokens += learned
        gathered.loss += loss
        return loss

    def _update(self) -> dict[str, float]:
        """Update the weights by what is gathered, then log, evaluate and save if it is time."""
        model, gathered = self.model_wrapped, self._gathered
        if gathered.tokens != gathered.reference:  # of several calls, the first of which did not know of the others
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(gathered.reference / gathered.tokens)
        norm = self._clip_grad_norm(model) if self.args.max_grad_norm > 0 else None
        norm = self._get_grad_norm(model, grad_norm=norm)
        self.control = self.callback_handler.on_pre_optimizer_step(self.args, self.state, self.control)
        self.optimizer.step()
        self.control = self.callback_handler.on_optimizer_step(self.args, self.state, self.control)
        rate = self._get_learning_rate()
        follows_metric = isinstance(self.lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau | GreedyLR)
        if not self.accelerator.optimizer_step_was_skipped and not follows_metric:
            self.lr_scheduler.step()
        model.zero_grad()
        self._tr_loss += gathered.loss / gathered.tokens
        self._gathered = _Gathered()
        self.state.global_step += 1
        self.control = self.callback_handler.on_step_end(self.args, self.state, self.control)
        if self.state.global_step == self.state.max_steps:
            logger.info("args.max_steps are taken: the schedule has ended, and what comes is learned with what it left")
            self.state.max_steps = sys.maxsize  # else Trainer would take every further step for the last one
        self._maybe_log_save_evaluate(self._tr_loss, norm, model, None, 0, None, self._start_time, learning_rate=rate)
        return {"learning_rate": float(rate), "grad_norm": float(norm)}


class _Gathered:
    """What is gathered towards the next update; all but the gradients themselves."""

    def __init__(self) -> None:
        self.batches = 0
        """Micro-batches."""
        self.tokens = 0
        """Tokens that they predict, on all processes."""
        self.loss: Any = 0.0
        """Their loss, summed over these tokens."""
        self.reference = 0
        """By how many tokens their gradients were divided; equal on all processes."""


class _Share:
    """What a process brings to a call: the predicted tokens of each of its micro-batches, and its rows."""

    def __init__(self, learned: list[int] | None = None, rows: int = 0) -> None:
        self.learned = learned or []
        self.rows = rows
        self.own = len(self.learned)
