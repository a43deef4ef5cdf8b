"""The smallest run that is real: a recipe as a mapping, and validated rows to tokenize, train and evaluate on."""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from ruamel.yaml import YAML

from params import Recipe
from params.foundation.artifacts import Artifacts
from tasks.ingestion.batches import SourceBatch
from tasks.ingestion.parquet import SourceColumn, widen_schema_in_place, write_part_shards, write_split_schema
from tasks.ingestion.parts import PART_ROWS
from tasks.recipes.loading import load
from tasks.shards.split_rows import SplitRows
from tasks.stage_inputs import StageInputsSnapshot, file_fingerprint
from tasks.tokenization.stage import tokenize
from trainer.checkpoints.sealed import ResumePosition
from trainer.data.shards import Manifest

RECIPE: dict[str, Any] = {
    "seed": 3,
    "data": {"source": {"kind": "files", "train": "data/rows.csv"}},
    "validation": {"expectations": []},
    "tokenization": {"tokenizer": {"kind": "train", "vocab_size": 300}, "max_length": 32},
    "objective": {"name": "causal_lm", "text_column": "text"},
    "model": {
        "config": {
            "model_type": "llama",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
            "attention_dropout": 0.1,
        }
    },
    "training": {
        "max_steps": 12,
        "global_batch_size": 8,
        "learning_rate": 1e-2,
        "warmup_steps": 2,
        "eval_steps": 4,
        "save_steps": 2,
        "logging_steps": 1,
    },
    "launch": {"num_processes": 1, "micro_batch_size": 4, "eval_batch_size": 16},
    "evaluation": {"split": "test", "compare_untrained": True, "gate": {"resamples": 200}},
    "publish": {"repo_id": "tests/tiny", "endpoint": "local"},
}
CLASSES = {
    "objective": {"name": "sequence_classification", "text_column": "text", "label_column": "label"},
    "model": {
        "config": {
            "model_type": "bert",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        }
    },
    "training": RECIPE["training"] | {"best_metric": "accuracy"},
}
TAGS = {
    "objective": {"name": "token_classification"},
    "model": CLASSES["model"],
    "training": RECIPE["training"] | {"best_metric": "f1"},
}
NUMBERS = {
    "objective": {
        "name": "regression",
        "text_column": "text",
        "text_pair_column": "label",
        "label_column": "number",
    },
    "model": CLASSES["model"],
    "training": RECIPE["training"],
}
LABEL_SETS = {
    "objective": {"name": "multi_label_classification"},
    "model": CLASSES["model"],
    "training": RECIPE["training"] | {"max_steps": 24, "eval_steps": 8},
}
"""For rows with `labels`, see `write_sentences`."""
TARGETS = {
    "objective": {"name": "seq2seq", "input_column": "text", "target_column": "label", "max_new_tokens": 8},
    "model": {
        "config": {"model_type": "t5", "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2},
    },
    "training": RECIPE["training"],
}
SIZES = {"train": 240, "validation": 40, "test": 40}


def recipe(changes: dict[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    """The tiny recipe, some sections replaced and some keys (`training.max_steps`) set; `...` removes a key."""
    return changed(RECIPE | sections, changes or {})


def changed(recipe: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a recipe in which some keys (`training.max_steps`) are set; `...` removes a key."""
    content = copy.deepcopy(dict(recipe))
    for path, value in changes.items():
        *parents, last = path.split(".")
        node = content
        for part in parents:
            node = node.setdefault(part, {})
        if value is ...:
            del node[last]
        else:
            node[last] = value
    return content


def write(path: Path, content: dict[str, Any]) -> Path:
    """A recipe as a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        YAML(typ="safe").dump(content, file)
    return path


def sentences(count: int, seed: int = 0) -> list[str]:
    """Texts of a few words that a small model learns quickly, and of different lengths."""
    chance = random.Random(seed)
    who, does, what = ["The cat", "A dog", "My friend", "The king"], ["sees", "likes", "hears"], ["a bird", "the rain"]
    return [
        f"{chance.choice(who)} {chance.choice(does)} {chance.choice(what)}{', again' * chance.randint(0, 3)}: number {i}."
        for i in range(count)
    ]


def label_sets_of(texts: Sequence[str]) -> list[list[str]]:
    """Those words that some sentences have: none, one or several."""
    return [[one for one in ("again", "cat", "rain") if one in text] for text in texts]


def write_rows(artifacts: Artifacts, **splits: dict[str, list[Any]]) -> None:
    """Validated rows, as the validate stage leaves them."""
    write_splits(artifacts.rows, splits)


def write_splits(folder: Path, splits: dict[str, dict[str, Any]], *, group_by: Sequence[str] = ()) -> None:
    """The splits as ingest writes them, given by columns; the row_id counts through the splits."""
    tables = {split: pa.table(columns) for split, columns in splits.items()}
    folder.mkdir(parents=True, exist_ok=True)
    columns, start = dict[str, SourceColumn](), 0
    for split, table in tables.items():
        shutil.rmtree(folder / split, ignore_errors=True)
        (folder / split).mkdir()
        shards = []
        for number, rows in enumerate(table.combine_chunks().to_batches(max_chunksize=PART_ROWS)):
            part = write_part_shards([(SourceBatch(rows, "row {}".format), [split] * len(rows))], folder, number)
            widen_schema_in_place(columns, part.columns)
            shards.append(part.shards[split].model_copy(update={"first_row_id": start}))
            start += len(rows)
        Manifest.write(folder / split, shards)
    for split in tables:
        write_split_schema(folder / split, columns, group_by)


def inputs(stage: str, artifacts: Artifacts, code: str) -> StageInputsSnapshot:
    """Inputs of a stage with a file of code, which is written; with code, work on shards is kept."""
    path = artifacts.root / "tasks/some.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(code, encoding="utf-8")
    return StageInputsSnapshot(stage, artifacts, {}, {"tasks": {"some.py": file_fingerprint(path)}})


def write_some(rows: SplitRows, folder: Path, keep: Sequence[bool]) -> None:
    """Those rows that `keep` is true for, as the validate stage writes them."""
    folder.mkdir(parents=True)
    kept, start = [], 0
    for shard in rows.shards:
        own = np.array(keep[start : start + len(shard)])
        start += len(shard)
        if own.any():
            kept.append(shard.shard.model_copy(update=shard.write_some(own, folder / shard.shard.name)))
    rows.write_manifest(folder, kept)


def write_sentences(artifacts: Artifacts, sizes: dict[str, int] = SIZES, *, label_sets: bool = False) -> None:
    """Sentences with a label and a number that can be read off them, and the span that says the label, in every split.

    With `label_sets`, also the list of those words that some sentences have: none, one or several.
    """
    splits = {}
    for seed, (split, count) in enumerate(sizes.items()):
        texts = sentences(count, seed)
        labels = [text.split()[1] for text in texts]
        starts = [text.index(" ") + 1 for text in texts]
        spans = [
            [{"label": "who", "start": start, "end": start + len(label)}]
            for start, label in zip(starts, labels, strict=True)
        ]
        numbers = [200.5 + 100 * text.count(", again") for text in texts]
        splits[split] = {"text": texts, "label": labels, "spans": spans, "number": numbers}
        if label_sets:
            splits[split]["labels"] = label_sets_of(texts)
    write_rows(artifacts, **splits)


def tokenized(root: Path, content: dict[str, Any], sizes: dict[str, int] = SIZES) -> tuple[Artifacts, Recipe]:
    """A project's folder with a recipe and its tokens, ready to train."""
    made = load(write(root / "params" / "tiny.yaml", content))
    artifacts = Artifacts("tiny", root)
    write_sentences(artifacts, sizes, label_sets=made.objective.name == LABEL_SETS["objective"]["name"])
    tokenize(artifacts, tokenization=made.tokenization, objective=made.objective, launch=made.launch)
    return artifacts, made


def position(processes: int = 1) -> ResumePosition:
    """The position of a checkpoint at the start of an epoch."""
    order = {"epoch": 0, "batch": 0, "global_batch_size": 8}
    return ResumePosition(
        order, None, [0.0] * processes, 0, lacks_evaluation=False, finished=False, processes=processes
    )
