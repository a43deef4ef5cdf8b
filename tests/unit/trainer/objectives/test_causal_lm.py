"""Causal language modelling on literal tokens: windows, packing, losses and metrics."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from params import ModelError
from params.schema import ObjectiveChoice
from tests.support.zoo import tokenizers_of_kinds
from trainer import objectives
from trainer.loop.metrics import MetricAccumulator

END = 9


def letters():
    """A readable tokenizer: one token per letter, `a` is 1; 9 ends a text, 0 pads."""
    vocabulary = {"<pad>": 0, **{letter: i for i, letter in enumerate("abcdefgh", 1)}, "<end>": END}
    tokenizer = Tokenizer(models.WordLevel(vocabulary | {"ä": 10, "é": 11, "字": 12}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>")


@pytest.fixture
def objective():
    return objectives.build_objective(ObjectiveChoice(name="causal_lm"))


def encode(objective, *texts, max_length=4):
    rows = [{"row_id": 10 + i, "text": text} for i, text in enumerate(texts)]
    encoded = objective.encode(rows, letters(), max_length, {})
    assert not any(is_truncated for _, is_truncated in encoded), "windows hold the whole text"
    return [example for examples, _ in encoded for example in examples]


def ids(examples):
    return [e["input_ids"] for e in examples]


def test_text_ends_with_the_end_of_text_token(objective):
    assert encode(objective, "ab") == [{"row_id": 10, "input_ids": [1, 2, 9], "labels": [1, 2, 9], "bytes": 1}]


@pytest.mark.parametrize("kind", tokenizers_of_kinds.KINDS)
def test_tokens_are_those_of_the_tokenizers_own_call_and_an_end(objective, kind):
    """As a pipeline gives a prompt to the model: with the beginning token of Llama, Gemma and OPT; not with what stands behind a text."""
    tokenizer = tokenizers_of_kinds.KINDS[kind]()
    if tokenizer.eos_token is None:
        return
    begins = tokenizer("a").sequence_ids()[0] is None
    assert begins == (kind not in ("gpt2", "qwen", "t5", "xlnet"))
    written = f"{(tokenizer.bos_token or '') if begins else ''}the rain in this place"
    rows = [{"row_id": i, "text": text} for i, text in enumerate(["the rain", written, "", "a"])]
    whole = objective.encode(rows, tokenizer, 64, {})
    for text, (examples, _) in zip(["the rain", "the rain in this place", "", "a"], whole, strict=True):
        own = tokenizer(text)
        behind = own.sequence_ids()[::-1].index(0) if text else 0
        expected = [*own["input_ids"][: len(own["input_ids"]) - behind], tokenizer.eos_token_id]
        assert ids(examples) == ([expected] if text else [])
    if begins:
        assert whole[0].examples[0]["bytes"] == len("the rain"), "the first token of the text is predicted, too"
    windows = objective.encode(rows[:1], tokenizer, 3, {})[0].examples
    assert [one for window in ids(windows) for one in window] == ids(whole[0].examples)[0]


def test_long_text_is_split_into_windows(objective):
    assert ids(encode(objective, "abcdef")) == [[1, 2, 3, 4], [5, 6, 9]]
    assert ids(encode(objective, "abc")) == [[1, 2, 3, 9]]
    assert ids(encode(objective, "abcdefg")) == [[1, 2, 3, 4], [5, 6, 7, 9]]


@pytest.mark.parametrize("length", range(1, 14))
@pytest.mark.parametrize("max_length", [2, 3, 4, 5])
def test_every_token_is_in_one_window_and_the_end_is_predicted(objective, length, max_length):
    windows = ids(encode(objective, "abcdefghabcdefgh"[:length], max_length=max_length))
    assert [i for window in windows for i in window] == [*((k % 8) + 1 for k in range(length)), END]
    assert all(len(window) <= max_length for window in windows)
    assert windows[-1][-1] == END
    assert len(windows[-1]) > 1


@pytest.mark.parametrize("kind", ["gpt2", "llama", "roberta"])
def test_windows_count_their_bytes_behind_a_beginning_token_too(objective, kind):
    """From the end of the first token, which is not predicted, to the end of the last one."""
    tokenizer, text = tokenizers_of_kinds.KINDS[kind](), "the rain in this place, and the king of the road " * 3
    own = tokenizer(text, return_offsets_mapping=True)
    behind = own.sequence_ids()[::-1].index(0)
    ends = [end for _, end in own["offset_mapping"]][: len(own["input_ids"]) - behind]
    for size in (3, 5, 8, 13):
        (found,) = objective.encode([{"row_id": 0, "text": text}], tokenizer, size, {})
        place, expected = 0, []
        for example in found.examples:
            last = place + len(example["input_ids"]) - 1
            is_end = example["input_ids"][-1] == tokenizer.eos_token_id
            place = place if last <= len(ends) else place - 1  # a window of the end alone has the token before it, too
            expected.append((len(text) if is_end else ends[last]) - ends[place])
            place += len(example["input_ids"])
        assert [example["bytes"] for example in found.examples] == expected, size


def test_window_counts_the_bytes_it_predicts(objective):
    # the first token of a window is not predicted, the end of the text is, and has no bytes
    assert [e["bytes"] for e in encode(objective, "abcdef")] == [3, 1]
    assert [e["bytes"] for e in encode(objective, "abcdefgh")] == [3, 2, 0]
    # "ä" and "é" are two bytes, "字" is three
    assert [e["bytes"] for e in encode(objective, "aäb字éa")] == [2 + 1 + 3, 1]
    assert [e["bytes"] for e in encode(objective, "äéa")] == [2 + 1]


def test_empty_text_gives_no_sequence(objective):
    assert encode(objective, "") == []


def test_tokenizer_without_an_end_of_text_token_is_refused(objective):
    tokenizer = letters()
    tokenizer.eos_token = None
    with pytest.raises(ModelError, match="no end-of-text token"):
        objective.prepare_tokenizer(tokenizer)


def test_packing_fills_blocks_and_drops_only_the_tail(objective):
    blocks = list(objective.pack(encode(objective, "abc", "d", "efg", "h"), 4))
    #          row 10         row 11 and 12   row 12; row 13's [8, 9] is left over
    assert ids(blocks) == [[1, 2, 3, 9], [4, 9, 5, 6], [7, 9, 8, 9]]
    assert [b["row_id"] for b in blocks] == [10, 11, 12]
    assert all(b["labels"] == b["input_ids"] for b in blocks)
    assert ids(objective.pack(encode(objective, "ab", "c", "d"), 4)) == [[1, 2, 9, 3]]


@pytest.mark.parametrize("length", range(1, 14))
def test_packed_texts_are_separated_by_the_end_of_text_token(objective, length):
    """Also for a text that fills its windows exactly, so that its end would be alone in one."""
    texts = ["abcdefghabcdefgh"[:length]] * 8
    stream = [i for block in ids(objective.pack(encode(objective, *texts), 4)) for i in block]
    whole = [*((k % 8) + 1 for k in range(length)), END] * 8
    assert stream == whole[: len(whole) // 4 * 4]


def test_packed_block_has_the_row_id_of_its_first_token(objective):
    blocks = list(objective.pack(encode(objective, "abcdefgh", "a", "b"), 4))
    assert ids(blocks) == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 1, 9, 2]]
    assert [b["row_id"] for b in blocks] == [10, 10, 10]


def test_pack_without_packing_changes_nothing():
    objective = objectives.build_objective(ObjectiveChoice(name="causal_lm", packing=False))
    examples = encode(objective, "ab", "c")
    assert list(objective.pack(examples, 4)) == examples


def test_batch_is_padded_right_and_padding_has_no_label(objective):
    batch = objective.collate(encode(objective, "abc", "d"), letters())
    assert batch["input_ids"].tolist() == [[1, 2, 3, 9], [4, 9, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch["labels"].tolist() == [[1, 2, 3, 9], [4, 9, -100, -100]]


def test_losses_and_scores_by_hand(objective):
    # V = 3, T = 3. Row 0 predicts labels 1 and 2; row 1 predicts label 0 and then padding.
    logits = torch.log(
        torch.tensor(
            [
                [[0.1, 0.8, 0.1], [0.5, 0.25, 0.25], [1.0, 1.0, 1.0]],
                [[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [1.0, 1.0, 1.0]],
            ]
        )
    )
    labels = torch.tensor([[0, 1, 2], [2, 0, -100]])
    losses = objective.losses(logits, labels)
    assert losses.isnan().tolist() == [[True, False, False], [True, False, True]]
    assert losses[0, 1:].tolist() == pytest.approx([-math.log(0.8), -math.log(0.25)], rel=1e-6)
    assert objective.score_logits(logits, labels).tolist() == [
        pytest.approx([-math.log(0.8 * 0.25), 2, 1], rel=1e-6),
        pytest.approx([-math.log(0.5), 1, 1], rel=1e-6),
    ]


def test_metrics_weigh_tokens_equally(objective):
    accumulator = MetricAccumulator(objective, {})
    accumulator.update(torch.tensor([[6.0, 3.0, 1.0]], dtype=torch.float64))  # nll, tokens, correct
    accumulator.update(torch.tensor([[2.0, 1.0, 1.0], [0.0, 4.0, 4.0]], dtype=torch.float64))
    assert accumulator.compute() == {"loss": 1.0, "perplexity": pytest.approx(math.e), "token_accuracy": 0.75}


def test_bits_per_byte_where_bytes_are_known(objective):
    # two rows of 8 and 4 bits over 4 and 2 bytes
    columns = {"nll": [8, 4], "tokens": [3, 1], "correct": [1, 1], "bytes": [4, 2]}
    columns = {name: np.array(values, float) for name, values in columns.items()}
    columns["nll"] *= math.log(2)
    metrics = objective.compute_metrics(objective.additive_statistics(columns, {}).sum(0), {})
    assert metrics["bits_per_byte"] == pytest.approx(2.0)
    assert metrics.keys() == objective.metrics.keys()


def test_perplexity_of_a_huge_loss_is_finite(objective):
    accumulator = MetricAccumulator(objective, {})
    accumulator.update(torch.tensor([[5000.0, 1.0, 0.0]], dtype=torch.float64))
    assert math.isfinite(accumulator.compute()["perplexity"])
