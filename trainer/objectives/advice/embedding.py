"""What `evergreen new` writes for embeddings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from trainer.objectives.advice.base import AdvisedValue, ModelKind, NewRecipeAdvice, ObjectiveFit, SeenColumns, UpTo
from trainer.objectives.bases.rows import Row

_GRADES: Final = ("grade", "relevance", "relevant")
"""Usual names of a column that says how relevant a text is to its anchor."""
_MOST_LISTED: Final = 4
"""Negatives of a list that are proposed: a step takes time for each."""


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

    def found_options(self, columns: Mapping[str, str], rows: Sequence[Row]) -> dict[str, AdvisedValue]:
        found = dict[str, AdvisedValue]()
        lists = [row.get(columns.get("rejected", "")) for row in rows]
        if sizes := Counter(len(one) for one in lists if isinstance(one, list) and one):
            size, number = sizes.most_common(1)[0]
            found["listed_negatives"] = AdvisedValue(min(size, _MOST_LISTED), f"{number:,} of these lists hold {size}")
        if not rows or not {*columns} <= {"prompt", "completion", "rejected"}:
            return found
        for name in {*rows[0]} - {*columns.values()}:
            if name.lower() in _GRADES and _has_grades(row.get(name) for row in rows):
                found["grade_column"] = AdvisedValue(name, "how relevant it is; rows with 0 are set aside")
        return found

    def best_metric(self, labels: Mapping[str, int]) -> AdvisedValue:
        return AdvisedValue("ndcg_at_10", "how high relevant texts are ranked among all of the validation rows")


def _has_grades(values: Iterable[Any]) -> bool:
    """Whether values are several numbers, not all of them 0."""
    different = {*values}
    numbers = [one for one in different if isinstance(one, int | float)]
    return len(numbers) == len(different) > 1 and max(numbers) > 0
