"""What training chooses for a model beside its weights, such as thresholds, for the model before training, too.

Thresholds that only the candidate has are worth a great deal by themselves: with 0.5 a new head says yes to nothing. So those of the model before training
are chosen as the candidate's are, by its scores of the same validation rows. A base model that has some of its own is scored with them, as its release says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.evaluation.plan import EvaluationPlan, PlannedModel
from tasks.evaluation.scoring import score_rows
from trainer.data.tokens import Sequences
from trainer.loop.metrics import EvaluationMetrics
from trainer.objectives.bases.labels.names import match_labels
from trainer.objectives.bases.lazy_imports import PreTrainedModel
from trainer.objectives.bases.objective import Objective


def choose_settings(plan: EvaluationPlan, network: PreTrainedModel, planned: PlannedModel) -> None:
    """Set in the configuration of a network what `Objective.config_from_validation` chooses, as far as the network does not have it."""
    objective, state = planned.reader.objective, plan.resampler.state
    if type(objective).config_from_validation is Objective.config_from_validation:
        return
    scores = score_rows(
        network,
        Sequences(plan.validation),
        metrics=EvaluationMetrics(objective, state=state, tokenizer=planned.reader.tokenizer, metrics=None),
        batch_size=plan.batch_size,
        batch_tokens=plan.batch_tokens,
        name=f"{planned.name} on validation",
    )
    for key, chosen in objective.config_from_validation(scores.columns, state).items():
        setattr(network.config, key, _complete(getattr(network.config, key, None), chosen))


def _complete(own: Any, chosen: Any) -> Any:
    """Return what a model has of its own, and of what it lacks what was chosen; for each label where there is a value for each."""
    if own is None or not isinstance(chosen, Mapping):
        return chosen if own is None else own
    names, labels = list(own), list(chosen)
    places = match_labels(names, labels)
    return {
        label: chosen[label] if place is None else own[names[place]]
        for label, place in zip(labels, places, strict=True)
    }
