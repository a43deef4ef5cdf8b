"""Rows and templates that write the tokens of begin and end of text themselves: sequences have one of each."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from params import DataError
from params.schema import ObjectiveChoice
from params.sections.rows import TrainTokenizer
from tasks.inference.tried_model import AnsweringModel
from tasks.tokenization.tokenizers import train_tokenizer
from trainer import objectives
from trainer.objectives.bases.rows import PromptForm

BEGIN, END = 257, 258
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[{{ m.content }}]{% else %}{{ m.content + eos_token }}"
    "{% endif %}{% endfor %}"
)
TALK = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"}]
WRITTEN = [{"role": "user", "content": "<s>ab"}, {"role": "assistant", "content": "cd</s>\n"}]


def tokenizer_that_adds(*added: str) -> Any:
    backend = train_tokenizer([], TrainTokenizer(kind="train", vocab_size=260)).backend_tokenizer
    backend.add_special_tokens(["<s>", "</s>"])
    ids = [("<s>", BEGIN), ("</s>", END)]
    single = [*(["<s>"] if "begin" in added else []), "$A", *(["</s>"] if "end" in added else [])]
    backend.post_processor = processors.TemplateProcessing(single=single, pair="$A $B", special_tokens=ids)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=TEMPLATE, **names)
    assert tokenizer.convert_tokens_to_ids(["<s>", "</s>"]) == [BEGIN, END]
    return tokenizer


CASES = {
    "sft": ({}, {"prompt": "ab", "completion": "cd"}, {"prompt": "<s>ab", "completion": "cd</s>"}),
    "sft, messages": ({"messages_column": "talk"}, {"talk": TALK}, {"talk": WRITTEN}),
    "dpo": (
        {},
        {"prompt": "ab", "chosen": "cd", "rejected": "e"},
        {"prompt": "<s>ab", "chosen": "cd</s></s>", "rejected": "e</s>"},
    ),
    "dpo, messages": (
        {"chat": True, "prompt_column": None},
        {"chosen": TALK, "rejected": [TALK[0], {"role": "assistant", "content": "e"}]},
        {"chosen": WRITTEN, "rejected": [WRITTEN[0], {"role": "assistant", "content": "e</s>"}]},
    ),
    "reward": (
        {},
        {"prompt": "ab", "chosen": "cd", "rejected": "e"},
        {"prompt": "<s>ab", "chosen": "cd</s></s>", "rejected": "e</s>"},
    ),
    "reward, messages": (
        {"chat": True, "prompt_column": None},
        {"chosen": TALK, "rejected": [TALK[0], {"role": "assistant", "content": "e"}]},
        {"chosen": WRITTEN, "rejected": [WRITTEN[0], {"role": "assistant", "content": "e</s>"}]},
    ),
    "kto": (
        {},
        {"prompt": "ab", "completion": "cd", "liked": 1},
        {"prompt": "<s>ab", "completion": "cd</s></s>", "liked": 1},
    ),
    "kto, messages": (
        {"chat": True, "prompt_column": None},
        {"completion": TALK, "liked": 1},
        {"completion": WRITTEN, "liked": 1},
    ),
    "grpo": (
        {"rewards": ["trainer.rewards:exact_match"]},
        {"prompt": "ab", "answer": "cd"},
        {"prompt": "<s>ab", "answer": "cd"},
    ),
    "iterative_sft": (
        {"reference_completion_column": "said"},
        {"prompt": "ab", "answer": "cd", "said": "cd"},
        {"prompt": "<s>ab", "answer": "cd", "said": "cd</s>"},
    ),
    "causal_lm": ({}, {"text": "abcd"}, {"text": "<s>abcd</s>\n"}),
    "seq2seq": ({}, {"input": "ab", "target": "cd"}, {"input": "<s>ab", "target": "cd</s>"}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("added", [("begin",), ("begin", "end")], ids=" and ".join)
def test_rows_that_write_special_tokens_give_the_same_sequences(name: str, added: tuple[str, ...]) -> None:
    options, plain, written = CASES[name]
    objective = objectives.build_objective(ObjectiveChoice(name=name.partition(",")[0], **options))
    tokenizer = tokenizer_that_adds(*added)
    objective.prepare_tokenizer(tokenizer)
    expected, found = ([*objective.encode([{"row_id": 0, **row}], tokenizer, 50, {})] for row in (plain, written))
    for one in (*expected, *found):
        for example in one.examples:
            example.pop("reward_row", None)
    assert found == expected
    assert objective.says_all({"row_id": 0, **written}, found[0].examples, tokenizer)
    for ids in found[0].examples[0].values():
        if isinstance(ids, list):
            assert ids.count(BEGIN) <= 1
            assert not {(BEGIN, BEGIN), (END, END)} & {*pairwise(ids)}


def test_a_token_that_nothing_else_writes_stays() -> None:
    """Also at the end of a prompt: there, such tokens separate turns."""
    tokenizer = tokenizer_that_adds()
    sft = objectives.build_objective(ObjectiveChoice(name="sft"))
    (((example,), _),) = sft.encode([{"row_id": 0, "prompt": "<s>ab</s>", "completion": "cd"}], tokenizer, 50, {})
    assert [example["input_ids"][i] for i in (0, 3, -1)] == [BEGIN, END, END]


@pytest.mark.parametrize("text", ["ab", "<s>ab"])
def test_a_released_model_is_asked_alike(text: str) -> None:
    tokenizer = tokenizer_that_adds("begin")
    model = AnsweringModel("here", "text-generation", PromptForm(), None, tokenizer, None, None)  # type: ignore[arg-type]
    assert tokenizer(model._prompt(text))["input_ids"] == tokenizer("ab")["input_ids"]


def test_a_model_of_conversations_is_asked_with_messages() -> None:
    tokenizer = tokenizer_that_adds("begin")
    model = AnsweringModel("here", "text-generation", PromptForm(is_chat=True), None, tokenizer, None, None)  # type: ignore[arg-type]
    system = {"role": "system", "content": "Be brief."}
    assert model._prompt(json.dumps({"messages": [system, TALK[0]]})) == [system, TALK[0]]
    for text in ("ab", "{", '{"messages": "ab", "more": 1}'):
        assert model._prompt(text) == [{"role": "user", "content": text}]
    for messages in ([], "ab", [{"role": "user"}], [{"role": "user", "content": [{"type": "image"}]}]):
        with pytest.raises(DataError, match="the text: has ") as error:
            model._prompt(json.dumps({"messages": messages}))
        assert '{"messages": [{"role": "user"' in error.value.fix


EMPTY = {
    "an answer of sft": ("sft", {}, {"prompt": "ab", "completion": "</s>"}),
    "an answer of sft, with the loss on all": (
        "sft",
        {"completion_only": False},
        {"prompt": "ab", "completion": " </s></s>"},
    ),
    "a prompt of sft": ("sft", {}, {"prompt": "<s>", "completion": "cd"}),
    "a target": ("seq2seq", {}, {"input": "ab", "target": "</s>\n"}),
    "an input": ("seq2seq", {}, {"input": "<s></s>", "target": "cd"}),
    "a chosen answer": ("dpo", {}, {"prompt": "ab", "chosen": "</s>", "rejected": "e"}),
    "an answer that gets a reward": ("reward", {}, {"prompt": "ab", "chosen": "</s>", "rejected": "e"}),
    "an answer that people like": ("kto", {}, {"prompt": "ab", "completion": "</s>", "liked": True}),
    "a prompt of dpo": ("dpo", {}, {"prompt": "<s></s>", "chosen": "cd", "rejected": "e"}),
    "a prompt of grpo": ("grpo", {"rewards": ["trainer.rewards:exact_match"]}, {"prompt": "<s>", "answer": "cd"}),
    "a prompt of grpo as a message": (
        "grpo",
        {"rewards": ["trainer.rewards:exact_match"], "chat": True},
        {"prompt": "<s>", "answer": "cd"},
    ),
    "a prompt of iterative sft": ("iterative_sft", {}, {"prompt": "</s>", "answer": "cd"}),
    "a rejected answer": ("dpo", {}, {"prompt": "ab", "chosen": "cd", "rejected": "</s></s>"}),
}


@pytest.mark.parametrize(("name", "options", "row"), EMPTY.values(), ids=EMPTY)
def test_a_text_of_special_tokens_only_is_not_learned(name: str, options: dict[str, Any], row: dict[str, str]) -> None:
    objective = objectives.build_objective(ObjectiveChoice(name=name, **options))
    tokenizer = tokenizer_that_adds("begin", "end")
    objective.prepare_tokenizer(tokenizer)
    whole = {"prompt": "ab", "completion": "cd", "input": "ab", "target": "cd", "chosen": "cd", "rejected": "e"}
    whole |= {"liked": True, "answer": "cd"}
    rows = [{"row_id": i, **own} for i, own in enumerate((whole, row, whole))]
    encoded = objective.encode(rows, tokenizer, 50, {})
    assert [len(one.examples) for one in encoded] == [1, 0, 1]
    assert [one.examples[0]["row_id"] for one in (encoded[0], encoded[2])] == [0, 2]


def test_an_assistants_message_of_special_tokens_only_is_set_aside() -> None:
    objective = objectives.build_objective(ObjectiveChoice(name="sft", messages_column="talk"))
    objective.prepare_tokenizer(tokenizer_that_adds("begin"))
    assert objective.reject_reason({"talk": WRITTEN}) is None
    empty = [TALK[0], {"role": "assistant", "content": "</s>\n"}]
    assert objective.reject_reason({"talk": [*TALK, *empty]}) == "message 3, of the assistant, is empty"
