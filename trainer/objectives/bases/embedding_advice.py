"""What `evergreen new` writes for embeddings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from trainer.objectives.bases.advice import AdvisedValue, ModelKind, NewRecipeAdvice, ObjectiveFit, SeenColumns, UpTo


class EmbeddingAdvice(NewRecipeAdvice):
    """Advice for pairs, scored pairs and texts with classes."""

    meaning = "vectors, close to each other for texts that belong together"
    columns: ClassVar[Mapping[str, str]] = (
        dict.fromkeys(("prompt", "text"), "anchor_column")
        | {"completion": "positive_column", "rejected": "negative_columns"}
        | dict.fromkeys(("label", "score"), "label_column")
    )
    templates = frozenset({"rejected"})
    models: ClassVar[tuple[ModelKind, ...]] = ("encoder",)
    place = 2
    rates: ClassVar[UpTo] = ((60e6, 5e-5), (200e6, 2e-5), (math.inf, 1e-5))
    batch = 64
    least_batch = 32
    scheduler = "linear"

    def fit(self, seen: SeenColumns) -> ObjectiveFit:
        is_other = seen.has("label") or seen.has("chosen")
        return ObjectiveFit.COLUMNS if (seen.has_pairs or seen.pairs_documents) and not is_other else ObjectiveFit.NOT

    def asked(self, seen: SeenColumns) -> Sequence[str]:
        if "score" in seen.named:
            return ("prompt", "completion", "score")
        if "label" in seen.named:
            return ("prompt", "completion", "label") if seen.names_pair else ("text", "label")
        return ("prompt", "completion", *(["rejected"] if seen.has("rejected") else []))

    def best_metric(self, labels: Mapping[str, int]) -> AdvisedValue:
        return AdvisedValue("ndcg_at_10", "how high relevant texts are ranked among all of the validation rows")
