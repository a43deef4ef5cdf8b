"""Conversations: which forms of messages are read, and that the assistant's tokens, with their end, and no others have a loss."""

from __future__ import annotations

import json
import random
import re
import string
from itertools import pairwise

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from params import ModelError
from params.schema import ObjectiveChoice
from params.sections.rows import TrainTokenizer
from tasks.tokenization.tokenizers import train_tokenizer
from trainer import objectives
from trainer.objectives.bases.conversations import chat
from trainer.objectives.bases.conversations.messages import (
    MARKS,
    count_unread_keys,
    looks_like_conversation,
    read_turns,
    why_conversation_unusable,
)
from trainer.objectives.bases.conversations.pictures import describe_picture_marks

WORDS = [
    "hello",
    "there",
    "what",
    "is",
    "two",
    "plus",
    "more?",
    "yes!",
    "naïve",
    "日本",
    "👩‍🚀",
    "1,234.5",
    "a\n\nb",
    "x\ty",
    "   c",
    "{}",
]
EDGES = ["", "", " ", "  ", "\n", " \n", "\n\n ", "\t"]
SPECIAL = ["<s>", "<e>", "<u>", "<a>", "<y>"]
TEXTS = [f"{one} {other}" for one in WORDS for other in WORDS]


def fast(backend, **names):
    backend.add_special_tokens(SPECIAL)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="<e>", pad_token="<s>", **names)


def byte_level(post_processor=None):
    backend = train_tokenizer(TEXTS, TrainTokenizer(kind="train", vocab_size=400, min_frequency=1)).backend_tokenizer
    if post_processor:
        backend.post_processor = post_processor
    return fast(backend)


def sentencepiece_like(**options):
    backend = Tokenizer(models.BPE(byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(**options)
    backend.decoder = decoders.Metaspace(**options)
    alphabet = sorted({*"".join(TEXTS + EDGES), *string.printable, "▁"})
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(TEXTS, trainer)
    return fast(backend)


def of_words():
    backend = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.train_from_iterator(TEXTS, trainers.WordLevelTrainer(special_tokens=["<unk>"], show_progress=False))
    return fast(backend, unk_token="<unk>")


TOKENIZERS = {
    "byte-level": byte_level,
    "byte-level, offsets without white space": lambda: byte_level(processors.ByteLevel(trim_offsets=True)),
    "begins with a space": lambda: sentencepiece_like(prepend_scheme="first", split=False),
    "each word begins with a space": lambda: sentencepiece_like(prepend_scheme="always", split=True),
    "words": of_words,
}
CALLS = "{% if m.tool_calls %}{% for call in m.tool_calls %}<call>{{ call.function | tojson }}{% endfor %}{% endif %}"
TEMPLATES = {
    "end within": (
        "{% for m in messages %}{% if m.role == 'assistant' %}<a>{% generation %}{{ m.content }}"
        + CALLS
        + "<e>{% endgeneration %}{% else %}<u>{{ m.content }}<e>{% endif %}{% endfor %}"
    ),
    "end outside": (
        "{% for m in messages %}{% if m.role == 'assistant' %}<a> {% generation %}{{ m.content }}" + CALLS + ""
        "{% endgeneration %}<e>{% else %}<u>{{ m.role }} {{ m.content }}<e>{% endif %}{% endfor %}"
    ),
    "white space around the tags": (
        "{% for m in messages %}\n  {%- if m.role == 'assistant' %}\n<a>\n  {% generation %}\n{{ m.content }}"
        + CALLS
        + "\n    {%- endgeneration %}\n<e>{% else %}\n<u>{{ m.content }}<e>\n  {%- endif %}\n{% endfor %}"
    ),
    "within a macro": (
        "{% macro say(m) %}{% if m.role == 'assistant' %}<a>{% generation %}{{ m.content }}" + CALLS + ""
        "{% endgeneration %}<e>{% else %}<u>{{ m.content }}<e>{% endif %}{% endmacro %}"
        "{% for m in messages %}{{ say(m) }}{% endfor %}"
    ),
    "begins with the assistant's text": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}" + CALLS + ""
        "{% endgeneration %}<e>{% else %}<u>{{ m.content }}<e>{% endif %}{% endfor %}"
    ),
    "without tags": (
        "{% for m in messages %}{{ {'assistant': '<a>', 'user': '<u>'}.get(m.role, '<y>') }}{{ m.content }}"
        + CALLS
        + "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
    ),
    "without tags, with spaces": (
        "{{ bos_token }}{% for m in messages %}{{ {'assistant': 'A: ', 'user': 'U: '}.get(m.role, 'Y: ') }}"
        "{{ m.content }}" + CALLS + "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}A: {% endif %}"
    ),
}


def conversation(chance):
    """A random conversation, and what the model has to say in it: each text, and what of it may be lost at its edges."""
    turns, said = [], []
    if chance.random() < 0.3:
        turns.append({"role": "system", "content": "be brief "})
    for _ in range(chance.randint(1, 4)):
        turns.append({"role": "user", "content": words(chance)})
        answer = {"role": "assistant", "content": words(chance)}
        if chance.random() < 0.3:
            call = {"name": "add", "arguments": {"left": chance.randint(1, 99), "why": None}}
            answer |= {"content": chance.choice([None, "", answer["content"]]), "tool_calls": [{"function": call}]}
            if answer["content"] is not None and chance.random() < 0.5:
                answer["name"] = None
        turns.append(answer)
        said.append(answer)
    if chance.random() < 0.3:
        turns.append({"role": "user", "content": words(chance)})
    return (turns[1:] if chance.random() < 0.2 and turns[1]["role"] == "assistant" else turns), said


def words(chance):
    return chance.choice(EDGES) + " ".join(chance.choices(WORDS, k=chance.randint(1, 5))) + chance.choice(EDGES)


def call_text(answer):
    calls = answer.get("tool_calls") or ()
    return "".join(
        f'<call>{{"name": "add", "arguments": {{"left": {call["function"]["arguments"]["left"]}, "why": null}}}}'
        for call in calls
    )


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_only_the_assistants_tokens_have_a_loss(tokenizer, template):
    chance, tokenizer_name, tokenizer = random.Random(f"{tokenizer} {template}"), tokenizer, TOKENIZERS[tokenizer]()
    sft = objectives.build_objective(
        ObjectiveChoice(name="sft", messages_column="talk", chat_template=TEMPLATES[template])
    )
    sft.prepare_tokenizer(tokenizer)
    rows = [(i, *conversation(chance)) for i in range(60)]
    assert [sft.reject_reason({"talk": turns}) for _, turns, _ in rows] == [None] * len(rows)
    encoded = sft.encode([{"row_id": i, "talk": turns} for i, turns, _ in rows], tokenizer, 10_000, {})
    for (_, turns, said), (examples, _) in zip(rows, encoded, strict=True):
        is_greeting = template.startswith("without tags") and turns[0] is said[0]  # it answers nothing
        answers = said[is_greeting:]
        assert len(examples) == bool(answers)
        if not answers:
            continue
        runs, ids, labels = [], examples[0]["input_ids"], examples[0]["labels"]
        assert examples[0]["bytes"] > 0, "also of tool calls alone"
        for i, label in enumerate(labels):
            assert label in (-100, ids[i])
            if label != -100:
                runs += [[]] if i == 0 or labels[i - 1] == -100 else []
                runs[-1].append(label)
        starts_at_once = template.startswith("begins") and turns[0] in answers[:1]
        expected = [f"{answer['content'] or ''}{call_text(answer)}<e>" for answer in answers]
        found = ["".join(tokenizer.decode(run)) for run in runs]
        if starts_at_once:  # nothing predicts its first token
            assert len(found) == len(expected)
            assert comparable(expected[0], tokenizer_name).endswith(comparable(found[0], tokenizer_name))
            found, expected = found[1:], expected[1:]
        assert [comparable(text, tokenizer_name) for text in found] == [
            comparable(text, tokenizer_name) for text in expected
        ]
        assert (tokenizer.eos_token_id, tokenizer.eos_token_id) not in pairwise(ids)


def comparable(text, tokenizer):
    """A text as a tokenizer can tell it: others than byte-level ones know no white space, or not how much of it."""
    if tokenizer.startswith("byte"):
        return text
    if tokenizer == "words":
        known = {word for one in WORDS for word in one.split()} | {"<e>"}
        text = " ".join(w if w in known else "<unk>" for w in text.replace("<e>", " <e>").split())
    return re.sub(r"\s", "", text)


def test_a_tokenizer_without_offsets_is_refused(monkeypatch):
    tokenizer = byte_level()

    class Blind:
        offsets = ((0, 0),) * 3

    monkeypatch.setattr(
        "trainer.objectives.bases.texts.tokenizing.encode_texts", lambda texts, *_, **__: [Blind()] * len(texts)
    )
    with pytest.raises(ModelError, match=r"(?s)does not say which characters .*fast tokenizer with offsets"):
        chat.ConversationTokenizer(tokenizer)


def test_a_template_that_trims_marked_text_is_refused():
    """Its marks would keep the white space, so nobody could say where the assistant's text is."""
    tokenizer = byte_level()
    tokenizer.chat_template = (
        "{% macro say(m) %}{% generation %}{{ m.content }}{% endgeneration %}{% endmacro %}"
        "{% for m in messages %}{{ say(m) | trim }}{% endfor %}"
    )
    read = chat.ConversationTokenizer(tokenizer)
    assert read.why_refused([{"role": "assistant", "content": "yes"}]) is None
    assert "changes what it writes between" in read.why_refused([{"role": "assistant", "content": "yes "}])


THOUGHTS = {
    "drops thoughts": "{% set c = m.content if loop.last or '[/y]' not in m.content else m.content.split('[/y]')[1] %}",
    "drops a key": "{% set c = ('[y]' + m.reasoning if loop.last and m.reasoning else '') + m.content %}",
    "opens with nothing": "{% set c = ('[y][/y]' if loop.last else '') + m.content %}",
    "after the last question": (
        "{% set ns = namespace(last=-1) %}{% for n in messages if n.role == 'user' %}{% set ns.last = n.at %}{% endfor %}"
        "{% set c = m.content if m.at > ns.last or '[/y]' not in m.content else m.content.split('[/y]')[1] %}"
    ),
    "drops nothing": "{% set c = m.content %}",
}
MARKING = {
    "marked": "{% generation %}{{ c }}<e>{% endgeneration %}",
    "marked, end outside": "{% generation %}{{ c }}{% endgeneration %}<e>",
    "marked in two": (
        "{% if c.startswith('[y]') %}{% generation %}[y]{% endgeneration %}{% endif %}"
        "{% generation %}{{ c.removeprefix('[y]') if c.removeprefix is defined else c }}<e>{% endgeneration %}"
    ),
    "unmarked": "{{ c }}<e>",
}


@pytest.mark.parametrize("marking", MARKING)
@pytest.mark.parametrize("thoughts", THOUGHTS)
def test_each_answer_is_learned_as_the_model_writes_it(thoughts, marking):
    """Whatever the chat template drops of it once more turns follow."""
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}<a>" + THOUGHTS[thoughts] + MARKING[marking] + ""
        "{% else %}<u>{{ m.content }}<e>{% endif %}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
    )
    chance, tokenizer = random.Random(f"{thoughts} {marking}"), byte_level()
    sft = objectives.build_objective(ObjectiveChoice(name="sft", messages_column="talk", chat_template=template))
    sft.prepare_tokenizer(tokenizer)
    counts = set()
    for number in range(15):
        turns = [{"role": "user", "content": f"{words(chance)} ?"}]
        for _ in range(chance.randint(1, 4)):
            thought = chance.choice(["", f"[y]{words(chance)}[/y]"]) if thoughts != "drops a key" else ""
            turns.append({"role": "assistant", "content": f"{thought}{words(chance)}."})
            if thoughts == "drops a key" and chance.random() < 0.5:
                turns[-1]["reasoning"] = words(chance)
            turns.append({"role": chance.choice(["user", "user", "tool"]), "content": words(chance)})
        turns = [{**turn, "at": i} for i, turn in enumerate(turns[: len(turns) - chance.randint(0, 1)])]
        asked = [i for i, turn in enumerate(turns) if turn["role"] == "assistant"]
        prompts = [tokenizer.apply_chat_template(turns[:i], tokenize=False, add_generation_prompt=True) for i in asked]
        said = [tokenizer.apply_chat_template(turns[: i + 1], tokenize=False) for i in asked]
        answers = [whole.removeprefix(before) for whole, before in zip(said, prompts, strict=True)]
        assert sft.reject_reason({"talk": turns}) is None
        ((examples, is_cut),) = sft.encode([{"row_id": number, "talk": turns}], tokenizer, 10_000, {})
        learned = [tokenizer.decode([t for t in example["labels"] if t != -100]) for example in examples]
        assert "".join(learned) == "".join(answers)
        assert not is_cut
        assert sft.says_all({"talk": turns}, examples, tokenizer)
        counts.add(len(examples) > 1)
        if len(examples) > 1:
            assert learned == answers
            for example, before in zip(examples, prompts, strict=True):
                place = next(i for i, label in enumerate(example["labels"]) if label != -100)
                assert example["input_ids"][:place] == tokenizer(before, add_special_tokens=False)["input_ids"]
    assert (True in counts) == (thoughts != "drops nothing")


@pytest.mark.parametrize("marking", MARKING)
@pytest.mark.parametrize("thoughts", ["drops thoughts", "drops nothing"])
def test_an_answer_with_weight_0_is_not_learned(thoughts, marking):
    """As OpenAI has it, and as `convert` writes it for the answers of a prompt."""
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}<a>" + THOUGHTS[thoughts] + MARKING[marking] + ""
        "{% else %}<u>{{ m.content }}<e>{% endif %}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
    )
    choice = {"name": "sft", "messages_column": "talk", "chat_template": template}
    sft, everything = (
        objectives.build_objective(ObjectiveChoice(**choice, completion_only=own)) for own in (True, False)
    )
    tokenizer = byte_level()
    for objective in (sft, everything):
        objective.prepare_tokenizer(tokenizer)
    user = {"role": "user", "content": "is two more?"}
    first, second, third = ({"role": "assistant", "content": f"[y]so[/y]{word}"} for word in ("yes!", "what", "hello"))
    turns = [user, first | {"weight": 1}, user, second | {"weight": 0}, user, third]
    assert sft.reject_reason({"talk": turns}) is None
    ((examples, _),) = sft.encode([{"row_id": 0, "talk": turns}], tokenizer, 10_000, {})
    learned = "".join(tokenizer.decode([t for t in example["labels"] if t != -100]) for example in examples)
    assert learned == f"{first['content']}<e>{third['content']}<e>"
    assert sft.says_all({"talk": turns}, examples, tokenizer)
    assert sum(example["bytes"] for example in examples) == len(first["content"] + third["content"])
    assert "weight: 0" in everything.reject_reason({"talk": turns})
    assert "not to be learned" in sft.reject_reason({"talk": turns[2:4]})


PLAIN = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]


WRITES_ALL = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<a>{{ m.reasoning_content }}{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}{{ m.function_call | tojson if m.function_call }}"
    "{{ eos_token if m.role == 'assistant' }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)
LOSES = {
    "what message 0, of the system, says": ("{{ m.content }}", "{{ m.content if m.role != 'system' }}"),
    "what message 2, of the assistant, says": ("{{ m.content }}", "{{ m.content if not m.tool_calls }}"),
    "what message 3, of the tool, says": ("{{ m.content }}", "{{ m.content if m.role != 'tool' }}"),
    "the reasoning_content of message 4": ("{{ m.reasoning_content }}", ""),
    "the call of the tool 'add' in message 2": ("{{ c | tojson }}", ""),
    "the argument 'value' in the call of the tool 'add' in message 2": (
        "{{ c | tojson }}",
        "{{ (c.function or c).name }}",
    ),
    "the call of the tool 'mul' in message 2": ("in m.tool_calls or []", "in (m.tool_calls or [])[:1]"),
    "the call of the tool 'sub' in message 4": (
        "{{ m.function_call | tojson if m.function_call }}",
        "{{ '' if m.function_call }}",
    ),
    "the thoughts of message 6": ("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}"),
}
LONG = [
    {"role": "system", "content": "Add, sub or mul one value."},
    {"role": "user", "content": "add 1 and mul 2"},
    {"role": "assistant", "content": "I add", "tool_calls": []},
    {"role": "tool", "content": "2", "name": "add"},
    {"role": "assistant", "content": "1", "reasoning_content": "add", "function_call": {"name": "sub"}},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "<think>add</think>add"},
]


def with_calls(form, as_json):
    arguments = [json.dumps(own) if as_json else own for own in ({"value": 1}, {"value": 2})]
    calls = [form({"name": name, "arguments": own}) for name, own in zip(["add", "mul"], arguments, strict=True)]
    return [*LONG[:2], LONG[2] | {"tool_calls": calls}, *LONG[3:]]


def conversation_objectives(template):
    """Each kind of objective that renders conversations, and a row of it from messages."""
    chat_options = {"chat": True, "prompt_column": None}
    kinds = {
        "sft": (
            {"messages_column": "talk", "chat_template": template},
            lambda turns: {"talk": turns},
        ),
        "dpo": (
            chat_options,
            lambda turns: {"chosen": turns, "rejected": [*turns[:-1], {"role": "assistant", "content": "No"}]},
        ),
        "kto": (chat_options, lambda turns: {"completion": turns, "liked": True}),
        "reward": (
            chat_options,
            lambda turns: {"chosen": turns, "rejected": [*turns[:-1], {"role": "assistant", "content": "No"}]},
        ),
    }
    tokenizer = byte_level()
    tokenizer.chat_template = template
    for name, (options, row) in kinds.items():
        objective = objectives.build_objective(ObjectiveChoice(name=name, **options))
        objective.prepare_tokenizer(tokenizer)
        yield name, objective, row


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("form", [lambda call: call, lambda call: {"type": "function", "function": call}])
@pytest.mark.parametrize("lost", LOSES)
def test_what_the_template_does_not_write_is_said(lost, form, as_json):
    turns = with_calls(form, as_json)
    loses = WRITES_ALL.replace(*LOSES[lost])
    assert loses != WRITES_ALL
    for template in (WRITES_ALL, loses):
        for name, objective, row in conversation_objectives(template):
            reason = objective.reject_reason(row(turns)) or ""
            is_of_prompt = name != "sft" and lost == "the reasoning_content of message 4"
            is_written = template == WRITES_ALL or is_of_prompt
            assert reason.partition(":")[0] == ("" if is_written else f"the chat template does not write {lost}"), name
            assert objective.reject_reason(row(PLAIN)) is None, name


@pytest.mark.parametrize("form", [lambda call: call, lambda call: {"type": "function", "function": call}])
@pytest.mark.parametrize(
    "arguments",
    [
        "{{ (c.function or c).arguments | tojson }}",
        "{ {%- for k, v in (c.function or c).arguments | items %}{{ k | tojson }}: {{ v }}{% endfor %}}",
        "{{ '' + (c.function or c).arguments }}",
        "{{ a if a is string else a | tojson }}",
    ],
)
def test_arguments_that_are_json_are_written_as_objects_are(arguments, form):
    own = f"{{% set a = (c.function or c).arguments %}}{{{{ (c.function or c).name }}}} {arguments}"
    template = WRITES_ALL.replace("{{ c | tojson }}", own)
    for name, objective, row in conversation_objectives(template):
        tokens = []
        for as_json in (False, True):
            given = row(with_calls(form, as_json)) | {"row_id": 0}
            assert objective.reject_reason(given) is None
            ((examples, _),) = objective.encode([given], objective._conversations.tokenizer, 10_000, {})
            tokens.append(examples)
        assert tokens[0] == tokens[1]
        if name == "sft":
            text = objective._conversations.tokenizer.decode(tokens[0][0]["input_ids"])
            assert 'add {"value": 1}mul {"value": 2}' in text


@pytest.mark.parametrize(
    "arguments",
    [
        "{{ c.arguments }}",
        "{{ c.arguments | replace(' ', '') }}",
        "{{ c.arguments if c.name == 'add' else c.arguments | tojson }}",
    ],
)
def test_json_that_a_template_writes_as_it_is_stays(arguments):
    call = {"name": "add", "arguments": '{"value":1.50}'}
    turns = [PLAIN[0], {"role": "assistant", "content": "", "tool_calls": [call]}]
    for name, objective, _ in conversation_objectives(
        WRITES_ALL.replace("{{ c | tojson }}", "{{ c.name }}" + arguments)
    ):
        assert 'add{"value":1.50}' in objective._conversations._render(objective._conversations.read(turns)), name


@pytest.mark.parametrize(
    "demand",
    [
        "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}",
        "{% for m in messages %}{% if not m.content %}{{ raise_exception('empty') }}{% endif %}{% endfor %}",
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ raise_exception('id') if c.id[:5] != 'call_' }}{% endfor %}{% endfor %}",
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ raise_exception('tool') if c.name != 'add' }}{% endfor %}{% endfor %}",
    ],
)
def test_templates_that_refuse_some_conversations_get_objects_too(demand):
    call = {"id": "call_1", "name": "add", "arguments": '{"value": 1}'}
    turns = [LONG[0], PLAIN[0], {"role": "assistant", "content": "a", "tool_calls": [call]}]
    for name, objective, _ in conversation_objectives(demand + WRITES_ALL):
        read = objective._conversations.read(turns)
        assert read[2]["tool_calls"][0]["arguments"] == {"value": 1}, name


BROKEN = ("[1]", "{", '"a"', "[" * 100_000, '{"x": 1e400}', '{"x": NaN}', '{"x": 1, "x": 2}', '{"x": "\\ud83d"}')


@pytest.mark.parametrize("arguments", BROKEN)
def test_arguments_that_are_no_json_of_an_object_are_said(arguments):
    """They would be escaped twice; a template that writes the text as it is has no need to read it."""
    verbatim = WRITES_ALL.replace("{{ c | tojson }}", "{{ c.name }}{{ c.arguments }}")
    turns = [PLAIN[0], {"role": "assistant", "content": "", "tool_calls": [{"name": "add", "arguments": arguments}]}]
    for template in (WRITES_ALL, verbatim):
        for name, objective, row in conversation_objectives(template):
            given = row([*turns, PLAIN[1]]) if name in {"dpo", "reward"} else row(turns)
            reason = objective.reject_reason(given)
            if template == verbatim:
                assert reason is None
                assert objective._conversations.read(turns)[1] == turns[1]
            else:
                assert reason.startswith("message 1 calls a tool with arguments that are no JSON of an object: ")


def test_no_arguments_are_an_empty_object():
    for _, objective, _ in conversation_objectives(WRITES_ALL):
        call = {"role": "assistant", "content": "", "tool_calls": [{"name": "add", "arguments": ""}]}
        assert objective._conversations.read([PLAIN[0], call])[1]["tool_calls"][0]["arguments"] == {}


FORMS_OF_CALLS = {
    "OpenAI's of before": [
        PLAIN[0],
        {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": '{"value": 1}'}},
        {"role": "function", "name": "add", "content": "2"},
        PLAIN[1],
    ],
    "without content": [
        PLAIN[0],
        {"role": "assistant", "function_call": {"name": "add", "arguments": {"value": 1}}},
        {"role": "tool", "name": "add", "content": "2"},
        PLAIN[1],
    ],
    "ShareGPT's, an object": [
        {"from": "human", "value": "Hi"},
        {"from": "function_call", "value": [{"name": "add", "arguments": '{"value": 1}'}]},
        {"from": "tool", "value": "2"},
        {"from": "gpt", "value": "Yes"},
    ],
    "ShareGPT's": [
        {"from": "human", "value": "Hi"},
        {"from": "function_call", "value": '{"name": "add", "arguments": {"value": 1}}'},
        {"from": "observation", "value": "2"},
        {"from": "gpt", "value": "Yes"},
    ],
}


@pytest.mark.parametrize("form", FORMS_OF_CALLS)
def test_forms_of_calls_give_the_same_tokens(form):
    turns, template = FORMS_OF_CALLS[form], WRITES_ALL.replace("m.function_call", "m.no_key")
    call = {"type": "function", "function": {"name": "add", "arguments": {"value": 1}}}
    usual = [
        PLAIN[0],
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "2"},
        PLAIN[1],
    ]
    assert looks_like_conversation(turns)
    for name, objective, row in conversation_objectives(template):
        assert objective.reject_reason(row(turns)) is None, name
        tokenizer = objective._conversations.tokenizer
        one, other = (objective.encode([row(own) | {"row_id": 0}], tokenizer, 10_000, {}) for own in (turns, usual))
        assert one[0].examples == other[0].examples, name


DROPS_BEFORE = WRITES_ALL.replace("{{ m.content }}", "{{ m.content.split('<think>')[-1] }}")
DROPS_THOUGHTS = WRITES_ALL.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")


@pytest.mark.parametrize(
    ("template", "answer", "lost"),
    [
        (DROPS_BEFORE, "Surely <think>hm</think>yes", "what message 1, of the assistant, says"),
        (DROPS_BEFORE, "<think>a</think>b<think>c</think>d", "the thoughts of message 1"),
        (DROPS_THOUGHTS, "hm</think>yes", "the thoughts of message 1"),
        (DROPS_THOUGHTS.replace("</think>", "[/THINK]"), "[THINK]hm[/THINK]yes", "the thoughts of message 1"),
        (
            DROPS_THOUGHTS.replace("</think>", "<channel|>"),
            "<|channel>thought\nhm<channel|>yes",
            "the thoughts of message 1",
        ),
        (DROPS_THOUGHTS, "<think>\n\n</think>yes", None),
        (DROPS_THOUGHTS, "<think>hm", None),
    ],
)
def test_thoughts_are_looked_for_between_tags(template, answer, lost):
    turns = [PLAIN[0], {"role": "assistant", "content": answer}]
    for name, objective, row in conversation_objectives(template):
        reason = objective.reject_reason(row(turns)) or ""
        assert reason.partition(":")[0] == (f"the chat template does not write {lost}" if lost else ""), name


def test_tags_around_the_result_of_a_tool_stay():
    """Templates look for them, to tell such messages from questions, before which they drop thoughts."""
    template = (
        "{% for m in messages %}{% if m.role == 'user' and not m.content.startswith('<tool_response>') %}{% set ns.asked = loop.index0 %}"
        "{% endif %}{% endfor %}{% for m in messages %}<{{ m.role }}>"
        "{{ m.content if loop.index0 > ns.asked else m.content.split('</think>')[-1] }}{{ eos_token }}{% endfor %}"
    )
    template = "{% set ns = namespace(asked=0) %}" + template
    thought = {"role": "assistant", "content": "<think>hm</think>Yes"}
    turns = [PLAIN[0], thought, {"role": "user", "content": "<tool_response>\n2\n</tool_response>"}, thought]
    options = {"messages_column": "talk", "chat_template": template, "completion_only": False}
    sft = objectives.build_objective(ObjectiveChoice(name="sft", **options))
    sft.prepare_tokenizer(byte_level())
    assert sft.reject_reason({"talk": turns}) is None
    question = {"role": "user", "content": "Why?"}
    assert "set objective.completion_only to true" in sft.reject_reason({"talk": [*turns[:2], question, thought]})


def test_a_model_that_learns_all_is_asked_for_all():
    template = WRITES_ALL.replace(
        "{% for m in messages %}", "{% for m in messages if m.role != 'system' or loop.first %}", 1
    )
    turns = [*PLAIN, {"role": "system", "content": "End."}]
    for only in (True, False):
        options = {
            "messages_column": "talk",
            "chat_template": template.replace("loop.first", "false"),
            "completion_only": only,
        }
        sft = objectives.build_objective(ObjectiveChoice(name="sft", **options))
        sft.prepare_tokenizer(byte_level())
        reason = sft.reject_reason({"talk": [turns[0], turns[1] | {"name": "Eve"}, turns[2]]})
        assert (reason is None) == only
        assert only or "what message 2, of the system, says" in reason


def test_thoughts_of_a_first_message_which_has_no_loss_are_not_asked_for():
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content if loop.last else m.content.split('</think>')[-1] }}{% endfor %}"
    thought = {"role": "assistant", "content": "<think>hm</think>Hello"}
    for name, objective, row in conversation_objectives(template):
        assert objective.reject_reason(row([thought, *PLAIN])) is None, name


def test_thoughts_that_the_text_says_too_are_written():
    template = WRITES_ALL.replace("{{ m.reasoning_content }}", "")
    turns = [PLAIN[0], {"role": "assistant", "content": "<think>hm</think>Yes", "reasoning_content": "hm"}]
    assert all(objective.reject_reason(row(turns)) is None for _, objective, row in conversation_objectives(template))


@pytest.mark.parametrize("as_json", [False, True])
def test_the_template_of_a_new_recipe_writes_calls_of_tools(as_json):
    advised = objectives.import_objective_class("sft").advice.options({"messages": "talk"}, has_template=False)
    template = advised["chat_template"].value
    turns = [*with_calls(lambda call: {"type": "function", "function": call}, as_json)[:4], PLAIN[1]]
    objective = objectives.build_objective(ObjectiveChoice(name="sft", messages_column="talk", chat_template=template))
    tokenizer = byte_level()
    objective.prepare_tokenizer(tokenizer)
    assert objective.reject_reason({"talk": turns}) is None
    ((examples, _),) = objective.encode([{"row_id": 0, "talk": turns}], tokenizer, 10_000, {})
    learned = [tokenizer.decode([token for token in own["labels"] if token != -100]) for own in examples]
    calls = ['{"name": "add", "arguments": {"value": 1}}', '{"name": "mul", "arguments": {"value": 2}}']
    assert learned == [f"I add{''.join(f'<|call|>{call}' for call in calls)}<e>Yes<e>"]


@pytest.mark.parametrize(
    ("messages", "read"),
    [
        (PLAIN, PLAIN),
        ([{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes"}], PLAIN),
        ([{"from": "Human", "value": "Hi", "role": None}, {"from": "gpt", "value": "Yes", "content": None}], PLAIN),
        (
            [{"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}, PLAIN[1]],
            PLAIN,
        ),
        ([PLAIN[0] | {"name": None, "tool_calls": None}, PLAIN[1]], PLAIN),
        *(([PLAIN[0] | {"role": name}, PLAIN[1]], PLAIN) for name in ("human", "User", "HUMAN")),
        *(([PLAIN[0], PLAIN[1] | {"role": name}], PLAIN) for name in ("gpt", "Assistant", "chatgpt", "bot", "model")),
        (
            [{"role": "developer", "content": "Be brief"}, *PLAIN],
            [{"role": "developer", "content": "Be brief"}, *PLAIN],
        ),
        ([*PLAIN, {"role": "critic", "content": "No"}], [*PLAIN, {"role": "critic", "content": "No"}]),
    ],
)
def test_messages_are_read_in_the_forms_that_people_have(messages, read):
    assert read_turns(messages) == read
    assert looks_like_conversation(messages)
    assert why_conversation_unusable(messages) is None


def test_null_content_beside_tool_calls_is_no_text_and_their_arguments_stay():
    call = {"id": None, "function": {"name": "add", "arguments": {"left": 1, "why": None}, "strict": None}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    read = {"function": {"name": "add", "arguments": {"left": 1, "why": None}}}
    assert read_turns([answer]) == [{"role": "assistant", "content": "", "tool_calls": [read]}]
    assert why_conversation_unusable([PLAIN[0], answer]) is None
    assert "is not {role, content}" in why_conversation_unusable([PLAIN[0], answer | {"tool_calls": None}])


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"from": "narrator", "value": "a"}, "message 0 is from 'narrator', and not from human"),
        ({"from": "gpt", "value": None}, "message 0 is not {role, content} with text in both"),
        ({"role": "user", "content": [{"type": "image", "url": "a.png"}]}, "message 0 has a part that is no text"),
        ({"role": "assistant", "content": "", "tool_calls": []}, "message 0, of the assistant, is empty"),
        (
            {"role": "assistant", "content": "", "tool_calls": "[]"},
            "message 0 has tool_calls that are no list of {name, arguments}",
        ),
        (
            {"role": "assistant", "tool_calls": {"name": "add"}},
            "message 0 has tool_calls that are no list of {name, arguments}",
        ),
        ({"role": "assistant", "content": "a", "tool_calls": ["add"]}, "message 0 has tool_calls that are no list"),
        (
            {"role": "assistant", "content": "a", "tool_calls": [{"id": "1"}]},
            "message 0 has tool_calls that are no list",
        ),
        ({"role": "assistant", "content": "a", "function_call": "add"}, "message 0 has a function_call that is no"),
        ({"from": "function_call", "value": "add(1)"}, "message 0 is from function_call, and no JSON of a call"),
        ({"from": "function_call", "value": "[1]"}, "message 0 is from function_call, and says no {name, arguments}"),
        ({"role": "assistant", "content": "a", "weight": 0}, "all messages of the assistant are marked as not"),
    ],
)
def test_a_message_that_cannot_be_read_is_named(message, reason):
    assert reason in why_conversation_unusable([message])


@pytest.mark.parametrize("off", [0, 0.0, False])
@pytest.mark.parametrize("mark", ["weight", "loss_weight", "loss", "train", "training", "trainable"])
def test_every_mark_of_what_is_not_learned_is_honoured(mark, off):
    user, answer = ({"role": role, "content": "yes"} for role in ("user", "assistant"))
    assert read_turns([user, answer | {mark: off}, user, answer | {mark: 1 - off}])[1] == answer | {"weight": off}
    sft = objectives.build_objective(ObjectiveChoice(name="sft", messages_column="talk", chat_template=WRITES_ALL))
    sft.prepare_tokenizer(tokenizer := byte_level())
    ((examples, _),) = sft.encode(
        [{"row_id": 0, "talk": [user, answer | {mark: off}, user, answer]}], tokenizer, 99, {}
    )
    learned = [[label for label in example["labels"] if label != -100] for example in examples]
    assert list(map(tokenizer.decode, learned)) == ["<a>yes<e>"] or list(map(tokenizer.decode, learned)) == ["yes<e>"]
    another = next(name for name in MARKS if name != mark)
    for other, said in (({mark: 0.5}, "only 0 and 1"), ({mark: off, another: 1}, "contradict")):
        assert said in why_conversation_unusable([user, answer | other])


def test_keys_that_nobody_reads_are_counted():
    talk = [{"role": "user", "content": "a", "mood": "good", "lang": None}, {"from": "gpt", "value": "b", "loss": 1}]
    assert count_unread_keys([talk, talk, "no list"], "{{ m.content }}") == {"mood": 2}
    assert not count_unread_keys([talk], "{{ m.mood }}")


@pytest.mark.parametrize(
    "said",
    [
        *({"content": text} for text in ("<image>What is it?", "<image>\n<image>\nWhat?", "What is it?\n<image>")),
        *({"content": text} for text in ("<video> what?", "a <|image|> b", "a [IMG] b", "<image 1> what?")),
        *({"content": "what?", key: ["a.png"]} for key in ("image", "images", "videos", "audio")),
        {"content": [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": "a.png"}}]},
        {"content": [{"type": "text", "text": "what?"}, {"type": "input_audio", "input_audio": {}}]},
    ],
)
def test_pictures_and_sound_are_refused(said):
    assert why_conversation_unusable([{"role": "user", **said}, PLAIN[1]])
    if isinstance(said["content"], str) and len(said) == 1:
        for name, options in (("sft", {}), ("dpo", {})):
            objective = objectives.build_objective(ObjectiveChoice(name=name, **options))
            row = {"prompt": said["content"], "completion": "a", "chosen": "a", "rejected": "b"}
            assert "no objective reads pictures or sound" in objective.reject_reason(row)


@pytest.mark.parametrize(
    "text", ["<image>a.png</image>", "use <img> here", "How do I show a <video>?", "[IMAGE]", "<images>", "a < b"]
)
def test_words_about_pictures_are_text(text):
    assert describe_picture_marks(text) is None
    assert why_conversation_unusable([{"role": "user", "content": text, "images": []}, PLAIN[1]]) is None
