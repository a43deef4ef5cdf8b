"""Packing: several examples in one sequence, none of which attends to another.

`pack` fills sequences with whole examples and records their `lengths`. `packed_batch` makes `position_ids` that start again
at each example, and no attention mask: from such positions transformers keeps the examples apart, in models that pass them
on to their mask. `packing_problem` checks that a model really does so.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from params.schema import Model
from trainer.objectives.bases.objective import Example
from trainer.objectives.bases.padding import IGNORE_INDEX, pad

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

OPEN = 64
"""Sequences that are filled at the same time. More of them need more memory, and leave less padding."""
_TRIAL_LENGTHS = ((5, 4), (3, 2))
"""Lengths of the examples in the two sequences that a model is checked with; the second one is padded."""
_TOLERANCE = 0.05
"""Largest difference between the logits of a packed example and of the same example alone, relative to the largest logit.
The rounding of quantized models stays below; positions that do not start again exceed it."""

_POSITIONS_IN_MASK = re.compile(r"mask\w*\((?:[^()]|\([^()]*\))*position_ids=position_ids")
"""A call in a model's code that makes a mask from positions, among other arguments."""


def pack(examples: Iterable[Example], max_length: int) -> Iterator[Example]:
    """Yield sequences of at most `max_length` tokens, with the `lengths` of their examples and the `row_id` of the first.

    By best fit: each example goes whole into the fullest open sequence that has room for it.
    """
    filling: list[Example] = []
    for example in examples:
        size = len(example["input_ids"])
        fitting = [s for s in filling if len(s["input_ids"]) + size <= max_length]
        if fitting:
            best = max(fitting, key=lambda s: len(s["input_ids"]))
        else:
            if len(filling) == OPEN:
                fullest = max(range(OPEN), key=lambda i: len(filling[i]["input_ids"]))
                yield filling.pop(fullest)
            best = {"row_id": example["row_id"], "input_ids": [], "labels": [], "lengths": []}
            filling.append(best)
        best["input_ids"] += example["input_ids"]
        # The previous example must not predict the first token of this one.
        best["labels"] += [IGNORE_INDEX, *example["labels"][1:]]
        best["lengths"].append(size)
        if len(best["input_ids"]) == max_length:
            filling = [s for s in filling if s is not best]
            yield best
    yield from filling


def packed_batch(examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
    """Return `input_ids`, `labels` and `position_ids` (B, T) of packed sequences; padding counts as one more example."""
    ids = [e["input_ids"] for e in examples]
    longest = max(map(len, ids))
    lengths = [[*e["lengths"], longest - len(e["input_ids"])] for e in examples]
    return {
        "input_ids": pad(ids, tokenizer.pad_token_id),
        "labels": pad([e["labels"] for e in examples], IGNORE_INDEX),
        "position_ids": pad([[place for size in sizes for place in range(size)] for sizes in lengths], 0),
    }


def packing_problem(model: PreTrainedModel) -> str | None:
    """Return why `model` cannot be trained on packed sequences, or None; it runs the model on a small batch."""
    import torch

    implementation = str(model.config._attn_implementation)  # noqa: SLF001 (it has no public name)
    if "flash" in implementation:
        return f"its attention {implementation} keeps examples apart in batches of one sequence only"
    was_training = model.training
    model.eval()
    try:
        batch = _trial_batch(model)
        embeddings, logits = _embeddings_and_logits(model, batch)
        if not logits.isfinite().all():
            return "what it computes of a small batch is not finite"
        for row, lengths in enumerate(_TRIAL_LENGTHS):
            start = 0
            for length in lengths:
                own = slice(start, start + length)
                start += length
                total = logits[row, own].float().square().sum()
                (gradient,) = torch.autograd.grad(total, embeddings, retain_graph=True)
                gradient[row, own] = 0.0
                if not gradient.abs().max() <= 0:
                    return "it lets a token attend to other examples of its packed sequence"
                _, alone = _embeddings_and_logits(model, {"input_ids": batch["input_ids"][row : row + 1, own]})
                difference = (logits[row, own] - alone[0]).abs().max()
                if not difference <= _TOLERANCE * alone.abs().max():
                    return "it numbers the positions of a packed sequence as if it were one example"
    except (TypeError, ValueError) as error:  # a forward pass that does not take positions, or needs more than tokens
        return f"it does not take positions that start again: {error}"
    finally:
        model.train(was_training)
    return None


def _trial_batch(model: PreTrainedModel) -> Mapping[str, torch.Tensor]:
    import torch

    longest, vocabulary = max(map(sum, _TRIAL_LENGTHS)), model.get_input_embeddings().num_embeddings
    positions = [
        [p for length in (*lengths, longest - sum(lengths)) for p in range(length)] for lengths in _TRIAL_LENGTHS
    ]
    ids = torch.arange(len(_TRIAL_LENGTHS) * longest).view(len(_TRIAL_LENGTHS), longest) * 7 % vocabulary
    return {"input_ids": ids.to(model.device), "position_ids": torch.tensor(positions, device=model.device)}


def _embeddings_and_logits(model: PreTrainedModel, batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the embeddings of a batch (B, T, H), as a leaf for gradients, and the logits computed from them."""
    import torch

    leaves: list[torch.Tensor] = []

    def make_leaf(_module: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        leaves.append(output.detach().requires_grad_())
        return leaves[-1]

    hook = model.get_input_embeddings().register_forward_hook(make_leaf)
    try:
        with torch.enable_grad():
            logits: torch.Tensor = model(**batch, use_cache=False).logits
    finally:
        hook.remove()
    return leaves[0], logits


def unsupported_model_type(model: Model) -> str | None:
    """Return the model's type if its code does not build its causal mask from positions; None if so or if unknown.

    The code is read, not imported, which would take seconds. `packing_problem` checks the model itself before training.
    """
    try:
        config = model.config or json.loads((Path(model.pretrained or "") / "config.json").read_text(encoding="utf-8"))
        name = str(config["model_type"]).replace("-", "_")
        spec = importlib.util.find_spec("transformers")
        assert spec is not None
        assert spec.origin is not None
        path = Path(spec.origin).parent / "models" / name / f"modeling_{name}.py"
        code = path.read_text(encoding="utf-8")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    uses_positions = _POSITIONS_IN_MASK.search(code) or '"position_ids": position_ids' in code
    return None if uses_positions else name
