"""Multiple choice: rows in the forms that people have, what the model reads, losses and metrics, the code on the card."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score
from transformers import BertConfig, BertForMultipleChoice

from params.schema import Launch, Model, ObjectiveChoice, Training
from tests.support.readable_tokenizer import BEGIN, END, PAD, letters
from trainer import objectives
from trainer.objectives.bases.loss import MicroBatchShare


def build(**options):
    return objectives.build_objective(ObjectiveChoice(name="multiple_choice", **options))


SWAG = {"context_column": "sent1", "question_column": "sent2", "choices_column": "{ending0} {ending1} {ending2}"}
ROW = {"row_id": 7, "sent1": "a b", "sent2": " c ", "ending0": "d", "ending1": "e f", "ending2": "g", "label": 1}


def test_each_choice_is_read_behind_the_context_and_the_beginning_of_its_sentence():
    (encoded,) = build(**SWAG).encode([ROW], letters(), 20, {})
    (example,) = encoded.examples
    assert not encoded.is_truncated
    assert (example["row_id"], example["labels"]) == (7, 1)
    read = json.loads(example["choices"])
    assert [one["input_ids"] for one in read] == [
        [BEGIN, 4, 5, END, 6, 7, END],
        [BEGIN, 4, 5, END, 6, 8, 9, END],
        [BEGIN, 4, 5, END, 6, 10, END],
    ]
    assert read[1]["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert example["input_ids"] == read[1]["input_ids"], "the longest, by which batches are made"


def test_choices_in_a_list_and_in_columns_are_the_same():
    one = {"context": "a b", "choices": ["c d", "c e f", "c g"], "label": "1"}
    assert build().encode([{"row_id": 7, **one}], letters(), 20, {}) == build(**SWAG).encode([ROW], letters(), 20, {})


def test_longer_text_loses_its_end():
    row = {"row_id": 0, "context": "a b c d e f", "choices": ["g", "h i"], "label": 0}
    (encoded,) = build().encode([row], letters(), 8, {})
    assert encoded.is_truncated
    read = [one["input_ids"] for one in json.loads(encoded.examples[0]["choices"])]
    assert read == [[BEGIN, 4, 5, 6, 7, END, 10, END], [BEGIN, 4, 5, 6, END, 11, 12, END]]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"label": 2}, None),
        ({"label": "c"}, "its label 'c' is neither"),
        ({"label": "C"}, None),
        ({"label": "e f "}, None),
        ({"label": 3}, "its label 3 is neither"),
        ({"label": "d", "ending1": "d"}, "its label 'd' is neither"),
        ({"ending2": None}, None),
        ({"ending2": None, "ending1": None}, "it has 1 choices"),
        ({"ending2": " "}, "one of its choices is empty"),
        ({"ending0": None, "label": 2}, "its label 2 is neither"),
    ],
)
def test_rows_that_cannot_be_used_are_set_aside(changes, reason):
    found = build(**SWAG).reject_reason({**ROW, **changes})
    assert (found is None) if reason is None else found.startswith(reason)
    with_null = {"context": "a", "choices": ["b", None], "label": 0}
    assert build().reject_reason(with_null) == "one of its choices is null"
    of_arc = {"context": "a", "choices": {"text": ["b", "c"], "label": ["A", "B"]}, "label": "A"}
    assert build().reject_reason(of_arc) == "its choices are a record, and not a list of texts"


@pytest.mark.parametrize(
    ("choices", "label", "meant"),
    [
        (["3", "4", "5", "1"], 1, "choice 3 by its text and choice 1 by its number"),
        (["3", "4", "5", "1"], "B", 1),
        (["2", "1", "0"], "1", 1),
        (["20", "30"], 20, 0),
        (["B", "A"], "A", "choice 1 by its text and choice 0 by its letter"),
    ],
)
def test_a_label_that_means_several_choices_is_set_aside(choices, label, meant):
    row = {"row_id": 0, "context": "a", "choices": choices, "label": label}
    if isinstance(meant, int):
        assert build().reject_reason(row) is None
        assert build().encode([row], letters(), 20, {})[0].examples[0]["labels"] == meant
    else:
        assert meant in build().reject_reason(row)
        with pytest.raises(ValueError, match="more than one"):
            build().encode([row], letters(), 20, {})
        assert len(build().prediction_lines(row, tiny_model(), letters(), 20, {})) == len(choices)


def test_one_column_in_braces_is_refused():
    found = build(choices_column="{choices}").conflicts(
        model=Model(config={"model_type": "bert"}),
        training=Training(max_steps=1, global_batch_size=1, learning_rate=1.0, best_metric="loss"),
        launch=Launch(micro_batch_size=1),
    )
    assert "a column of lists without braces" in next(iter(found)).fix


def tiny_model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return BertForMultipleChoice(BertConfig(vocab_size=16, pad_token_id=PAD, **sizes)).eval()


def rows(count, choices=lambda chance: 3):
    chance = random.Random(3)

    def text():
        return " ".join(chance.choice("abcdefgh") for _ in range(chance.randint(1, 5)))

    for i in range(count):
        number = choices(chance)
        yield {
            "row_id": i,
            "context": text(),
            "choices": [text() for _ in range(number)],
            "label": chance.randrange(number),
        }


def batch_of(objective, some):
    examples = [e for one in objective.encode(list(some), letters(), 20, {}) for e in one.examples]
    return objective.collate(examples, letters())


def test_loss_and_gradients_are_those_of_transformers():
    objective, model = build(), tiny_model()
    batch = batch_of(objective, rows(4))
    names = {"input_ids": "choice_ids", "attention_mask": "choice_mask", "token_type_ids": "choice_types"}
    theirs = model(**{name: batch[own].view(4, 3, -1) for name, own in names.items()}, labels=batch["labels"]).loss
    theirs.backward()
    expected = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    ours = objective.batch_loss(model, batch, MicroBatchShare(objective.loss_items(batch), 1, 1)).loss
    ours.backward()
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), abs=1e-6)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.grad, expected[name], rtol=0, atol=1e-6)


def test_rows_with_different_numbers_of_choices_score_as_alone_and_accuracy_is_that_of_scikit_learn():
    objective, model = build(), tiny_model()
    torch.nn.init.normal_(model.classifier.weight)
    some = list(rows(200, lambda chance: chance.randint(2, 5)))
    with torch.inference_mode():
        together = objective.score_batch(model, batch_of(objective, some), letters())
        alone = torch.cat([objective.score_batch(model, batch_of(objective, [one]), letters()) for one in some[:20]])
    torch.testing.assert_close(together[:20], alone, rtol=0, atol=1e-5)
    columns = dict(zip(objective.score_names({}), together.numpy().T, strict=True))
    found = objective.compute_metrics(objective.additive_statistics(columns, {}).sum(0), {})
    assert found["accuracy"] == pytest.approx(accuracy_score(columns["label"], columns["prediction"]), abs=1e-12)
    assert 0 < found["accuracy"] < 1
    assert (columns["prediction"] < np.array([len(one["choices"]) for one in some])).all()


def test_code_on_the_card_chooses_as_the_evaluation(tmp_path):
    model, tokenizer, objective = tiny_model(), letters(), build()
    tokenizer.model_max_length = 20
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    names = {}
    exec(compile(objective.release_format.code(str(tmp_path), tmp_path).rpartition("print(")[0], "card", "exec"), names)
    for one in rows(5):
        with torch.inference_mode():
            scores = dict(
                zip(
                    objective.score_names({}),
                    objective.score_batch(model, batch_of(objective, [one]), tokenizer)[0].tolist(),
                    strict=True,
                )
            )
        found = names["choose"](one["context"], one["choices"])
        assert found[one["label"]] == pytest.approx(np.exp(-scores["nll"]), abs=1e-6)
        assert max(found) == pytest.approx(scores["confidence"], abs=1e-6)
