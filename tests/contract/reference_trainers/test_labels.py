"""Labels of texts and of tokens, answers in a context, and choices: 20 steps beside transformers.Trainer.

It tokenizes the rows itself where nothing is drawn by chance, pads them by the library's collator, and takes the loss of the library's model.

Transformers has two ways to accumulate. A model whose loss is a mean over its micro-batch is told so (`model_accepts_loss_kwargs`), or Trainer would
add up means of micro-batches. Where the micro-batches have other numbers of labels, a mean of means would not be the mean; there Trainer gets the
cross-entropy as its documentation writes it for `compute_loss_func`.

The model for answers in a context lets padding be the first or the last token of an answer, so its loss depends on what else is in the micro-batch.
In the paper the probability is over the words of the paragraph (https://arxiv.org/abs/1810.04805, section 4.2), and so it is in ours. There Trainer
accumulates windows one by one, which need no padding. The model for choices reads micro-batches whose rows have equally many; ours have three or four.
There Trainer accumulates rows one by one, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    DataCollatorForMultipleChoice,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    default_data_collator,
)

from tests.support import tiny, tiny_releases
from tests.support.reference_trainers import BERT, LIMIT, Case, Ours, by_name, check, mean_over_labels, plain

WINDOW, STRIDE = 20, 4
SHARP = {"config": {**BERT["config"], "initializer_range": 0.2}}
"""So that a word of a choice changes what the model says of it, and there are gradients."""


def classifier(label: Any, texts: tuple[str, ...] = ("text",)) -> Any:
    def refer(ours: Ours, folder: Path) -> Trainer:
        columns = [[row[name] for row in ours.rows] for name in texts]
        encoded = ours.tokenizer(*columns, truncation=True, max_length=LIMIT)
        rows = [
            {**{name: encoded[name][i] for name in encoded}, "labels": label(ours, row)}
            for i, row in enumerate(ours.rows)
        ]
        model = ours.model(AutoModelForSequenceClassification)
        return plain(ours, folder, model, rows, DataCollatorWithPadding(ours.tokenizer))

    return refer


def class_of(ours: Ours, row: dict[str, Any]) -> int:
    return sorted({one["label"] for one in ours.rows}).index(row["label"])


def classes_of(ours: Ours, row: dict[str, Any]) -> list[float]:
    return [float(label in row["labels"]) for label in sorted({name for one in ours.rows for name in one["labels"]})]


def standardized(ours: Ours, row: dict[str, Any]) -> float:
    config = ours.trainer.model.config
    return (row["number"] - config.target_mean[0]) / config.target_std[0]


def labelled_tokens(auto_class: Any) -> Any:
    def refer(ours: Ours, folder: Path) -> Trainer:
        """The tokens and labels that ours read, as what is masked is drawn by chance, and spans become tags in our way."""
        rows = []
        for batch in ours.batches:
            for ids, mask, labels in zip(batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True):
                size = int(mask.sum())
                rows.append({"input_ids": ids[:size].tolist(), "labels": labels[:size].tolist()})
        collator = DataCollatorForTokenClassification(ours.tokenizer)
        return plain(ours, folder, ours.model(auto_class), rows, collator, mean_over_labels)

    return refer


def answered(ours: Ours, folder: Path) -> Trainer:
    """Windows and the places of their answers as run_qa.py of transformers makes them, in the order in which ours read them."""
    rows = ours.train_rows
    encoded = ours.tokenizer(
        [row["question"] for row in rows],
        [row["context"] for row in rows],
        truncation="only_second",
        max_length=WINDOW,
        stride=STRIDE,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    assert len(encoded["input_ids"]) > len(rows), "some contexts have several windows"
    windows = {}
    for i, ids in enumerate(encoded["input_ids"]):
        row = rows[encoded["overflow_to_sample_mapping"][i]]
        first, last = place_of_answer(row, encoded["offset_mapping"][i], encoded.sequence_ids(i))
        inputs = {name: encoded[name][i] for name in ours.tokenizer.model_input_names}
        windows[row["row_id"], tuple(ids)] = inputs | {"start_positions": first, "end_positions": last}
    read = [
        windows[int(row_id), tuple(ids[mask.bool()].tolist())]
        for batch in ours.batches
        for row_id, ids, mask in zip(batch["row_id"], batch["input_ids"], batch["attention_mask"], strict=True)
    ]
    assert 0 < sum(one["start_positions"] > 0 for one in read) < len(read), "some windows have no answer"
    return plain(ours, folder, ours.model(AutoModelForQuestionAnswering), read, default_data_collator, batch=1)


def place_of_answer(row: dict[str, Any], places: list[tuple[int, int]], texts: list[int | None]) -> tuple[int, int]:
    """The first and the last token of the first answer; twice the first token of the window if it has not all of it."""
    if not row["answers"]["text"]:
        return 0, 0
    start = row["answers"]["answer_start"][0]
    end = start + len(row["answers"]["text"][0])
    tokens = [i for i, (begin, stop) in enumerate(places) if texts[i] == 1 and begin < end and stop > start]
    is_whole = tokens and places[tokens[0]][0] <= start and end <= places[tokens[-1]][1]
    return (tokens[0], tokens[-1]) if is_whole else (0, 0)


def chosen(ours: Ours, folder: Path) -> Trainer:
    """Each row's context beside each choice, as run_swag.py of transformers gives them to the model."""
    rows = []
    for row in ours.rows:
        encoded = ours.tokenizer([row["context"]] * len(row["choices"]), row["choices"], truncation=True)
        rows.append({**encoded, "labels": row["choices"].index(row["label"])})
    assert {len(row["choices"]) for row in ours.rows} == {3, 4}
    collator = DataCollatorForMultipleChoice(ours.tokenizer)
    return plain(ours, folder, ours.model(AutoModelForMultipleChoice), rows, collator, batch=1)


def questions(count: int, split: str) -> dict[str, list[Any]]:
    """In words that the tokenizer knows, and of different lengths."""
    found, words = tiny_releases.questions(count, split), {"who?": "a cat, my friend", "why?": "again"}
    return {**found, "question": [words[one] for one in found["question"]]}


CASES = {
    "sequence_classification": Case(tiny.CLASSES["objective"], "wordpiece", BERT, classifier(class_of)),
    "multi_label_classification": Case(tiny.LABEL_SETS["objective"], "wordpiece", BERT, classifier(classes_of)),
    "regression": Case(tiny.NUMBERS["objective"], "wordpiece", BERT, classifier(standardized, ("text", "label"))),
    "token_classification": Case(
        {"name": "token_classification"}, "wordpiece", BERT, labelled_tokens(AutoModelForTokenClassification)
    ),
    "masked_lm": Case(
        {"name": "masked_lm", "packing": False}, "wordpiece", BERT, labelled_tokens(AutoModelForMaskedLM)
    ),
    "question_answering": Case(
        {"name": "question_answering", "stride": STRIDE},
        "wordpiece",
        BERT,
        answered,
        {"tokenization.max_length": WINDOW},
        questions,
    ),
    "multiple_choice": Case({"name": "multiple_choice"}, "wordpiece", SHARP, chosen, rows=tiny_releases.choices),
}


@pytest.mark.filterwarnings("ignore")  # the library warns of renamed arguments
@by_name(CASES)
def test_twenty_steps_are_those_of_trainer(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)
