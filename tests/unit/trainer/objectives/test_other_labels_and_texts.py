"""A champion with other labels than the candidate, and texts of other lengths than that of their row."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    LlamaModel,
)

from params.schema import ObjectiveChoice
from tests.support import new_objectives
from trainer import objectives
from trainer.objectives.bases.texts.padding import concatenate_texts_along_batch, pad_batch

SMALL = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.mark.parametrize("known", [["a", "b"], ["a", "b", "c", "z"]], ids=["lacks a label", "has one more"])
def test_champion_of_other_labels_can_be_scored_on_lists_of_labels(known):
    with new_objectives.known():
        topics = objectives.build_objective(ObjectiveChoice(name="topics"))
    torch.manual_seed(0)
    config = BertConfig(**SMALL, num_labels=len(known), id2label=dict(enumerate(known)))
    state = {"labels": ["a", "b", "c"]}
    model = topics.remap_labels(BertForSequenceClassification(config).eval(), state)
    labels = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    batch = {"input_ids": torch.tensor([[1, 2], [3, 4]]), "attention_mask": torch.ones(2, 2), "labels": labels}
    with torch.no_grad():
        scores = topics.score_batch(model, batch, None)
    assert scores.shape == (2, len(topics.score_names(state)))
    assert scores[:, 0].max() < 100, "nats; a blind guess of three labels costs 2.1"


def test_score_of_a_text_does_not_depend_on_the_length_of_another():
    padding = 3
    torch.manual_seed(0)
    config = LlamaConfig(**SMALL, num_key_value_heads=2, num_labels=1, pad_token_id=padding)
    model = LlamaForSequenceClassification(config).eval()
    tokenizer = SimpleNamespace(pad_token_id=padding, model_input_names=["input_ids"])
    found = []
    for other in ([8, 9], [8, 9, 10, 11, 12]):
        batch = pad_batch([{"input_ids": [5, 6, 7], "other_input_ids": other}], tokenizer)
        with torch.no_grad():
            found.append(float(model(**concatenate_texts_along_batch(batch, model)).logits[0, 0]))
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_a_model_without_a_padding_token_does_not_see_what_texts_are_filled_with():
    torch.manual_seed(0)
    model = LlamaModel(LlamaConfig(**SMALL, num_key_value_heads=2, pad_token_id=None)).eval()
    found = []
    for other in ([8, 9], [8, 9, 10, 11, 12]):
        tokenizer = SimpleNamespace(pad_token_id=2, model_input_names=["input_ids"])
        batch = pad_batch([{"input_ids": [5, 6, 7], "other_input_ids": other}], tokenizer)
        inputs = concatenate_texts_along_batch(batch, model)
        with torch.no_grad():
            states = model(**inputs).last_hidden_state * inputs["attention_mask"][..., None]
        found.append(states.sum(1)[0])
    torch.testing.assert_close(found[0], found[1])
