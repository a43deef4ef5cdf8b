"""The model that an evaluated run publishes, in the form that its recipe asks for: what the run left, as one value.

The gate judges a model, not a form (`publish.adapter`). So a model that is published already is published again in another form
without being compared, by one commit for each change of the recipe. Nobody trains anew for that.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from params import HubRefusedError, ModelError, RecipeError, StaleBlessingError
from params.foundation.artifacts import Artifacts
from params.schema import AdapterForm, Model, ObjectiveChoice, Publish
from params.sections.evaluation import Evaluation
from tasks import digests
from tasks.evaluation.report import Blessing, EvaluationReport
from tasks.evaluation.rolled_back_ancestors import why_ancestor_is_distrusted
from tasks.hub_client.connection import open_repository, resolve_hub_endpoint
from tasks.measurement import rows_read
from tasks.stages import read_report
from trainer.model.adapters import BaseModelReference
from trainer.objectives.bases.network.position_limits import NO_LIMIT
from trainer.start import ReleaseReference

if TYPE_CHECKING:
    from tasks.hub_client.main_history import MainHistory
    from tasks.hub_client.repository import HubRepository

_MERGED = "remove publish.adapter: the model is then published with the adapters merged"


@dataclass(frozen=True)
class Candidate:
    """A judged model, and where its recipe publishes it. Each report is read once."""

    artifacts: Artifacts
    publish: Publish
    objective: ObjectiveChoice

    @cached_property
    def endpoint(self) -> str:
        """Address of the Hub, or `local`."""
        return resolve_hub_endpoint(self.publish.endpoint)

    @cached_property
    def blessing(self) -> Blessing:
        return read_report(self.artifacts, Blessing)

    @cached_property
    def evaluated(self) -> EvaluationReport:
        return read_report(self.artifacts, EvaluationReport)

    @cached_property
    def forms(self) -> dict[AdapterForm, str]:
        """The digests of its weights in each form that it can be published in."""
        return digests.weights_digest_by_form(self.artifacts)

    @property
    def weights(self) -> str:
        """The digest of its weights in the form of the release."""
        return self.forms[self.publish.adapter]

    @property
    def reading_limit(self) -> int:
        """Up to how many tokens its release reads a text: its tokenizer's own limit, or more if it was evaluated up to more."""
        own = json.loads((self.artifacts.model / "tokenizer_config.json").read_bytes())
        return max(int(own.get("model_max_length", NO_LIMIT)), self.evaluated.max_length or 0)

    def check(self, *, seed: int, model: Model, evaluation: Evaluation) -> None:
        """Compare the blessing with what there is, and with the sections of the recipe.

        Raises:
            RecipeError: the recipe asks for a form that nobody else could load.
            ModelError: the model has no such form, or the blessing is for something else.
        """
        if self.publish.adapter != "merged" and (found := why_adapter_not_shareable(model)):
            raise RecipeError("publish.adapter", *found)
        if self.publish.adapter not in self.forms:
            what = "the adapters are not there by themselves: the base model lacks layers that they do not hold, its commit was not known"
            what += " when they were trained, the training started from a release that holds only a whole model, or an older version of Evergreen trained them"
            raise ModelError(str(self.artifacts.adapter), what, "run the train stage again, or remove publish.adapter")
        blessing, repo_id = self.blessing, self.publish.repo_id
        recipe = digests.evaluation_recipe_digest(
            seed=seed, objective=self.objective, model=model, evaluation=evaluation
        )
        read = rows_read(self.artifacts)
        names = sorted({*read, *blessing.judged_rows})  # one that is not installed may have had reasons of its own
        pairs = {
            "model": (blessing.model, self.forms["merged"]),
            "data": (blessing.data, digests.validated_rows_digest(self.artifacts)),
            **{name: (blessing.judged_rows.get(name, {}), read.get(name, {})) for name in names},
            "recipe": (blessing.recipe, recipe),
            "repository": (blessing.champion.repo_id if blessing.champion else repo_id, repo_id),
        }
        if different := [what for what, (blessed, current) in pairs.items() if blessed != current]:
            what, fix = f"the blessing is for another {' and '.join(different)}", "run the evaluate stage again"
            raise ModelError(str(self.artifacts.blessing), what, f"{fix}: it writes a new blessing")

    def open(self) -> AbstractContextManager[HubRepository]:
        """Open the repository that it is published to, to write."""
        publish = self.publish
        return open_repository(self.artifacts, repo_id=publish.repo_id, endpoint=publish.endpoint, to_write=True)

    def replaced(self, repository: HubRepository) -> ReleaseReference | None:
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
        return ReleaseReference(endpoint=self.endpoint, repo_id=self.publish.repo_id, **vars(other))

    def is_rolled_back(self, main: MainHistory) -> bool:
        """Whether somebody rolled back from the form that the recipe asks for; StaleBlessingError if from the model itself."""
        if main.head() is None:
            return False
        reason = main.find_rollback_reason([self.weights], of_form=True)
        reason = reason or main.find_rollback_reason(self.forms.values())
        if reason and not self.blessing.is_champion:
            fix = "evaluate again: `evergreen evaluate ...`, or start the flow, which does both"
            raise StaleBlessingError(
                main.repository.where, f"the model was rolled back since its evaluation, {reason}", fix
            )
        return reason is not None

    def check_ancestors(self, main: MainHistory) -> None:
        """Raise a StaleBlessingError if people have rolled back from a release that the model goes back to, since the evaluation."""
        if self.blessing.is_champion:
            return
        if reason := why_ancestor_is_distrusted(self.artifacts, main, self.endpoint):
            fix = "evaluate again: `evergreen evaluate ...`, or start the flow, which does both"
            raise StaleBlessingError(main.repository.where, reason, fix)


def why_adapter_not_shareable(model: Model) -> tuple[str, str] | None:
    """Return why nobody else could load an adapter of this model, and the fix; None if a Hub must be asked."""
    if model.lora is None:
        what = "there are no adapters to publish: without `model.lora`, all weights are trained"
        return what, "add `lora: {}` to the model, or remove publish.adapter"
    if model.pretrained is None:
        return "the adapters' base model has random weights, which nobody else can load", _MERGED
    if Path(model.pretrained).is_dir():
        what = f"the adapters' base model is the folder {model.pretrained}, which nobody else can load"
        return what, f"upload it to the Hub, and write its owner/name as model.pretrained; or {_MERGED}"
    return None


def require_readable_base_model(repository: HubRepository, base: BaseModelReference, *, private: bool) -> None:
    """Refuse an adapter in `repository` if those who may read it cannot read its base model on the same Hub.

    A release that is not `private` is for everybody, so the base model is asked for without a token.
    """
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    def look() -> None:
        try:
            repository.api.model_info(base.name, revision=base.revision, token=None if private else False)
        except RevisionNotFoundError:
            what = f"the adapters' base model, {base.name}, has no revision {base.revision} there"
        except RepositoryNotFoundError:
            reader = "with this token" if private else "by everybody, and publish.private is false"
            what = f"the adapters' base model, {base.name}, cannot be read there {reader}"
        else:
            return
        fix = f"train on a base model that readers of this Hub can load; or {_MERGED}"
        raise HubRefusedError(repository.folder or repository.api.endpoint, what, fix)

    repository.retry_until_clear(look)
