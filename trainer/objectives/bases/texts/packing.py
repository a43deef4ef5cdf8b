"""Packing: several examples in one sequence, none of which attends to another.

`pack_examples` fills sequences with whole examples and records their `lengths`. `collate_packed_batch` makes `position_ids` that start again
at each example, and no attention mask: from such positions transformers keeps the examples apart, in models that pass them
on to their mask. `find_packing_problem` checks that a model really does so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import distribution
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from params.schema import Model
from trainer.objectives.bases.lazy_imports import PreTrainedModel, torch
from trainer.objectives.bases.objective import Example
from trainer.objectives.bases.texts.padding import IGNORE_INDEX, pad_to_tensor
from trainer.objectives.bases.texts.tokenizing import Tokenizer

OPEN = 64
"""Sequences that are filled at the same time. More of them need more memory, and leave less padding."""
_TRIAL_LENGTHS = ((5, 4), (3, 2))
"""Lengths of the examples in the two sequences that a model is checked with; the second one is padded."""
_TOLERANCE = 0.05
"""Largest difference between the logits of a packed example and of the same example alone, relative to the largest logit.
The rounding of quantized models stays below; positions that do not start again exceed it."""

_POSITIONS_IN_MASK = re.compile(r"mask\w*\((?:[^()]|\([^()]*\))*position_ids=position_ids")
"""A call in a model's code that makes a mask from positions, among other arguments."""


def pack_examples(examples: Iterable[Example], max_length: int) -> Iterator[Example]:
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


def collate_packed_batch(examples: Sequence[Example], tokenizer: Tokenizer) -> dict[str, torch.Tensor]:
    """Return `input_ids`, `labels` and `position_ids` (B, T) of packed sequences; padding counts as one more example."""
    ids = [e["input_ids"] for e in examples]
    longest = max(map(len, ids))
    lengths = [[*e["lengths"], longest - len(e["input_ids"])] for e in examples]
    return {
        "input_ids": pad_to_tensor(ids, tokenizer.pad_token_id),
        "labels": pad_to_tensor([e["labels"] for e in examples], IGNORE_INDEX),
        "position_ids": pad_to_tensor([[place for size in sizes for place in range(size)] for sizes in lengths], 0),
    }


def find_packing_problem(model: PreTrainedModel) -> str | None:
    """Return why `model` cannot be trained on packed sequences, or None; it runs the model on a small batch."""
    implementation = str(model.config._attn_implementation)  # noqa: SLF001 (it has no public name)
    if "flash" in implementation:
        return f"its attention {implementation} keeps examples apart in batches of one sequence only"

    def logits_of(embeddings: torch.Tensor, **positions: torch.Tensor) -> Any:
        return model(inputs_embeds=embeddings, use_cache=False, **positions).logits

    longest, embed = max(map(sum, _TRIAL_LENGTHS)), model.get_input_embeddings()
    ids = torch.arange(len(_TRIAL_LENGTHS) * longest).view(-1, longest) * 7 % len(embed.weight)
    lengths = [(*some, longest - sum(some)) for some in _TRIAL_LENGTHS]
    positions = torch.tensor([[place for size in sizes for place in range(size)] for sizes in lengths])
    was_training = model.training
    model.eval()
    try:
        with torch.enable_grad():
            embeddings = embed(ids.to(model.device)).detach().requires_grad_()  # (B, T, H)
            logits = logits_of(embeddings, position_ids=positions.to(model.device))
        if not logits.isfinite().all():
            return "what it computes of a small batch is not finite"
        for row, sizes in enumerate(_TRIAL_LENGTHS):
            for start, end in pairwise(accumulate(sizes, initial=0)):
                (gradient,) = torch.autograd.grad(
                    logits[row, start:end].float().square().sum(), embeddings, retain_graph=True
                )
                gradient[row, start:end] = 0.0
                if not gradient.abs().max() <= 0:
                    return "it lets a token attend to other examples of its packed sequence"
                with torch.no_grad():
                    alone = logits_of(embeddings[row : row + 1, start:end])[0]
                    difference = (logits[row, start:end] - alone).abs().max()
                if not difference <= _TOLERANCE * alone.abs().max():
                    return "it numbers the positions of a packed sequence as if it were one example"
    except (TypeError, ValueError) as error:  # a forward pass that does not take positions, or needs more than tokens
        return f"it does not take positions that start again: {error}"
    finally:
        model.train(was_training)
    return None


def model_type_unfit_for_packing(model: Model) -> str | None:
    """Return the model's type if its code does not build its causal mask from positions; None if so or if unknown.

    The code is read, not imported, which would take seconds. `find_packing_problem` checks the model itself before training.
    """
    try:
        config = model.config or json.loads((Path(model.pretrained or "") / "config.json").read_text(encoding="utf-8"))
        name = str(config["model_type"]).replace("-", "_")
        path = distribution("transformers").locate_file(f"transformers/models/{name}/modeling_{name}.py")
        code = Path(str(path)).read_text(encoding="utf-8")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    uses_positions = _POSITIONS_IN_MASK.search(code) or '"position_ids": position_ids' in code
    return None if uses_positions else name
