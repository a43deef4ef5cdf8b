"""Measured on the sample with the real tokenizer and the real model: lengths of the rows, and the time of a training step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from params import ModelError
from tasks.scaffold.choices import Choice
from tasks.scaffold.look import Row
from tasks.tokenization.tokenizers import NO_LIMIT
from trainer.objectives.bases.objective import EncodedRow, Example, Objective, ObjectiveState
from trainer.objectives.bases.padding import IGNORE_INDEX
from trainer.runtime.library_errors import is_out_of_memory
from trainer.runtime.memory import keep_freed_memory

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MEASURED_ROWS: Final = 5_000
"""The most rows that are tokenized for their lengths."""
_BATCH_ROWS: Final = 500
_TRIALS: Final = 6
_REPEATS: Final = 3
"""How often each micro-batch is timed; the quickest time counts, because other programs can only slow it down."""
_LIMIT_S: Final = 10.0
"""How long the passes are measured, at most; one micro-batch is measured in any case."""
_SMALLEST_GAIN: Final = 1.1
"""bf16 is used if it is so many times as fast as fp32."""


@dataclass(frozen=True)
class Lengths:
    """Lengths in tokens, one for each row."""

    inputs: list[int]
    targets: list[int]
    """Lengths of the targets of seq2seq; else empty."""

    @property
    def mean(self) -> float:
        """Mean length of a row."""
        return sum(self.inputs) / len(self.inputs)


@dataclass(frozen=True)
class Speed:
    """How long the work of a training takes on this machine while it does nothing else."""

    micro_batch_s: float
    """Forward and backward pass of a micro-batch."""
    forward_s: float
    """Forward pass of a sequence."""
    update_s: float
    """Step of the optimizer."""
    tokens_per_s: float
    """Training tokens, padding excluded."""
    slowdown: float
    """How many times as long it takes now, because of other programs."""


def encoded(
    rows: Sequence[Row],
    objective: Objective[Any],
    tokenizer: PreTrainedTokenizerBase,
    state: ObjectiveState,
    *,
    limit: int,
) -> Iterator[list[Example]]:
    """Yield the training sequences of each row, at most `limit` tokens long; none for a row that cannot be encoded."""
    numbered = [{**row, "row_id": i} for i, row in enumerate(rows)]
    for start in range(0, len(numbered), _BATCH_ROWS):
        part = numbered[start : start + _BATCH_ROWS]
        try:
            found = objective.encode(part, tokenizer, limit, state)
        except (ValueError, KeyError, TypeError):
            found = [_encode_one(row, objective, tokenizer, state, limit) for row in part]
        yield from (row.examples for row in found)


def _encode_one(
    row: Row, objective: Objective[Any], tokenizer: PreTrainedTokenizerBase, state: ObjectiveState, limit: int
) -> EncodedRow:
    try:
        (found,) = objective.encode([row], tokenizer, limit, state)
    except (ValueError, KeyError, TypeError):
        return EncodedRow([])
    return found


def lengths(
    rows: Sequence[Row], objective: Objective[Any], tokenizer: PreTrainedTokenizerBase, state: ObjectiveState
) -> Lengths:
    """Return the lengths of the rows in tokens, special tokens included, as training sees them."""
    every = max(1, len(rows) // MEASURED_ROWS)
    inputs, targets = [], []
    for examples in encoded(rows[::every], objective, tokenizer, state, limit=NO_LIMIT):
        if not examples:
            continue
        inputs.append(sum(map(_length, examples)))
        if objective.has_target_text:
            targets.append(max(len(example["labels"]) for example in examples))
    return Lengths(inputs, targets)


def _length(example: Example) -> int:
    """Return the tokens of a sequence; of a pair, those of the longer one."""
    size: int = len(example["input_ids"])
    if "rejected" in example:
        answer = sum(label != IGNORE_INDEX for label in example["labels"])
        size += max(0, len(example["rejected"]) - answer)
    return size


def measure_speed(
    network: PreTrainedModel,
    examples: Sequence[Example],
    objective: Objective[Any],
    tokenizer: PreTrainedTokenizerBase,
    *,
    micro_batch: int,
    precision: str = "fp32",
) -> Speed:
    """Train on a few micro-batches with a learning rate of 0, and return how long that took.

    Args:
        network: the model; its weights do not change.
        examples: sequences, sorted by length if training batches them so.
        objective: computes the loss.
        tokenizer: gives the padding.
        micro_batch: sequences in one forward pass.
        precision: number format of the passes.
    """
    import torch

    keep_freed_memory()  # as the training process does
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network.to(device).train()
    trained = [weight for weight in network.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.0, weight_decay=0.0, fused=True)
    loss_of = _loss_function(network, objective, tokenizer)

    def forward(batch: Sequence[Example]) -> Any:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
            return loss_of(batch, device)

    watch, batches = _Stopwatch(device), _spread(examples, micro_batch)
    forward(batches[0]).backward()
    optimizer.step()  # its first step makes its state
    update_s = watch.quickest(optimizer.step)
    optimizer.zero_grad()
    took, tokens, started = [], 0, time.monotonic()
    for batch in batches:
        took.append(watch.quickest(lambda batch=batch: forward(batch).backward()))  # type: ignore[misc]
        tokens += sum(len(example["input_ids"]) + len(example.get("rejected", ())) for example in batch)
        if time.monotonic() - started > _LIMIT_S:
            break
    network.eval()
    batch = batches[0]
    with torch.inference_mode():
        forward_s = watch.quickest(lambda: forward(batch)) / len(batch)
    return Speed(sum(took) / len(took), forward_s, update_s, tokens / sum(took), watch.slowdown)


class _Stopwatch:
    """Times work, and tells from its CPU time how long it would take if no other program ran."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._took_s = self._alone_s = 0.0

    def quickest(self, work: Callable[[], object]) -> float:
        """Do the work several times, and return the seconds of the quickest one, without other programs."""
        import torch

        quickest = math.inf
        for _ in range(_REPEATS):
            start, cpu_start = time.perf_counter(), time.process_time()
            work()
            if self._device.type == "cuda":
                torch.cuda.synchronize()
            took_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu_start
            alone_s = took_s if self._device.type == "cuda" else min(took_s, cpu_s / torch.get_num_threads())
            self._took_s += took_s
            self._alone_s += alone_s
            quickest = min(quickest, alone_s)
        return quickest

    @property
    def slowdown(self) -> float:
        """How many times as long all work took as it would without other programs."""
        return self._took_s / self._alone_s


def fitting_speed(
    network: PreTrainedModel,
    examples: Sequence[Example],
    objective: Objective[Any],
    tokenizer: PreTrainedTokenizerBase,
    *,
    micro_batch: int,
) -> tuple[int, Speed]:
    """Return the largest micro-batch that fits into memory, `micro_batch` or its half and so on, and its speed.

    Raises:
        ModelError: no micro-batch fits, or the model cannot compute a loss.
    """
    while True:
        try:
            return micro_batch, measure_speed(network, examples, objective, tokenizer, micro_batch=micro_batch)
        except (RuntimeError, ValueError, TypeError, MemoryError) as error:
            if not is_out_of_memory(error):
                what = f"fails at a micro-batch of the rows: {error}"
                raise ModelError("--model", what, "choose another model or objective") from error
            if micro_batch == 1:
                fix = "take a smaller model, or a machine with more memory"
                raise ModelError("--model", "one sequence does not fit into memory", fix) from error
        network.zero_grad()
        micro_batch //= 2


def _spread(examples: Sequence[Example], size: int) -> list[Sequence[Example]]:
    """Return micro-batches from all parts of the sequences; the first are from the middle, for what is too slow for all."""
    size = min(size, len(examples))
    count = min(_TRIALS, max(1, len(examples) // size))
    last = len(examples) - size
    starts = [i * last // (count - 1) for i in range(count)] if count > 1 else [last // 2]
    starts.sort(key=lambda start: abs(start - last / 2))
    return [examples[start : start + size] for start in starts]


def _loss_function(network: PreTrainedModel, objective: Objective[Any], tokenizer: PreTrainedTokenizerBase) -> Any:
    from trainer.objectives.dpo import DPO

    def loss_of(examples: Sequence[Example], device: Any) -> Any:
        batch: Mapping[str, Any] = {
            name: value.to(device) if hasattr(value, "to") else value
            for name, value in objective.collate(examples, tokenizer).items()
        }
        batch = objective.prepare_inputs(network, batch)
        if isinstance(objective, DPO):
            objective.reference_logprobs = lambda pairs: objective.completion_logprobs(network, pairs)
            return objective.score_pairs(network, batch)[0].mean()
        return network(**batch).loss

    return loss_of


def best_precision(
    network: PreTrainedModel,
    examples: Sequence[Example],
    objective: Objective[Any],
    tokenizer: PreTrainedTokenizerBase,
    *,
    micro: int,
    speed: Speed,
) -> tuple[Choice, Speed]:
    """Return bf16 if it is faster here, which is measured; fp32 without a GPU."""
    import torch

    if not has_gpu():
        return Choice("fp32", "there is no GPU here: on one that has it, bf16 is about twice as fast"), speed
    if not torch.cuda.is_bf16_supported():
        return Choice("fp32", "the GPU here has no bf16"), speed
    half = measure_speed(network, examples, objective, tokenizer, micro_batch=micro, precision="bf16")
    gain = half.tokens_per_s / speed.tokens_per_s
    if gain < _SMALLEST_GAIN:
        return Choice("fp32", "bf16 is not faster on this GPU with this model"), speed
    return Choice("bf16", "faster than fp32 on this GPU, measured"), half


def has_gpu() -> bool:
    """Whether this machine trains on a GPU."""
    import torch

    return bool(torch.cuda.is_available())
