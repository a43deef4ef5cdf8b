"""Numbers as a model learns them, less their mean and divided by their standard deviation, and as it answers them, in their units.

An optimizer moves all weights by steps of a size, whether the numbers are prices or shares, so what the head learns is standardized. While
a model learns, its configuration has the mean and the deviation, and a hook puts its logits into units. `restore_units` puts both into the
weights of the head at the end: whoever loads a release by transformers gets logits in units. A head without a bias, such as that of a
Llama, cannot hold the mean, so there only the deviation is divided out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from params import ModelError, RecipeError
from trainer.objectives.bases.lazy_imports import NDArray, PreTrainedModel, np, torch, transformers
from trainer.objectives.bases.network.output_layer import OutputLayer, find_output_layer

_KEYS: Final = ("target_mean", "target_std")
"""Keys of the configuration of a model that learns standardized numbers: one value for each of its T outputs."""
_FARTHEST: Final = 10.0
"""So many deviations may the mean be from 0 if the head has no bias."""
_ROUNDING: Final = 2.0**-48
"""The deviation that equal numbers may have beside their mean, by rounding."""
FINEST: Final = 2.0**-17
"""The least deviation beside the mean: a model answers in single precision, which has 24 bits, so it would answer in steps of 1/100 of it."""
_COARSEST: Final = 2.0**-4
"""The largest step of answers in 16 bits, in deviations: rounding to it moves a number by 1/50 of a deviation on average."""
_RANGE: Final = 10.0
"""So many deviations from the mean may an answer be."""
_ADAPTER_PREFIX: Final = "base_model.model."


class Moments(NamedTuple):
    """Number of rows, and for each of T numbers the mean and the sum of squared distances from it."""

    rows: int
    means: list[float]
    squares: list[float]


def measure_moments(values: NDArray[np.float64]) -> Moments:
    """Return the moments of N rows of T numbers, (N, T)."""
    with np.errstate(over="ignore"):
        means = values.mean(0) if len(values) else np.zeros(values.shape[1])
        return Moments(len(values), means.tolist(), ((values - means) ** 2).sum(0).tolist())


def standardization_of(parts: Iterable[Moments]) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each number of all rows, from the moments of parts of them.

    The parts are merged as by Chan et al. 1983 (https://doi.org/10.1080/00031305.1983.10483115, equation 2.1). Both values are rounded to
    three digits of the deviation: so a few more rows rarely change them, and with them the tokens of all shards. A deviation that is only
    the rounding of equal numbers is 0.
    """
    rows, means, squares = 0, np.zeros(1), np.zeros(1)
    for one in parts:
        if one.rows:
            distance, rows = np.asarray(one.means) - means, rows + one.rows
            means = means + distance * one.rows / rows
            with np.errstate(over="ignore"):
                squares = squares + one.squares + distance**2 * one.rows * (rows - one.rows) / rows
    found = np.sqrt(squares / max(rows, 1))
    deviations = np.where(found > _ROUNDING * np.abs(means), found, 0.0).tolist()
    digits = [2 - math.floor(math.log10(std)) if 0 < std < math.inf else 17 for std in deviations]
    return [round(one, n) for one, n in zip(means.tolist(), digits, strict=True)], [
        round(one, n) for one, n in zip(deviations, digits, strict=True)
    ]


def read_standard_deviation(model: Any) -> torch.Tensor:
    """Return the deviations by which a model divides its numbers while it learns, (T,); it may be wrapped for several processes."""
    std = getattr(model, "module", model).config.target_std
    return torch.tensor(std, dtype=torch.float64, device=next(model.parameters()).device)


def standardize_head(model: PreTrainedModel, mean: Sequence[float], std: Sequence[float], new: Collection[str]) -> None:
    """Let a model learn T numbers less their mean and divided by their standard deviation, (T,) each, and answer in units.

    A head whose weights are not `new` answers in units already, and so do those rows of one that come from another head: they keep their
    answers.

    Raises:
        RecipeError: the head has no bias, and the mean is too far from 0.
    """
    config, (_, head, kept) = model.config, _find_head(model, new)
    means, deviations = (torch.tensor(values, dtype=torch.float64) for values in (mean, std))
    config.target_mean, config.target_std = means.tolist(), deviations.tolist()
    if head.bias is None:
        if (means.abs() > _FARTHEST * deviations).any():
            what = f"the head of a {config.model_type} has no bias, and the numbers are far from 0: their mean is {means.tolist()}"
            fix = f"subtract about that from them, or use a model whose head has a bias, such as a BERT; they vary by {deviations.tolist()}"
            raise RecipeError("model", what, fix)
        means = torch.zeros_like(means)
    is_kept = torch.tensor([number in kept for number in range(len(std))])
    shift, scale = torch.where(is_kept, means, 0.0), torch.where(is_kept, deviations, 1.0)
    with torch.no_grad():
        head.weight.div_(scale[:, None])
        if head.bias is not None:
            head.bias.sub_(shift).div_(scale)

    def to_units(_: Any, __: Any, outputs: Any) -> Any:
        logits = outputs.logits.double()  # of large numbers, single precision would lose the digits that are learned
        outputs.logits = logits * deviations.to(logits.device) + means.to(logits.device)
        return outputs

    model.register_forward_hook(to_units)


def restore_units(folder: Path) -> frozenset[str]:
    """Put mean and deviation into the head of a trained model, or of its adapter, in a folder with config.json; others stay as they are.

    Return the number formats, such as `bfloat16`, that are too coarse for the model's answers.

    ModelError if the files lack the weights of the head.
    """
    from safetensors.torch import load_file, save_file

    path = folder / "config.json"
    config = json.loads(path.read_bytes()) if path.exists() else {}
    if not config.keys() >= set(_KEYS):
        return frozenset()
    means, deviations = (torch.tensor(config.pop(key), dtype=torch.float64) for key in _KEYS)
    with torch.device("meta"):
        known = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        own = transformers.AutoModelForSequenceClassification.from_config(known, trust_remote_code=False)
    name, found = _find_head(own).name, False
    for file in sorted(folder.glob("*.safetensors")):
        weights = load_file(file)
        changed = dict(_in_units(weights, name, means, deviations))
        if changed:
            save_file(weights | changed, file, metadata={"format": "pt"})
        found |= bool(changed)
    if not found and not (folder / "adapter_config.json").exists():
        what = f"lacks the weights of {name}, so its numbers could not be put into units"
        raise ModelError(str(folder), what, "use a model of another architecture")
    path.write_text(json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    return frozenset(dtype for dtype in ("bfloat16", "float16") if not _can_say(means, deviations, dtype))


def _can_say(means: torch.Tensor, deviations: torch.Tensor, dtype: str) -> bool:
    """Return whether numbers of this format tell apart answers of such a mean and deviation, (T,) each, and reach as far."""
    kind = torch.finfo(getattr(torch, dtype))
    is_fine = kind.eps * means.abs() <= _COARSEST * deviations
    return bool((is_fine & (means.abs() + _RANGE * deviations < kind.max)).all())


def _in_units(
    weights: Mapping[str, torch.Tensor], head: str, means: torch.Tensor, deviations: torch.Tensor
) -> Iterable[tuple[str, torch.Tensor]]:
    for name, value in weights.items():
        own = name.removeprefix(_ADAPTER_PREFIX)
        if own == f"{head}.weight":
            yield name, (value.double() * deviations[:, None]).to(value.dtype)
        elif own == f"{head}.bias":
            yield name, (value.double() * deviations + means).to(value.dtype)


def _find_head(model: PreTrainedModel, new: Collection[str] = ()) -> OutputLayer:
    """Return the layer that gives a model's logits; ModelError if there is none that can be scaled."""
    found = find_output_layer(model, new)
    if found is None:
        what = f"a {model.config.model_type} ends in no linear layer, so its numbers cannot be put into units"
        raise ModelError("model", what, "use a model of another architecture, such as a BERT")
    return found
