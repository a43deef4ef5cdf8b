"""Labels and texts of every kind: as tensors of a batch, and on disk."""

from __future__ import annotations

import types

import pyarrow as pa
import pytest
import torch

from tasks.tokenization.encoding import write_sequences
from trainer.data.shards import Manifest, Shard
from trainer.data.tokens import Sequences
from trainer.objectives.bases.texts.padding import concatenate_texts_along_batch, count_labels, pad_batch

TOKENIZER = types.SimpleNamespace(pad_token_id=9, model_input_names=["input_ids"])
LABELS = {
    "a class": ([2, 0], torch.tensor([2, 0]), 2),
    "of tokens": ([[1, 2], [3]], torch.tensor([[1, 2], [3, -100]]), 3),
    "a number": ([0.5, 2.0], torch.tensor([0.5, 2.0]), 2),
    "several": ([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]], torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]), 2),
}


def examples(labels):
    return [{"row_id": i, "input_ids": [5] * (2 - i), "labels": label} for i, label in enumerate(labels)]


@pytest.mark.parametrize(("labels", "expected", "count"), LABELS.values(), ids=LABELS)
def test_labels_become_a_tensor_of_their_kind(labels, expected, count):
    batch = pad_batch(examples(labels), TOKENIZER)
    assert batch["labels"].dtype == expected.dtype
    assert batch["labels"].tolist() == expected.tolist()
    assert int(count_labels(batch)) == count


def test_batch_without_labels_counts_its_sequences():
    batch = pad_batch([{"row_id": 0, "input_ids": [5]}, {"row_id": 1, "input_ids": [6, 7]}], TOKENIZER)
    assert batch.keys() == {"input_ids", "attention_mask"}
    assert int(count_labels(batch)) == 2


def test_texts_are_padded_each_by_itself_and_read_together():
    batch = pad_batch(
        [{"input_ids": [1, 2, 3], "other_input_ids": [4]}, {"input_ids": [5], "other_input_ids": [6, 7]}], TOKENIZER
    )
    assert batch["input_ids"].tolist() == [[1, 2, 3], [5, 9, 9]]
    assert batch["other_input_ids"].tolist() == [[4, 9], [6, 7]]
    assert batch["other_attention_mask"].tolist() == [[1, 0], [1, 1]]
    model = types.SimpleNamespace(config=types.SimpleNamespace(pad_token_id=8))
    together = concatenate_texts_along_batch(batch, model)
    wrapped = concatenate_texts_along_batch(batch, types.SimpleNamespace(module=model))  # by DDP, which has no config
    assert together["input_ids"].tolist() == wrapped["input_ids"].tolist()
    assert together["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0], [1, 0, 0], [1, 1, 0]]
    assert together["input_ids"].tolist() == [[1, 2, 3], [5, 9, 9], [4, 9, 8], [6, 7, 8]]


@pytest.mark.parametrize(("labels", "expected", "count"), LABELS.values(), ids=LABELS)
def test_labels_are_the_same_after_they_were_on_disk(tmp_path, labels, expected, count):
    lengths, learned = write_sequences(examples(labels), tmp_path / "00000.arrow", first_row_id=0)
    assert (lengths, learned) == ([2, 1], count)
    Manifest.write(tmp_path, [Shard(name="00000.arrow", rows=2, first_row_id=0, sha256="")])
    read = list(Sequences(tmp_path))
    assert [example["labels"] for example in read] == labels
    assert pad_batch(read, TOKENIZER)["labels"].dtype == expected.dtype


def test_lengths_on_disk_are_of_all_texts(tmp_path):
    rows = [
        {"row_id": 3, "input_ids": [1, 2], "other_input_ids": [4]},
        {"row_id": 4, "input_ids": [5], "other_input_ids": []},
    ]
    lengths, learned = write_sequences(rows, tmp_path / "00000.arrow", first_row_id=3)
    assert (lengths, learned) == ([3, 1], 2)
    Manifest.write(tmp_path, [Shard(name="00000.arrow", rows=2, first_row_id=3, sha256="")])
    assert Sequences(tmp_path).lengths().tolist() == [3, 1]
    assert pa.types.is_list(
        pa.ipc.open_stream(pa.memory_map(str(tmp_path / "00000.arrow"))).schema.field("other_input_ids").type
    )
