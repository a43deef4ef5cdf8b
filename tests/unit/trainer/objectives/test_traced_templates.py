"""A trace of a chat template renders conversations as the template does, or not at all."""

from __future__ import annotations

import random
from functools import cache

import pytest

from params.schema import TrainTokenizer
from tasks.tokenization.tokenizers import train_tokenizer
from trainer.objectives.bases import chat
from trainer.objectives.bases.traced_templates import TracedTokenizer

TURN = "{{ '<' ~ m.role ~ '>' }}{{ c }}{{ eos_token }}"
LOOP = "{% for m in messages %}{% set c = m.content %}"
TRACED = {
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
    "of the day": "{{ strftime_now('%Y') }}" + LOOP + TURN + "{% endfor %}",
}  # fmt: skip
READING = (
    "m.content | upper",
    "m.content | tojson",
    "m.content | length",
    "m.content | replace('e', '')",
    "'%s!' % m.content == 'yes!'",
    "m.content[:1] == 'y'",
    "m.content.split('e')",
    "m.content.format('a')",
    "'{}'.format(m.content) == 'yes'",
    "m.content in 'yes and no'",
    "m.content is in 'yes and no'",
    "'yes and no'.startswith(m.content)",
    "'yes and no' | replace(m.content, '')",
    "('a' ~ m.content) == 'ayes'",
    "('a' + m.content) == 'ayes'",
    "say(m) == '-yes'",
    "[m.content] | join == 'yes'",
    "messages | tojson",
    "messages | map(attribute='content') | join",
    "{'yes': 1}[m.content]",
    "m.content > 'f'",
    "m.content is upper",
    "m.content is sameas 'yes'",
    "m | string",
    "m.content == messages[0].content",
    "m.content * 2",
    "m.content | list",
    "(m.content | batch(2) | list)",
    "m.content in ('yes and no' | e)",
    "('yes' | safe) == m.content",
    "('f' | safe) < m.content",
)
TEXTS = ["yes", "no", "", " ", "\n", "[a]", "]", "x", "</t>", "so</t>\n", "<e>", "<", "e>", "<user>", "{{ c }}", "{% if %}", "ÄÖ ﬁ", "日本", "e\u0301"]  # fmt: skip
TEXTS += [
    "\ue0000\ue001",
    "\ue0001\ue001",
    "\ufdd0",
    "\ufdd1",
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
    for _ in range(count):
        turns = [{"role": "system", "content": ""}] * chance.randint(0, 1)
        turns += [{"role": role} for role in ("user", "assistant") * chance.randint(1, 3)]
        yield [turn | {"content": "".join(chance.choices(TEXTS, k=chance.randint(1, 3)))} for turn in turns]


def tokens(reader, conversation):
    try:
        return reader.tokenize([conversation])
    except (ValueError, KeyError) as error:
        return str(error)


def compare_with_jinja(template, count, monkeypatch):
    """Compare what a trace gives with what Jinja renders; return how many conversations the trace renders."""
    tokenizer().chat_template = template
    traced, rendered = chat.ConversationTokenizer(tokenizer()), chat.ConversationTokenizer(tokenizer())
    monkeypatch.setattr(rendered, "_fill_frame", lambda turns: None)
    filled = 0
    for conversation in conversations(count):
        assert tokens(traced, conversation) == tokens(rendered, conversation)
        filled += traced._fill_frame(traced.read(conversation)) is not None
    return filled


@pytest.mark.parametrize("template", TRACED)
def test_a_traced_template_gives_the_tokens_of_a_rendering(template, monkeypatch):
    assert compare_with_jinja(TRACED[template], 60, monkeypatch) > 5


@pytest.mark.parametrize("question", READING)
def test_a_template_that_reads_contents_has_no_trace(question, monkeypatch):
    template = (
        "{% macro say(m) %}-{{ m.content }}{% endmacro %}"
        + LOOP
        + "{% if "
        + question
        + " %}!{% endif %}"
        + TURN
        + "{% endfor %}"
    )
    assert compare_with_jinja(template, 20, monkeypatch) == 0


def test_a_template_that_escapes_contents_has_no_trace(monkeypatch):
    template = "{% autoescape true %}" + LOOP + TURN + "{% endfor %}{% endautoescape %}"
    assert compare_with_jinja(template, 20, monkeypatch) == 0


def test_conditions_are_what_a_template_asks():
    tokenizer().chat_template = TRACED["drops thoughts"]
    traced = TracedTokenizer(tokenizer())
    text = traced.apply_chat_template(
        [{"role": "user", "content": "\ue0000\ue001"}, {"role": "assistant", "content": "\ue0001\ue001"}],
        tokenize=False,
    )
    assert text == "<user>\ue0000\ue001<e><assistant>\ue0001\ue001<e>"
    assert [tuple(one) for one in traced.conditions] == [
        (0, "__contains__", "</t>", False),
        (0, "lstrip", "\n", None),
        (1, "__contains__", "</t>", False),
        (1, "lstrip", "\n", None),
    ]
    met = [all(one.is_met(("hi", answer)) for one in traced.conditions) for answer in ("so", "a</t>so", "\nso", "so\n")]
    assert met == [True, False, False, True]
