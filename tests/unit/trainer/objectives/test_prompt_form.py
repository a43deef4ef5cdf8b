"""How a text is put to a model, from what its release says about its objective."""

from __future__ import annotations

import pytest

from trainer import objectives

USER = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("objective", "has_template", "prompt"),
    [
        ({"name": "causal_lm"}, True, "hi"),
        ({"name": "seq2seq", "prefix": "sum: "}, False, "sum: hi"),
        ({"name": "seq2seq"}, False, "hi"),
        ({"name": "dpo", "separator": "\n"}, True, "hi\n"),
        ({"name": "sft"}, True, "hi"),
        ({"name": "sft", "messages_column": "turns"}, True, USER),
        ({"name": "sft", "messages_column": "turns"}, False, "hi"),
        ({"name": "grpo"}, True, "hi"),
        ({"name": "grpo", "chat": True}, True, USER),
        ({"name": "grpo", "prompt": "{{Q}} {question}\nA:", "chat": True}, True, [USER[0] | {"content": "{Q} hi\nA:"}]),
        ({"name": "iterative_sft", "prompt": "{a} and {b}"}, False, "hi"),
        ({"name": "grpo", "prompt": "{a"}, False, "hi"),
        ({"name": "grpo", "prompt": "Q: {a:{width}}!"}, False, "Q: hi!"),  # a release may say anything
        ({"name": "grpo", "prompt": "Q: {a:>9}!"}, False, "Q: hi!"),
        ({"name": "somebody_elses"}, True, USER),
        (None, True, USER),
        (None, False, "hi"),
    ],
)
def test_prompt_is_written_as_it_was_learned(objective, has_template, prompt):
    assert objectives.prompt_form(objective, has_template=has_template).prompt("hi") == prompt
