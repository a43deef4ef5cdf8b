"""Tools and what the system says, in columns of their own: the chat template gets them as it would from a server."""

from __future__ import annotations

import json
import random
from itertools import product

import pytest
import transformers

from params.schema import Launch, Model, ObjectiveChoice, Training
from tests.support.pretrained import write_model
from trainer import objectives
from trainer.objectives.bases.conversations.chat import ConversationTokenizer
from trainer.objectives.bases.conversations.tools import read_tools

TEMPLATE = (
    "{% if tools %}<tools>{% for tool in tools %}{{ tool.function.name }} {{ tool | tojson }}{% endfor %}</tools>{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
FUNCTION = {"name": "rain", "description": "the rain in a place", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": FUNCTION}, {"type": "function", "function": {"name": "train"}}]
FORMS = {
    "OpenAI": TOOLS,
    "OpenAI's older functions": [tool["function"] for tool in TOOLS],
    "LLaMA-Factory": json.dumps([tool["function"] for tool in TOOLS]),
    "JSON of OpenAI's": json.dumps(TOOLS),
    "a list of JSON": [json.dumps(tool) for tool in TOOLS],
}
ASKED = [{"role": "user", "content": "what about the rain"}]
SAID, WORSE = ([{"role": "assistant", "content": text}] for text in ("a train", "a road"))
SYSTEM = "bread and rice"
CHAT = {"chat": True, "system_column": "system", "tools_column": "tools"}
KINDS = {
    "sft": ({"messages_column": "talk", "system_column": "system", "tools_column": "tools"}, {"talk": ASKED + SAID}),
    "dpo": (CHAT, {"prompt": ASKED, "chosen": SAID, "rejected": WORSE}),
    "kto": (CHAT | {"prompt_column": None}, {"completion": ASKED + SAID, "liked": True}),
    "reward": (CHAT | {"prompt_column": None}, {"chosen": ASKED + SAID, "rejected": ASKED + WORSE}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"), "llama", chat_template=TEMPLATE)


@pytest.fixture
def tokenizer(folder):
    return transformers.AutoTokenizer.from_pretrained(folder)


def build(kind, tokenizer):
    objective = objectives.build_objective(ObjectiveChoice(name=kind, **KINDS[kind][0]))
    objective.prepare_tokenizer(tokenizer)
    return objective


@pytest.mark.parametrize("kind", KINDS)
def test_tools_and_system_reach_the_template(kind, tokenizer):
    objective, row = build(kind, tokenizer), KINDS[kind][1]
    turns = [{"role": "system", "content": SYSTEM}, *ASKED, *SAID]
    for form, given in FORMS.items():
        full = {"row_id": 0, **row, "system": SYSTEM, "tools": given}
        assert objective.reject_reason(full) is None
        ((example,), _) = objective.encode([full], tokenizer, 1000, {})[0]
        expected = tokenizer.apply_chat_template(turns, tools=TOOLS, tokenize=False)
        assert tokenizer.decode(example["input_ids"]) == expected, form
        assert objective.content(full) == objective.content(full | {"tools": TOOLS}), "the same row in another form"
    for nothing in (None, "", "[]", []):
        without = {"row_id": 0, **row, "system": nothing if isinstance(nothing, str) else None, "tools": nothing}
        without["system"] = without["system"] if without["system"] != "[]" else None
        ((example,), _) = objective.encode([without], tokenizer, 1000, {})[0]
        assert tokenizer.decode(example["input_ids"]) == tokenizer.apply_chat_template([*ASKED, *SAID], tokenize=False)


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_has_its_own_tools_and_system(kind, tokenizer):
    """Rows are tokenized many at a time, and those with equal tools together."""
    objective, row = build(kind, tokenizer), KINDS[kind][1]
    beside = [*product([None, TOOLS, TOOLS[:1], json.dumps(TOOLS[1:]), TOOLS[::-1]], [None, SYSTEM, "soup"])] * 2
    random.Random(kind).shuffle(beside)
    many = [{"row_id": i, **row, "tools": tools, "system": system} for i, (tools, system) in enumerate(beside)]
    together = objective.encode(many, tokenizer, 1000, {})
    alone = [objective.encode([one], tokenizer, 1000, {})[0] for one in many]
    assert together == alone
    assert len({tuple(one.examples[0]["input_ids"]) for one in alone}) == 15


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_reach_the_model_is_said(kind, tokenizer):
    row = {**KINDS[kind][1], "system": None, "tools": TOOLS}
    objective = build(kind, tokenizer)
    for wrong, said in (("[", "no JSON"), ([{"parameters": {}}], "tool 0 has no name"), ("3", "no list")):
        assert said in objectives.why_row_unusable(objective, row | {"tools": wrong})
    if kind == "sft":
        talk = [{"role": "system", "content": "soup"}, *ASKED, *SAID]
        reason = objectives.why_row_unusable(objective, row | {"talk": talk, "system": SYSTEM})
        assert "says something else than `system`" in reason
        assert objective.reject_reason(row | {"talk": talk, "system": " soup"}) is None
    tokenizer.chat_template = TEMPLATE.partition("{% endfor %}</tools>{% endif %}")[2]
    blind = build(kind, tokenizer)
    assert blind.reject_reason(row | {"tools": None}) is None
    assert "the chat template writes none" in blind.reject_reason(row)


def test_columns_beside_messages_need_messages():
    for kind in ("sft", "dpo"):
        objective = objectives.build_objective(ObjectiveChoice(name=kind, tools_column="tools", system_column="system"))
        found = objective.conflicts(
            model=Model(config={"model_type": "llama"}),
            training=Training(epochs=1, global_batch_size=8, learning_rate=1e-3),
            launch=Launch(micro_batch_size=1),
        )
        keys = {problem.key[-1] for problem in found if "without messages" in problem.what}
        assert keys == {"tools_column", "system_column"}


def test_the_call_of_the_card_gets_the_tools(folder, tokenizer):
    """As the check of a release makes it: with the pipeline, whose prompt must be that of the evaluation."""
    objective = build("sft", tokenizer)
    row = {"row_id": 0, **KINDS["sft"][1], "system": SYSTEM, "tools": FORMS["LLaMA-Factory"]}
    ((example,), _) = objective.encode([row], tokenizer, 1000, {})[0]
    generator = transformers.pipeline("text-generation", model=str(folder))

    def ask(text, **more):
        return generator(text, return_tensors=True, **more)[0]["generated_token_ids"]

    def ask_with_tools(text, **more):
        return ask(text, **more, **objective.reader_arguments(row))

    assert objective.answer_scores(ask_with_tools, row, example, tokenizer) == {}
    with pytest.raises(ValueError, match="other tokens of the prompt"):
        objective.answer_scores(ask, row, example, tokenizer)


def test_tools_of_another_form_are_read_once():
    assert read_tools(TOOLS[0]) == TOOLS[:1]
    tokenizer = ConversationTokenizer.__new__(ConversationTokenizer)
    assert tokenizer.with_tools([]) is tokenizer
