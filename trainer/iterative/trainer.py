"""transformers.Trainer without its loop: the caller passes the rows of each step.

    trainer = IterativeSFTTrainer("path/or/name", args=IterativeSFTConfig(output_dir="out", learning_rate=1e-5))
    for texts in rounds():
        print(trainer.step(texts=texts))

docs/iterative.md says what a step does with the rows of several calls and processes, and what the learning rate does without
`max_steps`. A process with fewer micro-batches than another takes part with weight zero.

It relies on these private names of Trainer: `_init_training_state`, `_prepare_for_training`, `_clip_grad_norm`,
`_get_grad_norm`, `_get_learning_rate`, `_track_num_input_tokens`, `_maybe_log_save_evaluate` and the state that the last one
reads. The tests use every one.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from accelerate.utils.memory import clear_device_cache
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, Trainer, TrainingArguments
from transformers.optimization import GreedyLR
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK
from transformers.utils import logging

from trainer.iterative import configuration
from trainer.iterative.collator import RowCollator
from trainer.loop.collectives import Collectives
from trainer.model.causality import find_what_reads_ahead
from trainer.objectives.bases.likelihood import labels_of_next_tokens, micro_batch_loss_share, without_labels
from trainer.objectives.bases.loss import auxiliary_loss

logger = logging.get_logger(__name__)


@dataclass
class _Accumulated:
    """What has accumulated for the next update, apart from gradients; tokens are the predicted ones of all processes."""

    batches: int = 0
    tokens: int = 0
    loss: Any = 0.0
    """Summed over the tokens."""
    denominator: int = 0
    """The number of tokens that the gradients were divided by; equal on all processes."""


class IterativeSFTTrainer(Trainer):
    """Supervised fine-tuning, one call of `step` at a time.

    Args:
        model: a model, or the name or folder of one, which is loaded with `args.model_init_kwargs`.
        args: an IterativeSFTConfig, or plain TrainingArguments, which truncate nothing. A tokenizer here is used as
            `processing_class`, as TRL once allowed.
        data_collator: makes a batch from rows. By default rows are padded on the right, and padding has no loss. A collator
            of your own gets rows without labels, unless `step` got labels.
        eval_dataset: tokenized rows, for `evaluate`.
        processing_class: the tokenizer; by default the one of the model's name.
        optimizers: an optimizer and a schedule; for None, those of `args`.
        preprocess_logits_for_metrics, compute_metrics: as in Trainer.

    ValueError if arguments contradict each other or one needs Trainer's loop, TypeError if `model` or `args` has the wrong type.
    """

    loss_is_scaled_for_ga = True
    control: Any
    lr_scheduler: Any

    def __init__(  # noqa: PLR0917  the order that scripts written for TRL rely on
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
        name = configuration.model_name_or_path(model)
        args = configuration.checked_or_default_arguments(args, model_name=name, schedule=optimizers[1])
        model = configuration.load_model_unless_loaded(model, getattr(args, "model_init_kwargs", None))
        is_causal = not model.config.is_encoder_decoder
        if is_causal and (why := find_what_reads_ahead(model)):
            fix = "use a decoder, or an encoder whose configuration says is_decoder"
            raise ValueError(
                f"IterativeSFTTrainer: this {model.config.model_type} cannot learn next tokens: {why}; {fix}"
            )
        if processing_class is None:
            processing_class = configuration.load_tokenizer(name)
        self.row_collator = RowCollator(
            encoder_decoder=bool(model.config.is_encoder_decoder),
            max_length=getattr(args, "max_length", None),
            keep_end=getattr(args, "truncation_mode", "keep_end") == "keep_end",
            tokenizer=getattr(processing_class, "tokenizer", processing_class),
        )
        self._own_collator = data_collator
        super().__init__(
            model=model,
            args=args,
            data_collator=self.row_collator if data_collator is None else data_collator,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            compute_metrics=compute_metrics,
            optimizers=optimizers,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
        )
        if self.is_deepspeed_enabled:
            raise ValueError("IterativeSFTTrainer: DeepSpeed counts micro-batches itself; use data parallelism")
        if args.max_steps <= 0 and not args.disable_tqdm:  # a progress bar needs an end
            self.remove_callback(DEFAULT_PROGRESS_CALLBACK)
            self.add_callback(PrinterCallback)
        if args.activation_checkpointing:
            options = args.activation_checkpointing_kwargs
            model.activation_checkpointing_enable(activation_checkpointing_kwargs=dict(options) if options else None)
        self._collectives = Collectives()
        # then, a linear schedule does not fall
        self._planned_steps = args.max_steps if args.max_steps > 0 else sys.maxsize
        self._prepare_for_training(self._planned_steps, None, None)
        self.is_in_train = True  # otherwise an evaluation in half precision would cast the weights in training
        self._running = False
        self._accumulated = _Accumulated()

    def step(
        self,
        input_ids: Sequence[torch.Tensor] | None = None,
        attention_mask: Sequence[torch.Tensor] | None = None,
        labels: Sequence[torch.Tensor] | None = None,
        texts: Sequence[str] | None = None,
        texts_labels: Sequence[str] | None = None,
    ) -> dict[str, float]:
        """Train on rows, given as tokens, with a tensor (T,) for each row, or as texts.

        `attention_mask` is 1 at tokens and 0 at padding, by default 1. `labels` are -100 where there is no loss: for a causal
        model (T,), by default its input; an encoder-decoder model needs `labels` or `texts_labels`, of any length.

        Returns metrics of this call, over all processes: `loss` (nats per predicted token, before the update), `tokens`
        (predicted ones), `rows`, `updates` (optimizer steps taken), `pending` (micro-batches accumulated for the next one),
        `step` (optimizer steps so far) and, after an update, its `learning_rate` and the `grad_norm` before clipping.

        ValueError if an argument has the wrong type, is empty, contradicts another, or leaves nothing to predict.
        """
        batches, own, predicted, rows = self._step_batches(input_ids, attention_mask, labels, texts, texts_labels)
        accumulation = self.args.gradient_accumulation_steps
        updates, metrics, loss = 0, dict[str, float](), torch.zeros((), device=self.args.device)
        with self._training():
            for i, batch in enumerate(batches):
                if self._accumulated.batches == 0:
                    self.control = self.callback_handler.on_step_begin(self.args, self.state, self.control)
                    self._accumulated.denominator = sum(predicted[i : i + accumulation])
                completes = self._accumulated.batches + 1 == accumulation
                # synchronized at the end of a call, too, so that what it leaves is the same on all processes
                synced = completes or i + 1 == len(batches)
                loss += self._backward(batch, predicted[i], counts=i < own, synced=synced)
                if completes:
                    updates, metrics = updates + 1, self._update()
                else:
                    self.control = self.callback_handler.on_substep_end(self.args, self.state, self.control)
        if getattr(self.args, "optimize_device_cache", False):
            clear_device_cache(garbage_collection=True)
        return {
            "loss": loss.item() / sum(predicted),
            "tokens": sum(predicted),
            "rows": rows,
            "updates": updates,
            "pending": self._accumulated.batches,
            "step": self.state.global_step,
        } | metrics

    def finish(self) -> dict[str, float]:
        """Make the pending update, if there is one, and tell callbacks that training ends.

        Call it once after the last `step`, if `gradient_accumulation_steps` is above 1 or `report_to` is set. It returns
        `learning_rate` and `grad_norm` of the update, if there was one.
        """
        metrics = dict[str, float]()
        if self._accumulated.batches:
            with self._training():
                metrics = self._update()
        if self._running:
            self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)
            self._running = False
        return metrics

    def create_model_card(
        self, model_name: str | None = None, dataset_name: str | None = None, tags: str | Sequence[str] | None = None
    ) -> None:
        """Write README.md, a model card, to `args.output_dir`; the model's name is by default that of the folder."""
        if not self.is_world_process_zero():
            return
        folder, model = Path(self.args.output_dir), self.accelerator.unwrap_model(self.model)
        base = str(getattr(model.config, "_name_or_path", "") or "")
        base = "" if Path(base).exists() else base  # a local folder means nothing to readers
        more_tags = [tags] if isinstance(tags, str) else tags or ()
        metadata = {
            "library_name": "peft" if hasattr(model, "peft_config") else "transformers",
            "pipeline_tag": "text2text-generation" if model.config.is_encoder_decoder else "text-generation",
            "tags": sorted({"iterative-sft", *more_tags}),
            "base_model": base,
            "datasets": [dataset_name] if dataset_name else None,
        }
        front_matter = "".join(f"{key}: {json.dumps(value)}\n" for key, value in metadata.items() if value)
        name = model_name or folder.absolute().name
        about = "Fine-tuned with IterativeSFTTrainer: a script chose the rows of each step."
        table = f"| | |\n| --- | --- |\n{self._card_rows(base, dataset_name)}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "README.md").write_text(f"---\n{front_matter}---\n\n# {name}\n\n{about}\n\n{table}", encoding="utf-8")

    def _card_rows(self, base: str, dataset_name: str | None) -> str:
        """Return the rows of the model card's table, without those that nothing is known of."""
        args = self.args
        losses = [f"{line['loss']:.4f}" for line in self.state.log_history if "loss" in line]
        facts = {
            "base model": base and f"`{base}`",
            "data": dataset_name and f"`{dataset_name}`",
            "optimizer steps": self.state.global_step,
            "rows per step": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
            "optimizer": f"{args.optim.value}, learning rate {args.learning_rate:g}",
            "last logged loss, nats per token": losses[-1] if losses else None,
        }
        return "".join(f"| {key} | {value} |\n" for key, value in facts.items() if value not in {None, ""})

    # What differs from Trainer

    def train(self, resume_from_checkpoint: Any = None, trial: Any = None, ignore_keys_for_eval: Any = None) -> Any:
        """Raise TypeError: the loop is the caller's."""
        raise TypeError("IterativeSFTTrainer.train: the loop is yours; call step() with the rows of each step")

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,  # noqa: FBT001, FBT002
        num_items_in_batch: float | None = None,
    ) -> Any:
        """Return the mean over a batch's predicted tokens; in training, the batch's share of `num_items_in_batch`."""
        labels = inputs["labels"]
        has_second_text = self.row_collator.encoder_decoder
        # from the labels of a second text, the model makes what its decoder reads
        outputs = model(**(inputs if has_second_text else without_labels(inputs)))
        predicted = labels if has_second_text else labels_of_next_tokens(labels)
        smoothing = self.args.label_smoothing_factor
        loss = micro_batch_loss_share(outputs.logits, predicted, None, smoothing=smoothing)
        auxiliary = auxiliary_loss(model, outputs)
        loss = loss if auxiliary is None else loss + auxiliary
        if model.training and num_items_in_batch is not None:
            own = self.row_collator.count_predicted(labels)
            # DDP averages the gradients of processes; this makes it their sum
            loss = loss * (own * self.accelerator.num_processes / num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    # One step

    def _step_batches(self, *arguments: object) -> tuple[list[Mapping[str, torch.Tensor]], int, list[int], int]:
        """Return this process's micro-batches, how many count, the predicted tokens of each over all processes, and all rows.

        If another process has more, copies of the first one follow. If a process cannot make its own, all raise its error.
        """
        batches: list[Mapping[str, torch.Tensor]] = []
        rows, error = 0, None
        try:
            batches, rows = self.row_collator.batches_of_step(
                *arguments, size=self.args.train_batch_size, own=self._own_collator
            )
        except Exception as raised:  # noqa: BLE001  the other processes wait for an answer, whatever was raised
            error = raised
        counts = [self.row_collator.count_predicted(batch["labels"]) for batch in batches]
        answers = self._collectives.gather((counts, rows, error and str(error)))
        if error:
            raise error
        for other, (_, _, message) in enumerate(answers):
            if message:
                raise ValueError(f"on process {other}, {message}")
        most = max(len(own) for own, _, _ in answers)
        predicted = [sum(each) for each in zip_longest(*(own for own, _, _ in answers), fillvalue=0)]
        padded = batches + batches[:1] * (most - len(batches))
        return padded, len(batches), predicted, sum(count for _, count, _ in answers)

    @contextmanager
    def _training(self) -> Iterator[None]:
        """Start training if it has not started; afterwards restore the model's mode, for callers that generate."""
        mode = self.model.training
        if not self._running:
            if self.state.global_step == 0:
                self._init_training_state(self._planned_steps, 1, 1, None, None)
                self.state.epoch = None  # so that the log leaves it out
                self._initial_num_input_tokens_seen = 0
                self._tr_loss = torch.zeros((), device=self.args.device)
                self._total_loss_scalar = 0.0
                self._globalstep_last_logged = 0
            self._running = True
            self._start_time = time.time()
            self.control = self.callback_handler.on_train_begin(self.args, self.state, self.control)
            if self.args.eval_on_start and self.state.global_step == 0:
                self.evaluate()
        self.optimizer.train()  # schedule-free optimizers have two sets of weights
        try:
            yield
        finally:
            self.model_wrapped.train(mode)
            self.optimizer.eval()

    def _backward(self, batch: Mapping[str, torch.Tensor], tokens: int, *, counts: bool, synced: bool) -> torch.Tensor:
        """Run forward and backward of a micro-batch; return its loss, summed over the `tokens` of all processes.

        A batch that does not count takes part with weight 0. Gradients are reduced over the processes if `synced`.
        """
        accumulated = self._accumulated
        with nullcontext() if synced else self.accelerator.no_sync(self.model_wrapped):
            items = float(accumulated.denominator) if counts else math.inf
            scaled = self.training_step(self.model_wrapped, dict(batch), num_items_in_batch=items)
        self._track_num_input_tokens(batch if counts else {name: value[:0] for name, value in batch.items()})
        scale = accumulated.denominator / self.accelerator.num_processes
        loss: torch.Tensor = self.accelerator.reduce(scaled.float(), "sum") * scale
        accumulated.batches += 1
        accumulated.tokens += tokens
        accumulated.loss += loss
        return loss

    def _update(self) -> dict[str, float]:
        """Update the weights from the accumulated gradients; log, evaluate and save if it is time."""
        model, accumulated = self.model_wrapped, self._accumulated
        if accumulated.tokens != accumulated.denominator:  # over several calls, the first did not know the total
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(accumulated.denominator / accumulated.tokens)
        norm = self._clip_grad_norm(model) if self.args.max_grad_norm > 0 else None
        norm = self._get_grad_norm(model, grad_norm=norm)
        self.control = self.callback_handler.on_pre_optimizer_step(self.args, self.state, self.control)
        self.optimizer.step()
        self.control = self.callback_handler.on_optimizer_step(self.args, self.state, self.control)
        rate = self._get_learning_rate()
        follows_metric = isinstance(self.lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau | GreedyLR)
        if not self.accelerator.optimizer_step_was_skipped and not follows_metric:
            self.lr_scheduler.step()
        held = {parameter for group in self.optimizer.param_groups for parameter in group["params"]}
        self.optimizer.zero_grad()  # not the model's, because scripts that look at gradients replace this one
        for parameter in model.parameters():
            if parameter not in held:  # it counts in the norm
                parameter.grad = None
        self._tr_loss += accumulated.loss / accumulated.tokens
        self._accumulated = _Accumulated()
        self.state.global_step += 1
        self.control = self.callback_handler.on_step_end(self.args, self.state, self.control)
        if self.state.global_step == self.state.max_steps:
            logger.info("args.max_steps are done: further steps use the final learning rate of the schedule")
            self.state.max_steps = sys.maxsize  # otherwise Trainer would treat every further step as the last one
        self._maybe_log_save_evaluate(self._tr_loss, norm, model, None, 0, None, self._start_time, learning_rate=rate)
        return {"learning_rate": float(rate), "grad_norm": float(norm)}
