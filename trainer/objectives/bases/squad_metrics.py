"""Exact match and F1 of an answer to a question, as the script of SQuAD 2.0 computes them.

The script: https://worksheets.codalab.org/rest/bundles/0x6b567e1cf2e041ec80d7098f031c5c9e/contents/blob/ (Rajpurkar et al. 2018,
https://arxiv.org/abs/1806.03822). It gives percent; here, a metric is a share from 0 to 1.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Return a text in lower case, without punctuation, articles and repeated white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def score_answer(answer: str, golds: Sequence[str]) -> tuple[float, float]:
    """Return exact match and F1 of an answer, the best over all correct answers; empty texts stand for no answer."""
    known = [gold for gold in golds if normalize_answer(gold)] or [""]
    return max(_exact(answer, gold) for gold in known), max(_f1(answer, gold) for gold in known)


def _exact(answer: str, gold: str) -> float:
    return float(normalize_answer(answer) == normalize_answer(gold))


def _f1(answer: str, gold: str) -> float:
    """The harmonic mean of precision and recall of words; of texts without any, whether both are."""
    own, wanted = normalize_answer(answer).split(), normalize_answer(gold).split()
    if not own or not wanted:
        return float(own == wanted)
    same = sum((Counter(own) & Counter(wanted)).values())
    if not same:
        return 0.0
    precision, recall = same / len(own), same / len(wanted)
    return 2 * precision * recall / (precision + recall)
