"""Several examples in one sequence, none of which sees another.

`pack` fills sequences without cutting an example; each carries the `lengths` of what is in it. `packed_batch` makes
positions of them that begin again with each example, and gives no attention mask: from such positions transformers keeps
the examples apart, for the models that pass them on to their mask. Which ones do is not taken on trust: `refused` asks the
model itself whether anything flows from one example into another.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from params.schema import Model
from trainer.objectives.bases.likelihood import IGNORED, pad
from trainer.objectives.bases.objective import Example

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

OPEN = 64
"""Sequences that are filled at the same time: what bounds memory, and what decides how full they get."""
_TRIED = ((5, 4), (3, 2))
"""Lengths of the examples in the two sequences that a model is tried with; the second one is padded."""
_CLOSE = 0.05
"""How far logits of a packed example may be from those of the example alone, as a share of the largest: rounding of
quantized models is below, a position that went on counting above."""

_POSITIONS_IN_MASK = re.compile(r"mask\w*\((?:[^()]|\([^()]*\))*position_ids=position_ids")
"""A call in a model's code that makes a mask, positions among its arguments."""


def pack(examples: Iterable[Example], max_length: int) -> Iterator[Example]:
    """Best fit: each example goes into the fullest of the open sequences that has room for it, whole.

    Args:
        examples: with `row_id`, `input_ids` and `labels`, of at most `max_length` tokens.
        max_length: tokens of a sequence.

    Yields:
        Sequences with the `lengths` of their examples, and the `row_id` of the first.
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
        best["labels"] += [IGNORED, *example["labels"][1:]]  # the example before must not predict its first token
        best["lengths"].append(size)
        if len(best["input_ids"]) == max_length:
            filling = [s for s in filling if s is not best]
            yield best
    yield from filling


def packed_batch(examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
    """`input_ids`, `labels` and `position_ids` (B, T) of packed sequences; padding counts as one more example."""
    ids = [e["input_ids"] for e in examples]
    longest = max(map(len, ids))
    lengths = [[*e["lengths"], longest - len(e["input_ids"])] for e in examples]
    return {
        "input_ids": pad(ids, tokenizer.pad_token_id),
        "labels": pad([e["labels"] for e in examples], IGNORED),
        "position_ids": pad([[place for size in sizes for place in range(size)] for sizes in lengths], 0),
    }


def refused(model: PreTrainedModel) -> str | None:
    """Why `model` must not be given packed sequences: it lets one example see another, or counts positions through."""
    import torch

    implementation = str(model.config._attn_implementation)  # noqa: SLF001 (it has no public name)
    if "flash" in implementation:
        return f"its attention {implementation} keeps examples apart in batches of one sequence only"
    was_training = model.training
    model.eval()
    try:
        batch = _trial(model)
        seen, logits = _embeddings_and_logits(model, batch)
        for row, lengths in enumerate(_TRIED):
            start = 0
            for length in lengths:
                own = slice(start, start + length)
                start += length
                reached = torch.autograd.grad(logits[row, own].float().square().sum(), seen, retain_graph=True)[0]
                reached[row, own] = 0.0
                if reached.abs().max() > 0:
                    return "it lets a token see the examples that stand before its own in a packed sequence"
                _, alone = _embeddings_and_logits(model, {"input_ids": batch["input_ids"][row : row + 1, own]})
                apart = (logits[row, own] - alone[0]).abs().max()
                if apart > _CLOSE * alone.abs().max():
                    return "it counts the positions of a packed sequence through, as if it were one example"
    except (TypeError, ValueError) as error:  # a forward pass that does not take positions, or wants more than tokens
        return f"it cannot be given positions that begin again: {error}"
    finally:
        model.train(was_training)
    return None


def _trial(model: PreTrainedModel) -> Mapping[str, torch.Tensor]:
    import torch

    longest, vocabulary = max(map(sum, _TRIED)), model.get_input_embeddings().num_embeddings
    positions = [[p for length in (*lengths, longest - sum(lengths)) for p in range(length)] for lengths in _TRIED]
    ids = torch.arange(len(_TRIED) * longest).view(len(_TRIED), longest) * 7 % vocabulary
    return {"input_ids": ids.to(model.device), "position_ids": torch.tensor(positions, device=model.device)}


def _embeddings_and_logits(model: PreTrainedModel, batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """What the model's layers get (B, T, H), as a leaf that gradients can be asked for, and what they make of it."""
    import torch

    seen: list[torch.Tensor] = []

    def remember(_module: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        seen.append(output.detach().requires_grad_())
        return seen[-1]

    hook = model.get_input_embeddings().register_forward_hook(remember)
    try:
        with torch.enable_grad():
            logits: torch.Tensor = model(**batch, use_cache=False).logits
    finally:
        hook.remove()
    return seen[0], logits


def unfit_type(model: Model) -> str | None:
    """The type of a model whose code gives no positions to its causal mask; None also where that cannot be told.

    The code is read and not imported, which would take seconds; the model itself is asked before it is trained.
    """
    try:
        config = model.config or json.loads((Path(model.pretrained or "") / "config.json").read_text(encoding="utf-8"))
        name = str(config["model_type"]).replace("-", "_")
        found = importlib.util.find_spec("transformers")
        assert found is not None
        assert found.origin is not None
        path = Path(found.origin).parent / "models" / name / f"modeling_{name}.py"
        code = path.read_text(encoding="utf-8")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    knows = _POSITIONS_IN_MASK.search(code) or '"position_ids": position_ids' in code
    return None if knows else name
