"""Which labels of two models or of two spellings are the same."""

from __future__ import annotations

import pytest

from trainer.objectives.bases.labels.names import match_labels

TAGS = ["O", "B-date", "I-date", "B-who", "I-who"]
MATCHES = {
    "same": (["a", "b"], ["a", "b"], [0, 1]),
    "another order": (["c", "a", "b"], ["a", "b", "c"], [1, 2, 0]),
    "fewer and more": (["b", "z"], ["a", "b"], [None, 0]),
    "case and white space": (["POSITIVE", "not  good"], [" Not good", "positive"], [1, 0]),
    "Unicode form": (["e\u0301te\u0301"], ["\xe9t\xe9"], [0]),
    "exact before alike": (["A", "a"], ["a", "b"], [1, None]),
    "which of two is not known": (["A", "\uff21"], ["a"], [None]),
    "for which of two is not known": (["A"], ["a", "\uff41"], [None, None]),
    "one of two is exact": (["a"], ["A", "a"], [None, 0]),
    "other tags": (["B-who", "I-who", "O"], TAGS, [2, None, None, 0, 1]),
    "IO": (["O", "date", "who"], TAGS, [0, None, 1, None, 2]),
    "BILOU": (["U-who", "L-who", "I-who", "B-who", "O"], TAGS, [4, None, None, 3, 2]),
    "begins and ends only": (["U-who", "E-who", "O"], TAGS, [2, None, None, 0, 1]),
    "numbers of labels without names": (["LABEL_0", "LABEL_1", "LABEL_2"], ["2", "0", "1"], [2, 0, 1]),
    "fewer numbers": (["LABEL_0", "LABEL_1", "LABEL_2"], ["0", "1"], [None, None]),
    "numbers from 1 on": (["LABEL_0", "LABEL_1"], ["1", "2"], [None, None]),
    "classes are no tags": (["date"], ["B-date", "I-date"], [None, None]),
}


@pytest.mark.parametrize(("known", "wanted", "places"), MATCHES.values(), ids=MATCHES)
def test_labels_are_matched_by_name(known, wanted, places):
    assert match_labels(known, wanted) == places
