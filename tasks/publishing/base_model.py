"""The base model of an adapter: whoever may read a release with the adapter by itself must be able to load that model, too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from params import HubRefusedError
from params.schema import Model
from trainer.model.adapters import BaseModelReference

if TYPE_CHECKING:
    from tasks.hub_client.repository import Repository

_MERGED = "remove publish.adapter: the model is then published with the adapters merged"


def find_sharing_problem(model: Model) -> tuple[str, str] | None:
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


def require_readable(repository: Repository, base: BaseModelReference, *, private: bool) -> None:
    """Refuse an adapter in `repository` if those who may read it cannot read its base model on the same Hub.

    A release that is not `private` is for everybody, so the base model is asked for without a token.

    Raises:
        HubRefusedError: they cannot.
        TransientError: no clear answer in time.
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
        raise HubRefusedError(repository.api.endpoint, what, fix)

    repository.retry_until_clear(look)
