"""Masked language modelling: which tokens are chosen and hidden, windows and packing, losses and metrics."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from params import ModelError
from params.schema import ObjectiveChoice
from params.sections.rows import TrainTokenizer
from tasks.tokenization.tokenizers import train_tokenizer
from trainer import objectives
from trainer.objectives.bases.loss import MicroBatchShare
from trainer.objectives.masked_lm import Masking

PAD, BEGIN, END, MASK, UNKNOWN = range(5)
WORDS = ["the", "tenant", "##s", "pay", "##ing", "rent", "due"]
IDS = {word: 5 + i for i, word in enumerate(WORDS)}


def wordpieces():
    """A readable tokenizer: 5 is `the`; [CLS] and [SEP] stand around a text."""
    vocabulary = {"[PAD]": PAD, "[CLS]": BEGIN, "[SEP]": END, "[MASK]": MASK, "[UNK]": UNKNOWN, **IDS}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", END), ("[CLS]", BEGIN))
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token="[MASK]", unk_token="[UNK]", **names)


def build(**options):
    return objectives.build_objective(ObjectiveChoice(name="masked_lm", **options))


def rows(*texts):
    return [{"row_id": 10 + i, "text": text} for i, text in enumerate(texts)]


def training(objective, *texts, max_length=20):
    encoded = objective.encode_training(rows(*texts), wordpieces(), max_length, {})
    return list(objective.pack((e for row in encoded for e in row.examples), max_length))


def test_training_texts_keep_their_special_tokens_and_are_packed_into_full_sequences():
    found = training(build(), "the tenants", "rent due", "pay pay", max_length=6)
    assert found == [
        {
            "row_id": 10,
            "input_ids": [BEGIN, 5, 6, 7, END, BEGIN],
            "labels": [-100, 5, 6, 7, -100, -100],
        },
        {
            "row_id": 11,
            "input_ids": [10, 11, END, BEGIN, 8, 8],
            "labels": [10, 11, -100, -100, 8, 8],
        },
    ], "the rest is dropped"


def test_without_packing_each_text_has_windows_of_its_own():
    found = training(build(packing=False), "the tenants due", "", max_length=4)
    assert [one["input_ids"] for one in found] == [[BEGIN, 5, 6, END], [BEGIN, 7, 11, END]]


@pytest.mark.parametrize("max_length", [1, 2])
def test_length_without_room_is_an_error(max_length):
    with pytest.raises(ValueError, match=f"max_length {max_length} leaves no room"):
        build().encode(rows("the tenant"), wordpieces(), max_length, {})


def test_windows_of_an_evaluation_hold_every_token_and_say_how_much_text_is_asked_for():
    (encoded,) = build().encode(rows("the tenants pay rent due"), wordpieces(), 4, {})
    assert not encoded.is_truncated
    ids = {5: b"the", 6: b"tenant", 7: b"s", 8: b"pay", 10: b"rent", 11: b"due"}
    for example in encoded.examples:
        chosen = [label for label in example["labels"] if label != -100]
        assert chosen, "at least one of each window"
        assert example["bytes"] == sum(len(ids[token]) for token in chosen)
        assert (example["input_ids"][0], example["input_ids"][-1]) == (BEGIN, END)
    assert len(encoded.examples) == 3


@pytest.mark.parametrize("text", ["नमस्ते", "你好 🎉", "plain"])
def test_the_bytes_of_a_character_that_several_tokens_share_count_once(text):
    tokenizer = train_tokenizer(["x"], TrainTokenizer(kind="train", vocab_size=260))
    objective = build(mlm_probability=1 - 1e-12)
    objective.prepare_tokenizer(tokenizer)
    for max_length in (64, 4):
        (encoded,) = objective.encode(rows(text), tokenizer, max_length, {})
        assert sum(example["bytes"] for example in encoded.examples) == len(text.encode())


def test_evaluation_asks_for_the_same_tokens_every_time_and_for_others_of_another_text():
    text = "the tenants pay rent due " * 20
    first, again, other = (
        build().encode(rows(one), wordpieces(), 200, {})[0].examples[0]["labels"] for one in (text, text, text + "due")
    )
    assert first == again
    assert first != other[: len(first)]


def whole(count):
    return {"row_id": 0, "input_ids": [5, *[6, 7] * count], "labels": [5, *[6, 7] * count]}


def test_shares_of_chosen_and_hidden_tokens():
    """Devlin et al. 2019: 15 %, of which 80 % are masked, 10 % replaced, 10 % kept. The bounds are five standard errors."""
    tokenizer, example = wordpieces(), whole(20_000)
    found = Masking(tokenizer, 0.15)(example, np.random.default_rng(1))
    before, after, labels = (np.array(one) for one in (example["input_ids"], found["input_ids"], found["labels"]))
    chosen = labels != -100
    count = chosen.sum()
    assert chosen.mean() == pytest.approx(0.15, abs=5 * math.sqrt(0.15 * 0.85 / len(before)))
    assert (labels[chosen] == before[chosen]).all()
    assert (after[~chosen] == before[~chosen]).all()
    masked = (after[chosen] == MASK).mean()
    assert masked == pytest.approx(0.8, abs=5 * math.sqrt(0.8 * 0.2 / count))
    replaced = (after[chosen] != before[chosen]).mean() - masked
    expected = 0.1 * (1 - 1 / len(WORDS))  # another token may be the same one by chance
    assert replaced == pytest.approx(expected, abs=5 * math.sqrt(0.1 * 0.9 / count))
    assert not {PAD, BEGIN, END, UNKNOWN} & set(after[chosen].tolist()), "no special token is put in"


def test_whole_words_are_chosen_as_one():
    objective = build(whole_words=True, mlm_probability=0.5)
    (example,) = training(objective, "the tenants paying rent " * 25, max_length=152)
    assert example["starts"][:8] == [1, 1, 1, 0, 1, 0, 1, 1]
    found = [
        objective.augmentation(wordpieces())(example),
        *objective.encode(rows("the tenants paying rent " * 25), wordpieces(), 152, {})[0].examples,
    ]
    for one in found:
        assert "starts" not in one
        chosen = np.array(one["labels"]) != -100
        ids = np.where(chosen, one["labels"], example["input_ids"])
        ends = np.flatnonzero(np.isin(ids, [IDS["##s"], IDS["##ing"]]))
        assert (chosen[ends] == chosen[ends - 1]).all()
        assert 0 < chosen[ends].sum() < len(ends)


def test_tokenizer_without_words_or_mask():
    tokenizer = wordpieces()
    build(whole_words=True).prepare_tokenizer(tokenizer)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split("x", "isolated")
    with pytest.raises(ModelError, match=r"which tokens are one word(.|\n)*set objective.whole_words to false"):
        build(whole_words=True).prepare_tokenizer(tokenizer)
    build().prepare_tokenizer(tokenizer)
    new = train_tokenizer(["a text"], TrainTokenizer(kind="train", vocab_size=260))
    build(whole_words=True).prepare_tokenizer(new)
    assert new.mask_token == "<mask>"
    assert new.mask_token_id == len(new) - 1


def tiny_model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return BertForMaskedLM(BertConfig(vocab_size=12, pad_token_id=PAD, **sizes)).eval()


def test_loss_and_gradients_are_those_of_transformers():
    objective, model = build(mlm_probability=0.4), tiny_model()
    texts = ("the tenants pay rent due", "rent due")
    examples = [e for row in objective.encode(rows(*texts), wordpieces(), 20, {}) for e in row.examples]
    batch = objective.collate(examples, wordpieces())
    theirs = model(**batch).loss
    theirs.backward()
    expected = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    share = MicroBatchShare(objective.loss_items(batch), 1, 1)
    ours = objective.batch_loss(model, batch, share).loss
    ours.backward()
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), abs=1e-6)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.grad, expected[name], rtol=0, atol=1e-6)
    with torch.inference_mode():
        scores = objective.score_batch(model, batch, wordpieces()).numpy()
    assert scores[:, 0].sum() / scores[:, 1].sum() == pytest.approx(float(theirs.detach()), abs=1e-6)


def test_metrics_are_per_chosen_token_and_per_byte():
    objective = build()
    scores = {"nll": [2.0, 1.0], "tokens": [2.0, 1.0], "correct": [1.0, 1.0], "bytes": [6.0, 3.0]}
    totals = objective.additive_statistics({name: np.array(one) for name, one in scores.items()}, {}).sum(0)
    found = objective.compute_metrics(totals, {})
    assert found == pytest.approx(
        {"loss": 1.0, "perplexity": math.e, "token_accuracy": 2 / 3, "bits_per_byte": 3 / math.log(2) / 9}
    )


def test_text_that_the_tokenizer_does_not_know_is_not_said():
    objective, tokenizer = build(), wordpieces()
    for text, is_said in (("the tenants", False), ("the rent", True), ("the RENT", False)):
        assert objective.says_all({"text": text}, [], tokenizer) is is_said
