"""The figures of an evaluation: those of the objective, in constant memory, and the recipe's own, of the whole split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from params import ModelError
from params.importing import bind
from params.schema import Metrics
from trainer.objectives.bases.objective import MetricAccumulator
from trainer.objectives.bases.padding import IGNORE_INDEX

if TYPE_CHECKING:
    import torch
    from datasets import Dataset
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from trainer.objectives.bases.objective import Example, Objective, State

Measured = tuple["torch.Tensor", ...]
"""Of a batch: scores (B, K) and, with metrics of one's own, predictions, labels and inputs, each (B, ...)."""


class Figures:
    """The figures of an evaluation.

    Args:
        objective: measures batches.
        state: what the objective learned from the train split.
        tokenizer: that of the model.
        metrics: the recipe's own.
        to_cpu_every: batches after which what own metrics need is moved off the GPU; by default only at the end.
    """

    def __init__(
        self,
        objective: Objective[Any],
        *,
        state: State,
        tokenizer: PreTrainedTokenizerBase,
        metrics: Metrics | None,
        to_cpu_every: int | None = None,
    ) -> None:
        self._objective = objective
        self._state = state
        self._tokenizer = tokenizer
        self._directions = metrics.directions if metrics else {}
        self._function: Callable[..., Any] | None = None
        self._preprocess: Callable[..., Any] | None = None
        if metrics:
            self._function = bind(metrics.function, "evaluation.metrics.function", 1)
            if metrics.preprocess_logits:
                self._preprocess = bind(metrics.preprocess_logits, "evaluation.metrics.preprocess_logits", 2)
        self._to_cpu_every = to_cpu_every
        self._begin()

    def _begin(self) -> None:
        self._meter = MetricAccumulator(self._objective, self._state)
        self._kept: list[Any] = []

    def measure(self, model: PreTrainedModel, batch: Mapping[str, Any]) -> Measured:
        """What is kept of a batch."""
        from trainer.objectives.bases.likelihood import Likelihood, logits_of

        batch = self._objective.prepare_inputs(model, batch)
        if self._function is None:
            return (self._objective.score_batch(model, batch, self._tokenizer),)
        if not isinstance(self._objective, Likelihood):
            scores = self._objective.score_batch(model, batch, self._tokenizer)
            return (scores, scores, batch.get("labels", batch["input_ids"]), batch["input_ids"])
        logits, labels = logits_of(model, batch), batch["labels"]
        written = self._objective.generate(model, batch, self._tokenizer)
        if self._preprocess is not None:
            predictions = self._preprocess(logits, labels)
        else:
            predictions = logits.argmax(-1) if written is None else written
        scores = self._objective.score_outputs(logits, written, labels, self._tokenizer)
        return (scores, predictions, labels, batch["input_ids"])

    def batches(
        self, model: PreTrainedModel, sequences: Dataset, *, batch_size: int
    ) -> Iterator[tuple[list[Example], Measured]]:
        """Yield the examples of a split batch by batch, with what is kept of them, on the CPU."""
        import torch

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model.to(device).eval()
        for start in range(0, len(sequences), batch_size):
            examples = [sequences[i] for i in range(start, min(start + batch_size, len(sequences)))]
            batch = {
                name: value.to(device) if isinstance(value, torch.Tensor) else value
                for name, value in self._objective.collate(examples, self._tokenizer).items()
            }
            with torch.inference_mode():
                measured = self.measure(model, batch)
            yield examples, tuple(part.cpu() for part in measured)

    def update(self, measured: Measured) -> None:
        """Take in what is kept of a batch, of all processes."""
        self._meter.update(measured[0])
        if self._function is not None:
            self._kept.append(measured)
            if self._to_cpu_every and len(self._kept) % self._to_cpu_every == 0:
                self._kept = [tuple(_array(part) for part in parts) for parts in self._kept]

    def compute(self) -> dict[str, float]:
        """The figures of all batches so far; the next batch begins anew.

        Raises:
            ModelError: a function of the recipe fails, or does not give the figures that the recipe names.
        """
        figures = self._meter.compute()
        if self._function is not None:
            figures |= self._own(self._function)
        self._begin()
        return figures

    def _own(self, function: Callable[..., Any]) -> dict[str, float]:
        from transformers import EvalPrediction

        scores, predictions, labels, inputs = (_joined([_array(m[i]) for m in self._kept]) for i in range(4))
        losses = scores[:, self._objective.score_names.index("nll")] if "nll" in self._objective.score_names else None
        where = "evaluation.metrics.function"
        try:
            found = function(EvalPrediction(predictions, labels, inputs=inputs, losses=losses))
            figures = {name: float(found[name]) for name in self._directions}
        except KeyError as error:
            what, fix = f"gives no {error}, but {sorted(found)}", "name what it gives in evaluation.metrics.directions"
            raise ModelError(where, what, fix) from error
        except Exception as error:
            raise ModelError(where, f"raised {type(error).__name__}: {error}", "mend the function") from error
        return figures


def _array(part: Any) -> np.ndarray[Any, Any]:
    if isinstance(part, np.ndarray):
        return part
    array: np.ndarray[Any, Any] = (part.float() if part.is_floating_point() else part).cpu().numpy()
    return array


def _joined(parts: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Batches one after another, those of shorter sequences filled up with -100."""
    if parts[0].ndim > 1:
        longest = max(part.shape[1] for part in parts)
        rest = [(0, 0)] * (parts[0].ndim - 2)
        parts = [
            np.pad(part, [(0, 0), (0, longest - part.shape[1]), *rest], constant_values=IGNORE_INDEX) for part in parts
        ]
    joined: np.ndarray[Any, Any] = np.concatenate(parts)
    return joined
