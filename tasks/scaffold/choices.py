"""What a specialist would choose, and why: each function returns a value with its reason, which the recipe has as a comment.

What depends on the objective is its `NewRecipeAdvice`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from params import RecipeError
from params.schema import Lora
from params.sections.evaluation import Gate
from tasks.evaluation.report import min_interval_observations
from tasks.report.formatting import format_large_number
from tasks.scaffold.look import RowSample
from tasks.scaffold.model_facts import ModelFacts
from tasks.scaffold.proposal import ObjectiveProposal
from tasks.shards.times import NO_TIME, time_of_value
from trainer.objectives.advice.base import AdvisedValue, ModelKind, UpTo
from trainer.objectives.bases.lazy_imports import torch

UNASKED_QUARANTINE: Final = 0.05
"""The largest share of rows that is set aside without asking."""
EVALUATIONS: Final = 20
"""How often a run evaluates on the validation split."""
COVERED: Final = 0.995
"""Share of the rows that must fit into `max_length`."""
_NEW_EPOCHS: Final = ((1e6, 10), (30e6, 3), (math.inf, 1))
"""Passes of a model from random weights: for up to so many tokens, so many."""
_VOCABULARIES: Final = ((300_000, 1_000), (5_000_000, 2_000), (30_000_000, 4_096), (math.inf, 8_192))
"""Sizes of a tokenizer's vocabulary: for up to so many characters, so many tokens."""
_MICRO_TOKENS: Final = {"cpu": 8_192, "gpu": 32_768}
"""Most tokens of a micro-batch, padding included."""
_BYTES_PER_PARAMETER: Final = 16
"""Weight, gradient and the two moments of Adam, in fp32."""
_STEP_PASSES: Final = 3
"""The time that a training step takes, in forward passes of its sequences: a backward pass takes two."""
_MEMORY_SHARE: Final = 0.5
"""Share of the memory that these may take; activations and the system need the rest."""


def choose_learning_rate(
    proposal: ObjectiveProposal, parameters: int | None, batch: int, *, lora: bool
) -> AdvisedValue:
    """Return the peak learning rate; `parameters` is None for a model from random weights."""
    advice = proposal.advice
    if parameters is None:
        return AdvisedValue(advice.new_rate, "usual for a small model from random weights")
    if lora:
        return AdvisedValue(advice.lora_rate, "usual for adapters, which take a larger one than all weights")
    why = f"usual for {proposal.objective} with a pretrained model of this size; a larger model takes a smaller one"
    rate = _up_to_size(advice.rates, parameters)
    if batch < advice.batch:  # the square root is that of Malladi et al. 2022 (https://arxiv.org/abs/2205.10782)
        why = f"{rate:g}, usual for a model of this size, is for batches of {advice.batch}: a smaller batch takes a smaller one"
        rate = float(f"{rate * math.sqrt(batch / advice.batch):.1e}")
    return AdvisedValue(rate, why)


def reason_to_use_lora(parameters: int, memory_bytes: float) -> str | None:
    """Return why only adapters are trained: all weights would not fit into the memory of this machine; None if they fit."""
    needed, there = parameters * _BYTES_PER_PARAMETER, memory_bytes / 2**30
    if needed <= _MEMORY_SHARE * memory_bytes:
        return None
    return f"training all weights would take {needed / 2**30:.0f} GiB beside activations, and there are {there:.0f} GiB here"


def has_gpu() -> bool:
    return bool(torch.cuda.is_available())


def device_memory_bytes() -> float:
    import psutil

    return float(torch.cuda.get_device_properties(0).total_memory if has_gpu() else psutil.virtual_memory().total)


def choose_precision() -> AdvisedValue:
    """Return the number format of the passes."""
    if has_gpu() and torch.cuda.is_bf16_supported():
        return AdvisedValue("bf16", "on a GPU about twice as fast as fp32")
    without = "there is no GPU here: on one that has it, bf16 is about twice as fast"
    return AdvisedValue("fp32", "the GPU here has no bf16" if has_gpu() else without)


def choose_split_shares(rows: int, *, has_validation: bool, has_test: bool) -> dict[str, AdvisedValue]:
    """Return the shares of the training rows for the splits that have no files."""
    shares = {}
    if not has_validation:
        share = 0.1 if rows < 2_000 else 0.05 if rows < 50_000 else 0.02 if rows < 500_000 else 0.005
        shares["validation"] = AdvisedValue(share, f"about {rows * share:,.0f} rows choose the best checkpoint")
    if not has_test:
        share = 0.2 if rows < 2_000 else 0.1 if rows < 20_000 else 0.05 if rows < 200_000 else 0.02
        shares["test"] = AdvisedValue(share, f"about {rows * share:,.0f} rows decide whether a model is published")
    return shares


def choose_gate_metric(best: AdvisedValue, labels: Mapping[str, int], test_rows: int) -> AdvisedValue:
    """Return the metric of labels by which a new model must be better: `best`, or the loss if `best` could show that of no model.

    A model without mistakes and one that knows only the most frequent label differ on the rows of the other labels. As many of these
    must be there as an interval needs observations: with fewer, it contains 0 whatever the model does.
    """
    least, whole = _least_test_rows(), sum(labels.values())
    others = whole - max(labels.values())
    if (found := round(test_rows * others / whole)) >= least:
        return AdvisedValue(best.value, "a new model must be better by more than chance")
    why = f"by {best.value}, not even a model without mistakes could pass: of about {test_rows:,} test rows, {found} have another label"
    return AdvisedValue(
        "loss", f"{why} than the most frequent one; with {-(-least * whole // others):,} test rows it could"
    )


def estimate_rows(split: str, sample: RowSample, shares: Mapping[str, AdvisedValue]) -> int:
    """Return about how many rows a held-out split has; `shares` are those of the splits that have no files."""
    return sample.estimated(split) or round(sample.estimated("train") * shares[split].value)


def propose_time_split(sample: RowSample, shares: Mapping[str, AdvisedValue]) -> list[str]:
    """Return a remark with the keys that hold out the newest tenth of the rows; none without a column of times."""
    for column in sample.columns.values() if len(shares) > 1 else ():
        times = [time for value in column.filled if (time := time_of_value(value)) != NO_TIME]
        hours = (max(times) - min(times)) / 3.6e9 if times else 0.0
        is_time = column.is_place_or_time and (column.names_rows or not column.is_numeric)
        if is_time and hours >= 24 and 10 * len(times) >= 9 * len(column.filled):
            span = f"{hours / 480:.0f}d" if hours >= 480 else f"{hours / 20:.0f}h"
            keys = f"`time_column: {json.dumps(column.name)}`, `split: {{by: time, test: {span}, validation: {span}}}`"
            return [f"the column {column.name} says when a row came; {keys} would hold out the newest rows instead"]
    return []


def find_few_test_rows(sample: RowSample, shares: Mapping[str, AdvisedValue]) -> list[str]:
    """Return a remark if there may be so few test rows that the gate can compare no models on them.

    A row's hash decides its split, so a split of n rows of which each is a test row with probability p has about n p of them, with a
    standard deviation of sqrt(n p (1 - p)); two of these are left for chance.
    """
    share, least = shares["test"].value if "test" in shares else 1.0, _least_test_rows()
    found = sample.estimated("test") or sample.estimated("train") * share
    chance = math.sqrt(1 - share)
    if math.sqrt(found) * (math.sqrt(found) - 2 * chance) >= least:
        return []
    more = f"; give {math.ceil((chance + math.sqrt(1 - share + least)) ** 2 / share):,} rows" if share < 1 else ""
    about = "about " if share < 1 else ""
    why = f"{about}{found:.0f} test rows may not show that a model is better, and then none would be published"
    return [f"{why}: at least {least} can{more}"]


def _least_test_rows() -> int:
    return min_interval_observations(Gate().comparison_confidence)


def choose_max_length(lengths: Sequence[int], positions: int | None, longer: str = "are cut") -> AdvisedValue:
    """Return the length that covers the rows, a multiple of 8, and never more than the model's positions.

    It covers all rows if the longest is at most half as long again as nearly all others. Others are `longer`.
    """
    ordered = sorted(lengths)
    covering = ordered[min(len(ordered) - 1, math.ceil(COVERED * len(ordered)) - 1)]
    nearly, longest = (max(16, 8 * math.ceil(length / 8)) for length in (covering, ordered[-1]))
    wanted = longest if longest <= 1.5 * nearly else nearly
    chosen = min(wanted, positions) if positions else wanted
    rest, mean = sum(length > chosen for length in ordered), sum(ordered) / len(ordered)
    why = f"covers {_percent(1 - rest / len(ordered))} of the rows; the longest has {ordered[-1]} tokens, the mean is {mean:.0f}"
    if rest:
        why += f"; {rest:,} of {len(ordered):,} {longer}"
    if chosen < wanted:
        why += f"; the model has no more than {positions} positions"
    return AdvisedValue(chosen, why)


def choose_packed_sequence_length(total_tokens: float, positions: int | None, *, is_new: bool) -> AdvisedValue:
    """Return the length of packed sequences of running text."""
    wanted = 128 if is_new and total_tokens < 5e6 else 256 if is_new else 1024
    chosen = min(wanted, positions) if positions else wanted
    return AdvisedValue(chosen, "texts are joined and cut into sequences of this length: longer ones need more memory")


def choose_vocabulary_size(characters: int) -> AdvisedValue:
    """Return the size of a tokenizer's vocabulary that is trained on the rows."""
    size = _up_to_size(_VOCABULARIES, characters)
    return AdvisedValue(
        size, f"for about {format_large_number(characters)} characters: each token needs enough places to be learned"
    )


def choose_global_batch_size(proposal: ObjectiveProposal, sequences: int) -> AdvisedValue:
    """Return the sequences of an optimizer step: the usual number, or fewer where an epoch would have under 50 steps."""
    usual = proposal.advice.batch
    fitting, least = 2 ** int(math.log2(max(1, sequences / 50))), proposal.advice.least_batch
    if fitting <= least > 2:
        return AdvisedValue(max(2, min(least, sequences)), "the fewest whose rows can be told from each other")
    if fitting >= usual:
        return AdvisedValue(usual, f"usual for {proposal.objective}")
    why = "so that an epoch of {:,} sequences has at least 50 steps" if fitting > 1 else "an epoch has {:,} sequences"
    return AdvisedValue(max(2, fitting), why.format(sequences))


def choose_micro_batch_size(batch: int, length: int, device: str) -> AdvisedValue:
    """Return the most sequences of one forward pass, so that their tokens fit into memory."""
    limit = _MICRO_TOKENS[device]
    size = min(batch, 2 ** int(math.log2(max(1, limit / length))))
    why = f"at most {limit:,} tokens in one forward pass" if length <= limit else "a sequence fills a forward pass"
    why = "one forward pass for each step" if size == batch else why
    return AdvisedValue(size, why)


def choose_epochs(proposal: ObjectiveProposal, rows: int, tokens: float, *, is_new: bool) -> AdvisedValue:
    """Return the passes over the training rows."""
    if is_new:
        why = f"for {format_large_number(tokens)} tokens from random weights; the best checkpoint is kept"
        return AdvisedValue(_up_to_size(_NEW_EPOCHS, tokens), why)
    why = f"usual for {rows:,} rows; the best checkpoint is kept, so more does no harm but takes time"
    return AdvisedValue(_up_to_size(proposal.advice.epochs, rows), why)


def choose_eval_steps(steps: int, epochs: float, batch: int, evaluated: int) -> AdvisedValue:
    """Return the steps between evaluations: a round number, about `EVALUATIONS` of them in a run.

    There are fewer, down to one in each epoch, if an evaluation of so many sequences would take longer than the steps before it.
    """
    as_long = evaluated / (_STEP_PASSES * batch)
    every = round_to_readable_number(max(steps / EVALUATIONS, min(as_long, steps / epochs)))
    why = f"about {max(1, steps // every)} evaluations in {steps:,} steps"
    if as_long > steps / EVALUATIONS:
        why += f": each takes about as long as {as_long:.0f} steps, for {evaluated:,} sequences"
    return AdvisedValue(every, why)


def choose_max_quarantined(share: float, allowed: float | None) -> AdvisedValue:
    """Return the largest share of rows that may be set aside: twice that of the sample, and at least 1 %; more than 5 % if allowed."""
    if allowed is not None:
        return AdvisedValue(allowed, f"as --max-quarantined says; {_percent(share)} of the sample")
    most = 0.9 if share > UNASKED_QUARANTINE else UNASKED_QUARANTINE
    value = min(max(0.01, math.ceil(200 * share) / 100), most)
    found = f"{_percent(share)} of the sample" if share else "none in the sample"
    return AdvisedValue(value, f"{found}; a night with more bad rows than this fails")


def _up_to_size(values: UpTo, size: float) -> float:
    return next(value for limit, value in values if size <= limit)


def round_to_readable_number(number: float) -> int:
    """Return a round number close to another: 59.2 becomes 60, and 7 becomes 5."""
    if number < 10:
        return min((1, 2, 5, 10), key=lambda rounded: abs(rounded - number))
    unit = 10 if number < 200 else 50 if number < 1000 else 100
    return unit * max(1, round(number / unit))


def _percent(share: float) -> str:
    """Return a share for people, never rounded to all or nothing."""
    return f"{100 * share:.0f} %" if share in (0.0, 1.0) else f"{min(max(100 * share, 0.1), 99.9):.1f} %"


_WIDTHS: Final = {"hidden_size": 192, "intermediate_size": 512}
_NEW_MODELS: Final[Mapping[ModelKind, Mapping[str, Any]]] = {
    "decoder": {"model_type": "llama", **_WIDTHS, "num_hidden_layers": 4, "num_attention_heads": 6}
    | {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "encoder": {"model_type": "bert", **_WIDTHS, "num_hidden_layers": 3, "num_attention_heads": 6},
    "encoder-decoder": {"model_type": "t5", "d_model": 192, "d_kv": 32, "d_ff": 512, "num_layers": 3, "num_heads": 6},
}
Keys = Mapping[str, Any]
"""Keys of a recipe with a `AdvisedValue`, a plain value or further keys each; a key that begins with `#` is a comment."""


def choose_model_keys(proposal: ObjectiveProposal, facts: ModelFacts | None) -> Keys:
    """Return the section `model` of a recipe; of a model from random weights, `facts` are None."""
    if facts is None:
        if proposal.advice.needs_pretrained:
            fix = "give one that can already answer, for example the folder runs/NAME/model of another recipe"
            raise RecipeError("--model", f"{proposal.objective} needs a model to start from", fix)
        why = "# random weights; for better results give a pretrained model (`pretrained`), and its tokenizer"
        return {why: "", "config": _NEW_MODELS[proposal.advice.models[0]]}
    keys: dict[str, Any] = {"pretrained": AdvisedValue(facts.path, f"{facts.model_type}, {facts.size} parameters")}
    if facts.revision:
        keys["revision"] = AdvisedValue(facts.revision, "the commit of today")
    if reason := reason_to_use_lora(facts.parameters, device_memory_bytes()):
        keys[f"# Adapters instead of all weights: {reason}."] = ""
        keys["lora"] = {"r": AdvisedValue(Lora().r, "rank"), "alpha": AdvisedValue(Lora().alpha, "twice the rank")}
    return keys
