"""What a template writes around messages is found once for each sequence of roles: with and without it, tokens and labels are the same."""

from __future__ import annotations

import random
from functools import cache

import pytest

from params.sections.rows import TrainTokenizer
from tasks.tokenization.tokenizers import train_tokenizer
from trainer.objectives.bases.conversations import chat

TURN = "{{ '<' ~ m.role ~ '>' }}{{ c }}{{ eos_token }}"
LOOP = "{% for m in messages %}{% set c = m.content %}"
TEMPLATES = {
    "plain": LOOP + TURN + "{% endfor %}",
    "marked": LOOP + "<{{ m.role }}>{% generation %}{{ c }}{{ eos_token }}{% endgeneration %}{% endfor %}",
    "marked, end outside": LOOP + "<{{ m.role }}>{% generation %}{{ c }}{% endgeneration %}{{ eos_token }}{% endfor %}",
    "trimmed": "{% for m in messages %}{% set c = m['content'] | trim %}" + TURN + "{% endfor %}",
    "drops thoughts": LOOP + "{% if '</t>' in c and not loop.last %}{% set c = c.split('</t>')[-1].lstrip('\\n') %}{% endif %}"
    "{{ '<' + m.role + '>' + c.lstrip('\\n') + eos_token }}{% endfor %}",
    "asks for the start": LOOP + "{% if c.startswith('[') and c.endswith(']') %}{{ c | upper }}{% endif %}" + TURN + "{% endfor %}",
    "asks what it is": LOOP + "{% if c is string and c %}" + TURN + "{% elif c == 'x' %}y{% else %}empty{% endif %}{% endfor %}",
    "begins with the system's": (
        "{% set ns = namespace(own='') %}{% if messages[0].role == 'system' %}{% set ns.own = messages[0].content %}"
        "{% set messages = messages[1:] %}{% endif %}<s>{{ ns.own }}</s>" + LOOP + TURN + "{% endfor %}"
    ),
    "within a macro": "{% macro say(c) %}{{ c }}{% endmacro %}{% for m in messages %}{% set c = say(m.content) | trim %}" + TURN + "{% endfor %}",
    "marks the assistant's": LOOP + "{% if m.role == 'assistant' %}{% generation %}{{ c }}{% endgeneration %}{% else %}{{ c }}{% endif %}{% endfor %}",
    "captures what it marks": "{% for m in messages %}{% set c %}{% generation %}{{ m.content }}{% endgeneration %}{% endset %}"
    "<{{ m.role }}>{{ c | trim }}{% endfor %}",
    "marks what is behind thoughts": LOOP + "{% if '</t>' in c %}{{ c.split('</t>')[0] }}</t>{% endif %}"
    "{% generation %}{{ c.split('</t>')[-1] }}{{ eos_token }}{% endgeneration %}{% endfor %}",
    "of the day": "{{ strftime_now('%Y') }}" + LOOP + TURN + "{% endfor %}",
    "trims the last one": LOOP + "{{ '<' ~ m.role ~ '>' }}{% if loop.last %}{{ c | trim }}{% else %}{{ c }}{% endif %}{{ eos_token }}{% endfor %}",
    "trims the user's": "{% for m in messages %}<{{ m.role }}>{% generation %}"
    "{{ m.content.strip() if m['role'] == 'user' else m.content }}{% endgeneration %}{% endfor %}",
    "with headers": "{% set loop_messages = messages %}{% for m in loop_messages %}{% set c = '<' + m['role'] + '>\n\n' + m['content'] | trim + eos_token %}"
    "{% if loop.index0 == 0 %}{% set c = '<s>' + c %}{% endif %}{{ c }}{% endfor %}{% if add_generation_prompt %}<assistant>\n\n{% endif %}",
    "with tools": "{%- if tools %}{{- tools | tojson }}{%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{% endif %}{% endif %}"
    "{%- for m in messages %}{%- if m.role == 'user' or (m.role == 'system' and not loop.first) or (m.role == 'assistant' and not m.tool_calls) %}"
    "{{- '<' + m.role + '>\n' + m.content + eos_token + '\n' }}{%- elif m.role == 'assistant' %}{%- if m.content %}{{- m.content }}{% endif %}"
    "{%- for call in m.tool_calls %}{%- if call.function is defined %}{%- set call = call.function %}{% endif %}{{- call.name }}{% endfor %}"
    "{%- else %}{{- '<' ~ m.role ~ '>' ~ m.get('content') ~ eos_token }}{% endif %}{% endfor %}",
    "refuses a system": "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + LOOP + TURN + "{% endfor %}",
    "asks what was before": LOOP + "{% if loop.previtem is defined and loop.previtem.role == m.role %}again {% endif %}" + TURN + "{% endfor %}",
    "says the first one twice": "{{ messages[0].content }}" + LOOP + TURN + "{% endfor %}",
    "writes tools' messages as JSON": LOOP + "<{{ m.role }}>{{ c | tojson if m.role == 'tool' else c }}{{ eos_token }}{% endfor %}",
    "writes other roles": LOOP + "<{{ m.role if m.role not in ['user', 'assistant'] else c }}>{{ eos_token }}{% endfor %}",
    "writes marks": LOOP + TURN + "\ufdd0\ufdd1{% endfor %}",
    "writes a placeholder": LOOP + "{% if m.role == 'user' %}\ue0000\ue001{% else %}{{ c }}{% endif %}{% endfor %}",
    "writes wide spaces": "{% for m in messages %}<{{ m.role }}>{{ '\u2003' ~ m.content | trim ~ '\u2003' }}{% endfor %}",
    "keeps the last one's length": "{% set ns = namespace(n=0) %}" + LOOP + TURN + "{{ ns.n }}{% set ns.n = c | length %}{% endfor %}",
}  # fmt: skip
TEXTS = ["yes", "no", "", " ", "\n", "[a]", "]", "x", "</t>", "so</t>\n", "<e>", "<", "e>", "<user>", "{{ c }}", "{% if %}", "ÄÖ ﬁ", "日本", "e\u0301"]  # fmt: skip
TEXTS += [
    "\ue0000\ue001",
    "\ue0001\ue001",
    "\ufdd0",
    "\ufdd1",
    "\ufdd0a\ufdd1",
    "\x00",
    "\u00a0a\u00a0",
    "\\n\"'<&>",
    "a\r\nb",
    "👩‍🚀",
    "A" * 50,
]


@cache
def tokenizer():
    own = train_tokenizer(TEXTS * 5, TrainTokenizer(kind="train", vocab_size=300, min_frequency=1))
    own.add_special_tokens({"eos_token": "<e>"})
    return own


def conversations(count):
    chance = random.Random(count)
    yield [{"role": "user", "content": "\ufdd0a\ufdd1"}, {"role": "assistant", "content": "b"}]
    for role in ("tool", "\ufdd0", "\ue0000\ue001"):
        yield [{"role": role, "content": 'a "b"'}, {"role": "assistant", "content": "c"}]
    for _ in range(count):
        turns = [{"role": "system", "content": ""}] * chance.randint(0, 1)
        turns += [{"role": role} for role in ("user", "assistant") * chance.randint(1, 3)]
        yield [turn | {"content": "".join(chance.choices(TEXTS, k=chance.randint(1, 3)))} for turn in turns]


def tokens(reader, conversation):
    try:
        return reader.tokenize([reader.read(conversation)])
    except (ValueError, KeyError) as error:
        return str(error)


VERBATIM = {
    *("plain", "marked", "marked, end outside", "trimmed", "begins with the system's", "marks the assistant's", "of the day"),
    *("trims the last one", "trims the user's", "with headers", "with tools", "refuses a system", "asks what was before"),
    *("says the first one twice", "writes tools' messages as JSON", "writes other roles", "writes marks", "writes a placeholder"),
    "writes wide spaces",
}  # fmt: skip
UNKNOWN = {
    *("trims the last one", "says the first one twice", "writes marks", "writes a placeholder", "writes wide spaces"),
}
"""They write something else around a message in the beginning of a conversation than in the whole, or write it twice, or what stands for it."""


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_that_writes_messages_as_they_are_is_not_rendered_again(template, monkeypatch):
    tokenizer().chat_template = TEMPLATES[template]
    own = chat.ConversationTokenizer(tokenizer())
    assert own._is_verbatim == (template in VERBATIM)
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    own.tokenize([turns])
    monkeypatch.setattr(own, "_apply", None)
    if template in VERBATIM - UNKNOWN:
        own.tokenize([[turn | {"content": "other"} for turn in turns]])
    else:
        with pytest.raises(TypeError):
            own.tokenize([[turn | {"content": "other"} for turn in turns]])


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_frame_gives_the_tokens_of_a_rendering(template, monkeypatch):
    tokenizer().chat_template = TEMPLATES[template]
    framed, rendered = chat.ConversationTokenizer(tokenizer()), chat.ConversationTokenizer(tokenizer())
    monkeypatch.setattr(rendered, "_frame", lambda turns: None)
    if rendered._marked:
        monkeypatch.setattr(rendered, "_captures", True)  # renders each conversation without marks, too
    for conversation in conversations(60):
        assert tokens(framed, conversation) == tokens(rendered, conversation)


def test_what_does_not_render_with_jinja_is_asked_for_each_conversation(monkeypatch):
    tokenizer().chat_template = TEMPLATES["plain"]
    assert chat.ConversationTokenizer(tokenizer())._is_verbatim
    monkeypatch.setattr(tokenizer(), "apply_chat_template", lambda conversation, **options: "")
    assert not chat.ConversationTokenizer(tokenizer())._is_verbatim
