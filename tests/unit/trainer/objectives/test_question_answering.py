"""Question answering: windows and their labels, the best span, the metrics of SQuAD, rows with bad answers, the code on the card."""

from __future__ import annotations

import collections
import json
import random
import re
import string

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForQuestionAnswering

from params import ModelError
from params.schema import ObjectiveChoice
from params.sections.rows import TrainTokenizer
from tasks.tokenization.tokenizers import train_tokenizer
from tests.support.readable_tokenizer import BEGIN, END, PAD, letters
from trainer import objectives
from trainer.objectives.bases.loss import MicroBatchShare
from trainer.objectives.bases.spans import answer_spans
from trainer.objectives.bases.spans.answer_spans import Passage, best_span, score_answer


def build(**options):
    return objectives.build_objective(ObjectiveChoice(name="question_answering", **options))


def row(context, *answers, question="o ?", row_id=7):
    starts = [context.index(answer) for answer in answers]
    return {
        "row_id": row_id,
        "question": question,
        "context": context,
        "answers": {"text": [*answers], "answer_start": starts},
    }


CONTEXT = "a b c d e f g h i j k l"


def encode(one, max_length=11, **options):
    (encoded,) = build(**options).encode([one], letters(), max_length, {})
    return encoded


def test_windows_share_tokens_and_only_the_whole_answer_is_labelled():
    """Room for 6 tokens of the context; windows share a quarter of 11."""
    encoded = encode(row(CONTEXT, "e f g"))
    assert not encoded.is_truncated
    assert [one["passage"] for one in encoded.examples] == ["a b c d e f", "e f g h i j", "i j k l"]
    assert [(one["start_position"], one["end_position"]) for one in encoded.examples] == [(0, 0), (4, 6), (0, 0)]
    second = encoded.examples[1]
    assert second["input_ids"] == [BEGIN, 18, 20, END, *range(8, 14), END]
    assert second["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1]
    assert (second["starts"], second["ends"]) == ([0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11])


def test_windows_are_those_of_the_tokenizers_library():
    tokenizer = letters()
    for length in range(1, 40):
        context = " ".join(random.Random(length).choice("abcdefgh") for _ in range(length))
        theirs = tokenizer(
            "o ?", context, truncation="only_second", max_length=11, stride=2, return_overflowing_tokens=True
        )["input_ids"]
        assert [one["input_ids"] for one in encode(row(context)).examples] == theirs


def test_answer_that_no_window_holds_is_cut():
    assert encode(row(CONTEXT, "b c d e f g h i")).is_truncated
    long = encode(row(CONTEXT, "c", question="o " * 30))
    assert long.is_truncated
    assert all(len(one["input_ids"]) <= 11 for one in long.examples)


def test_first_of_several_answers_is_learned_and_training_holds_no_texts():
    (encoded,) = build().encode_training([row(CONTEXT, "b", "d")], letters(), 30, {})
    assert encoded.examples == [
        {
            "row_id": 7,
            "input_ids": [BEGIN, 18, 20, END, *range(4, 16), END],
            "token_type_ids": [0] * 4 + [1] * 13,
            "start_position": 5,
            "end_position": 5,
        }
    ]


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        (
            {"text": ["b"], "answer_start": [3]},
            "an answer is not where it says: answer 0, 'b', is not at character 3 of the context, but at 2",
        ),
        (
            {"text": ["zz"], "answer_start": [0]},
            "an answer is not where it says: answer 0, 'zz', is not at character 0 of the context, and nowhere else",
        ),
        (
            {"text": ["b"], "answer_start": [-1]},
            "an answer is not where it says: answer 0, 'b', is not at character -1 of the context, but at 2",
        ),
        ({"text": ["b"], "answer_start": []}, "its answers are not {text: [...], answer_start: [...]}"),
        ({"text": [" "], "answer_start": [1]}, "an answer is not where it says: answer 0, is empty"),
        ([{"text": "b"}], "answer 0 needs a text and the number of its first character"),
        ("b", "its answers are neither a record nor a list of records"),
        ([{"text": "b", "start": 2}], None),
        ([{"text": "b", "answer_start": 2.0}], None),
        ({"text": [], "answer_start": []}, None),
        ([], None),
    ],
)
def test_rows_with_bad_answers_are_set_aside(answers, reason):
    found = build().reject_reason({**row(CONTEXT), "answers": answers})
    assert (found is None) if reason is None else found.startswith(reason)


def test_rows_without_an_answer_are_refused_where_each_has_one():
    assert "objective.no_answer is false" in build(no_answer=False).reject_reason(row(CONTEXT))
    assert build(no_answer=False).reject_reason(row(CONTEXT, "b")) is None


def reference_normalize(text):
    """From the script of SQuAD 2.0."""

    def remove_articles(text):
        return re.sub(re.compile(r"\b(a|an|the)\b", re.UNICODE), " ", text)

    def remove_punctuation(text):
        exclude = set(string.punctuation)
        return "".join(ch for ch in text if ch not in exclude)

    return " ".join(remove_articles(remove_punctuation(text.lower())).split())


def reference_f1(gold, answer):
    gold_toks, pred_toks = reference_normalize(gold).split(), reference_normalize(answer).split()
    common = collections.Counter(gold_toks) & collections.Counter(pred_toks)
    num_same = sum(common.values())
    if len(gold_toks) == 0 or len(pred_toks) == 0:
        return int(gold_toks == pred_toks)
    if num_same == 0:
        return 0
    precision, recall = 1.0 * num_same / len(pred_toks), 1.0 * num_same / len(gold_toks)
    return (2 * precision * recall) / (precision + recall)


def test_metrics_are_those_of_the_script_of_squad():
    chance = random.Random(3)
    words = ["The", "a", "an", "cat", "Cat's", "dog", "--", "dog,", "1843", "über", "the-end", ""]

    def some():
        return " ".join(chance.choice(words) for _ in range(chance.randrange(5)))

    seen = set()
    for _ in range(400):
        answer, golds = some(), [some() for _ in range(chance.randrange(4))]
        known = [gold for gold in golds if reference_normalize(gold)] or [""]
        exact = max(int(reference_normalize(gold) == reference_normalize(answer)) for gold in known)
        f1 = max(reference_f1(gold, answer) for gold in known)
        assert score_answer(answer, golds) == pytest.approx((exact, f1), abs=1e-12)
        seen.add((exact, f1 in (0, 1)))
    assert seen == {(0, False), (0, True), (1, True)}


def test_best_span_is_the_highest_sum_of_an_allowed_pair():
    chance = random.Random(2)
    for _ in range(50):
        count, longest = chance.randint(1, 9), chance.randint(1, 5)
        logits = torch.randn(2, count + 3, generator=torch.Generator().manual_seed(chance.randrange(10**6)))
        text = "".join(chance.choice("abc") for _ in range(count))
        passage = Passage(text, [*range(count)], [*range(1, count + 1)], 2, [])
        pairs = [(i, j) for i in range(count) for j in range(i, min(count, i + longest))]
        expected = max(pairs, key=lambda pair: float(logits[0, 2 + pair[0]].double() + logits[1, 2 + pair[1]].double()))
        score, found = best_span(logits[0], logits[1], passage, longest)
        assert found == text[expected[0] : expected[1] + 1]
        assert score == pytest.approx(float(logits[0, 2 + expected[0]]) + float(logits[1, 2 + expected[1]]))


def test_a_question_counts_once_by_the_best_of_its_windows():
    measured = [  # nll, row, best, no answer, exact match and F1 of the span, and of none
        [1.0, 7, 2.0, 3.0, 0.0, 0.5, 0.0, 0.0],
        [2.0, 8, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0],
        [3.0, 7, 4.0, 3.5, 1.0, 1.0, 0.0, 0.0],
        [1.0, 9, 1.0, 2.0, 0.0, 0.0, 1.0, 1.0],
        [1.0, 9, 1.5, 1.6, 0.0, 0.2, 1.0, 1.0],
    ]
    objective = build()
    scores = objective.scores_of_split(np.array(measured), {})
    assert scores[:, 2].tolist() == [0, 1, 1, 0, 1], "one window answers"
    assert scores[:, 3].tolist() == [0, 1, 1, 0, 1]
    totals = objective.additive_statistics(dict(zip(objective.score_names({}), scores.T, strict=True)), {}).sum(0)
    assert objective.compute_metrics(totals, {}) == pytest.approx({"loss": 8 / 5, "exact_match": 1.0, "f1": 1.0})
    always = build(no_answer=False).scores_of_split(np.array(measured), {})
    assert always[:, 4].tolist() == pytest.approx([0, 1, 1, 0, 0.2])
    reverse = objective.scores_of_split(np.array(measured)[::-1], {})
    assert reverse[::-1].tolist() == scores.tolist()


def tiny_model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return BertForQuestionAnswering(
        BertConfig(vocab_size=32, pad_token_id=PAD, max_position_embeddings=20, **sizes)
    ).eval()


def test_loss_and_gradients_are_those_of_transformers():
    objective, model = build(), tiny_model()
    rows = [row(CONTEXT, "b c"), row(CONTEXT[::-1], "d", row_id=8)]
    examples = [e for one in objective.encode_training(rows, letters(), 30, {}) for e in one.examples]
    batch = objective.collate(examples, letters())
    names = ("input_ids", "attention_mask", "token_type_ids", "start_positions", "end_positions")
    theirs = model(**{name: batch[name] for name in names}).loss
    theirs.backward()
    expected = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    ours = objective.batch_loss(model, batch, MicroBatchShare(objective.loss_items(batch), 1, 1)).loss
    ours.backward()
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), abs=1e-6)
    for name, gradient in expected.items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient, rtol=0, atol=1e-6)


@pytest.mark.parametrize("no_answer", [True, False])
def test_code_on_the_card_answers_as_the_evaluation(tmp_path, no_answer):
    model, tokenizer = tiny_model(), letters()
    torch.nn.init.normal_(model.qa_outputs.weight, std=0.5)
    tokenizer.model_max_length = 11
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    objective = build(stride=4, max_answer_length=3, no_answer=no_answer)
    code = objective.release_format.code(str(tmp_path), tmp_path)
    names = {}
    exec(compile(code.rpartition("print(")[0], "card", "exec"), names)
    chance, said = random.Random(1), set()
    for _ in range(40):
        context = " ".join(chance.choice("abcdefgh") for _ in range(chance.randint(3, 20)))
        with torch.inference_mode():
            (expected,) = objective.prediction_lines(row(context), model, tokenizer, 11, {})
        found = names["answer"]("o ?", context)
        assert expected == (repr(found) if found else "no answer")
        said.add(expected)
    assert len(said) > 3
    assert ("no answer" in said) is no_answer


def test_code_on_the_card_of_a_tokenizer_without_a_limit_runs(tmp_path):
    """XLNet's has none: it says 1e30, which is more than the tokenizer itself takes."""
    tiny_model().save_pretrained(tmp_path)
    tokenizer = letters()
    assert tokenizer.model_max_length > 1e20
    tokenizer.save_pretrained(tmp_path)
    names = {}
    code = build().release_format.code(str(tmp_path), tmp_path)
    exec(compile(code.rpartition("print(")[0], "card", "exec"), names)
    assert names["answer"]("o ?", "a b c") in {"", "a", "b", "c", "a b", "b c", "a b c"}


def test_new_tokenizer_gets_tokens_around_pairs():
    tokenizer = train_tokenizer(["a text"], TrainTokenizer(kind="train", vocab_size=260))
    build().prepare_tokenizer(tokenizer)
    frame = answer_spans.frame_of_pairs(tokenizer)
    assert (frame.front, frame.middle, frame.back) == ([0], [0], [0])
    assert json.loads(tokenizer.backend_tokenizer.to_str())["post_processor"]["type"] == "TemplateProcessing"
    before = letters().backend_tokenizer.to_str()
    own = letters()
    build().prepare_tokenizer(own)
    assert own.backend_tokenizer.to_str() == before, "it has them already"
    bare = letters()
    bare.backend_tokenizer.post_processor = None
    bare.cls_token = bare.sep_token = None
    with pytest.raises(ModelError, match="no tokens to put before and between"):
        build().prepare_tokenizer(bare)
