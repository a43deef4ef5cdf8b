"""The model that an evaluated run publishes, in the form that its recipe asks for.

The gate judges a model, not a form (`publish.adapter`). So a model that is published already is published again in another form
without being compared, by one commit for each change of the recipe. Nobody trains anew for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from params import ModelError, RecipeError, StaleBlessingError
from params.foundation.artifacts import Artifacts
from params.schema import AdapterForm, Evaluation, Model, ObjectiveChoice, Publish
from tasks import digests
from tasks.evaluation.report import Blessing, Champion, EvaluationReport
from tasks.hub_client.connection import chosen_endpoint, open_repository
from tasks.publishing import base_model
from tasks.stages import read_report
from trainer.model.adapters import BaseModelReference

if TYPE_CHECKING:
    from tasks.hub_client.repository import Repository


@dataclass(frozen=True)
class Candidate:
    """A judged model, and where its recipe publishes it."""

    artifacts: Artifacts
    publish: Publish
    endpoint: str
    """Address of the Hub, or `local`."""
    objective: ObjectiveChoice
    blessing: Blessing
    evaluated: EvaluationReport
    forms: Mapping[AdapterForm, str]
    """The digests of its weights in each form that it can be published in."""

    @classmethod
    def read(
        cls,
        artifacts: Artifacts,
        publish: Publish,
        *,
        seed: int,
        objective: ObjectiveChoice,
        model: Model,
        evaluation: Evaluation,
    ) -> Candidate:
        """Read what the evaluate stage left, and compare it with the sections of the recipe.

        Raises:
            RecipeError: the recipe asks for a form that nobody else could load.
            ModelError: the model has no such form, or the blessing is for something else.
            HubRefusedError: `publish.endpoint` is not an address.
        """
        if publish.adapter != "merged" and (found := base_model.find_sharing_problem(model)):
            raise RecipeError("publish.adapter", *found)
        blessing, forms = read_report(artifacts, Blessing), digests.release_digests(artifacts)
        if publish.adapter not in forms:
            what = "the adapters are not there by themselves: the base model lacks layers that they do not hold, its commit was not known"
            what += " when they were trained, or an older version of Evergreen trained them"
            raise ModelError(str(artifacts.adapter), what, "run the train stage again, or remove publish.adapter")
        recipe = digests.recipe_digest(seed=seed, objective=objective, model=model, evaluation=evaluation)
        repo_id = publish.repo_id
        pairs = {
            "model": (blessing.model, forms["merged"]),
            "data": (blessing.data, digests.data_digest(artifacts)),
            "recipe": (blessing.recipe, recipe),
            "repository": (blessing.champion.repo_id if blessing.champion else repo_id, repo_id),
        }
        if different := [what for what, (blessed, current) in pairs.items() if blessed != current]:
            what = f"the blessing is for another {' and '.join(different)}"
            raise ModelError(str(artifacts.blessing), what, "run the evaluate stage again: it writes a new blessing")
        endpoint, evaluated = chosen_endpoint(publish.endpoint), read_report(artifacts, EvaluationReport)
        return cls(artifacts, publish, endpoint, objective, blessing, evaluated, forms)

    @property
    def weights(self) -> str:
        """The digest of its weights in the form of the release."""
        return self.forms[self.publish.adapter]

    def open(self) -> AbstractContextManager[Repository]:
        """Open the repository that it is published to, to write."""
        return open_repository(
            self.artifacts, repo_id=self.publish.repo_id, endpoint=self.publish.endpoint, to_write=True
        )

    def require_readable_base(self, repository: Repository) -> None:
        """Refuse adapters by themselves if those who may read them cannot read their base model."""
        if self.publish.adapter != "merged":
            base_model.require_readable(
                repository, BaseModelReference.of(self.artifacts.adapter), private=self.publish.private
            )

    def replaced(self, repository: Repository) -> Champion | None:
        """Return the model that its release replaces: the champion, or this very model in another form, if main holds that.

        If it has the weights of the release, nothing is to be published. After the release has landed, the result is the same,
        so that the release is found.
        """
        champion = self.blessing.champion
        if len(self.forms) == 1:
            return champion
        other = repository.newest_other(self.weights, since=champion.commit if champion else None)
        if other is None or other.weights not in self.forms.values():
            return champion
        return Champion(endpoint=self.endpoint, repo_id=self.publish.repo_id, **vars(other))

    def is_rolled_back(self, repository: Repository) -> bool:
        """Whether somebody rolled back from the form of the published model that the recipe asks for.

        Raises:
            StaleBlessingError: the model itself was rolled back since its evaluation.
        """
        from tasks.hub_client.release_log import rolled_back_reason

        if repository.head() is None:
            return False
        asked = [self.weights]
        reason = rolled_back_reason(repository, asked) or rolled_back_reason(repository, self.forms.values())
        if reason and not self.blessing.is_champion:
            fix = "evaluate again: `evergreen evaluate ...`, or start the flow, which does both"
            raise StaleBlessingError(repository.where, f"the model was rolled back since its evaluation, {reason}", fix)
        return reason is not None
