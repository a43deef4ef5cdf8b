"""A short form of benchmarks/drift_confidence.py: how often a model is called less sure of rows that are alike, and of others."""

from __future__ import annotations

import numpy as np

from benchmarks.drift_confidence import Confidences, Trial, cell

RUNS = 200
ALLOWED = 0.005 + 3 * (0.005 * 0.995 / RUNS) ** 0.5
RANDOM = np.random.default_rng(0)
MODELS = [Confidences(list(RANDOM.beta(5, 2, 2500)), {"a new intent": list(RANDOM.beta(2, 5, 100))})]


def test_model_is_rarely_called_less_sure_of_rows_that_are_alike() -> None:
    found = cell(Trial("like the held-out rows", 100), MODELS, RUNS)
    assert found.found["0.95"] <= ALLOWED
    assert found.without_floor["0.95"] <= ALLOWED


def test_model_is_called_less_sure_of_rows_of_another_kind() -> None:
    found = cell(Trial("a new intent", 200, 0.3), MODELS, 20)
    assert found.found["0.95"] > 0.9
    assert found.mean_fall > 0.1
