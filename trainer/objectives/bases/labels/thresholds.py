"""The thresholds of a model for several labels per text: a label is predicted where its probability reaches its threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from trainer.objectives.bases.labels.names import match_labels
from trainer.objectives.bases.lazy_imports import NDArray, PreTrainedConfig, PreTrainedModel, np, torch

KEY: Final = "label_thresholds"
"""The key of config.json with the threshold of each label."""
USUAL: Final = 0.5
"""The threshold of a label for which none was chosen."""
_NEVER: Final = 2.0
"""The threshold of a label that a model does not know."""
_PRIOR_ROWS: Final = 10
"""So many rows of the mean label are added to those of each label: thresholds of rare ones would follow from chance."""


def names_of(config: PreTrainedConfig) -> list[str]:
    """Return the labels of a model, in the order of its logits."""
    return [str(config.id2label[number]) for number in range(config.num_labels)]


def thresholds_of(config: PreTrainedConfig, labels: Sequence[str]) -> list[float]:
    """Return the thresholds of a model for these labels; one whose base has chosen some keeps those of the same labels."""
    chosen: Mapping[str, float] = getattr(config, KEY, None) or {}
    names = list(chosen)
    return [USUAL if place is None else float(chosen[names[place]]) for place in match_labels(names, labels)]


def rearrange_labels(model: PreTrainedModel, labels: Sequence[str]) -> PreTrainedModel:
    """Return a model whose logits (B, L) are those of these labels, with its own thresholds.

    A label that it was not trained on gets the probability 0, and is never predicted. One that only it knows does not count.
    """
    if (known := names_of(model.config)) == labels:
        return model
    same, own = match_labels(known, labels), thresholds_of(model.config, known)
    chosen = [_NEVER if place is None else own[place] for place in same]
    setattr(model.config, KEY, dict(zip(labels, chosen, strict=True)))
    model.config.id2label = dict(enumerate(labels))
    places = [-1 if place is None else place for place in same]

    def rearrange(_: Any, __: Any, outputs: Any) -> Any:
        never = torch.full_like(outputs.logits[..., :1], torch.finfo(outputs.logits.dtype).min)
        outputs.logits = torch.cat([outputs.logits, never], -1)[..., places]  # the place -1 is `never`
        return outputs

    model.register_forward_hook(rearrange)
    return model


def choose_f1_thresholds(given: NDArray[np.bool_], probability: NDArray[np.float64]) -> list[float]:
    """Return the threshold with the best F1 of each of L labels over N rows; `given` and `probability` are (N, L).

    A threshold with the best F1 predicts a label that the model does not know for every row (Lipton et al. 2014,
    https://arxiv.org/abs/1402.1892), and of few rows it says little. So each label has ten rows more, which are predicted as the rows with
    any label are, and as many further ones as these are mistaken for. Of thresholds alike the one nearest to 0.5 is taken, with as few
    decimals as tell the last row that is predicted from the next one. Without any label in the rows, all are 0.5.
    """
    if not given.any():
        return [USUAL] * given.shape[1]
    every, right = np.sort(probability, None), np.sort(probability[given])
    share = _PRIOR_ROWS / len(right)
    found = []
    for own, of in zip(given.T, probability.T, strict=True):
        edges = np.unique(np.concatenate([[0.0, 1.0], of]))
        low, high = edges[:-1], edges[1:]
        middle = (low + high) / 2
        hits = _reach(middle, np.sort(of[own])) + share * _reach(middle, right)
        predicted = _reach(middle, np.sort(of)) + share * _reach(middle, every)
        f1 = 2 * hits / (predicted + own.sum() + _PRIOR_ROWS)
        best = f1 >= f1.max() - 1e-12
        found.append(_nearest(low[best], high[best]))
    return found


def _reach(thresholds: NDArray[np.float64], ascending: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how many of some probabilities reach each threshold, (M,)."""
    return (len(ascending) - np.searchsorted(ascending, thresholds)).astype(float)


def _nearest(low: NDArray[np.float64], high: NDArray[np.float64]) -> float:
    """Return a threshold above a `low` and not above its `high`, (M,) each: 0.5, or one with few decimals near it."""
    if ((low < USUAL) & (high >= USUAL)).any():
        return USUAL
    place = np.argmin(np.abs((low + high) / 2 - USUAL))
    least, most = float(low[place]), float(high[place])
    rounded = (round((least + most) / 2, digits) for digits in range(2, 17))
    return next((one for one in rounded if least < one <= most), most)
