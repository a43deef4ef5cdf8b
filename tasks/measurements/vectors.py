"""How far the vectors of a new model are from those of the champion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tasks.measurement import Measurement
from tasks.stages import Number, Report
from trainer.objectives.bases.lazy_imports import np

if TYPE_CHECKING:
    from tasks.evaluation.analysis import EvaluationAnalysis
    from tasks.evaluation.report import EvaluationDetails
    from tasks.evaluation.scoring import RowScores
    from trainer.objectives.bases.vectors.space import VectorSpace


class VectorSpaceChange(Report):
    """How far the vectors of the same texts are from those of the champion."""

    texts: int
    cosine: Number | None
    """Mean cosine of the two vectors of each text; None if they have other sizes."""
    rotated: Number | None
    """The same after the best rotation of one of the spaces."""

    @property
    def sentence(self) -> str:
        """What that means for whoever has an index of vectors."""
        found = f"the vectors of {self.texts:,} held-out texts have another size than those of the published model"
        if self.cosine is not None:
            found = f"the vectors of {self.texts:,} held-out texts have a mean cosine of {self.cosine:.3f} with those of the published model"
            found += f", {self.rotated:.3f} after the best rotation"
        return f"{found}; an index of vectors must be rebuilt: those of two models cannot be compared"


def measure_vector_space_change(space: VectorSpace, own: RowScores, other: RowScores) -> VectorSpaceChange:
    """Return how far the vectors of the texts of the held-out rows are from the champion's, `other`."""
    from trainer.objectives.bases.vectors.space import compare_spaces

    shared = np.intersect1d(own.row_ids, other.row_ids)
    measured = (one.measured[np.isin(one.row_ids, shared)] for one in (own, other) if one.measured is not None)
    vectors, others = map(space.vectors_of_texts, measured)
    cosine, rotated = compare_spaces(vectors, others) if vectors.shape == others.shape else (None, None)
    return VectorSpaceChange(texts=len(vectors), cosine=cosine, rotated=rotated)


class VectorFindings(Report):
    vectors: VectorSpaceChange | None = None
    """None without a champion, and for models that are not there to make vectors."""


class Vectors(Measurement[VectorFindings]):
    """Whoever has an index of vectors must know how far they have moved."""

    kind = VectorFindings
    place = 90

    def measure(self, analysis: EvaluationAnalysis, earlier: EvaluationDetails) -> VectorFindings:
        space, champion = analysis.plan.resampler.objective.vector_space, analysis.scored.get("champion")
        if space is None or champion is None:
            return VectorFindings()
        change = measure_vector_space_change(space, analysis.scored["model"].scores, champion.scores)
        return VectorFindings(vectors=change)

    def sentences(self, found: VectorFindings) -> Iterator[str]:
        if found.vectors:
            yield found.vectors.sentence

    def comparison_note(self, found: VectorFindings) -> str:
        return f"{found.vectors.sentence[0].upper()}{found.vectors.sentence[1:]}." if found.vectors else ""
