"""Whether a model knows anything of its rows: its answers must fit their own rows better than others.

A model that has learned only how frequent labels are may be far better than one with a random head: it says the usual label, a number near the mean,
or yes where that gives the better F1. So the candidate is scored once more, each row's labels with the inputs of another row. What it
owes to the labels alone, and to thresholds, is the same there. The rows are paired in one cycle by chance, none with itself.

Both scores of a row share its labels, and each input counts once on either side: for a model that knows nothing the difference varies less than
its interval says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.evaluation.plan import EvaluationPlan, PlannedModel
from tasks.evaluation.scoring import RowScores, score_rows
from trainer.data.tokens import Sequences
from trainer.loop.metrics import EvaluationMetrics
from trainer.objectives.bases.lazy_imports import NDArray, PreTrainedModel
from trainer.objectives.bases.objective import Example, Objective


@dataclass(frozen=True)
class RowsWithOtherInputs:
    """The sequences of a split in the order of their inputs, each with the labels of another one."""

    sequences: Sequences
    objective: Objective[Any]
    partners: NDArray[np.int64]
    """(N,), whose labels go with the inputs of each sequence."""

    @classmethod
    def of(cls, sequences: Sequences, objective: Objective[Any], seed: int) -> RowsWithOtherInputs | None:
        """Pair the sequences of a split; None if there are no two, or if labels of this objective are parts of its inputs."""
        if len(sequences) < 2 or objective.with_inputs_of(sequences[0], sequences[1]) is None:
            return None
        order = np.random.default_rng(seed).permutation(len(sequences))
        partners = np.empty(len(order), np.int64)
        partners[order] = np.roll(order, 1)
        return cls(sequences, objective, partners)

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, place: int) -> Example:
        found = self.objective.with_inputs_of(self.sequences[int(self.partners[place])], self.sequences[place])
        assert found is not None
        return found


def score_with_other_inputs(plan: EvaluationPlan, network: PreTrainedModel, planned: PlannedModel) -> RowScores | None:
    """Score the labels of each row with the inputs of another one; None if the objective has no such examples."""
    objective, state = planned.reader.objective, plan.resampler.state
    paired: Any = RowsWithOtherInputs.of(Sequences(planned.sequences), objective, plan.resampler.seed)
    if paired is None:
        return None
    return score_rows(
        network,
        paired,
        metrics=EvaluationMetrics(objective, state=state, tokenizer=planned.reader.tokenizer, metrics=None),
        batch_size=plan.batch_size,
        batch_tokens=plan.batch_tokens,
        name="candidate with the inputs of other rows",
        groups=plan.groups,
    )
