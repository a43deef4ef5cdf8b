"""Everything that a recipe says, with the reasons: chosen from what the rows, the model and this machine are."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from params import DataError
from params.schema import Model, ObjectiveChoice
from tasks.scaffold import choices, start
from tasks.scaffold.look import Row, Sample
from tasks.scaffold.model_facts import ModelFacts
from tasks.scaffold.proposal import Proposal
from tasks.scaffold.quality import Quality, judge
from tasks.tokenization.encoding import Encoder
from tasks.tokenization.tokenizers import NO_LIMIT
from trainer import objectives
from trainer.objectives.bases.advice import Choice
from trainer.objectives.bases.objective import Example, Objective
from trainer.runtime.imports import hide_packages_in_block

_TRIED_ROWS: Final = 2000
"""Rows, about, that are encoded as training sees them."""
_MEASURED_ROWS: Final = 5_000
"""The most rows that are tokenized for their lengths."""
_BATCH_ROWS: Final = 500


@dataclass(frozen=True)
class Plan:
    """A recipe before it is written: a choice for each key that is not usual."""

    proposal: Proposal
    quality: Quality
    sample: Sample
    facts: ModelFacts | None
    """The pretrained model; None for one from random weights."""
    model: Model
    options: Mapping[str, Choice]
    """Options of the objective beside its columns."""
    shares: Mapping[str, Choice]
    """Shares of the splits without files."""
    values: Mapping[str, Choice]
    """The other choices, by the key of the recipe: `training.epochs`."""
    encoder: Encoder
    """Makes the training sequences."""
    example: tuple[Mapping[str, Any], list[Example]]
    """A row, and what becomes of it."""


def make_plan(proposal: Proposal, sample: Sample, facts: ModelFacts | None) -> Plan:
    """Choose everything that a recipe says.

    Raises:
        DataError: no row can be used.
        ModelError: tokenizer or model cannot be loaded or used.
    """
    model, lora = start.model_choice(proposal, facts)
    # transformers notes at its import what is installed
    unused = [] if lora.value or "transformers" in sys.modules else ["peft", "torchao"]
    with hide_packages_in_block(*unused):
        return _make_plan(proposal, sample, facts, model=model, lora=lora)


def _make_plan(proposal: Proposal, sample: Sample, facts: ModelFacts | None, *, model: Model, lora: Choice) -> Plan:
    options = proposal.advice.options(proposal.columns, has_template=bool(facts and facts.has_chat_template))
    objective = _build(proposal, options)
    quality = judge(sample, proposal, objective)
    texts = [objective.text(row) for row in quality.usable]
    tokenizer_choice = start.tokenizer_choice(facts, sum(map(len, texts)))
    tokenizer = start.load_tokenizer(tokenizer_choice.value, texts, objective)
    state = objective.collect_state(quality.usable)
    found = _lengths(quality.usable, Encoder(objective, tokenizer, NO_LIMIT, state))
    if found.targets:
        options, objective = _with_target_length(proposal, options, objective, found)
    if "packing" in options and not start.can_train(model, objective, state, tokenizer):
        options = options | {"packing": Choice(value=False, why="this model lets packed examples attend to each other")}
        objective = _build(proposal, options)
    rows, splits = sample.estimated("train"), sample.rows
    shares = choices.split_shares(rows, has_validation="validation" in splits, has_test="test" in splits)
    train_rows = round(rows * (1 - sum(share.value for share in shares.values())))
    values = {"tokenizer": tokenizer_choice, "model.lora": lora}
    values |= _values(proposal, options=options, found=found, facts=facts, train_rows=train_rows, quality=quality)
    limit = values["tokenization.max_length"].value
    tried = quality.usable[:: max(1, len(quality.usable) // _TRIED_ROWS)]
    encoder = Encoder(objective, tokenizer, limit, state)
    per_row = list(_encoded(tried, encoder))
    examples = list(objective.pack((example for row in per_row for example in row), limit))
    if not examples:
        raise DataError("the training rows", f"they give no sequence of {limit} tokens", "give more rows")
    sequences = max(1, round(train_rows * len(examples) / len(per_row)))
    values |= _training_values(
        proposal, facts, sequences=sequences, train_rows=train_rows, found=found, limit=limit, lora=lora.value
    )
    return Plan(
        proposal=proposal,
        quality=quality,
        sample=sample,
        facts=facts,
        model=model,
        options=options,
        shares=shares,
        values=values,
        encoder=encoder,
        example=_usual_row(tried, per_row, found.mean),
    )


@dataclass(frozen=True)
class _Lengths:
    """Lengths in tokens, one for each row."""

    inputs: list[int]
    targets: list[int]
    """Of second texts, such as translations; empty without them."""

    @property
    def mean(self) -> float:
        """Mean length of a row."""
        return sum(self.inputs) / len(self.inputs)


def _encoded(rows: Sequence[Row], encoder: Encoder) -> Iterator[list[Example]]:
    """Yield the training sequences of each row; none for a row that cannot be encoded."""
    lenient = replace(encoder, marks_rows=True)
    numbered = [{**row, "row_id": i} for i, row in enumerate(rows)]
    for first in range(0, len(numbered), _BATCH_ROWS):
        yield from (row.examples for row in lenient.encode(numbered[first : first + _BATCH_ROWS]))


def _lengths(rows: Sequence[Row], encoder: Encoder) -> _Lengths:
    """Return the whole lengths of the rows in tokens, special tokens included."""
    every = max(1, len(rows) // _MEASURED_ROWS)
    objective, inputs, targets = encoder.objective, [], []
    for examples in _encoded(rows[::every], replace(encoder, max_length=NO_LIMIT)):
        if not examples:
            continue
        inputs.append(sum(map(objective.length, examples)))
        if objective.has_target_text:
            targets.append(max(len(example["labels"]) for example in examples))
    return _Lengths(inputs, targets)


def _usual_row(
    rows: Sequence[Row], per_row: Sequence[list[Example]], mean: float
) -> tuple[Mapping[str, Any], list[Example]]:
    """Return the row whose length is closest to the mean, and its sequences."""
    encoded = [i for i, examples in enumerate(per_row) if examples]
    chosen = min(encoded, key=lambda i: abs(sum(len(example["input_ids"]) for example in per_row[i]) - mean))
    return rows[chosen], per_row[chosen]


def _build(proposal: Proposal, options: Mapping[str, Choice]) -> Objective[Any]:
    values = {name: choice.value for name, choice in options.items()}
    return objectives.build(ObjectiveChoice.model_validate({"name": proposal.objective, **proposal.options, **values}))


def _values(
    proposal: Proposal,
    *,
    options: Mapping[str, Choice],
    found: _Lengths,
    facts: ModelFacts | None,
    train_rows: int,
    quality: Quality,
) -> dict[str, Choice]:
    positions = facts.positions if facts else None
    if proposal.advice.reads_running_text:
        length = choices.context_length(found.mean * train_rows, positions, is_new=facts is None)
    else:
        length = choices.max_length(found.inputs, positions)
    packs = proposal.advice.reads_running_text or ("packing" in options and options["packing"].value)
    grouped = Choice(value=not packs, why="batches rows of similar length, which need less padding")
    if packs:
        grouped = Choice(value=False, why="packed sequences are full")
    return {
        "tokenization.max_length": length,
        "training.group_by_length": grouped,
        "validation.max_quarantined": choices.max_quarantined(quality.set_aside_share),
        "training.best_metric": proposal.advice.best_metric(quality.labels),
    }


def _with_target_length(
    proposal: Proposal, options: Mapping[str, Choice], objective: Objective[Any], found: _Lengths
) -> tuple[dict[str, Choice], Objective[Any]]:
    length = choices.max_length(found.targets, None)
    with_lengths = {**options, **dict.fromkeys(sorted(objective.limits), length)}
    if "max_new_tokens" in objective.options_class.model_fields:
        with_lengths["max_new_tokens"] = Choice(length.value, "as long as the targets")
    return with_lengths, _build(proposal, with_lengths)


def _training_values(
    proposal: Proposal,
    facts: ModelFacts | None,
    *,
    sequences: int,
    train_rows: int,
    found: _Lengths,
    limit: int,
    lora: bool,
) -> dict[str, Choice]:
    is_new = facts is None
    batch = choices.global_batch_size(proposal, sequences)
    epochs = choices.epochs(proposal, train_rows, found.mean * train_rows, is_new=is_new)
    steps = max(1, epochs.value * (sequences // batch.value))
    every = choices.eval_steps(steps)
    micro = choices.micro_batch_size(batch.value, limit, "gpu" if start.has_gpu() else "cpu")
    return {
        "training.epochs": epochs,
        "training.global_batch_size": batch,
        "training.learning_rate": choices.learning_rate(proposal, facts.parameters if facts else None, lora=lora),
        "training.lr_scheduler": choices.scheduler(proposal),
        "training.warmup_steps": Choice(0.1, "a tenth of all steps"),
        "training.weight_decay": choices.weight_decay(proposal, is_new=is_new),
        "training.precision": start.precision(),
        "training.eval_steps": every,
        "training.save_steps": Choice(every.value, "an interrupted run loses no more than these steps"),
        "training.logging_steps": choices.logging_steps(steps),
        "launch.micro_batch_size": micro,
        "launch.eval_batch_size": Choice(min(64, 2 * micro.value), "evaluations need no gradients"),
    }
