"""trace: what becomes of one row in every stage, through the stages' own functions.

Stages that have not run yet are named, not guessed at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds

from params import DataError, Recipe, load
from params.artifacts import SPLITS, Artifacts
from tasks.tokenization.encoding import Encoder
from trainer import objectives
from trainer.data import tokens
from trainer.model import network
from trainer.objectives.bases.likelihood import Likelihood, logits_of
from trainer.objectives.bases.padding import IGNORE_INDEX

if TYPE_CHECKING:
    from trainer.objectives.bases.objective import Example

_SHOWN_TOKENS = 40
_SHOWN_CHARACTERS = 400


def trace(recipe_path: Path, *, row_id: int) -> None:
    """Print the way of the row `row_id` through the stages.

    Raises:
        DataError: the raw data has no such row.
    """
    recipe = load(recipe_path)
    for title, lines in steps(Artifacts(recipe_path.stem), recipe, row_id):
        print(f"\n{title}")
        for line in lines:
            print(f"  {line}")


def steps(artifacts: Artifacts, recipe: Recipe, row_id: int) -> Iterator[tuple[str, list[str]]]:
    """The title of each stage's part, and its lines."""
    split, row = _raw_row(artifacts, row_id)
    yield f"raw  ({split} split)", [f"{name}: {_short(value)}" for name, value in row.items()]

    if not artifacts.validated.exists():
        yield "checks", ["validate has not run"]
        return
    reasons = _quarantine(artifacts, row_id)
    if reasons is not None:
        yield "checks", ["set aside:", *reasons]
        return
    yield "checks", ["passed"]

    objective = objectives.build(recipe.objective)
    yield "text", _short(objective.text(row)).splitlines()

    if not artifacts.tokens.exists():
        yield "tokens", ["tokenize has not run"]
        return
    tokenizer = tokens.read_tokenizer(artifacts.tokens)
    encoder = Encoder(objective, tokenizer, recipe.tokenization.max_length, tokens.read_state(artifacts.tokens))
    examples = encoder.encode(row)
    for i, example in enumerate(examples):
        yield f"tokens  (sequence {i + 1} of {len(examples)}; * is learned)", _token_lines(encoder, example)
    batch = objective.collate(examples, tokenizer)
    yield (
        "batch",
        [
            f"{name}: {tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
            for name, value in batch.items()
            if hasattr(value, "dtype")
        ],
    )

    if not artifacts.model.exists():
        yield "loss", ["train has not run"]
        return
    import torch

    state, seed = encoder.state, recipe.seed
    objective.set_reference(
        lambda: network.untrained_model(recipe.model, objective=objective, state=state, tokenizer=tokenizer, seed=seed)
    )
    model = network.trained_model(artifacts.model, objective).eval()
    with torch.inference_mode():
        given = objective.prepare_inputs(model, batch)
        if isinstance(objective, Likelihood):
            for i, losses in enumerate(objective.losses(logits_of(model, given), batch["labels"])):
                yield f"loss  (sequence {i + 1}, in nats)", _loss_lines(encoder, examples[i], losses)
        scores = objective.score_batch(model, given, tokenizer)
        answer = objective.prediction_lines(row, model, tokenizer, encoder.max_length, state)
    for row_scores in scores.tolist():
        yield "score", [f"{name}: {value:.6g}" for name, value in zip(objective.score_names, row_scores, strict=True)]
    if answer:
        yield "answer  (of the model)", answer


def _raw_row(artifacts: Artifacts, row_id: int) -> tuple[str, dict[str, Any]]:
    count = 0
    for split in SPLITS:
        path = artifacts.raw / f"{split}.parquet"
        if not path.exists():
            raise DataError(str(path), "there is no raw data", "run `evergreen ingest` for this recipe first")
        data = ds.dataset(path)
        found = data.to_table(filter=ds.field("row_id") == row_id).to_pylist()
        if found:
            return split, found[0]
        count += data.count_rows()
    raise DataError(str(artifacts.raw), f"there is no row {row_id}", f"row ids go from 0 to {count - 1}")


def _quarantine(artifacts: Artifacts, row_id: int) -> list[str] | None:
    data = ds.dataset(artifacts.validated / "quarantine.parquet")
    found = data.to_table(filter=ds.field("row_id") == row_id).to_pylist()
    return list(found[0]["reasons"]) if found else None


def _token_lines(encoder: Encoder, example: Example) -> list[str]:
    ids, labels, names = example["input_ids"], example["labels"], encoder.state.get("labels")
    if encoder.objective.has_target_text:
        return [*_numbered(encoder, ids, " "), "to be written:", *_numbered(encoder, labels, "*")]
    if not isinstance(labels, list):
        named = f" ({names[labels]})" if names else ""
        return [*_numbered(encoder, ids, " "), f"label {labels}{named}, learned once for the sequence"]
    marks = ["*" if label != IGNORE_INDEX else " " for label in labels]
    if names:
        marks = [f"* {names[label]}" if label != IGNORE_INDEX else "" for label in labels]
    widest = max(map(len, marks))
    return _numbered(encoder, ids, *(mark.ljust(widest) for mark in marks))


def _numbered(encoder: Encoder, ids: Sequence[int], *marks: str) -> list[str]:
    """The first tokens of a sequence, each with its mark, or all with the same one."""
    lines = [
        f"{i:4d} {token_id:7d} {marks[i % len(marks)]} {encoder.tokenizer.decode([token_id])!r}"
        for i, token_id in enumerate(ids[:_SHOWN_TOKENS])
    ]
    return [*lines, f"... {len(ids) - _SHOWN_TOKENS} more"] if len(ids) > _SHOWN_TOKENS else lines


def _loss_lines(encoder: Encoder, example: Example, losses: Any) -> list[str]:
    if losses.dim() == 0:
        return [f"{float(losses):.4f}"]
    learned = example["labels"] if encoder.objective.has_target_text else example["input_ids"]
    pairs = [
        (value, token_id) for value, token_id in zip(losses.tolist(), learned, strict=False) if not math.isnan(value)
    ]
    lines = [f"{value:9.4f} {encoder.tokenizer.decode([token_id])!r}" for value, token_id in pairs[:_SHOWN_TOKENS]]
    if len(pairs) > _SHOWN_TOKENS:
        lines.append(f"... {len(pairs) - _SHOWN_TOKENS} more")
    return lines


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}... ({len(text)} characters)"
