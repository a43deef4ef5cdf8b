"""trace: what each stage makes of one row, by the stages' own functions. Stages that have not run yet are named."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from params import DataError, Recipe
from params.foundation.artifacts import SPLITS, Artifacts
from tasks.recipes.loading import load
from tasks.shards.split_rows import SplitRows
from tasks.tokenization.encoding import RowEncoder
from trainer import objectives
from trainer.data import tokens
from trainer.data.shards import ROW_ID
from trainer.model import network
from trainer.objectives.bases.lazy_imports import torch
from trainer.objectives.bases.likelihood import Likelihood, compute_logits
from trainer.objectives.bases.rows import ColumnKind, Example
from trainer.objectives.bases.texts.padding import IGNORE_INDEX, token_column_names

_MAX_TOKENS = 40
_BEFORE_LEARNED = 3
_MAX_CHARACTERS = 400


def trace(recipe_path: Path, *, row_id: int) -> None:
    """Print what each stage makes of the row `row_id`.

    Raises:
        DataError: the raw data has no such row.
    """
    recipe = load(recipe_path)
    for title, lines in trace_sections(Artifacts(recipe_path.stem), recipe, row_id):
        print(f"\n{title}", *lines, sep="\n  ")


def trace_sections(artifacts: Artifacts, recipe: Recipe, row_id: int) -> Iterator[tuple[str, list[str]]]:
    """Yield the title and the lines of each section, in the order of the stages."""
    objective = objectives.build_objective(recipe.objective)
    split, raw = _raw_row(artifacts, row_id, objective.columns())
    yield f"raw  ({split} split)", [f"{name}: {_short(value)}" for name, value in raw.items()]

    if not artifacts.validated.exists():
        yield "checks", ["validate has not run"]
        return
    quarantine = ds.dataset(artifacts.validated / "quarantine.parquet")
    for quarantined in quarantine.to_table(filter=ds.field("row_id") == row_id).to_pylist():
        yield "checks", ["set aside:", *quarantined["reasons"]]
        return
    row = next(SplitRows(artifacts.rows / split).reading(objective.columns()).pick([row_id]), raw)
    corrected = [f"corrected: {name}: {_short(value)}" for name, value in row.items() if value != raw[name]]
    yield "checks", ["passed", *corrected]

    yield "text", _short(objective.text(row)).splitlines()

    if not artifacts.tokens.exists():
        yield "tokens", ["tokenize has not run"]
        return
    tokenizer = tokens.read_tokenizer(artifacts.tokens)
    state, seed = tokens.read_objective_state(artifacts.tokens), recipe.seed
    encoder = RowEncoder(objective, tokenizer, recipe.tokenization.max_length, state)
    (examples, _), *_ = encoder.encode([row])
    if not examples:
        what = f"the row gives no sequence: its first {encoder.max_length} tokens hold nothing to learn"
        yield "tokens", [f"{what}; if more tokens do, raise tokenization.max_length"]
        return
    for i, example in enumerate(examples, start=1):
        yield f"tokens  (sequence {i} of {len(examples)}; * has a loss)", token_lines(encoder, example)
    batch = objective.collate(examples, tokenizer)
    tensors = {name: value for name, value in batch.items() if hasattr(value, "dtype")}
    yield "batch", [f"{name}: {tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for name, t in tensors.items()]

    if not artifacts.model.exists():
        yield "loss", ["train has not run"]
        return
    objective.set_reference(
        lambda: network.build_untrained_model(
            recipe.model, objective=objective, state=state, tokenizer=tokenizer, seed=seed
        )
    )
    model = network.load_trained_model(artifacts.model, objective.model_class()).eval()
    with torch.inference_mode():
        inputs = objective.prepare_inputs(model, batch)
        if isinstance(objective, Likelihood):
            for i, losses in enumerate(objective.losses(compute_logits(model, inputs), batch["labels"])):
                yield f"loss  (sequence {i + 1}, in nats)", _loss_lines(encoder, examples[i], losses)
        scores = objective.score_batch(model, inputs, tokenizer)
        prediction = objective.prediction_lines(row, model, tokenizer, encoder.max_length, state)
    for row_scores in objective.scores_of_split(scores.double().cpu().numpy(), state).tolist():
        named = zip(objective.score_names(state), row_scores, strict=True)
        alone = "  (as if the split were this row)" if objectives.overrides_method(objective, "scores_of_split") else ""
        yield f"score{alone}", [f"{name}: {value:.6g}" for name, value in named]
    if prediction:
        yield "answer  (of the model)", prediction


def _raw_row(artifacts: Artifacts, row_id: int, kinds: Mapping[str, ColumnKind]) -> tuple[str, dict[str, Any]]:
    """Return the split and the columns of a row, as an objective reads them."""
    if not artifacts.raw.exists():
        raise DataError(str(artifacts.raw), "there is no raw data", f"run `evergreen ingest {artifacts.recipe}` first")
    splits = {split: SplitRows(artifacts.raw / split).reading(kinds) for split in SPLITS}
    for split, rows in splits.items():
        for row in rows.pick([row_id]):
            return split, row
    ids = [row[ROW_ID] for rows in splits.values() for row in rows.rows([ROW_ID])]
    fix = f"use a row_id from {min(ids)} to {max(ids)}; rows that were left out have none"
    raise DataError(str(artifacts.raw), f"there is no row {row_id}", fix)


def token_lines(encoder: RowEncoder, example: Example, most: int = _MAX_TOKENS) -> list[str]:
    """Return a line for each of the first tokens of a sequence, of those that have a loss, too, and its label."""
    ids, labels, names = example["input_ids"], example.get("labels"), encoder.state.get("labels")
    if encoder.objective.has_target_text:
        return [*_numbered(encoder, ids, most, " "), "target:", *_numbered(encoder, labels or [], most, "*")]
    if not isinstance(labels, list) or isinstance(labels[0], float):
        lines = [
            line for name in token_column_names(example) for line in ("", *_numbered(encoder, example[name], most, " "))
        ][1:]
        if labels is None:
            return lines
        if isinstance(labels, list):
            numbered = zip(names or range(len(labels)), labels, strict=True)
            return [*lines, f"label of the sequence: {', '.join(f'{name}: {value:g}' for name, value in numbered)}"]
        return [*lines, f"label of the sequence: {labels}{f' ({names[labels]})' if names else ''}"]
    marks = ["*" if label != IGNORE_INDEX else " " for label in labels]
    if names:
        marks = [f"* {names[label]}" if label != IGNORE_INDEX else "" for label in labels]
    width = max(map(len, marks))
    return _numbered(encoder, ids, most, *(mark.ljust(width) for mark in marks))


def _numbered(encoder: RowEncoder, ids: Sequence[int], most: int, *marks: str) -> list[str]:
    """Return a line for each of the first tokens with its mark, or all with the same one."""
    texts = [repr(encoder.tokenizer.decode([token_id])) for token_id in ids]
    lines = [f"{i:4d} {ids[i]:7d} {marks[i % len(marks)]} {text}" for i, text in enumerate(texts)]
    return _shortened(lines, most, learned=next((i for i, mark in enumerate(marks) if mark.strip()), 0))


def _loss_lines(encoder: RowEncoder, example: Example, losses: Any) -> list[str]:
    if losses.dim() == 0:
        return [f"{float(losses):.4f}"]
    if isinstance(example["labels"][0], float):
        names = encoder.state.get("labels") or range(len(losses))
        return [f"{loss:9.4f} {name}" for loss, name in zip(losses.tolist(), names, strict=True)]
    targets = example["input_ids"] if encoder.state.get("labels") else example["labels"]
    pairs = [(loss, token) for loss, token in zip(losses.tolist(), targets, strict=False) if not math.isnan(loss)]
    return _shortened([f"{loss:9.4f} {encoder.tokenizer.decode([token])!r}" for loss, token in pairs], _MAX_TOKENS)


def _shortened(lines: list[str], most: int, *, learned: int = 0) -> list[str]:
    """Return the first lines; if what is `learned` begins behind most of them, half of them and as many around its beginning."""
    half, begin = most // 2, learned - _BEFORE_LEARNED
    if begin > half and len(lines) > most:
        return [*lines[:half], f"... {begin - half} more", *_shortened(lines[begin:], half)]
    more = len(lines) - most
    return [*lines[:most], f"... {more} more"] if more > 0 else lines


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}... ({len(text)} characters)"
