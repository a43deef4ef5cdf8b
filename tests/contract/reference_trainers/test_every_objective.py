"""Every objective trains beside a trainer of the field."""

from __future__ import annotations

from tests.contract.reference_trainers import (
    test_labels,
    test_next_tokens,
    test_own_completions,
    test_preferences,
    test_two_texts,
)
from trainer import objectives

MODULES = (test_labels, test_next_tokens, test_own_completions, test_preferences, test_two_texts)


def test_every_objective_has_a_case() -> None:
    found = {case.objective["name"] for module in MODULES for case in module.CASES.values()}
    assert found == {*objectives.objective_names()}
