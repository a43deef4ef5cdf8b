"""Types of the tokens of texts that are read alone: the model gets those that a pipeline gives it, whoever has put the text together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification, PreTrainedTokenizerFast, XLNetConfig

from params.schema import ObjectiveChoice
from tests.support.zoo.tokenizers_of_kinds import KINDS, _add
from trainer import objectives
from trainer.objectives.bases.rewards.reward_models import _score
from trainer.objectives.bases.texts.padding import pad_batch
from trainer.objectives.bases.vectors.sentence_transformers_files import embed_texts

STATE = {"labels": ["O", "B-x", "I-x"]}
TEXT = "a cat sees the rain"
ROWS: dict[str, dict[str, Any]] = {
    "sequence_classification": {"text": TEXT, "label": "O"},
    "multi_label_classification": {"text": TEXT, "labels": ["O"]},
    "token_classification": {"text": TEXT, "spans": []},
    "reward": {"prompt": "a cat", "chosen": " sees", "rejected": " sees the rain"},
    "embedding": {"anchor": TEXT, "positive": "the rain"},
}


def funnel() -> PreTrainedTokenizerFast:
    """Its first token has a type of its own."""
    tokenizer = KINDS["wordpiece"]()
    names = tokenizer.cls_token, tokenizer.sep_token
    _add(tokenizer.backend_tokenizer, "{}:2 $A {}".format(*names), "{}:2 $A {} $B:1 {}:1".format(*names, names[1]))
    return tokenizer


@pytest.mark.parametrize("make", [KINDS["xlnet"], funnel], ids=["xlnet", "funnel"])
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("limit", [64, 6])
def test_a_batch_has_the_types_that_the_tokenizer_gives_each_text(name: str, make: Any, limit: int) -> None:
    tokenizer = make()
    tokenizer.padding_side = "right"
    objective = objectives.build_objective(ObjectiveChoice.model_validate({"name": name}))
    objective.prepare_tokenizer(tokenizer)
    row = {"row_id": 0, **ROWS[name]}
    texts = objective.read_texts(row, tokenizer) if name == "reward" else objective.texts(row)  # type: ignore[attr-defined]
    examples = objective.encode([row], tokenizer, limit, STATE)[0].examples
    batch = objective.collate(examples[:1], tokenizer)
    parts = [part.removesuffix("input_ids") for part in batch if part.endswith("input_ids")]
    assert len(parts) == len(texts)
    for part, text in zip(parts, texts, strict=True):
        expected = tokenizer(text, truncation=True, max_length=limit)["token_type_ids"]
        if name == "token_classification" and limit < 64:  # a window, and not the beginning of the text
            expected = [kind for kind in expected if kind][:1]
            assert sorted(set(batch[f"{part}token_type_ids"][0].tolist())) == [0, *expected]
            continue
        assert batch[f"{part}token_type_ids"][0].tolist() == expected
        assert 2 in expected


def test_other_tokenizers_give_single_texts_no_types() -> None:
    """So that their batches stay as they are."""
    for kind, make in KINDS.items():
        tokenizer = make()
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        batch = pad_batch([{"input_ids": tokenizer(TEXT)["input_ids"]}], tokenizer)
        assert ("token_type_ids" in batch) == (kind == "xlnet"), kind


def test_a_text_without_the_special_tokens_has_types_of_0() -> None:
    """As a chat template may write it."""
    tokenizer = KINDS["xlnet"]()
    ids = tokenizer("a cat", add_special_tokens=False)["input_ids"]
    batch = pad_batch([{"input_ids": ids}, {"input_ids": tokenizer("a cat")["input_ids"]}], tokenizer)
    padding = [tokenizer.pad_token_type_id] * 2
    assert batch["token_type_ids"].tolist() == [[*[0] * len(ids), *padding], [*[0] * len(ids), 0, 2]]


@pytest.mark.parametrize("kind", ["reward", "embedding"])
def test_models_that_others_ask_get_the_types(kind: str) -> None:
    """A model of rewards, and an embedding in `try`; the types matter to XLNet."""
    tokenizer = KINDS["xlnet"]()
    torch.manual_seed(0)
    config = XLNetConfig(vocab_size=len(tokenizer), d_model=16, n_layer=1, n_head=2, d_inner=16, num_labels=1)
    makes = AutoModelForSequenceClassification if kind == "reward" else AutoModel
    network = makes.from_config(config).eval()
    for weight in network.parameters():
        weight.requires_grad_(False).mul_(10)
    inputs = tokenizer(TEXT, return_tensors="pt")
    if kind == "embedding":
        states = network(**inputs).last_hidden_state.mean(1)
        found = embed_texts(network, tokenizer, [TEXT], "query")
        torch.testing.assert_close(found, torch.nn.functional.normalize(states, dim=-1))
        return
    (score,) = _score(network, tokenizer, [tokenizer(TEXT)["input_ids"]])
    assert score == pytest.approx(float(network(**inputs).logits), abs=1e-6)
    del inputs["token_type_ids"]
    assert score != pytest.approx(float(network(**inputs).logits), abs=1e-4)
