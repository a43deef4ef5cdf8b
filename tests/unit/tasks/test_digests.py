"""The digests of a recipe and of its rows."""

from __future__ import annotations

from typing import Any

from params.foundation.artifacts import SPLITS, Artifacts
from params.schema import Model, ObjectiveChoice
from params.sections.evaluation import Evaluation, Gate
from tasks import digests


def test_recipe_digest_depends_on_each_setting() -> None:
    def digest(seed: int = 1, metric: str | None = None, **options: Any) -> str:
        return digests.evaluation_recipe_digest(
            seed=seed,
            objective=ObjectiveChoice(name="causal_lm", **options),
            model=Model(config={"model_type": "llama"}),
            evaluation=Evaluation(gate=Gate(metric=metric)),
        )

    assert digest() == digest()
    assert len({digest(), digest(seed=2), digest(metric="loss"), digest(packing=False)}) == 4


def test_data_digest_depends_on_every_split(tmp_path: Any) -> None:
    artifacts = Artifacts("tiny", tmp_path)
    for split in SPLITS:
        (artifacts.rows / split).mkdir(parents=True)
        (artifacts.rows / split / "00000.parquet").write_bytes(split.encode())
    seen = {digests.validated_rows_digest(artifacts)}
    for split in SPLITS:
        (artifacts.rows / split / "00000.parquet").write_bytes(b"other")
        seen.add(digests.validated_rows_digest(artifacts))
    assert len(seen) == 4
