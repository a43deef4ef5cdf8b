"""Texts, answers and second texts: 20 steps beside transformers.Trainer and TRL's SFTTrainer.

They tokenize the rows themselves, pad them by their own collators, and take their own losses. The model that writes a second text has a loss that is
a mean over its micro-batch, and so a mean of means where these have other numbers of labels; there Trainer gets the cross-entropy as its
documentation writes it for `compute_loss_func`.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    Trainer,
)

from tests.support import preferences, tiny
from tests.support.reference_trainers import LLAMA, LONG, Case, Ours, by_name, check, mean_over_labels, plain

T5 = {"config": {**tiny.TARGETS["model"]["config"], "dropout_rate": 0.0}}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def next_tokens(ours: Ours, folder: Path) -> Trainer:
    ids = [[*ours.tokenizer(row["text"])["input_ids"], ours.tokenizer.eos_token_id] for row in ours.rows]
    rows = [{"input_ids": one, "attention_mask": [1] * len(one), "labels": one} for one in ids]
    collator = DataCollatorForTokenClassification(ours.tokenizer)
    return plain(ours, folder, ours.model(AutoModelForCausalLM), rows, collator)


def second_text(ours: Ours, folder: Path) -> Trainer:
    sources = [row["text"] for row in ours.rows]
    encoded = ours.tokenizer(sources, text_target=[row["label"] for row in ours.rows], truncation=True)
    rows = [{name: encoded[name][i] for name in encoded} for i in range(len(sources))]
    model = ours.model(AutoModelForSeq2SeqLM)
    return plain(ours, folder, model, rows, DataCollatorForSeq2Seq(ours.tokenizer, model), mean_over_labels)


def sft_trainer(*columns: str, **options: Any) -> Any:
    def refer(ours: Ours, folder: Path) -> Any:
        from trl import SFTConfig, SFTTrainer

        usual = {"max_length": None, "gradient_checkpointing": False, "bf16": False}
        return SFTTrainer(
            model=ours.model(AutoModelForCausalLM),
            args=ours.arguments(folder, SFTConfig, **usual, **options),
            train_dataset=Dataset.from_list([{name: row[name] for name in columns} for row in ours.rows]),
            processing_class=ours.tokenizer,
        )

    return refer


def answers(count: int, split: str) -> dict[str, list[str]]:
    found = preferences.pairs(count, len(split))
    return {"prompt": found["prompt"], "completion": found["chosen"]}


def conversations(count: int, split: str) -> dict[str, list[Any]]:
    """Of one to three questions and their answers, some behind a message of the system."""
    chance, found = random.Random(split), []
    for text in tiny.sentences(count, len(split)):
        turns = [("system", "Be short.")] if chance.random() < 0.3 else []
        for _ in range(chance.randint(1, 3)):
            turns += [("user", f"Who? {text}"), ("assistant", f"{text.split()[1]}{', again' * chance.randint(0, 2)}")]
        found.append([{"role": role, "content": content} for role, content in turns])
    return {"messages": found}


TARGETS = {"name": "seq2seq", "input_column": "text", "target_column": "label", "generate": False}
TALKS = {"name": "sft", "messages_column": "messages", "chat_template": TEMPLATE}
CASES = {
    "causal_lm": Case({"name": "causal_lm", "packing": False}, "llama", LLAMA, next_tokens, LONG),
    "seq2seq": Case(TARGETS, "t5", T5, second_text, LONG),
    "sft": Case({"name": "sft"}, "llama", LLAMA, sft_trainer("prompt", "completion"), LONG, answers),
    "conversations": Case(
        TALKS,
        "qwen",
        LLAMA,
        sft_trainer("messages", assistant_only_loss=True),
        {"tokenization.max_length": 250},
        conversations,
    ),
}


@pytest.mark.filterwarnings("ignore")  # the libraries warn of experimental features and renamed arguments
@by_name(CASES, "causal_lm")
def test_twenty_steps_are_those_of_the_librarys_trainer(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)
