"""The metrics of an evaluation: the objective's in constant memory, and the recipe's own, over the whole split at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import numpy as np

from params import ModelError, RecipeError
from params.importing import import_with_arguments
from params.sections.evaluation import OwnMetrics
from trainer.data.tokens import Sequences
from trainer.loop.own_metric_names import refuse_metrics_computed_twice
from trainer.objectives.bases.lazy_imports import NDArray, PreTrainedModel, PreTrainedTokenizerBase, torch, transformers
from trainer.objectives.bases.objective import Example, Objective, ObjectiveState, ScoreColumns
from trainer.objectives.bases.scored_batch import ScoredBatch

Measurement = tuple["torch.Tensor", ...]
"""What a batch gives: scores (B, K) and, if the recipe has metrics of its own, predictions, labels and inputs, each (B, ...)."""


class MetricAccumulator:
    """Metrics over any number of sequences: in constant memory, unless they need the scores of whole groups or of all rows."""

    def __init__(self, objective: Objective[Any], state: ObjectiveState) -> None:
        self._objective, self._state = objective, state
        of_split = type(objective).scores_of_split is not Objective.scores_of_split
        is_whole = any(metric.value_of_all for metric in objective.metrics.values())
        self._keeps_scores = bool(objective.group_score or is_whole or of_split)
        self._kept: list[Any] = []
        self._totals: Any = 0.0

    def update(self, scores: torch.Tensor) -> None:
        """Add scores (B, K), in the order of `Objective.score_names`."""
        table = scores.double().cpu().numpy()
        if self._keeps_scores:
            self._kept.append(table)
        else:
            self._totals = self._totals + self._sums(self._columns(table))

    def compute(self, documents: NDArray[np.float64] | None = None) -> dict[str, float]:
        """Return the metrics of all sequences so far; `documents` (V, L) are further ones that they are ranked among."""
        found: dict[str, Any] = {}
        if self._keeps_scores:
            columns = self._columns(self._objective.scores_of_split(np.concatenate(self._kept), self._state, documents))
            self._totals = self._sums(columns)
            found = self._objective.whole_metrics(columns)
        found |= self._objective.compute_metrics(self._totals, self._state)
        return {name: float(value) for name, value in found.items()}

    def _columns(self, table: Any) -> ScoreColumns:
        return dict(zip(self._objective.score_names(self._state), table.T, strict=True))

    def _sums(self, columns: ScoreColumns) -> Any:
        return self._objective.additive_statistics(columns, self._state).sum(0)


class EvaluationMetrics:
    """Measures batches and accumulates the metrics of an evaluation.

    Measurements for the recipe's own `metrics` move off the GPU after `to_cpu_every` batches, by default only at the end. Of the
    `documents` of a corpus, as many as the objective's `vector_space` says are searched, spread over all of them.
    """

    def __init__(
        self,
        objective: Objective[Any],
        *,
        state: ObjectiveState,
        tokenizer: PreTrainedTokenizerBase,
        metrics: OwnMetrics | None,
        to_cpu_every: int | None = None,
        documents: Sequences | None = None,
    ) -> None:
        self.objective = objective
        self.state = state
        self._tokenizer = tokenizer
        if metrics and (reason := objective.why_no_own_metrics()):
            what = f"{type(objective).__name__} {reason}"
            raise RecipeError("evaluation.metrics", what, objective.instead_of_own_metrics)
        refuse_metrics_computed_twice(metrics, objective)
        self._directions = metrics.directions if metrics else {}
        self._function = import_with_arguments(metrics.function, "evaluation.metrics.function", 1) if metrics else None
        self._preprocess: Callable[..., Any] | None = None
        if metrics and metrics.preprocess_logits:
            self._preprocess = import_with_arguments(
                metrics.preprocess_logits, "evaluation.metrics.preprocess_logits", 2
            )
        self._to_cpu_every = to_cpu_every
        self.documents = documents
        """All documents of the corpus; None without one."""
        self._reset()

    def _reset(self) -> None:
        self._accumulator = MetricAccumulator(self.objective, self.state)
        self._documents: NDArray[np.float64] | None = None
        if self._function is not None:
            from transformers.trainer_pt_utils import EvalLoopContainer

            self._measurements, self._batches = EvalLoopContainer(), 0

    def measure_documents(self, measure: Callable[[Any], NDArray[np.float64]]) -> None:
        """Let `measure` say what `score_batch` does of the documents that are searched, (V, L), once for each evaluation."""
        space = self.objective.vector_space
        if self.documents is None or space is None or not space.validation_documents or self._documents is not None:
            return
        most = min(space.validation_documents, len(self.documents))
        places = np.linspace(0, len(self.documents) - 1, most).astype(int).tolist()
        self._documents = measure(torch.utils.data.Subset[Any](cast("Any", self.documents), places))

    def measure(self, model: PreTrainedModel, batch: Mapping[str, Any]) -> Measurement:
        """Return what the metrics need of a batch that `Objective.prepare_inputs` has prepared."""
        if self._function is None:
            return (self.objective.score_batch(model, batch, self._tokenizer),)
        scored = self.objective.score_outputs(model, batch, self._tokenizer)
        return (scored.scores, self._predictions(scored), scored.labels, batch["input_ids"])

    def _predictions(self, scored: ScoredBatch) -> torch.Tensor:
        if self._preprocess is None:
            return scored.usual_predictions()
        where = "evaluation.metrics.preprocess_logits"
        try:
            found = self._preprocess(scored.logits, scored.labels)
        except Exception as error:
            raise ModelError(where, f"raised {type(error).__name__}: {error}", "fix the function") from error
        rows = len(scored.scores)
        if not isinstance(found, torch.Tensor) or found.ndim == 0 or len(found) != rows:
            shape = f"of shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else ""
            what = f"returns a {type(found).__name__} {shape}".rstrip()
            raise ModelError(
                where, f"{what} for {rows} sequences", f"return a tensor with a value for each: ({rows}, ...)"
            )
        return found

    def batches(
        self,
        model: PreTrainedModel,
        sequences: Sequences | list[Example],
        *,
        batch_size: int,
        batch_tokens: int | None = None,
    ) -> Iterator[tuple[list[Example], Measurement]]:
        """Yield the examples of a split batch by batch, with their measurement on the CPU.

        A batch whose sequences are longer than `batch_tokens` / `batch_size` is scored in parts.
        """
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model.to(device).eval()
        for examples in self._parts(sequences, batch_size, batch_tokens):
            batch = {
                name: value.to(device) if isinstance(value, torch.Tensor) else value
                for name, value in self.objective.collate(examples, self._tokenizer).items()
            }
            with torch.inference_mode():
                measurement = self.measure(model, self.objective.prepare_inputs(model, batch))
            yield examples, tuple(tensor.cpu() for tensor in measurement)

    def _parts(
        self, sequences: Sequences | list[Example], batch_size: int, batch_tokens: int | None
    ) -> Iterator[list[Example]]:
        for start in range(0, len(sequences), batch_size):
            examples = [sequences[i] for i in range(start, min(start + batch_size, len(sequences)))]
            longest = max(map(self.objective.length, examples)) if batch_tokens else 1
            size = max(1, min(batch_size, (batch_tokens or batch_size) // max(1, longest)))
            yield from (examples[first : first + size] for first in range(0, len(examples), size))

    def update(self, measurement: Measurement) -> None:
        """Add the measurement of a batch, gathered from all processes."""
        self._accumulator.update(measurement[0])
        if self._function is not None:
            self._measurements.add(tuple(map(_as_numpy_knows, measurement)))
            self._batches += 1
            if self._to_cpu_every and self._batches % self._to_cpu_every == 0:
                self._measurements.to_cpu_and_numpy()

    def compute(self) -> dict[str, float]:
        """Return the metrics of all batches so far, and start a new evaluation.

        Raises:
            ModelError: the recipe's function fails, or does not return the metrics that the recipe names.
        """
        metrics = self._accumulator.compute(self._documents)
        if self._function is not None:
            metrics |= self._own(self._function)
        self._reset()
        return metrics

    def _own(self, function: Callable[..., Any]) -> dict[str, float]:
        scores, predictions, labels, inputs = self._measurements.get_arrays()
        names = list(self.objective.score_names(self.state))
        losses = scores[:, names.index("nll")] if "nll" in names else None
        where = "evaluation.metrics.function"
        try:
            found = function(transformers.EvalPrediction(predictions, labels, inputs=inputs, losses=losses))
        except Exception as error:
            raise ModelError(where, f"raised {type(error).__name__}: {error}", "fix the function") from error
        if not isinstance(found, Mapping):
            what = f"returns {found!r:.100}, and not a value by the name of each metric"
            raise ModelError(where, what, f"return {{'{next(iter(self._directions), 'name')}': ...}}")
        if lacking := [name for name in self._directions if name not in found]:
            fix = "name what it returns in evaluation.metrics.directions"
            raise ModelError(where, f"returns no {', '.join(map(repr, lacking))}, but {sorted(map(str, found))}", fix)
        return {name: self._number(name, found[name]) for name in self._directions}

    def _number(self, name: str, value: Any) -> float:
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            what = f"returns {value!r:.100} for {name!r}, which is not a number"
            raise ModelError("evaluation.metrics.function", what, "return one number for each metric") from error


def _as_numpy_knows(part: torch.Tensor) -> torch.Tensor:
    """Return numbers of half precision as single ones: numpy has no bfloat16."""
    return part.float() if part.is_floating_point() and part.dtype != torch.float64 else part
