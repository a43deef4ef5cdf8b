"""`evergreen try` gives tools to a model as its release, its evaluation and a server do: through the chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from params import DataError
from tasks.inference.tried_model import AnsweringModel, AnswerOptions
from tests.support.pretrained import write_model

ASKED = [{"role": "user", "content": "what about the rain"}]
TOOLS = [{"type": "function", "function": {"name": "rain", "parameters": {"type": "object", "properties": {}}}}]
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
FORMS = {"OpenAI": TOOLS, "older functions": [TOOLS[0]["function"]], "JSON": json.dumps([TOOLS[0]["function"]])}
OPTIONS = AnswerOptions(max_new_tokens=12)


def said(**parts: Any) -> str:
    return json.dumps({"messages": ASKED, **parts})


def release(folder: Path, template: str = TEMPLATE, **config: Any) -> AnsweringModel:
    torch.manual_seed(0)
    write_model(folder, "llama", chat_template=template, initializer_range=0.5, **config)
    return AnsweringModel.load(folder, "here")


def test_the_answer_is_that_of_a_server_which_gets_the_tools(tmp_path: Path) -> None:
    model = release(tmp_path)
    server = transformers.pipeline("text-generation", model=str(tmp_path))

    def served(**more: Any) -> str:
        found = server(ASKED, max_new_tokens=12, do_sample=False, return_full_text=False, **more)
        return str(found[0]["generated_text"])

    assert served(tools=TOOLS) != served()
    for form, given in FORMS.items():
        assert model.answer(said(tools=given), OPTIONS).generated == served(tools=TOOLS), form
    for nothing in ({}, {"tools": []}, {"tools": None}):
        assert model.answer(said(**nothing), OPTIONS).generated == served()


def test_tools_take_places_of_the_model(tmp_path: Path) -> None:
    tokenizer = release(tmp_path / "long").tokenizer
    sizes = [
        len(
            tokenizer.apply_chat_template(ASKED, tools=tools, add_generation_prompt=True, return_dict=True)["input_ids"]
        )
        for tools in (None, TOOLS)
    ]
    model = release(tmp_path / "short", max_position_embeddings=sizes[1])
    assert sizes[0] < sizes[1]
    assert model.answer(said(), OPTIONS).generated is not None
    with pytest.raises(DataError, match=f"has {sizes[1]} tokens with its prompt"):
        model.answer(said(tools=TOOLS), OPTIONS)


@pytest.mark.parametrize(("given", "reason"), [("[", "no JSON"), ([{"parameters": {}}], "tool 0 has no name")])
def test_tools_that_cannot_be_read_are_an_error(tmp_path: Path, given: Any, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        release(tmp_path).answer(said(tools=given), OPTIONS)


def test_tools_that_the_template_does_not_write_are_an_error(tmp_path: Path) -> None:
    model = release(tmp_path, TEMPLATE.partition("{% endif %}")[2])
    assert model.answer(said(), OPTIONS).generated is not None
    with pytest.raises(DataError, match="the chat template writes none"):
        model.answer(said(tools=TOOLS), OPTIONS)
