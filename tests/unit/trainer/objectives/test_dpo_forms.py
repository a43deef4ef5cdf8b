"""DPO: the forms that people have pairs in."""

from __future__ import annotations

from typing import Any

import pytest

from params import RecipeError
from params.schema import ObjectiveChoice
from params.sections.rows import TrainTokenizer
from tasks.tokenization.tokenizers import train_tokenizer
from trainer import objectives

TOKENIZER = train_tokenizer([], TrainTokenizer(kind="train", vocab_size=260))


def objective(**options: Any) -> Any:
    return objectives.build_objective(ObjectiveChoice(name="dpo", **options))


def turns(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]


CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}\n{% endif %}{% endfor %}"
CHAT += "{% if add_generation_prompt %}<assistant>{% endif %}"


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": turns("1+1?"), "chosen": turns("1+1?", "two")[1:], "rejected": turns("1+1?", "one")[1:]},
        {"prompt": turns("1+1?"), "chosen": turns("1+1?", "two"), "rejected": turns("1+1?", "one")},
        {"prompt": None, "chosen": turns("1+1?", "two"), "rejected": turns("1+1?", "one")},
    ],
    ids=["answers behind a prompt", "whole conversations and their prompt", "whole conversations"],
)
def test_pairs_of_conversations_are_read(row: dict[str, Any]) -> None:
    """With the tokens of the prompt as at inference, and one end-of-text token behind each answer."""
    tokenizer = train_tokenizer([], TrainTokenizer(kind="train", vocab_size=260))
    tokenizer.chat_template = CHAT
    task = objective(chat=True, prompt_column="prompt" if row["prompt"] else None)
    task.prepare_tokenizer(tokenizer)
    assert task.reject_reason(row) is None
    (((example,), _),) = task.encode([{"row_id": 0, **row}], tokenizer, 100, {})
    prompt = tokenizer.apply_chat_template(turns("1+1?"), add_generation_prompt=True)["input_ids"]
    assert example["input_ids"] == [*prompt, *tokenizer("two")["input_ids"], tokenizer.eos_token_id]
    assert example["labels"][: len(prompt)] == [-100] * len(prompt)
    assert example["rejected"] == [*tokenizer("one")["input_ids"], tokenizer.eos_token_id]
    assert task.reader_input(row) == turns("1+1?")
    assert task.input_text(row) == "user: 1+1?"


def test_the_turns_that_texts_have_in_common_are_their_prompt() -> None:
    start = "\n\nHuman: 1+1?\n\nAssistant: two\n\nHuman: sure?\n\nAssistant:"
    task = objective(prompt_column=None)
    row = {"chosen": f"{start} yes, I am", "rejected": f"{start} yes, maybe"}
    assert task.reject_reason(row) is None
    assert task.reader_input(row) == start
    (((example,), _),) = task.encode([{"row_id": 0, **row}], TOKENIZER, 200, {})
    beside = {"prompt": start, "chosen": " yes, I am", "rejected": " yes, maybe"}
    assert [example] == objective().encode([{"row_id": 0, **beside}], TOKENIZER, 200, {})[0].examples


@pytest.mark.parametrize(
    ("options", "chosen", "rejected", "why"),
    [
        ({}, "It is two", "It is one", "nothing says where the prompt ends"),
        ({}, "\n\nHuman: a\n\nAssistant: b", "\n\nHuman: a\n\nAssistant:", "rejected says nothing"),
        (
            {},
            "\n\nHuman: a\n\nAssistant: b",
            "\n\nHuman: a\n\nAssistant: c\n\nHuman: d\n\nAssistant: e",
            "rejected has more than an answer",
        ),
        ({"chat": True}, turns("a", "b"), turns("c", "d"), "chosen has a message of user"),
        ({"chat": True}, turns("a", "b"), turns("a"), "rejected says nothing"),
        ({"chat": True}, turns("a", "b")[1:], turns("a", "c")[1:], "there is no prompt"),
        ({"chat": True}, turns("a", "b"), [{"role": "user"}], "message 0 is not"),
    ],
)
def test_a_pair_without_two_answers_to_a_prompt_is_rejected(
    options: dict[str, Any], chosen: Any, rejected: Any, why: str
) -> None:
    reason = objective(prompt_column=None, **options).reject_reason({"chosen": chosen, "rejected": rejected})
    assert why in (reason or "")


def test_a_pair_that_the_template_refuses_is_rejected() -> None:
    tokenizer = train_tokenizer([], TrainTokenizer(kind="train", vocab_size=260))
    tokenizer.chat_template = "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}" + CHAT
    task = objective(chat=True, prompt_column=None)
    task.prepare_tokenizer(tokenizer)
    pair = {name: [{"role": "system", "content": "s"}, *turns("a", name)] for name in ("chosen", "rejected")}
    assert "the chat template refuses the conversation: user first" in task.reject_reason(pair)


def test_messages_need_a_template_and_a_model_that_learned_from_messages() -> None:
    with pytest.raises(RecipeError, match="the tokenizer has no chat template"):
        objective(chat=True).prepare_tokenizer(TOKENIZER)
    with pytest.raises(ValueError, match="it learned from texts, and these rows are messages"):
        objective(chat=True).as_released({"name": "dpo"})
    assert objective(chat=True).as_released({"name": "dpo", "chat": True}).options.chat
