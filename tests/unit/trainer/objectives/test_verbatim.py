"""Which chat templates write what messages say as it is: a template that may look at it, or change it, is not among them."""

from __future__ import annotations

from collections import Counter

import pytest
from jinja2 import nodes

from trainer.objectives.bases.conversations import verbatim
from trainer.objectives.bases.conversations.verbatim import writes_verbatim

LOOP = "{% for m in messages %}"
LOOKS = [
    "{{ m.content if m.content != 'a' else '' }}",
    "{% if m.content == 'a' %}{% endif %}{{ m.content }}",
    "{% if 'a' in m.content %}{% endif %}{{ m.content }}",
    "{% if m.content in 'abc' %}{% endif %}{{ m.content }}",
    "{% if m.content in ['a'] %}{% endif %}{{ m.content }}",
    "{% if m.content | length > 3 %}{% endif %}{{ m.content }}",
    "{% if m.content | trim %}{% endif %}{{ m.content }}",
    "{% if m.content is eq('a') %}{% endif %}{{ m.content }}",
    "{% if m.content is lower %}{% endif %}{{ m.content }}",
    "{% if m.content.startswith('a') %}{% endif %}{{ m.content }}",
    "{% if 'abc'.startswith(m.content) %}{% endif %}{{ m.content }}",
    "{% if not (m.role == 'user' and m.content ~ 'x' == 'ax') %}{% endif %}{{ m.content }}",
    "{% for c in m.content %}{{ c }}{% endfor %}",
    "{% for i in range(m.content | length) %}x{% endfor %}{{ m.content }}",
    "{{ m.content | upper }}",
    "{{ m.content | replace('a', 'b') }}",
    "{{ m.content | trim('x') }}",
    "{{ m.content | trim(*['x']) }}",
    "{{ m.content | trim(**{'chars': 'x'}) }}",
    "{{ m.content.strip('x') }}",
    "{{ m.content.strip(*['x']) }}",
    "{{ m.content.lstrip() }}",
    "{{ m.content | tojson | length }}",
    "{{ m.content | e }}",
    "{{ ('x' | e) + m.content }}",
    "{{ ('x' | safe) ~ m.content }}",
    "{{ lipsum() + m.content }}",
    "{{ ['x'] | map('e') | first + m.content }}",
    "{% autoescape true %}{{ m.content }}{% endautoescape %}",
    "{{ m.content[0] }}",
    "{{ m.content[1:] }}",
    "{{ m.content * 2 }}",
    "{{ '%s' % m.content }}",
    "{{ '%s' | format(m.content) }}",
    "{{ '{}'.format(m.content) }}",
    "{{ 'x'.join([m.content, 'y']) }}",
    "{{ [m.content] | join }}",
    "{{ (m.content + ' ') | trim }}",
    "{{ m }}",
    "{{ m.values() | list }}",
    "{{ m.items() }}",
    "{{ m['values']() }}",
    "{{ m.get('values') or m.pop('content') }}",
    "{{ m | dictsort }}",
    "{% for k, v in m.items() %}{{ v }}{% endfor %}",
    "{% for k in m %}{{ m[k] }}{% endfor %}",
    "{{ m[('con' ~ 'tent')] }}",
    "{{ messages | map(attribute='content') | join }}",
    "{{ messages | selectattr('content', 'equalto', 'a') | list | length }}",
    "{{ messages | tojson }}",
    "{{ messages }}",
    "{{ messages | sum(attribute='content') }}",
    "{% if messages | groupby('content') | length > 1 %}{% endif %}{{ m.content }}",
    "{% if m == messages[-1] %}{% endif %}{{ m.content }}",
    "{% if loop.changed(m.content) %}{% endif %}{{ m.content }}",
    "{% if loop.previtem and loop.previtem.content == m.content %}{% endif %}{{ m.content }}",
    "{% set c %}{{ m.content }}{% endset %}{{ c | trim }}",
    "{% set c = m.content %}{% if c == 'a' %}{% endif %}{{ c }}",
    "{% set c = m.content ~ '' %}{% if c %}{% endif %}{{ c }}",
    "{% set ns = namespace(c=m.content) %}{% if ns.c == 'a' %}{% endif %}{{ m.content }}",
    "{% set ns = namespace() %}{% set ns.c = m.content %}{% set other = ns %}{% if other.c == 'a' %}{% endif %}{{ m.content }}",
    "{% set ns = namespace() %}{% set ns.c = m.content %}{% if ns['c'] == 'a' %}{% endif %}{{ m.content }}",
    "{% set namespace = dict %}{% set d = namespace(c=m.content) %}{% set all = d.values %}{{ all() }}",
    "{% set d = dict(c=m.content) %}{% if d.c == 'a' %}{% endif %}{{ m.content }}",
    "{% set d = {'c': m.content} %}{% if d.c == 'a' %}{% endif %}{{ m.content }}",
    "{% set d = [m.content] %}{% if d[0] == 'a' %}{% endif %}{{ m.content }}",
    "{% set a, b = m.content, 1 %}{{ a }}",
    "{% set a = m.content if m.role == 'user' else messages %}{{ m.content }}",
    "{% macro say(c) %}{% if c == 'a' %}{% endif %}{{ c }}{% endmacro %}{{ say(m.content) }}",
    "{% call(c) m.content.format() %}{% endcall %}",
    "{% filter upper %}{{ m.content }}{% endfilter %}",
    "{% with c = m.content %}{{ c | upper }}{% endwith %}",
    "{% block b %}{{ m.content | upper }}{% endblock %}",
    "{% include m.content %}",
    "{% generation %}{{ m.content | upper }}{% endgeneration %}",
    "{{ raise_exception(m.content) }}",
    "{{ strftime_now(m.content) }}",
]
LATER = [
    "{% set ns = namespace(c='') %}" + LOOP + "{% if ns.c == 'a' %}{% endif %}{{ m.content }}{% set ns.c = m.content %}{% endfor %}",
    "{% set ns = namespace(b='', c='') %}" + LOOP + "{% if ns.b == 'a' %}{% endif %}{{ m.content }}{% set ns.b = ns.c %}{% set ns.c = m.content %}{% endfor %}",
]  # fmt: skip
"""What a message says is asked for in the next turn of the loop, or in the one after that."""
WRITES = [
    "{{ m.content }}",
    "{{ m['content'] | trim }}",
    "{{ m.get('content', '').strip() }}",
    "{% if m.content is string and m.content is not none and m.content %}{{ m.content }}{% endif %}",
    "{% if 'tool_calls' in m and m['tool_calls'] is defined %}{{ m.tool_calls[0].name }}{% endif %}{{ m.content | default('') }}",
    "{% set c = m.content or '' %}{{ c }}",
    "{% if m.content is string %}{% set c = m.content %}{% else %}{% set c = '' %}{% endif %}{% if c %}{{ c }}{% endif %}",
    "{% if m.role == 'tool' %}{{ m.content | tojson }}{% else %}{{ m.role | capitalize }}{{ m.content }}{% endif %}",
    "{{ ['python', 'search'] | reject('equalto', 'python') | join }}{{ m.content }}",
    "{% if loop.previtem and loop.previtem.role != 'tool' and not loop.last %}x{% endif %}{{ m.content }}",
    "{% if messages | length > 2 and (messages | last).role == 'user' %}x{% endif %}{{ m.content }}",
    "{% if loop.index > 9 %}{% break %}{% endif %}{{ m.content }}",
    "{%- generation -%}{{ m.content }}{%- endgeneration %}",
]


@pytest.mark.parametrize("body", LOOKS)
def test_a_template_that_may_look_at_messages_is_not_verbatim(body):
    assert not writes_verbatim(f"{LOOP}{body}{{% endfor %}}")


@pytest.mark.parametrize("template", LATER)
def test_what_a_variable_becomes_later_counts(template):
    assert not writes_verbatim(template)


@pytest.mark.parametrize("body", WRITES)
def test_a_template_that_writes_messages_as_they_are_is_verbatim(body):
    assert writes_verbatim(f"{LOOP}{body}{{% endfor %}}")


def test_what_is_no_template_is_not_verbatim():
    assert not writes_verbatim("{% for m in messages %}")
    assert not writes_verbatim(f"{{{{ {'not ' * 2000}messages }}}}")


def test_each_part_of_an_expression_is_looked_at_once(monkeypatch):
    """Else, time would grow exponentially with its depth."""
    found = Counter[nodes.Node]()
    find_kind = verbatim._ContentFlow._find_kind

    def count(self, expression):
        found[expression] += 1
        return find_kind(self, expression)

    monkeypatch.setattr(verbatim._ContentFlow, "_find_kind", count)
    assert writes_verbatim("{{ messages[0].role" + " | lower" * 18 + " }}")
    assert len(found) > 18
    assert set(found.values()) == {1}
